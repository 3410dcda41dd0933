"""Mixtures of experts in the megakernel: the graph's tokens and logits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
import pytest
from engines import F32, Decoder, largest_difference, open_engine
from lucebox import _engine, _kernels
from lucebox.errors import LuceboxError
from reference.gguf_files import Shape, write_model
from tolerances import tolerance

HYBRID = Shape(
    "qwen35moe",
    n_layers=2,
    recurrent=(True, False),
    hidden=256,
    n_heads=4,
    head_dim=64,
    d_state=64,
    expert_ffn=256,
    shared_ffn=256,
)
DENSE = Shape("qwen3moe", n_layers=2, hidden=256, n_heads=4, head_dim=64, expert_ffn=256)
SHAPES = {
    "hybrid": HYBRID,
    "joined": replace(HYBRID, joined_experts=True, expert_ffn=96),
    # Rows of down with 24 pieces, numbers of experts and of outputs that no warp divides; the most choices.
    "odd": replace(DENSE, expert_ffn=96, hidden=320, n_experts=37, n_used=5, n_heads=5, n_kv_heads=1),
    "many": replace(HYBRID, expert_ffn=40, shared_ffn=72, n_experts=300, n_used=16),
    "one": replace(DENSE, n_used=1, expert_ffn=160),
}
ROUNDED = ("Q8_0", "Q4_0", "Q5_K", "Q6_K", "IQ4_XS", "MXFP4", "NVFP4")


@pytest.fixture(scope="module", params=gpu_packs.MEGAKERNELS)
def pack(request: pytest.FixtureRequest, pack_folder: Path) -> _engine.gpu.Pack:
    return gpu_packs.with_megakernels(pack_folder, request.param)


def pair(pack: _engine.gpu.Pack, path: Path, **options: Any) -> tuple[Decoder, Decoder]:
    graph, mega = (
        Decoder(open_engine(path, pack=pack, decode_path=way, **options), [3, 1, 4]) for way in ("graph", "megakernel")
    )
    return graph, mega


@pytest.mark.first_case
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ("hybrid", "odd") else pytest.mark.slow) for name in SHAPES],  # 3 to 10 s
)
def test_tokens_and_logits(pack: _engine.gpu.Pack, tmp_path: Path, name: str) -> None:
    graph, mega = pair(pack, write_model(tmp_path / "model.gguf", SHAPES[name]))
    assert graph.decode(6) == mega.decode(6)
    assert largest_difference(mega.session.logits(), graph.session.logits()) < tolerance("logits", "f32_device")
    assert mega.session.decode_path.startswith("megakernel_plain_")


def logits_of(pack: _engine.gpu.Pack, path: Path, way: str, activations: str = "int8") -> F32:
    decoder = Decoder(open_engine(path, pack=pack, decode_path=way, activations=activations), [3, 1, 4])
    decoder.decode(1)
    return decoder.session.logits()


def check_rounded(pack: _engine.gpu.Pack, path: Path) -> None:
    """A code of x or of act() that sums of another order move costs a part of what rounding costs."""
    graph, mega = (logits_of(pack, path, way) for way in ("graph", "megakernel"))
    rounding = largest_difference(logits_of(pack, path, "auto", "f32"), graph)
    assert largest_difference(mega, graph) < tolerance("logits", "rounded_share") * rounding


@pytest.mark.parametrize("dtype", ["BF16", pytest.param("F16", marks=pytest.mark.slow)])
def test_plain_weights(pack: _engine.gpu.Pack, tmp_path: Path, dtype: str) -> None:
    path = write_model(tmp_path / "model.gguf", replace(HYBRID, dtype=dtype))
    graph, mega = (logits_of(pack, path, way) for way in ("graph", "megakernel"))
    assert largest_difference(mega, graph) < tolerance("logits", "f32_device")


@pytest.mark.parametrize(
    "dtype",
    ["Q4_K"] + [pytest.param(dtype, marks=pytest.mark.slow) for dtype in ROUNDED],  # 4 s each
)
def test_rounded_weights(pack: _engine.gpu.Pack, tmp_path: Path, dtype: str) -> None:
    check_rounded(pack, write_model(tmp_path / "model.gguf", replace(HYBRID, dtype=dtype)))


@pytest.mark.parametrize(
    ("n_used", "expert_ffn"), [(3, 96), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 96), (9, 1056)))]
)
def test_codes_of_act(pack: _engine.gpu.Pack, tmp_path: Path, n_used: int, expert_ffn: int) -> None:
    """Every reader rounds act() where its codes and scales are no pairs; rows of down longer than a warp."""
    shape = replace(DENSE, dtype="Q8_0", n_experts=12, n_used=n_used, expert_ffn=expert_ffn)
    check_rounded(pack, write_model(tmp_path / "model.gguf", shape))


@pytest.mark.slow  # 6 s each
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_p": 0.9, "seed": 7}])
def test_launches_of_several_tokens(pack: _engine.gpu.Pack, tmp_path: Path, sampling: dict[str, Any]) -> None:
    path, ids = write_model(tmp_path / "model.gguf", HYBRID), []
    for way, ahead in (("graph", 1), ("megakernel", 3)):
        engine = open_engine(path, pack=pack, decode_path=way)
        vocab = engine.info["vocab"]
        sampler = _engine.Sampler(vocab, **sampling)
        ids.append(_kernels.ops.decode_ahead(engine, np.linspace(-2, 2, vocab, dtype=np.float32), sampler, 9, ahead))
    assert ids[0] == ids[1]


def test_two_runs_are_equal_in_every_bit(pack: _engine.gpu.Pack, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", replace(HYBRID, dtype="Q4_K"))
    runs = [logits_of(pack, path, "megakernel") for _ in range(2)]
    assert np.array_equal(*runs)


def test_phases(pack: _engine.gpu.Pack, tmp_path: Path) -> None:
    """A mixture has three phases; with a shared expert as without."""
    for shape, n in ((HYBRID, 3 + 4 + 2 * 3), (DENSE, 2 * 4 + 2 * 3)):
        _, mega = pair(pack, write_model(tmp_path / "model.gguf", shape))
        mega.decode(1)
        assert f" {n + 3} phases" in mega.session.decode_path


@pytest.mark.parametrize(
    ("shape", "options", "why"),
    [
        (HYBRID, {"expert_slots": 4}, "needs all experts in device memory, and 4 of the 8 of each layer are there"),
        (Shape("gpt-oss", n_layers=2, n_heads=8, head_dim=64, expert_ffn=40, yarn=32.0), {}, "megakernel"),
    ],
    ids=["slots", "gpt-oss"],
)
def test_mixtures_of_graphs(
    pack: _engine.gpu.Pack, tmp_path: Path, shape: Shape, options: dict[str, Any], why: str
) -> None:
    path = write_model(tmp_path / "model.gguf", shape)
    with pytest.raises(LuceboxError, match=why):
        open_engine(path, pack=pack, decode_path="megakernel", **options)


def test_the_rule_of_a_target(pack_folder: Path, tmp_path: Path) -> None:
    """Without a wish, a graph decodes a mixture."""
    manifest = gpu_packs.manifest_of(pack_folder)
    if not gpu_packs.has_kernel(manifest, "megakernel_"):
        pytest.skip(f"the pack of {pack_folder.name} has no megakernel")
    manifest["tuning"] |= {"megakernel_max_mib": 64, "megakernel_max_kv_mib": 1}
    pack, path = gpu_packs.load(pack_folder, manifest), write_model(tmp_path / "model.gguf", HYBRID)
    ways = (({}, "graph"), ({"decode_path": "megakernel"}, "megakernel_plain_"), ({"expert_slots": 4}, "graph"))
    for options, way in ways:
        decoder = Decoder(open_engine(path, pack=pack, **options), [3, 1, 4])
        decoder.decode(2)
        assert decoder.session.decode_path.startswith(way)
