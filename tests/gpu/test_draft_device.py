"""A draft model on a device of its own: the same drafts and tokens, by bits, as beside the model.

With --pack the tests run on the devices 0 and 1 of the pack's vendor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
import pytest
from draft_pairs import Pair
from drafts import SAMPLINGS, Writer, random_tree
from engines import open_engine, random_ids
from lucebox import LLM, _engine
from lucebox.errors import InvalidRequestError, UnsupportedError
from lucebox.generation import loading
from lucebox.packs import Selection
from lucebox.packs.devices import resolve_draft_device
from reference import dflash, draft_files
from reference.decoder import Decoder
from reference.draft_files import DraftShape
from reference.gguf_files import Shape, write_model
from reference.mtp import Mtp
from text_data import TINY_HYBRID

VOCAB = 70  # some tokens are guessed by random weights
HEADS: dict[str, Any] = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 64, "vocab": VOCAB, "ffn": 96}
TARGET = Shape("qwen35", n_layers=2, recurrent=(True, False), d_state=64, n_k_heads=2, n_v_heads=4, n_mtp=1, **HEADS)
DRAFT = DraftShape(
    head_dim=64, n_target_layers=2, taps=(1, 0), sliding=(True, False), vocab=VOCAB, mask_token=VOCAB - 1
)
DRAFTS = ["mtp", "dflash"]
RESERVED = 256 << 20  # bytes that plans leave to the driver


@pytest.fixture(scope="module")
def packs(pack_folder: Path) -> list[_engine.gpu.Pack]:
    return gpu_packs.load_on_devices(pack_folder, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("draft_device")
    write_model(made / "target.gguf", TARGET)
    draft_files.write_gguf(made / "dflash.gguf", DRAFT)
    return made


def opened(packs: list[_engine.gpu.Pack], folder: Path, draft: str, apart: bool, **options: Any) -> _engine.Engine:
    named = str(folder / "dflash.gguf") if draft == "dflash" else draft
    where = {"pack": packs[0], "draft_pack": packs[1] if apart else None}
    return open_engine(folder / "target.gguf", draft=named, **where, **({"decode_path": "graph"} | options))


@pytest.mark.slow  # 3 s
@pytest.mark.parametrize("draft", ["mtp", pytest.param("dflash", marks=pytest.mark.slow)])  # 2 s each
def test_drafts_have_the_same_bits(packs: list[_engine.gpu.Pack], folder: Path, draft: str, seed: int) -> None:
    """Candidates after prompts, rows and trees, beside the model, on another device and in the fp64 reference."""
    named = str(folder / "dflash.gguf") if draft == "dflash" else "mtp"
    target = folder / "target.gguf"

    def pair(**where: Any) -> Pair:
        reference = Mtp(Decoder(target)) if draft == "mtp" else dflash.Dflash(DRAFT.config, draft_files.tensors(DRAFT))
        return Pair(target, named, reference, pack=packs[0], decode_path="graph", **where)

    pairs = pair(), pair(draft_pack=packs[1])
    for rows, n_kept in ((13, 13), (-7, 0), (1, 1), (70, 70), (-23, 0)):
        proposed = []
        for one in pairs:
            one.step(rows, n_kept, np.random.default_rng(seed + abs(rows)))
            proposed.append(one.drafting.propose(5, one.drafting.max_depth))
        assert all(np.array_equal(a, b) for a, b in zip(*proposed, strict=True))
    pairs[1].check(root=5)


@pytest.mark.parametrize("draft", ["mtp", pytest.param("dflash", marks=pytest.mark.slow)])  # 5 s each
@pytest.mark.parametrize("path", ["graph", pytest.param("megakernel", marks=pytest.mark.slow)])
def test_no_token_changes(packs: list[_engine.gpu.Pack], folder: Path, draft: str, path: str, seed: int) -> None:
    """Trees and plain steps by turns, over the end of a page."""
    engine = opened(packs, folder, draft, True, draft_budget=8, decode_path=path)
    prompt = random_ids(52, VOCAB, seed).tolist()
    expected = Writer(opened(packs, folder, "none", False, decode_path=path), prompt, False, **SAMPLINGS["drawn"])
    expected.write(18)
    one = Writer(engine, prompt, True, **SAMPLINGS["drawn"])
    for drafts, n in ((True, 4), (False, 5), (True, 4), (False, 1), (True, 4)):
        one.session.set_drafting(drafts)
        one.write(n)
    assert one.ids == expected.ids
    assert one.session.draft_counts["verified"] > 0


@pytest.mark.slow  # 3 s each
@pytest.mark.parametrize("draft", [pytest.param("mtp", marks=pytest.mark.slow), "dflash"])  # 3 s each
def test_plain_steps_leave_the_same_rows(packs: list[_engine.gpu.Pack], folder: Path, draft: str, seed: int) -> None:
    """Pages and rows of the draft model after steps, which hand over their tapped rows a page at a time."""
    states = []
    for apart in (False, True):
        one = Writer(opened(packs, folder, draft, apart), random_ids(55, VOCAB, seed).tolist(), False)
        one.write(20)
        states.append((one.ids, one.session.read_pages(0, 1), one.session.save()))
        one.session.set_drafting(True)
        one.write(4)
        states[-1] += (one.ids,)
    assert states[0][0] == states[1][0] and states[0][3] == states[1][3]
    assert np.array_equal(states[0][1], states[1][1]) and states[0][2] == states[1][2]


@pytest.mark.slow  # 6 s each
@pytest.mark.parametrize("draft", DRAFTS)
def test_passes_of_several_sequences(packs: list[_engine.gpu.Pack], folder: Path, draft: str, seed: int) -> None:
    """The same trees of all sequences are verified in the same passes."""
    prompts = [np.resize(random_ids(5, VOCAB, seed + i), 12 + i).tolist() for i in range(3)]
    results = []
    for apart in (False, True):
        engine = opened(packs, folder, draft, apart, draft_budget=5)
        writers = [Writer(engine, ids, True, **SAMPLINGS["penalised"]) for ids in prompts]
        sessions = [one.session for one in writers]
        for one in writers:
            one.session.sync(one.array)
            one.ids.append(one.session.sample(one.sampler))
        for _ in range(6):
            _engine.sync_together(sessions, [one.array for one in writers])
            _engine.start_samples(sessions, [one.sampler for one in writers])
            for one in writers:
                one.ids.append(one.session.sample(one.sampler))
        results.append([(one.ids, one.session.draft_counts) for one in writers])
    assert results[0] == results[1]
    assert all(counts["verified"] > 0 for _, counts in results[1])


def test_suggested_trees(packs: list[_engine.gpu.Pack], folder: Path, seed: int) -> None:
    """Accepted paths of any shape move the draft model's keys and values on its device."""
    prompt, rng = random_ids(53, VOCAB, seed).tolist(), np.random.default_rng(seed)
    future = Writer(opened(packs, folder, "mtp", False), prompt, False, **SAMPLINGS["penalised"]).write(14)
    one = Writer(opened(packs, folder, "mtp", True), prompt, False, **SAMPLINGS["penalised"])
    for i in range(len(future)):
        one.session.sync(one.array)
        tokens, parents = random_tree(rng, future[i + 1 : i + 12], int(rng.integers(1, 33)))
        one.session.suggest(np.array(tokens, np.int32) % VOCAB, parents)
        one.ids.append(one.session.sample(one.sampler))
    assert one.ids[len(prompt) :] == future
    assert one.session.draft_counts["accepted"] > len(future) / 8


@pytest.mark.slow  # 7 s
def test_sequences_are_saved_forked_and_swapped(packs: list[_engine.gpu.Pack], folder: Path, seed: int) -> None:
    """A snapshot continues on either engine."""
    alone, engine = (opened(packs, folder, "mtp", apart, draft_budget=8) for apart in (False, True))
    source = Writer(engine, random_ids(66, VOCAB, seed).tolist(), True)
    source.write(6)
    fork, loaded = Writer(engine, source.ids, True), Writer(alone, source.ids, True)
    fork.session.fork(source.session)
    loaded.session.load(source.session.save())
    expected = source.write(8)
    fork.session.swap_out()
    assert fork.write(8) == expected
    assert loaded.write(8) == expected


def test_the_plan_of_each_device(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    """The draft model's memory is on its device alone, and sessions use what is planned."""
    engine = opened(packs, folder, "mtp", True)
    target, drafter = ({name: n_bytes for name, n_bytes, *_ in part["entries"]} for part in engine.plan["parts"])
    assert [part["place"] for part in engine.plan["parts"]] == [pack.name for pack in packs]
    assert "draft weights" not in target and "draft KV cache" not in target
    assert drafter["draft weights"] > 0 and drafter["draft KV cache"] > 0
    assert 0 < drafter["weights"] < target["weights"]  # embedding and head
    assert "KV cache" not in drafter and "sampler" not in drafter
    assert engine.links[0].startswith(("peer", "host: "))
    if packs[0].target != "sim":
        return  # other processes allocate there
    devices = [_engine.gpu.Device(pack.device.vendor, pack.device.index) for pack in packs]
    before = [device.memory()[0] for device in devices]
    session = _engine.Session(engine)
    for device, free, part in zip(devices, before, engine.plan["parts"], strict=True):
        assert free - device.memory()[0] == sum(n for _, n, _, per_session in part["entries"] if per_session)
    assert session.n_tokens == 0


@pytest.mark.parametrize(
    ("device", "names", "message"),
    [
        ("cpu", ["cuda:0"], 'draft_device names a GPU, as cuda:1; got "cpu"'),
        ("cuda:1", ["cuda:0", "cuda:1"], "the whole model must be on one other GPU, and it is on cuda:0,cuda:1"),
        ("cuda:1", ["cpu"], "the whole model must be on one other GPU, and it is on cpu"),
        ("cuda", ["cuda:0"], "draft_device = cuda: the model is there"),
    ],
)
def test_devices_that_are_refused(device: str, names: list[str], message: str) -> None:
    of_model = [Selection(name, None, None, ()) for name in names]
    with pytest.raises(InvalidRequestError, match=message):
        resolve_draft_device(device, of_model)


def test_a_plan_without_loading(packs: list[_engine.gpu.Pack], pack_folder: Path, folder: Path) -> None:
    """As `inspect` makes it: the entries of the engine, on both devices."""
    engine = opened(packs, folder, "mtp", True)
    manifest = json.dumps(gpu_packs.manifest_of(pack_folder))
    facts = [(part["available_bytes"] + RESERVED, manifest, pack.device.n_sms, pack.name)
             for part, pack in zip(engine.plan["parts"], packs, strict=True)]  # fmt: skip
    options = dict(engine.options) | {"draft_model": "mtp"}
    plan, _ = _engine.plan_memory(str(folder / "target.gguf"), *facts[0], draft_device=facts[1], **options)
    assert [part["entries"] for part in plan["parts"]] == [part["entries"] for part in engine.plan["parts"]]


@pytest.fixture
def where(packs: list[_engine.gpu.Pack], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Options that name both devices, by which LLM finds the packs although they are not installed."""
    selections = [Selection(pack.name, pack.device, None, ()) for pack in packs]
    by_index = {pack.device.index: pack for pack in packs}
    monkeypatch.setattr(loading, "resolve_devices", lambda *_, **__: (selections[0],))
    monkeypatch.setattr(loading, "resolve_draft_device", lambda *_, **__: selections[1])
    monkeypatch.setattr(loading, "open_pack", lambda selection: by_index[selection.info.index])
    return {"device": packs[0].name, "draft_device": packs[1].name}


@pytest.mark.slow  # a real model on the simulator, which measures the costs of its steps
def test_llm(packs: list[_engine.gpu.Pack], where: dict[str, str]) -> None:
    options: dict[str, Any] = {"context": 128, "prefill_chunk": 64, "sessions": 1, "draft_budget": 3}
    with LLM(str(TINY_HYBRID), draft="mtp", **options, **where) as llm:
        assert (llm.options.device, llm.options.draft_device) == (packs[0].name, packs[1].name)
        assert f"draft model on {packs[1].name}, rows to it: " in llm.device_reason
        assert str(llm.memory_plan).count(" available (") == 2
        drafted = llm.generate("x = 1", max_tokens=6)
    with LLM(str(TINY_HYBRID), draft="none", **options, device=packs[0].name) as llm:
        assert llm.generate("x = 1", max_tokens=6).ids == drafted.ids


def test_a_model_that_drafts_without_a_model_takes_no_device(folder: Path, where: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError, match=r"draft_device = .* the model drafts with suffix"):
        LLM(str(folder / "target.gguf"), draft="suffix", **where)


def test_refusals(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"draft_device = .* there is none"):
        opened(packs, folder, "suffix", True)
    with pytest.raises(InvalidRequestError, match="a device is named twice"):
        opened([packs[0], packs[0]], folder, "mtp", True)
    with pytest.raises(UnsupportedError, match="needs GPUs, got cpu and"):
        open_engine(folder / "target.gguf", draft="mtp", draft_pack=packs[1])
    with pytest.raises(UnsupportedError, match="expert_slots and expert_memory need the draft model"):
        opened(packs, folder, "mtp", True, expert_slots=2)
