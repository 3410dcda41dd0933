"""Checkpoints in FP8 and NVFP4, and NVFP4 with a scale of the whole tensor: the bits of the same values in fp32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import logits_of, open_engine, random_ids
from lucebox import _engine
from lucebox.cli.inspect import quant_mix
from lucebox.errors import FormatError, UnsupportedError
from lucebox.models.assets import TensorInfo, list_tensors
from numpy.typing import NDArray
from reference import checkpoints
from reference.checkpoints import Typed, e4m3_values, write_tensors
from reference.gguf_files import Packed, Shape, metadata, tensors, write, write_model
from reference.linear import decode_scaled_nvfp4, scaled_nvfp4, to_bf16

IDS = random_ids(20, 500)


def same_logits(*paths: Path) -> None:
    first, *others = (logits_of(open_engine(path), IDS) for path in paths)
    assert all(np.array_equal(first, other) for other in others)


# Scales of a matrix [n_out, n_in], and their name.
FP8_SCALES: dict[str, tuple[str, Callable[[int, int], tuple[int, ...]]]] = {
    "tiles": ("weight_scale_inv", lambda n_out, n_in: (-(-n_out // 64), -(-n_in // 128))),
    "small tiles": ("weight_scale_inv", lambda n_out, n_in: (-(-n_out // 32), -(-n_in // 48))),
    "rows": ("weight_scale", lambda n_out, _: (n_out, 1)),
    "a row's, without columns": ("weight_scale", lambda n_out, _: (n_out,)),
    "one": ("weight_scale", lambda *_: (1,)),
    "a scalar": ("weight_scale", lambda *_: ()),
    "none": ("", lambda *_: ()),
}
TILES = {"tiles": [64, 128], "small tiles": [32, 48]}


@pytest.mark.parametrize("family", ["llama", "qwen3moe"])
@pytest.mark.parametrize("kind", FP8_SCALES)
def test_fp8(tmp_path: Path, kind: str, family: str) -> None:
    """The bits of a checkpoint of the products: codes times scales in fp32, or rounded to BF16 if rows are no multiples
    of 128 values or 128 values may have several scales. A mixture has a matrix per expert."""
    shape = Shape(family, n_layers=2, hidden=256, ffn=320, expert_ffn=128, vocab=512)
    config, weights = checkpoints.from_gguf(write_model(tmp_path / "model.gguf", shape))
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": TILES.get(kind)}
    rng = np.random.default_rng(0)
    suffix, shape_of = FP8_SCALES[kind]
    fp8: Typed = {}
    plain: Typed = {}
    copied = 0
    for name, tensor in weights.items():
        if not name.endswith("proj.weight"):
            fp8[name] = plain[name] = ("F32", tensor)
            continue
        codes = rng.integers(0, 0x60, tensor.shape, dtype=np.uint8) | rng.choice([0, 128], tensor.shape).astype(
            np.uint8
        )
        fp8[name] = ("F8_E4M3", codes)
        values = e4m3_values()[codes]
        if suffix:
            scales = rng.uniform(0.001, 0.01, shape_of(*tensor.shape)).astype(np.float32)
            fp8[name.removesuffix("weight") + suffix] = ("F32", scales)
            fp8[name.removesuffix("weight") + "input_scale"] = ("F32", np.ones(1, np.float32))
            grid = scales.reshape(-1, scales.shape[1] if scales.ndim == 2 else 1)
            size = [-(-n // parts) for n, parts in zip(tensor.shape, grid.shape, strict=True)]
            size = TILES.get(kind, size)
            whole = grid.repeat(size[0], 0).repeat(size[1], 1)[: tensor.shape[0], : tensor.shape[1]]
            values = values * whole
        is_packed = kind != "small tiles" and tensor.shape[1] % 128 == 0
        plain[name] = ("F32", values) if is_packed else ("BF16", to_bf16(values))
        copied += tensor.size // 128 * 132 if is_packed else 2 * tensor.size
    paths = []
    for label, typed in (("fp8", fp8), ("plain", plain)):
        paths.append(checkpoints.write(tmp_path / label, config, {"x": np.zeros(1, np.float32)}))
        write_tensors(paths[-1] / "model.safetensors", typed)
    same_logits(*paths)
    entries = {name: size for name, size, *_ in open_engine(paths[0]).plan["entries"]}
    assert entries["copied weights"] == copied


def test_fp8_with_other_scales(data: Path, tmp_path: Path) -> None:
    config, weights = checkpoints.from_gguf(data / "tiny" / "llama_a.gguf")
    typed: Typed = {name: ("F32", tensor) for name, tensor in weights.items()}
    name = "model.layers.0.mlp.up_proj.weight"
    typed[name] = ("F8_E4M3", np.zeros(weights[name].shape, np.uint8))
    path = checkpoints.write(tmp_path / "m", config, {"x": np.zeros(1, np.float32)})
    for scales, part in (
        (np.ones((3, 7), np.float32), "expected scales of a"),
        (np.array([np.nan], np.float32), "value 0 is not finite"),
    ):
        typed[name + "_scale"] = ("F32", scales)
        write_tensors(path / "model.safetensors", typed)
        with pytest.raises(FormatError, match=part):
            open_engine(path)
    typed |= {
        name: ("F8_E4M3", np.full(weights[name].shape, 0xFF, np.uint8)),
        name + "_scale": ("F32", np.ones(1, np.float32)),
    }
    write_tensors(path / "model.safetensors", typed)
    with pytest.raises(FormatError, match=r"up_proj\.weight has FP8 numbers that are not finite"):
        open_engine(path)
    typed[name + "_scale"] = ("U8", np.full((weights[name].shape[0], weights[name].shape[1] // 32), 127, np.uint8))
    write_tensors(path / "model.safetensors", typed)
    with pytest.raises(UnsupportedError, match=r"weights of MXFP8, which are not supported\. Use a checkpoint in BF16"):
        open_engine(path)
    typed[name] = ("F8_E5M2", np.zeros(weights[name].shape, np.uint8))
    write_tensors(path / "model.safetensors", typed)
    with pytest.raises(UnsupportedError, match="has type F8_E5M2, which is not supported; convert the model again"):
        open_engine(path)


def nvfp4_and_plain(data: Path, folder: Path, maker: str, change: Callable[[Typed], Typed] = dict) -> list[Path]:
    """The tiny Llama with its products and an own head in NVFP4, and the values in F32."""
    config, weights = checkpoints.from_gguf(data / "tiny" / "llama_a.gguf")
    config["tie_word_embeddings"] = False
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    rng = np.random.default_rng(0)
    packed: Typed = {"model.layers.0.self_attn.k_proj.k_scale": ("F32", np.ones(1, np.float32))}
    plain: Typed = {}
    for name, tensor in weights.items():
        if not name.endswith(("proj.weight", "lm_head.weight")):
            packed[name] = plain[name] = ("F32", tensor)
            continue
        made, values = checkpoints.nvfp4(name, tensor.shape, maker, rng)
        packed |= made
        plain[name] = ("F32", values)
    paths = []
    for label, typed in (("nvfp4", change(packed)), ("plain", plain)):
        paths.append(checkpoints.write(folder / label, config, {"x": np.zeros(1, np.float32)}))
        write_tensors(paths[-1] / "model.safetensors", typed)
    return paths


@pytest.mark.parametrize("maker", ["modelopt", "compressed-tensors"])
def test_nvfp4_checkpoints(data: Path, tmp_path: Path, maker: str) -> None:
    packed, plain = nvfp4_and_plain(data, tmp_path, maker)
    same_logits(packed, plain)
    entries = {name: size for name, size, *_ in open_engine(packed).plan["entries"]}
    infos = list_tensors(_engine.open_model_file(str(packed)))
    head = next(info for info in infos if info.name.startswith("lm_head.weight") and info.dtype == "NVFP4")
    assert head.shape == (512, 192) and head.bytes == 512 * 192 // 2
    held = {share.dtype: share.device_dtype for share in quant_mix(infos)}
    assert held == {"NVFP4": "NVFP4", "F8_E4M3": "F8_E4M3", "F32": "F32"}
    rows = [info.shape for info in infos if info.dtype == "NVFP4"]
    assert entries["copied weights"] == sum(n_out * (8 + n_in // 64 * 36) for n_out, n_in in rows)


DOWN = "model.layers.0.mlp.down_proj."


@pytest.mark.parametrize(
    ("maker", "name", "tensor", "part"),
    [
        ("modelopt", "weight_scale", None, "NVFP4 needs weight_scale and weight_scale_2 beside it"),
        ("compressed-tensors", "weight_global_scale", None, "NVFP4 needs weight_scale and weight_global_scale beside"),
        ("modelopt", "weight_scale", ("F8_E4M3", np.zeros((192, 12), np.uint8)), r"expected F8_E4M3 \[192, 24\]: one"),
        ("modelopt", "weight_scale", ("F32", np.zeros((192, 24), np.float32)), "is F32 .*; expected F8_E4M3"),
        ("modelopt", "weight_scale_2", ("F32", np.ones(2, np.float32)), "expected one scale of the whole tensor"),
        ("modelopt", "weight_scale_2", ("F32", np.array([np.nan], np.float32)), "value 0 is not finite"),
        ("compressed-tensors", "weight_global_scale", ("F32", np.zeros(1, np.float32)), "is 0"),
        ("modelopt", "weight_scale", ("F8_E4M3", np.full((192, 24), 0x7F, np.uint8)), "numbers that are not finite"),
        ("compressed-tensors", "weight_packed", ("U8", np.zeros((192, 48), np.uint8)), "has shape .*; expected"),
        ("compressed-tensors", "weight_packed", ("I32", np.zeros((192, 48), np.int32)), "must be NVFP4"),
        ("modelopt", "weight", None, "is missing; expected it with shape"),
    ],
)
def test_damaged_nvfp4(
    data: Path, tmp_path: Path, maker: str, name: str, tensor: tuple[str, NDArray[Any]] | None, part: str
) -> None:
    def change(typed: Typed) -> Typed:
        rest = {key: value for key, value in typed.items() if key != DOWN + name}
        return rest if tensor is None else rest | {DOWN + name: tensor}

    packed, _ = nvfp4_and_plain(data, tmp_path, maker, change)
    with pytest.raises((FormatError, UnsupportedError), match=part):
        open_engine(packed)


def test_gptq(data: Path, tmp_path: Path) -> None:
    config, weights = checkpoints.from_gguf(data / "tiny" / "llama_a.gguf")
    typed: Typed = {name: ("F32", tensor) for name, tensor in weights.items()}
    del typed[DOWN + "weight"]
    path = checkpoints.write(tmp_path / "m", config, {"x": np.zeros(1, np.float32)})
    write_tensors(path / "model.safetensors", typed | {DOWN + "qweight": ("I32", np.zeros((48, 192), np.int32))})
    with pytest.raises(UnsupportedError, match=r"weights of GPTQ or AWQ, which are not supported\. Use a"):
        open_engine(path)


@pytest.mark.parametrize("suffix", ["scale", "weight.scale"])
def test_nvfp4_in_gguf_with_scales_of_tensors(tmp_path: Path, suffix: str) -> None:
    """As llama.cpp's converter writes them. The scales of activations are not used."""
    shape = Shape("llama", dtype="NVFP4", hidden=64, ffn=128, n_layers=1)
    rng = np.random.default_rng(0)
    packed, plain = dict(tensors(shape)), dict(tensors(shape))
    for name, tensor in tensors(shape).items():
        if not isinstance(tensor, Packed) or name == "token_embd.weight":
            continue
        scale = rng.uniform(0.5, 2, 1).astype(np.float32)
        packed[name.removesuffix("weight") + suffix] = scale
        packed[name.removesuffix("weight") + "input_scale"] = np.ones(1, np.float32)
        plain[name] = decode_scaled_nvfp4(
            scaled_nvfp4(tensor.rows, np.repeat(scale, len(tensor.rows))), len(tensor.rows)
        )
    paths = [write(tmp_path / f"{i}.gguf", metadata(shape), each) for i, each in enumerate((packed, plain))]
    ids = random_ids(20, shape.vocab)
    assert np.array_equal(*(logits_of(open_engine(path), ids) for path in paths))


def test_nvfp4_experts_in_gguf_have_a_scale_each(tmp_path: Path) -> None:
    shape = Shape("qwen3moe", dtype="NVFP4", hidden=64, ffn=128, expert_ffn=64, n_layers=1)
    rng = np.random.default_rng(0)
    packed, plain = dict(tensors(shape)), dict(tensors(shape))
    for name, tensor in tensors(shape).items():
        if not isinstance(tensor, Packed) or "_exps." not in name:
            continue
        scales = rng.uniform(0.5, 2, shape.n_experts).astype(np.float32)
        packed[name.removesuffix("weight") + "scale"] = scales
        rows = tensor.rows.reshape(-1, tensor.rows.shape[-1])
        values = decode_scaled_nvfp4(scaled_nvfp4(rows, np.repeat(scales, len(rows) // len(scales))), len(rows))
        plain[name] = values.reshape(*tensor.rows.shape[:-1], -1)
    paths = [write(tmp_path / f"{i}.gguf", metadata(shape), each) for i, each in enumerate((packed, plain))]
    ids = random_ids(20, shape.vocab)
    assert np.array_equal(*(logits_of(open_engine(path), ids) for path in paths))
    name = "blk.0.ffn_up_exps.scale"
    damaged = write(tmp_path / "damaged.gguf", metadata(shape), packed | {name: packed[name][:3]})
    with pytest.raises(FormatError, match=f"expected one scale for each of {shape.n_experts} experts"):
        open_engine(damaged)


def test_inspect_says_what_a_gpu_holds() -> None:
    shares = quant_mix([TensorInfo(dtype, dtype, (256,), "m", 0, 82) for dtype in ("IQ2_S", "Q4_K", "F8_E4M3", "I64")])
    held = {share.dtype: share.device_dtype for share in shares}
    assert held == {"IQ2_S": "BF16", "Q4_K": "Q4_K", "F8_E4M3": "F8_E4M3", "I64": "I64"}
