"""Scores of a prompt by a whole model, against the fp64 decoder: layers, chunks, early exit, what it refuses."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from engines import open_engine, open_scorer, random_ids
from gguf import GGUFReader
from lucebox import _engine
from lucebox.errors import InvalidRequestError
from numpy.typing import NDArray
from reference.decoder import Decoder
from reference.gguf_files import Shape, write_model
from reference.key_scores import key_scores
from tolerances import check

F64 = NDArray[np.float64]
SHAPES = {
    "qwen3": Shape("qwen3", n_layers=3, n_heads=6, n_kv_heads=2),
    "llama": Shape("llama", n_layers=3),
    "qwen35": Shape(n_layers=6, recurrent=(True, False, True, False, True, True)),
}
VOCAB = SHAPES["qwen3"].vocab


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("scorer")
    for name, shape in SHAPES.items():
        write_model(made / f"{name}.gguf", shape)
    return made


@pytest.fixture(params=sorted(SHAPES))
def model(request: pytest.FixtureRequest, folder: Path) -> Path:
    return folder / f"{request.param}.gguf"


class Watched(Decoder):
    """Keeps what each attention layer would rotate: its queries, then its keys."""

    def rope(self, x: F64, cos: F64, sin: F64) -> F64:
        self.unrotated.append(x)
        return super().rope(x, cos, sin)

    def scores(self, ids: NDArray[np.int32], rows: int, layers: list[int]) -> F64:
        self.unrotated: list[F64] = []
        self.step(ids, self.new_state())
        with_attention = [i for i, recurrent in enumerate(self.recurrent) if not recurrent]
        by_layer = [
            key_scores(self.unrotated[2 * n][-rows:], self.unrotated[2 * n + 1], self.head_dim**-0.5)
            for n, i in enumerate(with_attention)
            if i in layers or not layers
        ]
        mean: F64 = np.max(by_layer, axis=0).mean(0)
        return mean


@cache
def wanted(path: Path, n: int, seed: int, rows: int, layers: tuple[int, ...] = ()) -> F64:
    return Watched(path).scores(random_ids(n, VOCAB, seed), rows, list(layers))


@pytest.mark.parametrize("n", (1, 7, 64, 65, 150))
def test_all_layers(model: Path, isa: str, n: int) -> None:
    """Prompts shorter than the rows, at and beyond the end of a page; chunks of 64 cut the last rows of 65 and 150."""
    ids = random_ids(n, VOCAB, seed=n)
    got = open_scorer(model, isa=isa).score(ids)
    want = wanted(model, n, n, min(n, 8))
    assert got.dtype == np.float32
    check("key_scores_model", got, want, want.max())


@pytest.mark.parametrize("layers", ([1], [3], [1, 3]))
def test_layers_of_a_hybrid(folder: Path, layers: list[int]) -> None:
    path, ids = folder / "qwen35.gguf", random_ids(90, VOCAB)
    got = open_scorer(path, threads=2, prefill_chunk=40).score(ids, layers)
    want = wanted(path, 90, 0, 8, tuple(layers))
    check("key_scores_model", got, want, want.max())
    others = [other for other in ((1,), (3,), (1, 3)) if other != tuple(layers)]
    assert all(np.abs(wanted(path, 90, 0, 8, other) - want).max() > 1e-3 for other in others)


def test_layers_behind_the_last_scored_are_not_computed(folder: Path, tmp_path: Path) -> None:
    """A layer of NaN affects only the scores of later layers."""
    path, ids = folder / "qwen3.gguf", random_ids(30, VOCAB)
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(path.read_bytes())
    weights = {tensor.name: tensor.data for tensor in GGUFReader(damaged, "r+").tensors}
    weights["blk.1.ffn_down.weight"][:] = np.nan
    done: list[int] = []
    got = open_scorer(damaged).score(ids, [1], lambda now, total: done.append(now))
    assert done == [15, 30]  # two layers of three
    assert np.array_equal(got, open_scorer(path).score(ids, [1]))
    assert not np.array_equal(open_scorer(damaged).score(ids, [2]), open_scorer(path).score(ids, [2]))


def test_again_and_in_other_chunks(model: Path) -> None:
    """A scorer keeps nothing from one prompt to the next, and chunks do not change what a row sees."""
    ids, other = random_ids(130, VOCAB), random_ids(200, VOCAB, seed=1)
    used = open_scorer(model)
    first = used.score(ids)
    used.score(other)
    assert np.array_equal(used.score(ids), first)
    for chunk in (7, 256):
        check("key_scores_model", open_scorer(model, prefill_chunk=chunk).score(ids), first, first.max())


def test_rows_and_types_of_keys(folder: Path) -> None:
    path, ids = folder / "qwen3.gguf", random_ids(100, VOCAB)
    for rows in (1, 16):
        want = wanted(path, 100, 0, rows)
        check("key_scores_model", open_scorer(path, score_rows=rows).score(ids), want, want.max())
    exact = open_scorer(path).score(ids)
    assert np.abs(open_scorer(path, kv="f16").score(ids) - exact).max() < 1e-3 * exact.max()


def test_a_callback_stops_it(model: Path) -> None:
    used, ids = open_scorer(model), random_ids(100, VOCAB)
    want = used.score(ids)

    def stop(done: int, total: int) -> None:
        raise KeyError(done)

    with pytest.raises(KeyError):
        used.score(ids, progress=stop)
    assert np.array_equal(used.score(ids), want)


def test_refusals(folder: Path) -> None:
    hybrid = folder / "qwen35.gguf"
    used = open_scorer(hybrid)
    with pytest.raises(InvalidRequestError, match="layer 2 has no attention"):
        used.score(random_ids(9, VOCAB), [1, 2])
    with pytest.raises(InvalidRequestError, match="must ascend"):
        used.score(random_ids(9, VOCAB), [3, 1])
    with pytest.raises(InvalidRequestError, match="no tokens"):
        used.score(random_ids(0, VOCAB))
    with pytest.raises(InvalidRequestError, match="300 tokens do not fit"):
        used.score(random_ids(300, VOCAB))
    for rows in (0, 17):
        with pytest.raises(InvalidRequestError, match="score_rows must be between 1 and 16"):
            open_scorer(hybrid, score_rows=rows)
    with pytest.raises(InvalidRequestError, match="prefill_sparse_alpha must be between 0 and 1"):
        open_scorer(hybrid, prefill_sparse_alpha=2)
    with pytest.raises(InvalidRequestError, match="sparse_prefill must be between 0 and 1"):
        open_engine(hybrid, sparse_prefill=2)


def test_options_of_a_scorer_and_of_an_engine(folder: Path) -> None:
    """Neither has the other's, nor is one the other."""
    path = folder / "qwen35.gguf"
    for name, value in (("suffix", True), ("sessions", 2), ("kv_tokens", 512), ("sparse_prefill", 0.5)):
        with pytest.raises(TypeError, match=f"the scorer has no option {name}"):
            open_scorer(path, **{name: value})
    for name, value in (("score_rows", 8), ("prefill_sparse_alpha", 0.5)):
        with pytest.raises(TypeError, match=f"the engine has no option {name}"):
            open_engine(path, **{name: value})
    used = open_scorer(path, score_rows=5, prefill_sparse_alpha=0.5)
    assert used.options["score_rows"] == 5
    assert used.options["prefill_sparse_alpha"] == 0.5
    with pytest.raises(TypeError):
        _engine.Session(used)  # type: ignore[arg-type]


def test_the_plan_has_keys_of_one_layer(model: Path) -> None:
    """The plan of a scorer compared with a session's plan: one layer of each kind, and the prompt's rows."""
    plan = open_scorer(model, context=4096).plan
    session = open_engine(model, context=4096).plan
    bytes_of = [{name: size for name, size, _, _ in p["entries"]} for p in (plan, session)]
    n_attention = sum(not recurrent for recurrent in Decoder(model).recurrent)
    assert bytes_of[0]["KV cache"] < bytes_of[1]["KV cache"] / n_attention * 1.1
    hidden = open_engine(model).info["hidden"]
    assert bytes_of[0]["prompt"] >= 4096 * 4 * (hidden + 3 + 8)
    assert "prompt" not in bytes_of[1]
    assert "logits" not in bytes_of[0]


@pytest.mark.parametrize("chunk", (100, 512))
def test_sparse_attention(folder: Path, chunk: int) -> None:
    """An alpha of next to nothing selects all blocks: the scores of dense attention. A larger one selects fewer."""
    path, ids = folder / "qwen3.gguf", random_ids(1500, VOCAB)
    options = {"context": 1536, "prefill_chunk": chunk, "isa": "auto", "threads": 2}
    want = open_scorer(path, **options).score(ids)
    all_blocks = open_scorer(path, prefill_sparse_alpha=1e-30, **options).score(ids)
    check("key_scores_model", all_blocks, want, want.max())
    fewer = open_scorer(path, prefill_sparse_alpha=1.0, **options).score(ids)
    assert 1e-4 < np.abs(fewer - want).max() / want.max() < 0.5
    assert np.array_equal(open_scorer(path, prefill_sparse_alpha=1.0, **options).score(ids[:300]),
                          open_scorer(path, **options).score(ids[:300]))  # fmt: skip
