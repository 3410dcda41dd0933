"""Mixtures of experts on a device; the cases of their ops are in op_cases.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import largest_difference, logits_of, mean_kl, open_engine, random_ids
from lucebox import _engine, _kernels
from lucebox.errors import UnsupportedError
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference import experts as experts_reference
from reference import gguf_files
from reference.checkpoints import few_bits
from reference.decoder import Decoder
from reference.gguf_files import Shape, write_model
from reference.linear import block_size, random_weights
from tolerances import check, tolerance

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


def test_types_without_a_kernel_are_refused(pack: _engine.gpu.Pack) -> None:
    w, x = np.zeros(2 * 256 * 84, np.uint8), np.ones((1, 256), np.float32)
    one = np.zeros((1, 1), np.int32), np.ones((1, 1), np.float32)
    with pytest.raises(UnsupportedError, match=r"no kernel reads experts of Q2_K on a GPU\. Use a file"):
        ops.mix_experts(w, w, w, ("Q2_K",) * 3, 2, 256, x, *one, pack=pack)


def test_a_model_without_kernels_names_the_tensor(pack: _engine.gpu.Pack, tmp_path: Path) -> None:
    shape = Shape("qwen3moe", "Q3_K", n_layers=1, hidden=256, n_heads=4, head_dim=64, expert_ffn=256)
    with pytest.raises(UnsupportedError, match=r"tensor blk\.0\.ffn_\w+_exps\.weight: no kernel reads experts of Q3_K"):
        open_engine(write_model(tmp_path / "model.gguf", shape), pack=pack)


N, K = 6, 2


class Mixture:
    """Random experts of sizes that are no multiple of a tile, and x of many rows."""

    def __init__(self, types: tuple[str, str], rows: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        values = max(32, *(block_size(dtype)[0] for dtype in types))
        self.dim, self.ffn = values + (0 if values > 32 else 128), values + (0 if values > 32 else 64)
        sizes = N * self.dim * self.ffn
        self.matrices = [random_weights(dtype, sizes, rng) for dtype in (types[0], types[0], types[1])]
        self.types = (types[0], types[0], types[1])
        self.x = rng.normal(0, self.dim**-0.5, (rows, self.dim)).astype(np.float32)
        self.weights = rng.normal(size=(rows, K)).astype(np.float32)
        self.experts = np.array([rng.permutation(N)[:K] for _ in range(rows)], np.int32)

    def __call__(self, pack: _engine.gpu.Pack, rows: slice, **given: Any) -> F32:
        x, weights = self.x[rows], self.weights[rows]
        experts = given.pop("experts", self.experts[rows])
        return ops.mix_experts(*self.matrices, self.types, N, self.ffn, x, experts, weights, pack=pack, **given)


GROUPED = [("Q4_K", "Q6_K"), ("Q8_0", "F16"), ("BF16", "Q8_0"), ("MXFP4", "MXFP4"), ("Q5_K", "IQ4_XS"),
           ("NVFP4", "F8_E4M3"), ("F32", "Q5_0"), ("IQ4_NL", "Q5_1")]  # fmt: skip


@pytest.mark.first_case
@pytest.mark.parametrize("types", GROUPED)
def test_rows_change_no_bit_of_a_row(pack: _engine.gpu.Pack, types: tuple[str, str], seed: int) -> None:
    """From 17 rows on, whichever tiles the rows fill: few rows take tiles of 16, many of 64. Up to 16 rows too, among
    themselves; between both, sums have two orders."""
    mixture = Mixture(types, 150, seed)
    together = mixture(pack, slice(0, 150))
    for rows in (slice(0, 17), slice(3, 30), slice(60, 124)):
        assert np.array_equal(mixture(pack, rows), together[rows]), rows
    few = mixture(pack, slice(0, 16))
    for rows in (slice(0, 1), slice(9, 16)):
        assert np.array_equal(mixture(pack, rows), few[rows])
    if not {"F16", "BF16", "F8_E4M3"} & set(types):  # these are cast from 17 rows on
        own = experts_reference.Experts(tuple(w.reshape(N, -1) for w in mixture.matrices), mixture.types, mixture.ffn)
        first = mixture.x[:16], mixture.experts[:16], mixture.weights[:16]
        _, scale, margins = experts_reference.mix(own, *first, None, None, None, "int8", {})
        sure = margins > 1e-4  # no code of these rows depends on the last bits of a sum
        assert sure.any()
        check("linear", few[sure], together[:16][sure], scale[sure])


def some_rows(n: int, *of_expert: int) -> I32:
    """One choice per row: of_expert[e] rows choose expert e; the others have none."""
    return np.repeat(np.arange(len(of_expert)), of_expert).astype(np.int32)[
        np.random.default_rng(n).permutation(n), None
    ]


@pytest.mark.parametrize("of_expert", [(150,), (0, 0, 0, 0, 0, 150), (0, 64, 65, 0, 1, 20), (16, 17, 15, 102)])
def test_experts_of_any_number_of_rows(pack: _engine.gpu.Pack, of_expert: tuple[int, ...], seed: int) -> None:
    """Also none, all, and around whole tiles. Each row has its bits in other company."""
    mixture = Mixture(("Q8_0", "Q8_0"), 150, seed)
    mixture.weights = mixture.weights[:, :1].copy()
    experts = some_rows(150, *of_expert)
    together = mixture(pack, slice(0, 150), experts=experts)
    assert np.isfinite(together).all()
    for rows in (slice(0, 20), slice(130, 150)):
        assert np.array_equal(mixture(pack, rows, experts=experts[rows]), together[rows])


HYBRID = Shape("qwen35moe", n_layers=2, recurrent=(True, False), head_dim=64, d_state=64)


SHAPES = {
    "qwen35moe": HYBRID,
    "joined": replace(HYBRID, joined_experts=True),
    "qwen3moe": Shape("qwen3moe", n_layers=2, head_dim=64, expert_ffn=40),
    "gpt-oss": Shape("gpt-oss", n_layers=2, n_heads=8, head_dim=64, expert_ffn=40, yarn=32.0),
}
EVERYDAY = {("qwen35moe", 7), ("joined", 64), ("qwen3moe", 1), ("gpt-oss", 7)}


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("name", "chunk"),
    [
        pytest.param(name, chunk, marks=[] if (name, chunk) in EVERYDAY else pytest.mark.slow)  # 1.5 s each
        for name in SHAPES
        for chunk in (1, 7, 64)
    ],
)
def test_whole_models(pack: _engine.gpu.Pack, tmp_path: Path, name: str, chunk: int) -> None:
    shape = SHAPES[name]
    path, ids = write_model(tmp_path / "model.gguf", shape), random_ids(100, shape.vocab)
    got = logits_of(open_engine(path, pack=pack), ids, chunk)
    assert largest_difference(got, Decoder(path).logits(ids)) < tolerance("logits", "f32_device")


@pytest.mark.slow  # 6 s each; every day, test_whole_models
@pytest.mark.parametrize(
    "chunk", [pytest.param(1, marks=pytest.mark.slow), pytest.param(7, marks=pytest.mark.slow), 200]
)
def test_gpt_oss_of_a_checkpoint(pack: _engine.gpu.Pack, data: Path, chunk: int) -> None:
    """Golden logits of transformers, from safetensors with experts in MXFP4; windows hide rows of a prompt too."""
    arrays = np.load(data / "tiny" / "gpt_oss_a.npz")
    ids = arrays["ids"][: {1: 80, 7: 112}.get(chunk, 200)]
    path = data / "tiny" / "gpt_oss_a"
    got = logits_of(open_engine(path, pack=pack, prefill_chunk=256), ids, chunk)
    assert largest_difference(got, arrays["logits"][: len(ids)]) < tolerance("logits", "half_device")
    rounded = logits_of(open_engine(path, pack=pack, prefill_chunk=256, activations="int8", kv="f16"), ids, chunk)
    assert mean_kl(arrays["logits"][: len(ids)], rounded) < tolerance("kl", "int8")


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["mixed", "fp8"])
def test_checkpoints_of_few_bits(pack: _engine.gpu.Pack, tmp_path: Path, kind: str) -> None:
    """mixed: experts in NVFP4, attention in FP8, the head in BF16. A prompt's choices are grouped by expert."""
    shape = Shape("qwen3moe", n_layers=2, hidden=128, head_dim=64, expert_ffn=128)
    path, _ = few_bits(tmp_path / "checkpoint", write_model(tmp_path / "model.gguf", shape), kind)
    ids = random_ids(24, shape.vocab)
    want = logits_of(open_engine(path, activations="f32", kv="f32"), ids, len(ids))
    for chunk in (1, len(ids)):
        got = logits_of(open_engine(path, pack=pack, activations="int8", kv="f16"), ids, chunk)
        assert mean_kl(want, got) < tolerance("kl", "int8"), chunk


@pytest.mark.slow  # 3 s
def test_company_changes_no_bit_of_a_mixture(pack: _engine.gpu.Pack, tmp_path: Path, seed: int) -> None:
    """With batch_invariant, ten sequences in one pass."""
    sizes = {"hidden": 256, "n_heads": 4, "head_dim": 64, "expert_ffn": 256}
    path = write_model(tmp_path / "model.gguf", Shape("qwen3moe", "BF16", n_layers=1, **sizes))
    engine = open_engine(path, pack=pack, activations="int8", kv="f16", context=64, batch_invariant=True)
    texts = [random_ids(n + 2, 131, seed + n) for n in range(10)]

    def logits(groups: list[list[int]]) -> list[F32]:
        sessions = [_engine.Session(engine) for _ in texts]
        for session, ids in zip(sessions, texts, strict=True):
            session.sync(ids[:-1])
        for group in groups:
            _engine.sync_together([sessions[i] for i in group], [texts[i] for i in group])
        return [session.logits() for session in sessions]

    alone, together = logits([[i] for i in range(10)]), logits([list(range(10))])
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def with_wider_shared_expert(path: Path, shape: Shape) -> Path:
    """The same model: zeros make its shared expert twice as wide, so that it has launches of its own."""
    tensors = gguf_files.tensors(shape)
    for name, tensor in tensors.items():
        if "_shexp" not in name or "inp" in name:
            continue
        axis = 1 if "down" in name else 0
        rows = tensor.rows if isinstance(tensor, gguf_files.Packed) else tensor
        wider = np.concatenate([rows, np.zeros_like(rows)], axis)
        tensors[name] = gguf_files.Packed(tensor.dtype, wider) if isinstance(tensor, gguf_files.Packed) else wider
    return gguf_files.write(path, gguf_files.metadata(replace(shape, shared_ffn=2 * shape.shared_ffn)), tensors)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("dtype", "activations"),
    [
        ("Q4_K", "int8"),
        pytest.param("Q4_K", "f32", marks=pytest.mark.slow),
        pytest.param("Q6_K", "int8", marks=pytest.mark.slow),
        pytest.param("Q8_0", "int8", marks=pytest.mark.slow),
        ("BF16", "int8"),
        pytest.param("F32", "f32", marks=pytest.mark.slow),
    ],
)
def test_the_shared_expert_in_the_launches_of_the_others(
    pack: _engine.gpu.Pack, tmp_path: Path, dtype: str, activations: str
) -> None:
    """One row: a layer's mixture takes five launches, and gives the same bits as a shared expert with launches of its
    own. A row of gate and up takes several warps of a GEMV."""
    hidden = 2048 if dtype == "Q4_K" else 1024
    shape = replace(HYBRID, dtype=dtype, hidden=hidden, n_layers=1, recurrent=(False,), expert_ffn=256, shared_ffn=256)
    paths = (
        write_model(tmp_path / "model.gguf", shape),
        with_wider_shared_expert(tmp_path / "wider.gguf", shape),
    )
    ids = random_ids(3, shape.vocab)
    logits, launches = [], []
    for path in paths:
        engine = open_engine(path, pack=pack, activations=activations, context=64)
        logits.append(logits_of(engine, ids, 1))
        session = _engine.Session(engine)
        launches.append(sum(n for _, n, _ in _kernels.SessionProbe(session).profile_append(ids[:1], 1)))
    assert np.array_equal(logits[0], logits[1])
    assert launches[1] - launches[0] == 3 + 2 * (dtype not in ("BF16", "F32"))
