"""The draft model of a model whose layers are on several devices is on the last one: the same drafts and tokens, by
bits, as on one device.

With --pack the tests run on the devices 0, 1, ... of the pack's vendor."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
import pytest
from draft_pairs import Pair
from drafts import SAMPLINGS, Writer
from engines import open_engine, random_ids
from gemma_drafts import write_accepting_pair
from lucebox import LLM, _engine
from lucebox.errors import InvalidRequestError, OutOfMemoryError
from lucebox.generation import loading
from lucebox.packs import Selection
from reference import dflash, draft_files
from reference.decoder import Decoder
from reference.draft_files import DraftShape
from reference.gguf_files import Shape, write_model
from reference.mtp import Mtp
from text_data import TINY_HYBRID

VOCAB = 70  # some tokens are guessed by random weights
HEADS: dict[str, Any] = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 64, "vocab": VOCAB, "ffn": 96}
RECURRENT: dict[str, Any] = {"d_state": 64, "n_k_heads": 2, "n_v_heads": 4}
TARGET = Shape("qwen35", n_layers=3, recurrent=(True, False, True), n_mtp=1, **RECURRENT, **HEADS)
DRAFT = DraftShape(
    head_dim=64, n_target_layers=3, taps=(2, 0, 1), sliding=(True, False), vocab=VOCAB, mask_token=VOCAB - 1
)
RESERVED = 256 << 20  # bytes that plans leave to the driver


@pytest.fixture(scope="module")
def packs(pack_folder: Path) -> list[_engine.gpu.Pack]:
    return gpu_packs.load_on_devices(pack_folder, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("split_drafts")
    write_model(made / "dflash_target.gguf", TARGET)
    write_model(made / "mtp_target.gguf", replace(TARGET, tied=True))  # the last device's head is the embedding
    draft_files.write_gguf(made / "dflash.gguf", DRAFT)
    return made


def split(packs: list[_engine.gpu.Pack], n: int) -> dict[str, Any]:
    """Options of an engine on n devices; on one, that decodes with the same kernels."""
    layers = {"others": packs[1:n], "split": "layer"} if n > 1 else {}
    return {"pack": packs[0], "decode_path": "graph", **layers}


def opened(packs: list[_engine.gpu.Pack], folder: Path, draft: str, n: int, **options: Any) -> _engine.Engine:
    named = str(folder / "dflash.gguf") if draft == "dflash" else draft
    target = "mtp_target.gguf" if draft == "mtp" else "dflash_target.gguf"
    return open_engine(folder / target, draft=named, **split(packs, n), **options)


# A device per layer, each of which DFlash taps, in another order.
@pytest.mark.parametrize("draft, n", [("dflash", 3), pytest.param("mtp", 2, marks=pytest.mark.slow)])  # 2 s each
def test_drafts_have_the_same_bits(packs: list[_engine.gpu.Pack], folder: Path, draft: str, n: int, seed: int) -> None:
    """Candidates after prompts, rows and trees, on one device, on several and in the fp64 reference."""
    target, named = folder / f"{draft}_target.gguf", str(folder / "dflash.gguf") if draft == "dflash" else "mtp"

    def pair(n: int) -> Pair:
        reference = Mtp(Decoder(target)) if draft == "mtp" else dflash.Dflash(DRAFT.config, draft_files.tensors(DRAFT))
        return Pair(target, named, reference, **split(packs, n))

    pairs = pair(1), pair(min(n, len(packs)))
    for rows, n_kept in ((13, 13), (-7, 0), (1, 1), (70, 70), (-23, 0)):
        proposed = []
        for one in pairs:
            one.step(rows, n_kept, np.random.default_rng(seed + abs(rows)))
            proposed.append(one.drafting.propose(5, one.drafting.max_depth))
        assert all(np.array_equal(a, b) for a, b in zip(*proposed, strict=True))
    pairs[1].check(root=5)


@pytest.mark.slow  # 5 s each
@pytest.mark.parametrize("draft", ["dflash", "mtp"])
def test_trees_and_steps(packs: list[_engine.gpu.Pack], folder: Path, draft: str, seed: int) -> None:
    """Plain steps over the end of a page leave the same state; then trees, steps and trees the same tokens and accepted
    drafts."""
    prompt, results = random_ids(60, VOCAB, seed).tolist(), []
    for n in (1, 2):
        one = Writer(opened(packs, folder, draft, n, draft_budget=8), prompt, False, **SAMPLINGS["drawn"])
        one.write(7)
        state = one.session.save()
        for drafts, n_tokens in ((True, 3), (False, 1), (True, 2)):
            one.session.set_drafting(drafts)
            one.write(n_tokens)
        results.append((state, one.ids, one.session.draft_counts))
    assert results[0] == results[1]
    assert results[1][2]["verified"] > 0


@pytest.mark.slow  # 4 s each
@pytest.mark.parametrize("draft", ["mtp", "dflash"])
def test_passes_of_several_sequences(packs: list[_engine.gpu.Pack], folder: Path, draft: str, seed: int) -> None:
    """The same trees of all sequences are verified in the same passes."""
    prompts = [np.resize(random_ids(5, VOCAB, seed + i), 12 + i).tolist() for i in range(2)]
    results = []
    for n in (1, 2):
        engine = opened(packs, folder, draft, n, draft_budget=5)
        writers = [Writer(engine, ids, True, **SAMPLINGS["penalised"]) for ids in prompts]
        sessions = [one.session for one in writers]
        for one in writers:
            one.session.sync(one.array)
            one.ids.append(one.session.sample(one.sampler))
        for _ in range(3):
            _engine.sync_together(sessions, [one.array for one in writers])
            _engine.start_samples(sessions, [one.sampler for one in writers])
            for one in writers:
                one.ids.append(one.session.sample(one.sampler))
        results.append([(one.ids, one.session.draft_counts) for one in writers])
    assert results[0] == results[1]
    assert all(counts["verified"] > 0 for _, counts in results[1])


@pytest.mark.slow  # 6 s
def test_sequences_are_saved_forked_swapped_and_assembled(
    packs: list[_engine.gpu.Pack], folder: Path, seed: int
) -> None:
    """A state moves between one device and several with the draft model's rows, and continues with the same drafts."""
    alone, engine = (opened(packs, folder, "mtp", n, draft_budget=8) for n in (1, 2))
    prompt = random_ids(64, VOCAB, seed)
    source = Writer(engine, prompt.tolist(), True)
    source.session.sync(prompt)
    pages, recurrent = source.session.read_pages(0, 1), source.session.read_recurrent()
    fork, loaded, cached = (Writer(one, source.ids, True) for one in (engine, alone, engine))
    fork.session.fork(source.session)
    loaded.session.load(source.session.save())
    cached.session.assemble(prompt, [64], pages=[pages], recurrent=recurrent)
    expected = loaded.write(4)
    assert source.write(4) == expected
    fork.session.swap_out()
    assert fork.write(4) == expected
    assert cached.write(4) == expected
    counts = [one.session.draft_counts for one in (source, fork, loaded, cached)]
    assert counts[0]["verified"] > 0 and counts.count(counts[0]) == 4


class Enough(Exception):
    pass


@pytest.mark.slow  # 20 s each: chunks of 257 rows, the fewest that have buffers of their own
@pytest.mark.parametrize("draft", ["mtp", "dflash"])
def test_a_prompt_in_stages(packs: list[_engine.gpu.Pack], folder: Path, draft: str, seed: int) -> None:
    """Each device computes another chunk, and another sequence drafts in between. First the prompt is cancelled."""
    chunk, results = 257, []
    options = {"context": 3 * chunk, "prefill_chunk": chunk, "draft_budget": 8}
    long, short = random_ids(2 * chunk + 3, VOCAB, seed).tolist(), random_ids(9, VOCAB, seed + 1).tolist()
    for n in (1, 2):
        engine = opened(packs, folder, draft, n, **options)
        one, other, n_called = Writer(engine, long, True), Writer(engine, short, True), 0

        def stop() -> None:
            nonlocal n_called
            n_called += 1
            if n_called == 3:
                raise Enough

        def between(other: Writer = other) -> None:
            if len(other.ids) < len(short) + 6:
                other.write(1)

        with pytest.raises(Enough):
            one.session.sync(one.array, between_layers=stop)
        one.session.sync(one.array, between_layers=between)
        one.write(6), other.write(len(short) + 6 - len(other.ids))
        results.append([(writer.ids, writer.session.draft_counts) for writer in (one, other)])
    assert results[0] == results[1]
    assert results[1][0][1]["verified"] > 0 and results[1][1][1]["verified"] > 0


@pytest.mark.slow  # 3 s: rows of a step, computed one by one
def test_batch_invariant(packs: list[_engine.gpu.Pack], folder: Path, seed: int) -> None:
    """Sampled tokens are equal with DFlash trees and without drafts."""
    prompt, options = random_ids(52, VOCAB, seed).tolist(), {"batch_invariant": True, "draft_budget": 8}
    plain = Writer(opened(packs, folder, "none", 2, **options), prompt, False, **SAMPLINGS["drawn"])
    drafted = Writer(opened(packs, folder, "dflash", 2, **options), prompt, True, **SAMPLINGS["drawn"])
    assert drafted.write(16) == plain.write(16)
    assert drafted.session.draft_counts["verified"] > 0


def test_the_plan_of_each_device(packs: list[_engine.gpu.Pack], pack_folder: Path, folder: Path) -> None:
    """The draft model is on the last device alone, sessions use what is planned, and `inspect` makes the same plan."""
    engine = opened(packs, folder, "dflash", 2)
    parts = engine.plan["parts"]
    first, last = ({name: n_bytes for name, n_bytes, *_ in part["entries"]} for part in parts)
    assert not {"draft weights", "draft KV cache", "draft rows", "tree logits", "sampler"} & first.keys()
    assert all(last[name] > 0 for name in ("draft weights", "draft KV cache", "draft rows", "tree logits", "sampler"))
    weights = [next(detail for name, _, detail, _ in part["entries"] if name == "weights") for part in parts]
    assert weights[0].startswith("layers 0 to ") and weights[1].endswith(", in the layout of the kernels")
    assert f"to {TARGET.n_layers - 1}: " in weights[1]
    # Tapped rows follow the rows of the residual stream; MTP taps the last layer.
    plans = [opened(packs, folder, draft, 2).plan for draft in ("mtp", "none")]
    mtp, none = ({entry[0]: entry[1] for entry in plan["parts"][0]["entries"]}["hand-over"] for plan in plans)
    assert first["hand-over"] == (1 + len(DRAFT.taps)) * none and mtp == none
    assert len(engine.links) == 1

    manifest = json.dumps(gpu_packs.manifest_of(pack_folder))
    facts = [(part["available_bytes"] + RESERVED, manifest, pack.device.n_sms, pack.name)
             for part, pack in zip(parts, packs, strict=False)]  # fmt: skip
    options = dict(engine.options) | {"draft_model": str(folder / "dflash.gguf")}
    plan, _ = _engine.plan_memory(str(folder / "dflash_target.gguf"), *facts[0], others=facts[1:], **options)
    assert [part["entries"] for part in plan["parts"]] == [part["entries"] for part in parts]
    if packs[0].target != "sim":
        return  # other processes allocate there
    devices = [_engine.gpu.Device(pack.device.vendor, pack.device.index) for pack in packs[:2]]
    before = [device.memory()[0] for device in devices]
    session = _engine.Session(engine)
    for device, free, part in zip(devices, before, parts, strict=True):
        assert free - device.memory()[0] == sum(n for _, n, _, per_session in part["entries"] if per_session)
    assert session.n_tokens == 0


def test_what_does_not_fit(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    """The error of a plan without a draft model."""
    options: dict[str, Any] = {"kv_tokens": 256, "sessions": 1}
    needs = [part["total_bytes"] for part in opened(packs, folder, "dflash", 2, **options).plan["parts"]]
    opened(packs, folder, "dflash", 2, memory_limit=RESERVED + max(needs), **options)
    with pytest.raises(OutOfMemoryError, match="context = 256 needs"):
        opened(packs, folder, "dflash", 2, memory_limit=RESERVED + min(needs) - 1, **options)


@pytest.mark.slow  # 6 s
def test_the_assistant_of_gemma(pack_folder: Path, data: Path, tmp_path: Path, seed: int) -> None:
    """The last device has the layers whose keys and values it reads, 3 and 4 of 5."""
    target, draft = write_accepting_pair(data, tmp_path)
    packs, results = gpu_packs.load_on_devices(pack_folder, 5), []
    for n in (1, 2):
        engine = open_engine(target, draft=str(draft), draft_budget=5, context=90, **split(packs, n))
        one = Writer(engine, random_ids(57, engine.info["vocab"], seed).tolist(), True)
        one.write(12)
        results.append((one.ids, one.session.draft_counts))
    assert results[0] == results[1]
    assert results[1][1]["accepted"] > results[1][1]["verified"] / 2 > 0
    if len(packs) == 5:
        with pytest.raises(InvalidRequestError, match=r"the last of the devices .* needs 2 of the 5 layers"):
            open_engine(target, draft=str(draft), **split(packs, 5))


@pytest.mark.slow  # 50 s: a real model on the simulator, which measures the costs of its steps
def test_llm(packs: list[_engine.gpu.Pack], monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, with the prefix cache and several sequences, all of which decode in one pass."""
    selections = {pack.name: Selection(pack.name, pack.device, None, ()) for pack in packs}
    monkeypatch.setattr(
        loading, "resolve_devices", lambda device, *_, **__: tuple(selections[one] for one in device.split(","))
    )
    by_index = {pack.device.index: pack for pack in packs}
    monkeypatch.setattr(loading, "open_pack", lambda selection: by_index[selection.info.index])
    both, results = f"{packs[0].name},{packs[1].name}", []
    long = "The small dog sat by the sea. " * 10
    options: dict[str, Any] = {"split": "layer", "context": 256, "prefill_chunk": 64, "sessions": 2, "draft_budget": 3}
    for device in (packs[0].name, both):
        with LLM(str(TINY_HYBRID), device=device, draft="mtp", decode_path="graph", **options) as llm:
            assert llm.model.max_groups == 1
            first, again = (llm.generate(long, max_tokens=4) for _ in range(2))
            assert again.ids == first.ids and again.usage.cached_tokens >= 64
            results.append((first.ids, [one.ids for one in llm.generate(["x = 1", long], max_tokens=4)]))
    assert results[0] == results[1]
