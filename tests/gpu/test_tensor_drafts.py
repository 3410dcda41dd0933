"""Drafts of a model that is split by tensors: every rank drafts, verifies and walks the same trees, no token changes,
and all ranks' logits agree to the bit.

With --pack the tests run on the devices 0, 1, ... of the pack's vendor, as many as the machine has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
import pytest
from drafts import SAMPLINGS, Writer, random_tree
from engines import largest_difference, open_engine, random_ids
from lucebox import _engine, _kernels
from lucebox._kernels.driver import delay_sim_device
from lucebox.errors import DeviceError
from reference import draft_files
from reference.draft_files import DraftShape
from reference.gguf_files import Shape, write_model
from tolerances import tolerance

VOCAB = 70  # some tokens are guessed by random weights, and three ranks share the head
HEADS: dict[str, Any] = {"n_heads": 8, "n_kv_heads": 4, "head_dim": 64, "vocab": VOCAB, "ffn": 96}
TARGET = Shape("qwen35", n_layers=2, recurrent=(True, False), d_state=64, n_k_heads=4, n_v_heads=8, n_mtp=1, **HEADS)
DRAFT = DraftShape(
    head_dim=64, n_target_layers=2, taps=(1, 0), sliding=(True, False), vocab=VOCAB, mask_token=VOCAB - 1
)
CLOSE = tolerance("logits", "f32_device")


@pytest.fixture(scope="module")
def packs(pack_folder: Path) -> list[_engine.gpu.Pack]:
    """The pack on up to three devices."""
    return gpu_packs.load_on_devices(pack_folder, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tensor_drafts")
    write_model(made / "target.gguf", TARGET)
    draft_files.write_gguf(made / "dflash.gguf", DRAFT)
    return made


def opened(packs: list[_engine.gpu.Pack], folder: Path, draft: str, n: int = 2, **options: Any) -> _engine.Engine:
    if n > len(packs):
        pytest.skip(f"{len(packs)} devices are here")
    named = str(folder / "dflash.gguf") if draft == "dflash" else draft
    split = {"pack": packs[0], "others": packs[1:n], "split": "tensor", "decode_path": "graph"}
    return open_engine(folder / "target.gguf", draft=named, **(split | options))


def check_devices(session: _engine.Session) -> None:
    first, *others = _kernels.SessionProbe(session).rank_logits()
    assert np.isfinite(first).all() and all(np.array_equal(first, other) for other in others)


class RankWriter(Writer):
    def check(self, i: int) -> None:
        if i > 0:
            check_devices(self.session)


@pytest.mark.slow  # 17 s; the tests below have the steps of one
@pytest.mark.parametrize(
    ("draft", "n_ranks", "path"),
    [
        ("mtp", 2, "graph"),
        ("mtp", 3, "graph"),
        ("dflash", 2, "graph"),
        ("dflash", 2, "megakernel"),  # its products keep the tapped rows
        ("dflash+suffix", 3, "graph"),  # 6 s each
    ],
)
def test_draft_models_change_no_token(
    packs: list[_engine.gpu.Pack], pack_folder: Path, folder: Path, draft: str, n_ranks: int, path: str, seed: int
) -> None:
    """Trees that grow on every rank and drafts that run ahead, before and after plain steps."""
    if path == "megakernel" and not gpu_packs.has_kernel(gpu_packs.manifest_of(pack_folder), "megakernel_"):
        pytest.skip("the pack has no megakernel")
    model, _, rest = draft.partition("+")
    wanted = str(folder / "dflash.gguf") + (f"+{rest}" if rest else "") if model == "dflash" else draft
    engine = opened(packs, folder, wanted, n_ranks, draft_budget=12, decode_path=path)
    prompt = random_ids(30, VOCAB, seed).tolist()
    plain = RankWriter(engine, prompt, False, **SAMPLINGS["drawn"])
    expected = plain.write(8)
    drafting = RankWriter(engine, prompt, True, **SAMPLINGS["drawn"])
    assert drafting.write(8) == expected
    plain.session.set_drafting(True)
    drafting.session.set_drafting(False)
    assert plain.write(4) == drafting.write(4)
    assert all(one.session.draft_counts["verified"] > 0 for one in (plain, drafting))
    for _ in range(6):  # drafts of random weights are accepted now and then
        if any(one.session.draft_counts["accepted"] for one in (plain, drafting)):
            break
        assert plain.write(6) == drafting.write(6)
    assert any(one.session.draft_counts["accepted"] for one in (plain, drafting))


@pytest.mark.parametrize(("n_ranks", "masked"), [(3, False), pytest.param(2, True, marks=pytest.mark.slow)])
def test_suggested_trees_change_no_token(
    packs: list[_engine.gpu.Pack], folder: Path, n_ranks: int, masked: bool, seed: int
) -> None:
    """Accepted paths of any shape move keys, values and recurrent states on every rank."""
    engine = opened(packs, folder, "suffix", n_ranks)
    prompt, rng = random_ids(53, VOCAB, seed).tolist(), np.random.default_rng(seed)
    future = RankWriter(engine, prompt, False, **SAMPLINGS["penalised"]).write(9)
    one = RankWriter(engine, prompt, False, **SAMPLINGS["penalised"])
    if masked:  # the host walks: every token is allowed, under a mask
        one.sampler.set_mask(np.frombuffer(b"\xff" * 8 + b"\x3f\x00\x00\x00", np.uint32).copy())
    for i in range(len(future)):
        one.session.sync(one.array)
        tokens, parents = random_tree(rng, future[i + 1 : i + 12], int(rng.integers(1, 33)))
        one.session.suggest(np.array(tokens, np.int32) % VOCAB, parents)
        if i > 0:
            check_devices(one.session)
        one.ids.append(one.session.sample(one.sampler))
    assert one.ids[len(prompt) :] == future
    assert one.session.draft_counts["accepted"] > len(future) / 8


@pytest.mark.slow  # 4 s
@pytest.mark.parametrize("draft", ["suffix", pytest.param("mtp", marks=pytest.mark.slow)])
def test_passes_of_several_sequences(packs: list[_engine.gpu.Pack], folder: Path, draft: str, seed: int) -> None:
    """Rows and trees of three sequences in a pass, whose choices start together."""
    engine = opened(packs, folder, draft, draft_budget=5)
    rng = np.random.default_rng(seed)
    prompts = [np.resize(random_ids(5, VOCAB, seed + i), 12 + i).tolist() for i in range(3)]
    futures = [RankWriter(engine, ids, False, **SAMPLINGS["penalised"]).write(5) for ids in prompts]
    writers = [RankWriter(engine, ids, True, **SAMPLINGS["penalised"]) for ids in prompts]
    for one in writers:
        one.session.sync(one.array)
        one.ids.append(one.session.sample(one.sampler))
    sessions = [one.session for one in writers]
    for i in range(1, 5):
        for one, future in zip(writers[:2], futures, strict=False):
            tokens, parents = random_tree(rng, future[i:], 4)
            one.session.suggest(np.array(tokens, np.int32) % VOCAB, parents)
        _engine.sync_together(sessions, [one.array for one in writers])
        for session in sessions:
            check_devices(session)
        _engine.start_samples(sessions, [one.sampler for one in writers])
        for one in writers:
            one.ids.append(one.session.sample(one.sampler))
    assert [one.ids[len(ids) :] for one, ids in zip(writers, prompts, strict=True)] == futures
    assert all(session.draft_counts["verified"] > 0 for session in sessions[:2])


@pytest.mark.slow  # 4 s
@pytest.mark.parametrize("draft", [pytest.param("dflash", marks=pytest.mark.slow), "mtp"])
def test_plain_steps_leave_no_gap_in_the_draft_model(
    packs: list[_engine.gpu.Pack], folder: Path, draft: str, seed: int
) -> None:
    """Over the end of a page: the pages of all ranks, the draft model's among them, as after appends of the tokens."""
    engine = opened(packs, folder, draft)
    stepped = RankWriter(engine, random_ids(60, VOCAB, seed).tolist(), False)
    stepped.write(9)
    stepped.session.sync(stepped.array)
    given = _engine.Session(engine)
    for part in np.split(stepped.array, range(16, len(stepped.ids), 16)):
        given.append(part)
        given.commit(list(range(len(part))))
    pages = [np.frombuffer(session.read_pages(0, 1), np.float32) for session in (stepped.session, given)]
    assert largest_difference(*pages) < CLOSE
    assert np.any(pages[0] != 0)


@pytest.mark.slow  # 10 s
def test_sequences_with_drafts_are_saved_forked_and_swapped(
    packs: list[_engine.gpu.Pack], folder: Path, seed: int
) -> None:
    engine = opened(packs, folder, "mtp", draft_budget=8)
    source = RankWriter(engine, random_ids(66, VOCAB, seed).tolist(), True)
    source.write(6)
    fork, loaded = (RankWriter(engine, source.ids, True) for _ in range(2))
    fork.session.fork(source.session)
    loaded.session.load(source.session.save())
    expected = source.write(8)
    fork.session.swap_out()
    assert fork.write(8) == expected
    assert loaded.write(8) == expected
    assert RankWriter(engine, source.ids[:-8], False).write(8) == expected


@pytest.mark.slow  # 25 s of waiting
def test_a_rank_that_stops_while_it_drafts(packs: list[_engine.gpu.Pack], folder: Path, seed: int) -> None:
    """An error, and the next request is right."""
    if packs[0].target != "sim":
        pytest.skip("only the simulator delays a device")
    engine = opened(packs, folder, "mtp", draft_budget=8)
    prompt = random_ids(20, VOCAB, seed).tolist()
    expected = RankWriter(engine, prompt, False).write(6)
    one = RankWriter(engine, prompt, True)
    one.write(2)
    delay_sim_device(packs[1].device.index, 21)
    with pytest.raises(DeviceError, match=r"\[all_reduce\] device 1 .* sent nothing to device 0"):
        for _ in range(4):
            one.session.sync(one.array)
            one.ids.append(one.session.sample(one.sampler))
    one.ids = list(prompt)
    one.sampler = _engine.Sampler(VOCAB)
    assert one.write(6) == expected


def test_the_plan_has_a_draft_model_on_every_rank(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    """A session uses what is planned, on the simulator, where no other process allocates."""
    engine = opened(packs, folder, "mtp")
    for part, pack in zip(engine.plan["parts"], packs, strict=False):
        names = {name: n_bytes for name, n_bytes, *_ in part["entries"]}
        assert names["draft rows"] > 0 and names["tree logits"] > 0
        assert pack.name == part["place"]
    devices = [_engine.gpu.Device(pack.device.vendor, pack.device.index) for pack in packs[:2]]
    before = [device.memory()[0] for device in devices]
    session = _engine.Session(engine)
    if packs[0].target == "sim":
        for device, free, part in zip(devices, before, engine.plan["parts"], strict=True):
            assert free - device.memory()[0] == sum(n for _, n, _, per_session in part["entries"] if per_session)
    assert session.n_tokens == 0
