"""The draft model's rows of plain decode steps: K and V are as in a session that got the same tokens as input."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import recorded
from drafts import Tree, decode, random_tree
from engines import Decoder, feed, largest_difference, open_engine, random_ids
from lucebox import _engine, _kernels
from numpy.typing import NDArray
from reference import draft_files, gguf_files
from reference.draft_files import DraftShape
from reference.gguf_files import Shape
from tolerances import tolerance

N_KV, DIM = 1, 64  # of all attention layers, of the target and of its drafts
SIZES: dict[str, int] = {"hidden": 128, "ffn": 128, "n_heads": 2, "n_kv_heads": N_KV, "head_dim": DIM}
HYBRID = Shape("qwen35", n_layers=2, recurrent=(True, False), d_state=32, n_mtp=1, **SIZES)
ATTENTION = Shape("qwen3", n_layers=2, **SIZES)
EXPERTS = Shape("qwen35moe", n_layers=2, recurrent=(True, False), d_state=32, expert_ffn=64, **SIZES)
DRAFT = DraftShape(n_target_layers=2, taps=(1, 0), sliding=(True, False), window=10, **SIZES)
# Layers whose pages have all rows: not the draft's windowed layer.
N_LAYERS = {"dflash": 2, "dflash of attention": 3, "dflash of experts": 2, "mtp": 2}
N_TAPS = {"dflash": len(DRAFT.taps), "mtp": 1}
RING = 128  # rows
CLOSE = tolerance("logits", "f32_device")
TINY = Path(__file__).parents[2] / "models" / "tiny-hybrid" / "lucebox_tiny"
CASE = recorded.load("tiny_hybrid.json")["speculation"]["tiny-hybrid-dflash"]["prompts"]["cases"][0]
F32 = NDArray[np.float32]
MTP_GRAPH, DFLASH_MEGA = ("mtp", "graph"), ("dflash", "megakernel")
EXPERTS_MEGA = ("dflash of experts", "megakernel")


def ways(*everyday: tuple[str, str]) -> pytest.MarkDecorator:
    """Kinds of draft models and ways to decode: all of them are many seconds on the simulator."""
    cases = list(product(N_LAYERS, ("graph", "megakernel")))
    marked = [pytest.param(*case, marks=() if case in everyday else pytest.mark.slow) for case in cases]
    return pytest.mark.parametrize("kind, way", marked)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("step_rows")
    for name, shape in (("hybrid", HYBRID), ("attention", ATTENTION), ("experts", EXPERTS)):
        gguf_files.write_model(made / f"{name}.gguf", shape)
    draft_files.write_gguf(made / "dflash.gguf", DRAFT)
    return made


def opened(folder: Path, pack: _engine.gpu.Pack, kind: str, way: str, **options: int) -> _engine.Engine:
    draft = "mtp" if kind == "mtp" else str(folder / "dflash.gguf")
    target = kind.removeprefix("dflash of ") if " of " in kind else "hybrid"
    return open_engine(folder / f"{target}.gguf", pack=pack, draft=draft, decode_path=way, **options)


def plain(engine: _engine.Engine, n_prompt: int, way: str) -> Decoder:
    """A session after its prompt, which drafts nothing by itself."""
    decoder = Decoder(engine, random_ids(n_prompt, HYBRID.vocab).tolist())
    decoder.session.set_drafting(False)
    decoder.decode(1)
    path = decoder.session.decode_path
    assert path.startswith("megakernel_plain_") and ", kept" in path if way == "megakernel" else path == "graph"
    return decoder


def keys_values(session: _engine.Session, kind: str) -> F32:
    """K and V [layers, 2, tokens, ...] of target and draft model."""
    n, n_pages = session.n_tokens, -(-session.n_tokens // 64)
    pages = np.frombuffer(session.read_pages(0, n_pages), np.float32)
    rows = pages.reshape(N_LAYERS[kind], 2, n_pages, N_KV, 64, DIM).swapaxes(3, 4)
    return rows.reshape(N_LAYERS[kind], 2, n_pages * 64, N_KV, DIM)[:, :, :n]


class Given:
    """A session that is given the tokens of another one."""

    def __init__(self, engine: _engine.Engine, kind: str, chunk: int = 64) -> None:
        self.engine, self.kind, self.session, self.chunk = engine, kind, _engine.Session(engine), chunk

    def check(self, session: _engine.Session) -> None:
        """The same K and V. Does not disturb the steps."""
        if self.session.tokens != session.tokens[: self.session.n_tokens]:
            self.session.reset()
        if self.session.n_tokens < session.n_tokens:
            feed(self.session, session.tokens[self.session.n_tokens :], self.chunk)
        assert largest_difference(*(keys_values(s, self.kind) for s in (session, self.session))) < CLOSE

    def check_proposals(self, session: _engine.Session) -> None:
        self.check(session)
        got, want = (self.proposals(s.save()) for s in (session, self.session))
        assert largest_difference(got[1], want[1]) < CLOSE
        ties = np.diff(want[1], axis=1, append=want[1][:, -1:]) > -CLOSE  # with the next candidate, listed or not
        may_swap = ties.copy()
        may_swap[:, 1:] |= ties[:, :-1]
        assert np.array_equal(got[0][~may_swap], want[0][~may_swap])

    def proposals(self, snapshot: bytes) -> tuple[NDArray[np.int32], F32]:
        drafting = _kernels.Drafting(self.engine)
        drafting.load(snapshot)
        ids, logprobs, _ = drafting.propose(5, drafting.max_depth)
        return ids, logprobs


@pytest.mark.first_case
@ways(DFLASH_MEGA, MTP_GRAPH, EXPERTS_MEGA)
def test_plain_steps_leave_no_gap(pack: _engine.gpu.Pack, folder: Path, kind: str, way: str) -> None:
    """Over the end of a page, and looked at while a step runs."""
    engine = opened(folder, pack, kind, way)
    decoder, given = plain(engine, 60, way), Given(engine, kind)
    for n in (1, 4):
        decoder.decode(n)
        decoder.ids.append(decoder.choose())  # the step of this token has begun
        given.check(decoder.session)
        decoder.sync()
    given.check_proposals(decoder.session)
    decoder.decode(2)
    given.check(decoder.session)


@ways()  # 5 s each: 270 tokens
def test_whole_pages(pack: _engine.gpu.Pack, folder: Path, kind: str, way: str) -> None:
    """Over the end of the ring, by pages and by parts of pages."""
    for chunk, n in ((64, 190), (48, 80)):
        engine = opened(folder, pack, kind, way, prefill_chunk=chunk)
        decoder = plain(engine, 3, way)
        decoder.decode(n)
        Given(engine, kind, chunk).check(decoder.session)


@ways(DFLASH_MEGA)
def test_plain_steps_between_trees(pack: _engine.gpu.Pack, folder: Path, kind: str, way: str, seed: int) -> None:
    engine = opened(folder, pack, kind, way)
    prompt, n, rng = random_ids(25, HYBRID.vocab, seed).tolist(), 16, np.random.default_rng(seed)
    expected = plain(engine, 1, way)
    expected.start(prompt)
    future = expected.decode(n)

    def draft(root: int) -> Tree:
        return random_tree(rng, future[root + 1 :], 9) if root % 5 == 3 else ([], [])

    session = _engine.Session(engine)
    assert decode(session, prompt, n, draft=draft, masked=False) == future
    assert session.draft_counts["verified"] > 0
    Given(engine, kind).check_proposals(session)


@ways(MTP_GRAPH)
def test_a_snapshot_has_all_rows(pack: _engine.gpu.Pack, folder: Path, kind: str, way: str) -> None:
    engine = opened(folder, pack, kind, way)
    decoder, other = plain(engine, 20, way), Decoder(engine, [1])
    decoder.decode(5)
    saved = decoder.session.save()
    other.session.set_drafting(False)
    other.session.load(saved)
    assert np.array_equal(keys_values(other.session, kind), keys_values(decoder.session, kind))
    other.ids = list(decoder.ids)
    for each in (decoder, other):
        each.sync()
    assert decoder.decode(3) == other.decode(3)
    given = Given(engine, kind)
    for each in (decoder, other):
        given.check_proposals(each.session)


@ways(("mtp", "megakernel"))
@pytest.mark.parametrize("n_back", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_rewinding_steps(pack: _engine.gpu.Pack, folder: Path, kind: str, way: str, n_back: int) -> None:
    """The last step can be taken back, as recurrent layers have not folded it."""
    engine = opened(folder, pack, kind, way)
    decoder = plain(engine, 20, way)
    session = decoder.session
    decoder.decode(4)
    assert session.rewind_floor < session.n_tokens
    session.rewind(session.n_tokens - n_back)
    feed(session, [9, 8, 7])
    given = Given(engine, kind)
    given.check_proposals(session)
    decoder.start([*session.tokens, 6])
    decoder.decode(3)
    decoder.start([*session.tokens[:-1], 3])  # the step that has begun is dropped
    given.check_proposals(session)


@ways()
def test_the_end_of_the_context(pack: _engine.gpu.Pack, folder: Path, kind: str, way: str) -> None:
    engine = opened(folder, pack, kind, way, context=64, prefill_chunk=16)
    decoder = plain(engine, 55, way)
    decoder.decode(8)
    assert decoder.session.n_tokens == 64
    decoder.choose()
    Given(engine, kind, chunk=16).check(decoder.session)


@pytest.mark.slow  # 2 s
def test_masked_steps(pack: _engine.gpu.Pack, folder: Path) -> None:
    engine = opened(folder, pack, "dflash", "megakernel")
    session = _engine.Session(engine)
    decode(session, [3, 1, 4], 6, draft=lambda root: ([], []), masked=True)
    Given(engine, "dflash").check_proposals(session)


@pytest.mark.parametrize("kind", N_TAPS)
def test_the_plan_has_the_ring(pack: _engine.gpu.Pack, folder: Path, kind: str) -> None:
    """And on the simulator, where no other process allocates, a session uses what is planned."""
    engine = opened(folder, pack, kind, "megakernel")
    entries = engine.plan["entries"]
    ring = next((n_bytes, text) for name, n_bytes, text, *_ in entries if name == "draft rows")
    assert ring == (RING * N_TAPS[kind] * HYBRID.hidden * 4, f"tapped rows of {RING} plain steps")
    device = _engine.gpu.Device(pack.device.vendor)
    before = device.memory()[0]
    session = _engine.Session(engine)
    if pack.target == "sim":
        assert before - device.memory()[0] == sum(n_bytes for _, n_bytes, _, per_session in entries if per_session)
    assert session.n_tokens == 0


def greedy_ids(engine: _engine.Engine, n: int) -> list[int]:
    """As this device decodes them without drafts: another one may take another token where two are close."""
    decoder = Decoder(engine, list(CASE["prompt_ids"]))
    decoder.session.set_drafting(False)
    for _ in range(n):
        decoder.ids.append(decoder.choose())
        decoder.sync()
    return decoder.ids[-n:]


def drafts_after(engine: _engine.Engine, ids: list[int], n_plain: int, n_given: int, n: int) -> dict[str, int]:
    """Counts of drafts over n tokens, after tokens that plain steps wrote and tokens that were given."""
    decoder = Decoder(engine, CASE["prompt_ids"] + ids[:n_given])
    decoder.session.set_drafting(n_plain == 0)
    for i in range(n_plain + n):
        if i + 1 == n_plain:
            decoder.session.set_drafting(True)  # the drafter is asked while a step runs
        decoder.ids.append(decoder.choose())
        decoder.sync()
    assert decoder.ids[-n:] == ids[n_plain + n_given :][:n]
    return dict(decoder.session.draft_counts)


@pytest.mark.slow  # 10 s each
@pytest.mark.parametrize("draft", [str(TINY / "tiny-hybrid-dflash.BF16.gguf"), "mtp"], ids=["dflash", "mtp"])
@pytest.mark.parametrize("way", ["graph", "megakernel"])
def test_drafts_are_as_good_after_plain_steps(pack: _engine.gpu.Pack, draft: str, way: str) -> None:
    target = TINY / "tiny-hybrid.Q8_0.gguf"
    engine = open_engine(target, pack=pack, draft=draft, draft_budget=7, activations="int8", decode_path=way)
    ids = greedy_ids(engine, 28)
    assert drafts_after(engine, ids, 16, 0, 12) == drafts_after(engine, ids, 0, 16, 12)
