"""With batch_invariant, drafts change no bit of tokens, logits and log probabilities, alone and in company, whatever
happens to a sequence between its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
import pytest
from drafts import random_tree
from engines import open_engine, random_ids
from lucebox import _engine
from lucebox.errors import InvalidRequestError
from numpy.typing import NDArray
from reference.draft_files import DraftShape, write_gguf
from reference.gguf_files import Shape, write_model

Pack = _engine.gpu.Pack
F32 = NDArray[np.float32]
VOCAB = 64
SIZES: dict[str, Any] = {"hidden": 256, "n_heads": 4, "n_kv_heads": 2, "head_dim": 64, "vocab": VOCAB}
HYBRID: dict[str, Any] = {"n_layers": 2, "recurrent": (True, False), "n_v_heads": 2, "n_mtp": 1, "ffn": 256, **SIZES}
HALVES: dict[str, Any] = SIZES | {"n_heads": 8, "n_kv_heads": 4, "ffn": 512}  # each has whole blocks of 256 values
MODELS: dict[str, Callable[[str], Shape]] = {
    "hybrid": lambda dtype: Shape("qwen35", dtype, d_state=128, **HYBRID),
    "small heads": lambda dtype: Shape("qwen35", dtype, d_state=32, **HYBRID),  # inputs without a fused kernel
    "halves": lambda dtype: Shape("qwen3", dtype, n_layers=2, **HALVES),
    "wide": lambda dtype: Shape("qwen3", dtype, n_layers=1, ffn=64, **(SIZES | {"hidden": 1024})),
    "attention": lambda dtype: Shape("qwen3", dtype, n_layers=2, ffn=256, **SIZES),
    "odd rows": lambda dtype: Shape("qwen3", dtype, n_layers=1, ffn=320, **(SIZES | {"hidden": 192})),  # no skinny GEMM
    "mixture": lambda dtype: Shape("qwen3moe", dtype, n_layers=1, expert_ffn=256, **SIZES),
}
DRAFT = DraftShape(n_target_layers=2, taps=(1, 0), sliding=(True, False), ffn=256, mask_token=VOCAB - 1, **SIZES)
SAMPLINGS: dict[str, dict[str, Any]] = {"greedy": {}, "drawn": {"temperature": 0.8, "top_p": 0.95, "seed": 3}}
N_TOP = 2


class Writer:
    """A sequence; keeps what plain decoding must reproduce of each token."""

    def __init__(self, engine: _engine.Engine, prompt: Sequence[int], **sampling: Any) -> None:
        self.session, self.ids = _engine.Session(engine), list(prompt)
        self.sampler = _engine.Sampler(VOCAB, logprobs=N_TOP, **sampling)
        self.sampler.set_prompt(np.array(prompt, np.int32))
        self.session.set_drafting(False)
        self.rows: list[tuple[bytes, int, object]] = []

    @property
    def array(self) -> NDArray[np.int32]:
        return np.array(self.ids, np.int32)

    def write(self) -> None:
        self.session.sync(self.array)
        self.choose()

    def choose(self) -> None:
        logits = self.session.logits().tobytes()
        token = self.session.sample(self.sampler)
        self.rows.append((logits, token, self.session.logprobs(token, N_TOP)))
        self.ids.append(token)


def swap(writer: Writer, _: Writer) -> None:
    writer.session.swap_out()


def save(writer: Writer, _: Writer) -> None:
    writer.session.load(writer.session.save())


def fork(writer: Writer, other: Writer) -> None:
    other.session.fork(writer.session)
    writer.session, other.session = other.session, writer.session
    other.session.reset()


def read(writer: Writer, _: Writer) -> None:
    writer.session.read_recurrent()


EVENTS: list[Callable[[Writer, Writer], None]] = [swap, save, fork, read]


def run(writer: Writer, n: int, turn: Sequence[int], cut: int, write: Callable[[], None]) -> None:
    """n tokens; then the text loses `cut` tokens, and after one more a longer prompt and n tokens follow."""
    for _ in range(n):
        write()
    del writer.ids[len(writer.ids) - cut :]
    write()
    writer.ids += turn
    for _ in range(n):
        write()


EVERYDAY = [
    ("hybrid", "Q8_0", "f16", "drawn"),
    ("attention", "Q4_K", "q8_0/wht4", "greedy"),
    ("mixture", "BF16", "f16", "drawn"),
]
REST = [  # 2 to 5 s each
    ("hybrid", "Q4_K", "q8_0/wht4", "greedy"),
    ("hybrid", "BF16", "f16", "greedy"),
    ("small heads", "Q8_0", "f32", "greedy"),
    ("odd rows", "Q8_0", "f16", "drawn"),
    ("odd rows", "BF16", "f16", "greedy"),
    ("mixture", "Q8_0", "f16", "greedy"),
    ("attention", "BF16", "bf16", "drawn"),
]


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("model", "dtype", "kv", "sampling"), [*EVERYDAY, *(pytest.param(*case, marks=pytest.mark.slow) for case in REST)]
)
def test_trees_change_no_bit(
    pack: Pack, tmp_path: Path, model: str, dtype: str, kv: str, sampling: str, seed: int
) -> None:
    path = write_model(tmp_path / "model.gguf", MODELS[model](dtype))
    options = {"pack": pack, "activations": "int8", "kv": kv, "context": 192, "batch_invariant": True}
    check_trees(open_engine(path, draft="suffix", **options), sampling, seed)


def check_trees(engine: _engine.Engine, sampling: str, seed: int) -> None:
    """Random trees of 1 to 32 rows, with a swap, a copy, a fork or a read of the state between tokens."""
    rng = np.random.default_rng(seed)
    prompt, turn = random_ids(int(rng.integers(50, 70)), VOCAB, seed).tolist(), rng.integers(0, VOCAB, 9).tolist()
    n, cut = 4, int(rng.integers(1, 4))
    plain, drafted, other = (Writer(engine, prompt, **SAMPLINGS[sampling]) for _ in range(3))
    run(plain, n, turn, cut, plain.write)

    def draft_and_write() -> None:
        if rng.random() < 0.4:
            EVENTS[int(rng.integers(len(EVENTS)))](drafted, other)
            drafted.session.set_drafting(False)
        done = len(drafted.rows)
        future = [token for _, token, _ in plain.rows[done + 1 : done + 9]]
        tokens, parents = random_tree(rng, future, int(rng.integers(1, 32)))
        drafted.session.sync(drafted.array)
        drafted.session.suggest(np.array(tokens, np.int32) % VOCAB, parents)
        drafted.choose()

    run(drafted, n, turn, cut, draft_and_write)
    assert drafted.rows == plain.rows and drafted.ids == plain.ids
    assert drafted.session.draft_counts["verified"] + other.session.draft_counts["verified"] > 0


@pytest.mark.slow  # 4 to 5 s each: trees of any tokens change no bit every day
@pytest.mark.first_case
@pytest.mark.parametrize(
    ("kind", "budget"),
    [(kind, budget) for kind in ("mtp", "dflash") for budget in (0, 1, 2, 3, 5, 8, 16, 31)],
)
@pytest.mark.parametrize("sampling", ["greedy", "drawn"])
def test_a_draft_model_changes_no_bit(
    pack: Pack, tmp_path: Path, kind: str, budget: int, sampling: str, seed: int
) -> None:
    """Nor does it where it only reads the target's layers, beside an engine without it."""
    path = write_model(tmp_path / "model.gguf", MODELS["hybrid"]("Q8_0"))
    options = {"pack": pack, "activations": "int8", "kv": "f16", "context": 96, "batch_invariant": True}
    draft = "mtp" if kind == "mtp" else str(write_gguf(tmp_path / "dflash.gguf", DRAFT))
    engines = open_engine(path, **options), open_engine(path, draft=f"{draft}+suffix", draft_budget=budget, **options)
    prompt = random_ids(20, VOCAB, seed).tolist()
    plain, drafted = (Writer(engine, prompt, **SAMPLINGS[sampling]) for engine in engines)
    drafted.session.set_drafting(True)
    for _ in range(6):
        plain.write()
        drafted.write()
    assert drafted.rows == plain.rows
    assert budget == 0 or drafted.session.draft_counts["verified"] > 0


@pytest.mark.slow  # 2 s
@pytest.mark.parametrize(
    ("model", "dtype"), [("hybrid", "Q4_K"), pytest.param("mixture", "Q8_0", marks=pytest.mark.slow)]
)
def test_company_with_trees_changes_no_bit(pack: Pack, tmp_path: Path, model: str, dtype: str, seed: int) -> None:
    """Passes of random sequences, with a tree of each or none."""
    path = write_model(tmp_path / "model.gguf", MODELS[model](dtype))
    options = {"pack": pack, "activations": "int8", "kv": "f16", "context": 96, "batch_invariant": True}
    engine = open_engine(path, draft="suffix", **options)
    rng = np.random.default_rng(seed)
    prompts = [random_ids(length, VOCAB, seed + length).tolist() for length in (60, 1, 33)]
    alone = [Writer(engine, prompt, **SAMPLINGS["drawn"]) for prompt in prompts]
    n = 4
    for one in alone:
        for _ in range(n):
            one.write()
    mixed = [Writer(engine, prompt, **SAMPLINGS["drawn"]) for prompt in prompts]
    while lacking := [i for i in range(len(mixed)) if len(mixed[i].rows) < n]:
        chosen = [i for i in lacking if rng.random() < 0.8]
        if not chosen:
            continue
        for i in chosen:
            future = [token for _, token, _ in alone[i].rows[len(mixed[i].rows) :]]
            if rng.random() < 0.7:
                tokens, parents = random_tree(rng, future, int(rng.integers(1, 20)))
                mixed[i].session.suggest(np.array(tokens, np.int32) % VOCAB, parents)
        _engine.sync_together([mixed[i].session for i in chosen], [mixed[i].array for i in chosen])
        for i in chosen:
            mixed[i].choose()
    assert [one.rows for one in mixed] == [one.rows for one in alone]


@pytest.mark.slow  # 3 s
def test_a_gate_that_only_small_trees_could_fuse(pack: Pack, tmp_path: Path, seed: int) -> None:
    """On a chip with few multiprocessors, the sums of 32 rows of gate and up do not fit beside the gate. So no tree
    fuses it, and a plain step does not either."""
    shape = Shape("qwen3", "Q8_0", n_layers=1, ffn=4096, **SIZES)
    path = write_model(tmp_path / "model.gguf", shape)
    options = {"pack": pack, "activations": "int8", "kv": "f16", "context": 96, "batch_invariant": True}
    engine = open_engine(path, draft="suffix", **options)
    rng, prompt, sizes = np.random.default_rng(seed), random_ids(20, VOCAB, seed).tolist(), (2, 15, 31)
    plain, drafted = (Writer(engine, prompt, **SAMPLINGS["drawn"]) for _ in range(2))
    for _ in range(12):
        plain.write()
    for n, size in enumerate(sizes, 1):
        while drafted.session.draft_counts["verified"] < n:  # an accepted token needs no verify
            drafted.session.sync(drafted.array)
            tokens, parents = random_tree(rng, [], size)
            drafted.session.suggest(np.array(tokens, np.int32) % VOCAB, parents)
            drafted.choose()
    assert drafted.rows == plain.rows[: len(drafted.rows)] and len(drafted.rows) >= len(sizes)


@pytest.mark.slow  # 5 s each
@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        ("attention", "BF16"),
        ("hybrid", "Q8_0"),
        ("halves", "Q4_K"),
        ("wide", "Q8_0"),  # the kernel of many values adds large trees
        ("mixture", "Q8_0"),
    ],
)
def test_tensors_on_two_devices(pack_folder: Path, tmp_path: Path, model: str, dtype: str, seed: int) -> None:
    """Ranks add each other's sums in one order, however many rows there are."""
    packs = gpu_packs.load_on_devices(pack_folder, 2)
    path = write_model(tmp_path / "model.gguf", MODELS[model](dtype))
    options = {"pack": packs[0], "activations": "int8", "kv": "f16", "context": 192, "batch_invariant": True}
    check_trees(open_engine(path, draft="suffix", others=packs[1:], split="tensor", **options), "drawn", seed)


def test_layers_on_two_devices(pack_folder: Path, tmp_path: Path, seed: int) -> None:
    """Logits and tokens of one device, with drafts and without. The host takes the logarithms, in fp64."""
    packs = gpu_packs.load_on_devices(pack_folder, 2)
    path = write_model(tmp_path / "model.gguf", MODELS["hybrid"]("Q8_0"))
    options = {"pack": packs[0], "activations": "int8", "kv": "f16", "context": 96, "batch_invariant": True}
    alone = open_engine(path, draft="suffix", decode_path="graph", **options)
    split = open_engine(path, draft="suffix", others=packs[1:], split="layer", **options)
    prompt, n = random_ids(40, VOCAB, seed).tolist(), 6
    writers = [Writer(engine, prompt, **SAMPLINGS["drawn"]) for engine in (alone, split, split)]
    for one in writers[:2]:
        for _ in range(n):
            one.write()
    expected, drafted = writers[0].rows, writers[2]
    for i in range(n):
        drafted.session.sync(drafted.array)
        future = [token for _, token, _ in expected[i + 1 : i + 4]]
        drafted.session.suggest(np.array(future, np.int32), list(range(-1, len(future) - 1)))
        drafted.choose()
    assert drafted.rows == writers[1].rows
    assert [row[:2] for row in drafted.rows] == [row[:2] for row in expected]
    assert drafted.session.draft_counts["verified"] > 0


def test_a_budget_beyond_the_rows_of_one_order(pack: Pack, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", MODELS["attention"]("Q8_0"))
    with pytest.raises(InvalidRequestError, match="draft_budget must be at most 31 with batch_invariant, got 32"):
        open_engine(path, pack=pack, draft="suffix", draft_budget=32, batch_invariant=True)
