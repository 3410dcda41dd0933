"""Writes a checkpoint folder with the shape of a qwen35 model and random weights in FP8, as the maker's own files have
them: e4m3 with a scale per tile of 128 x 128 for the products of layers, BF16 for the embedding, the head and small
matrices. GGUF has no such type; synthetic.py writes all others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from lucebox.measure.synthetic import (
    FILLS,
    Bytes,
    Shape,
    Tensor,
    byte_tokens,
    random_blocks,
    untyped_tensors,
    write_cyclic,
)

__all__ = ["write_fp8"]

TILE = 128
POOL_VALUES = 32 << 20
NAMES = {
    "token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "attn_qkv": "linear_attn.in_proj_qkv", "attn_gate": "linear_attn.in_proj_z",
    "ssm_conv1d": "linear_attn.conv1d", "ssm_dt.bias": "linear_attn.dt_bias", "ssm_a": "linear_attn.A_log",
    "ssm_beta": "linear_attn.in_proj_b", "ssm_alpha": "linear_attn.in_proj_a", "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}  # fmt: skip
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)


def write_fp8(folder: Path, shape: Shape, seed: int) -> None:
    """Raises ValueError for other architectures and for prediction blocks."""
    if shape.architecture != "qwen35" or shape.n_prediction_blocks:
        raise ValueError(
            f"FP8 checkpoints have the shape of qwen35 without prediction blocks, not {shape.architecture}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config(shape))
    write_json(folder / "tokenizer.json", tokenizer(shape))
    write_json(folder / "tokenizer_config.json", {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})
    rng = np.random.Generator(np.random.SFC64(seed))
    pools = {"F8_E4M3": fp8_codes(rng), "BF16": random_blocks("BF16", POOL_VALUES, rng).reshape(-1)}
    entries = list(entries_of(shape))
    head, at = {}, 0
    for name, dtype, dims, _ in entries:
        n_bytes = size_of(dtype, dims)
        head[name] = {"dtype": dtype, "shape": dims, "data_offsets": [at, at + n_bytes]}
        at += n_bytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, dtype, dims, fill in entries:
            if fill in pools:
                write_cyclic(file, pools[fill], 2 * int(rng.integers(POOL_VALUES // 2)), size_of(dtype, dims))
            elif fill == "scales":
                file.write(rng.uniform(1e-4, 1.4e-4, prod(dims)).astype(np.float32).tobytes())
            else:
                file.write(vector(fill, rng, prod(dims)).tobytes())


def entries_of(shape: Shape) -> Iterator[tuple[str, str, list[int], str]]:
    """(name, dtype, shape, contents) of each tensor."""
    for tensor in untyped_tensors(shape):
        name, dims = name_of(tensor), list(reversed(tensor.dims))
        if "conv1d" in name:
            dims = [dims[0], 1, dims[1]]
        is_fp8 = tensor.fill == "weight" and "layers." in name and dims[0] >= TILE and dims[1] % TILE == 0
        if is_fp8:
            yield name, "F8_E4M3", dims, "F8_E4M3"
            yield f"{name}_scale_inv", "F32", [-(-n // TILE) for n in dims], "scales"
        elif tensor.fill == "weight":
            yield name, "BF16", dims, "BF16"
        else:
            is_centred = name.endswith("norm.weight") and "linear_attn" not in name
            yield name, "F32", dims, "near zero" if is_centred else tensor.fill


def name_of(tensor: Tensor) -> str:
    if tensor.name == "output.weight":
        return "lm_head.weight"
    layer, stem = split_layer(tensor.name.removesuffix(".weight"))
    suffix = ".weight" if tensor.name.endswith(".weight") else ""
    return f"model.{layer}{NAMES[stem]}{suffix}"


def split_layer(stem: str) -> tuple[str, str]:
    if not stem.startswith("blk."):
        return "", stem
    _, layer, rest = stem.split(".", 2)
    return f"layers.{layer}.", rest


def size_of(dtype: str, dims: list[int]) -> int:
    return prod(dims) * {"F8_E4M3": 1, "BF16": 2, "F32": 4}[dtype]


def vector(fill: str, rng: np.random.Generator, n: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    if fill == "near zero":  # a norm's weight minus one
        return (FILLS["near one"](rng, n) - 1).astype(np.float32)
    values = FILLS[fill](rng, n)
    return (np.log(-values) if fill == "decay rate" else values).astype(np.float32)


def fp8_codes(rng: np.random.Generator) -> Bytes:
    """Codes of all signs and magnitudes up to 448, without NaN; times the scales, a standard deviation near 0.02."""
    codes = rng.integers(0, 256, POOL_VALUES, dtype=np.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    return codes


def config(shape: Shape) -> dict[str, Any]:
    kinds = ["full_attention" if shape.is_attention(i) else "linear_attention" for i in range(shape.n_layers)]
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "linear_num_key_heads": shape.n_key_heads,
        "linear_num_value_heads": shape.n_value_heads,
        "linear_key_head_dim": shape.state_dim,
        "linear_value_head_dim": shape.state_dim,
        "linear_conv_kernel_dim": shape.conv_width,
        "layer_types": kinds,
        "full_attention_interval": shape.attention_interval,
        "tie_word_embeddings": shape.is_tied,
        "attention_bias": False,
        "attn_output_gate": True,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": shape.context,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": shape.rope_base,
            "partial_rotary_factor": shape.rope_dim / shape.head_dim,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [TILE, TILE]},
        "eos_token_id": shape.vocab - 1,
        "pad_token_id": shape.vocab - 2,
    }


def tokenizer(shape: Shape) -> dict[str, Any]:
    """The made-up vocabulary of synthetic.py."""
    pad = shape.vocab - 2
    tokens = [*byte_tokens(), "ab", "cd", *(f"<t{i}>" for i in range(258, pad))]
    no = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": pad + i, "content": text, "special": True} | no for i, text in enumerate(("<|endoftext|>", "<|im_end|>"))
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [["a", "b"], ["c", "d"]],
        },
    }


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
