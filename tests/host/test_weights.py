"""Weights and configuration bind strictly both ways: whatever does not belong together is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import open_engine
from lucebox.errors import FormatError, LuceboxError, UnsupportedError
from reference import checkpoints
from reference.gguf_files import F32, Packed, Shape, metadata, random_matrix, tensors, write, write_model
from safetensors.numpy import load_file

FAMILIES = {
    "qwen35": Shape(n_layers=2, recurrent=(True, False)),
    "qwen3": Shape("qwen3", n_layers=1),
    "llama": Shape("llama", n_layers=1, rope_factors=True),
}


def refused(path: Path, error: type[LuceboxError], *parts: str) -> None:
    """The error names the file and says each of the parts."""
    with pytest.raises(error) as caught:
        open_engine(path)
    for part in (path.name, *parts):
        assert part in str(caught.value), f"{part!r} is not in {caught.value}"


def shape_text(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def stretched(tensor: F32 | Packed) -> F32 | Packed:
    """One row, or one value of a vector, more."""
    if isinstance(tensor, Packed):
        return Packed(tensor.dtype, np.concatenate([tensor.rows, tensor.rows[:1]]))
    return np.concatenate([tensor, tensor[:1]])


# --- tensors of GGUF


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_missing_tensors(tmp_path: Path, family: str) -> None:
    weights = tensors(FAMILIES[family])
    optional = {"output.weight", "rope_freqs.weight"}  # absence means tied, and unscaled
    for name in weights.keys() - optional:
        rest = {other: tensor for other, tensor in weights.items() if other != name}
        path = write(tmp_path / "missing.gguf", metadata(FAMILIES[family]), rest)
        refused(path, FormatError, f"tensor {name} is missing")


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_wrong_shapes(tmp_path: Path, family: str) -> None:
    fields = metadata(FAMILIES[family]) | {"vocab_size": FAMILIES[family].vocab}
    weights = tensors(FAMILIES[family])
    for name, tensor in weights.items():
        longer = stretched(tensor)
        assert isinstance(tensor, np.ndarray) and isinstance(longer, np.ndarray)
        path = write(tmp_path / "shape.gguf", fields, weights | {name: longer})
        refused(path, FormatError, name, f"has shape {shape_text(longer.shape)}; expected {shape_text(tensor.shape)}")


def test_gguf_wrong_number_of_dimensions(tmp_path: Path) -> None:
    shape = FAMILIES["llama"]
    weights = tensors(shape)
    for name in ("blk.0.attn_norm.weight", "blk.0.attn_q.weight", "token_embd.weight"):
        tensor = weights[name]
        assert isinstance(tensor, np.ndarray)
        flipped = tensor[None] if tensor.ndim == 1 else tensor.reshape(-1)
        refused(write(tmp_path / "d.gguf", metadata(shape), weights | {name: flipped}), FormatError, name, "expected")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "name",
    ["blk.0.mystery.weight", "blk.0.attn_q.bias", "mystery.weight", "blk.7.attn_norm.weight", "blk.x.ffn.weight"],
)
def test_gguf_left_over_tensors(tmp_path: Path, family: str, name: str) -> None:
    weights = tensors(FAMILIES[family]) | {name: np.zeros(8, np.float32)}
    path = write(tmp_path / "extra.gguf", metadata(FAMILIES[family]), weights)
    refused(path, FormatError, name, "[8]", "not part of this architecture")


def test_gguf_counts_the_left_over_tensors(tmp_path: Path) -> None:
    shape = FAMILIES["qwen3"]
    weights = tensors(shape) | {f"extra.{i}": np.zeros(8, np.float32) for i in range(4)}
    refused(write(tmp_path / "extra.gguf", metadata(shape), weights), FormatError, "extra.0", "and 3 more tensors")


def test_gguf_layers_beyond_the_count(tmp_path: Path) -> None:
    """Only declared prediction blocks may follow the main layers."""
    weights = tensors(Shape(n_layers=3, recurrent=(True, False, True)))
    path = write(tmp_path / "layers.gguf", metadata(FAMILIES["qwen35"]), weights)
    refused(path, FormatError, "blk.2.", "not part of this architecture")


def test_gguf_quantised_vector(tmp_path: Path) -> None:
    shape = FAMILIES["llama"]
    packed = random_matrix("Q8_0", 1, shape.hidden, 1.0, np.random.default_rng(0))
    assert isinstance(packed, Packed)
    vector = Packed("Q8_0", packed.rows[0])
    path = write(tmp_path / "v.gguf", metadata(shape), tensors(shape) | {"blk.0.attn_norm.weight": vector})
    refused(path, FormatError, "blk.0.attn_norm.weight", "is Q8_0; a vector must be F32, F16 or BF16")


def test_gguf_type_without_decoder(tmp_path: Path) -> None:
    shape = Shape("llama", n_layers=1, hidden=256, ffn=256)
    packed = Packed("Q8_K", np.zeros((shape.ffn, 292), np.uint8))
    path = write(tmp_path / "t.gguf", metadata(shape), tensors(shape) | {"blk.0.ffn_up.weight": packed})
    refused(path, UnsupportedError, "blk.0.ffn_up.weight", "has type Q8_K, which is not supported")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_gguf_vector_with_values_that_are_not_finite(tmp_path: Path, bad: float) -> None:
    shape = FAMILIES["qwen35"]
    weights = tensors(shape)
    vector = weights["blk.0.ssm_norm.weight"]
    assert isinstance(vector, np.ndarray)
    vector[3] = bad
    path = write(tmp_path / "n.gguf", metadata(shape), weights)
    refused(path, FormatError, "blk.0.ssm_norm.weight", "value 3 is not finite")


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_gguf_bad_rope_factors(tmp_path: Path, bad: float) -> None:
    shape = FAMILIES["llama"]
    weights = tensors(shape)
    factors = weights["rope_freqs.weight"]
    assert isinstance(factors, np.ndarray)
    factors[2] = bad
    path = write(tmp_path / "f.gguf", metadata(shape), weights)
    refused(path, FormatError, "rope_freqs.weight", "factor 2 must be positive")


# --- configuration in GGUF

COUNTS = {
    "qwen35": [
        "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count",
        "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size",
    ],
    "llama": ["block_count", "attention.head_count", "rope.dimension_count", "vocab_size"],
}  # fmt: skip
WITH_DEFAULT = {
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count", "vocab_size",
    "rope.freq_base",
}  # fmt: skip
POSITIVE = ["attention.layer_norm_rms_epsilon", "rope.freq_base"]
FIELDS = [(family, key) for family, keys in COUNTS.items() for key in keys]


@pytest.mark.parametrize(("family", "key"), FIELDS)
def test_gguf_counts(tmp_path: Path, family: str, key: str) -> None:
    shape = FAMILIES[family]
    weights = tensors(shape)
    for bad in (0, -1, 2**24 + 1, 2**40, 2**63, "4", 4.0):
        path = write(tmp_path / "c.gguf", metadata(shape) | {key: bad}, weights)
        refused(path, FormatError, f"{family}.{key}")
    if key not in WITH_DEFAULT:
        fields = metadata(shape)
        del fields[key]
        refused(write(tmp_path / "c.gguf", fields, weights), FormatError, f"{family}.{key}", "missing")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("key", POSITIVE)
def test_gguf_positive_numbers(tmp_path: Path, family: str, key: str) -> None:
    shape = FAMILIES[family]
    weights = tensors(shape)
    for bad in (0.0, -1.0, math.nan, math.inf, -math.inf, "1e-6"):
        refused(write(tmp_path / "p.gguf", metadata(shape) | {key: bad}, weights), FormatError, f"{family}.{key}")
    if key not in WITH_DEFAULT:
        fields = metadata(shape)
        del fields[key]
        refused(write(tmp_path / "p.gguf", fields, weights), FormatError, f"{family}.{key}", "missing")


@pytest.mark.parametrize(
    ("family", "changed", "part"),
    [
        ("qwen3", {"attention.head_count_kv": 3}, "head_count_kv is 3, which does not divide the 4 query heads"),
        ("qwen3", {"attention.head_count_kv": 8}, "head_count_kv is 8, which does not divide the 4 query heads"),
        ("qwen3", {"attention.head_count_kv": [0, 0]}, "gives 0 KV heads"),
        ("qwen3", {"attention.head_count_kv": [2, 4]}, "differs between layers"),
        ("qwen3", {"attention.key_length": 36}, "multiples of 8 up to 512"),
        ("qwen3", {"attention.key_length": 1024}, "multiples of 8 up to 512"),
        ("qwen3", {"attention.value_length": 16}, "value_length differs from the key length"),
        ("qwen3", {"block_count": 1025}, "block_count is 1025; at most 1024"),
        ("llama", {"rope.dimension_count": 31}, "rope.dimension_count gives 31 rotated values"),
        ("llama", {"rope.dimension_count": 64}, "rope.dimension_count gives 64 rotated values"),
        ("qwen35", {"rope.dimension_count": 7}, "gives 7 rotated values"),
        ("qwen35", {"rope.dimension_sections": [2, 1]}, "three sections"),
        ("qwen35", {"ssm.inner_size": 65}, "inner_size must be 4 value heads of 16, found 65"),
        ("qwen35", {"ssm.group_count": 3}, "time_step_rank is 4, not a multiple of the 3 key heads"),
        ("qwen35", {"ssm.conv_kernel": 1}, "conv_kernel is 1; supported: 2 to 8"),
        ("qwen35", {"ssm.conv_kernel": 9}, "conv_kernel is 9; supported: 2 to 8"),
        ("qwen35", {"attention.recurrent_layers": [True]}, "lists 1 layers; the model has 2"),
        ("qwen35", {"nextn_predict_layers": 2}, "nextn_predict_layers is 2 of 2 blocks"),
        ("qwen35", {"nextn_predict_layers": 2**40}, "of 2 blocks"),
    ],
)  # fmt: skip
def test_gguf_values_that_contradict(tmp_path: Path, family: str, changed: dict[str, Any], part: str) -> None:
    shape = FAMILIES[family]
    path = write(tmp_path / "c.gguf", metadata(shape) | changed, tensors(shape))
    refused(path, FormatError, f"{family}.", part)


def test_gguf_more_heads_than_values(tmp_path: Path) -> None:
    """Without a key length the head size is hidden / heads, which must not be zero."""
    shape = FAMILIES["llama"]
    fields = metadata(shape) | {"attention.head_count": 128, "attention.head_count_kv": 128}
    del fields["attention.key_length"], fields["attention.value_length"], fields["rope.dimension_count"]
    refused(write(tmp_path / "h.gguf", fields, tensors(shape)), FormatError, "attention.key_length")


def test_gguf_unsupported_by_name(tmp_path: Path) -> None:
    shape = FAMILIES["llama"]
    weights = tensors(shape)
    path = write(tmp_path / "a.gguf", metadata(shape) | {"general.architecture": "mamba"}, weights)
    refused(
        path,
        UnsupportedError,
        'architecture "mamba"',
        "gpt-oss, llama, mistral3, phi3, qwen3, qwen3moe, qwen35, qwen35moe, smollm3",
    )
    path = write(tmp_path / "r.gguf", metadata(shape) | {"rope.scaling.type": "dynamic"}, weights)
    refused(path, UnsupportedError, "llama.rope.scaling.type", '"dynamic"', "linear, longrope, yarn")
    path = write(tmp_path / "r.gguf", metadata(shape) | {"rope.scaling.type": "linear"}, weights)
    refused(path, FormatError, "llama.rope.scaling.factor", "missing")


# --- safetensors


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, F32]]:
    shape = Shape("llama", n_layers=1)
    return checkpoints.from_gguf(write_model(tmp_path_factory.mktemp("c") / "llama.gguf", shape))


def test_safetensors_missing_and_wrong_shapes(
    tmp_path: Path, checkpoint: tuple[dict[str, Any], dict[str, F32]]
) -> None:
    config, weights = checkpoint
    for name, tensor in weights.items():
        rest = {other: t for other, t in weights.items() if other != name}
        refused(
            checkpoints.write(tmp_path, config, rest),
            FormatError,
            f"tensor {name} is missing",
            shape_text(tensor.shape),
        )
        longer = np.concatenate([tensor, tensor[:1]])
        path = checkpoints.write(tmp_path, config, weights | {name: longer})
        refused(path, FormatError, name, f"has shape {shape_text(longer.shape)}; expected {shape_text(tensor.shape)}")


def test_safetensors_left_over(tmp_path: Path, checkpoint: tuple[dict[str, Any], dict[str, F32]]) -> None:
    config, weights = checkpoint
    extra = np.zeros(8, np.float32)
    for name in ("model.layers.1.input_layernorm.weight", "model.layers.0.self_attn.q_proj.bias", "mystery"):
        path = checkpoints.write(tmp_path, config, weights | {name: extra})
        refused(path, FormatError, name, "not part of this architecture")


def test_safetensors_that_are_tied_may_carry_a_copy(
    tmp_path: Path, checkpoint: tuple[dict[str, Any], dict[str, F32]]
) -> None:
    config, weights = checkpoint
    assert "lm_head.weight" in weights
    open_engine(checkpoints.write(tmp_path, config | {"tie_word_embeddings": True}, weights))
    del (rest := dict(weights))["lm_head.weight"]
    open_engine(checkpoints.write(tmp_path, config | {"tie_word_embeddings": True}, rest))
    refused(checkpoints.write(tmp_path, config, rest), FormatError, "lm_head.weight is missing")


def test_safetensors_qwen35_layers_beyond_the_count(data: Path, tmp_path: Path) -> None:
    source = data / "tiny" / "qwen35_a"
    config = json.loads((source / "config.json").read_text())
    config |= {"num_hidden_layers": 3, "layer_types": config["layer_types"][:3]}
    path = checkpoints.write(tmp_path, config, load_file(source / "model.safetensors"))
    refused(path, FormatError, "model.layers.3.", "not part of this architecture")


HF_COUNTS = [
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "max_position_embeddings", "vocab_size",
]  # fmt: skip


@pytest.mark.parametrize("key", HF_COUNTS)
def test_safetensors_counts(tmp_path: Path, checkpoint: tuple[dict[str, Any], dict[str, F32]], key: str) -> None:
    config, weights = checkpoint
    for bad in (0, -1, 2**24 + 1, 2**62, 2**70, "4", 4.5, True, [4], {}):
        path = checkpoints.write(tmp_path, config | {key: bad}, weights)
        with pytest.raises(FormatError, match=r"config\.json"):
            open_engine(path)


@pytest.mark.parametrize("bad", [0, -1.0, 1e40, "1e-6", True, math.nan, math.inf])
def test_safetensors_positive_numbers(
    tmp_path: Path, checkpoint: tuple[dict[str, Any], dict[str, F32]], bad: Any
) -> None:
    config, weights = checkpoint
    for changed in ({"rms_norm_eps": bad}, {"rope_parameters": {"rope_theta": bad}}):
        with pytest.raises(FormatError, match=r"config\.json"):
            open_engine(checkpoints.write(tmp_path, config | changed, weights))


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"model_type": "gpt2"}, ('architecture "gpt2"', "llama")),
        ({"hidden_act": "gelu"}, ('hidden_act "gelu"', "silu")),
        ({"attention_bias": True}, ("attention_bias",)),
        ({"mlp_bias": True}, ("mlp_bias",)),
        ({"use_sliding_window": True}, ("use_sliding_window",)),
        ({"rope_parameters": {"rope_type": "ntk", "rope_theta": 1e4}}, ('rope scaling "ntk"', "yarn")),
        ({"rope_scaling": {"type": "dynamic", "factor": 4}, "rope_parameters": None}, ('rope scaling "dynamic"',)),
    ],
)
def test_safetensors_unsupported_by_name(
    tmp_path: Path,
    checkpoint: tuple[dict[str, Any], dict[str, F32]],
    changed: dict[str, Any],
    parts: tuple[str, ...],
) -> None:
    config, weights = checkpoint
    refused(checkpoints.write(tmp_path, config | changed, weights), UnsupportedError, *parts)


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"layer_types": ["linear_attention"] * 3}, "lists 3 layers; the model has 4"),
        ({"layer_types": ["linear_attention", 4, 4, 4]}, "string"),
        ({"linear_num_value_heads": 3}, "not a multiple of the 2 key heads"),
        ({"rope_parameters": {"partial_rotary_factor": 1e11}}, "rotated values"),
        ({"rope_parameters": {"partial_rotary_factor": 1e25}}, "partial_rotary_factor must be positive"),
        ({"rope_parameters": {"partial_rotary_factor": 0.01}}, "gives 0 rotated values"),
        ({"rope_parameters": {"mrope_section": [1]}}, "three sections"),
    ],
)
def test_safetensors_qwen35_values_that_contradict(
    data: Path, tmp_path: Path, changed: dict[str, Any], part: str
) -> None:
    source = data / "tiny" / "qwen35_a"
    config = json.loads((source / "config.json").read_text())
    path = checkpoints.write(tmp_path, config | changed, load_file(source / "model.safetensors"))
    refused(path, FormatError, "config.json", part)


def test_safetensors_qwen35_unknown_layer_type(data: Path, tmp_path: Path) -> None:
    source = data / "tiny" / "qwen35_a"
    config = json.loads((source / "config.json").read_text()) | {"layer_types": ["sliding_attention"] * 4}
    path = checkpoints.write(tmp_path, config, load_file(source / "model.safetensors"))
    refused(path, UnsupportedError, 'layer type "sliding_attention"', "full_attention")
