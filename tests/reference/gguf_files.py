"""Writes small GGUF models with random weights: any family, any tensor type, the options that real files vary.

metadata() and tensors() give plain dictionaries, so that a test can damage one entry before write()."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from reference.linear import SCALES_AT, decode, multiplied, random_weights

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    """The configuration of a small model. Every row length is a multiple of 256 where dtype needs that."""

    architecture: str = "qwen35"
    dtype: str = "F32"  # of the matrices
    n_layers: int = 4
    hidden: int = 64
    ffn: int = 96
    vocab: int = 131  # odd: no kernel may count on whole tiles
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 32
    n_k_heads: int = 2
    n_v_heads: int = 4
    d_state: int = 16
    n_taps: int = 4
    recurrent: tuple[bool, ...] | None = None  # None: every fourth layer is attention, and the file lists nothing
    n_mtp: int = 0
    n_experts: int = 8  # of the mixtures
    n_used: int = 3
    expert_ffn: int = 32
    shared_ffn: int = 64  # qwen35moe
    joined_experts: bool = False  # gate and up of an expert in one tensor
    window: int = 64  # gpt-oss: of the even layers
    yarn: float | None = None  # rope.scaling.factor, from 64 tokens on
    tied: bool = False
    kv_heads_per_layer: bool = False  # head_count_kv as an array with 0 where a layer has no attention
    rope_factors: bool = False  # a rope_freqs tensor
    linear_rope: float | None = None  # rope.scaling.factor
    max_context: int = 4096
    seed: int = 0

    @property
    def family(self) -> str:
        """The architecture without its experts."""
        return self.architecture.removesuffix("moe")

    @property
    def is_mixture(self) -> bool:
        return self.architecture.endswith("moe") or self.architecture == "gpt-oss"

    @property
    def has_qk_norms(self) -> bool:
        return self.architecture not in ("llama", "gpt-oss")

    @property
    def recurrent_layers(self) -> tuple[bool, ...]:
        if self.family != "qwen35":
            return (False,) * self.n_layers
        return self.recurrent or tuple((i + 1) % 4 != 0 for i in range(self.n_layers))

    @property
    def n_rot(self) -> int:
        return self.head_dim // 4 if self.family == "qwen35" else self.head_dim


@dataclass(frozen=True)
class Packed:
    """A matrix in a file's own type."""

    dtype: str
    rows: NDArray[np.uint8]  # [n_out, bytes of a row], or one such matrix per expert


def metadata(shape: Shape) -> dict[str, Any]:
    """Without the architecture prefix, except for general.* and tokenizer.*"""
    kv_heads: Any = shape.n_kv_heads
    if shape.kv_heads_per_layer:
        kv_heads = [0 if recurrent else shape.n_kv_heads for recurrent in shape.recurrent_layers]
    fields: dict[str, Any] = {
        "general.architecture": shape.architecture,
        "block_count": shape.n_layers + shape.n_mtp,
        "context_length": shape.max_context,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.ffn,
        "attention.head_count": shape.n_heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e4,
        "rope.dimension_count": shape.n_rot,
    }
    if shape.linear_rope is not None:
        fields |= {"rope.scaling.type": "linear", "rope.scaling.factor": shape.linear_rope}
    if shape.yarn is not None:
        fields |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": shape.yarn,
            "rope.scaling.original_context_length": 64,
        }
    if shape.architecture == "gpt-oss":
        fields |= {"attention.sliding_window": shape.window, "rope.freq_base": 150000.0}
    if shape.is_mixture:
        del fields["feed_forward_length"]
        fields |= {
            "expert_count": shape.n_experts,
            "expert_used_count": shape.n_used,
            "expert_feed_forward_length": shape.expert_ffn,
        }
        if shape.family == "qwen35":
            fields["expert_shared_feed_forward_length"] = shape.shared_ffn
    if shape.architecture == "llama":
        fields["vocab_size"] = shape.vocab
    if shape.family == "qwen35":
        pairs = shape.n_rot // 2
        fields |= {
            "rope.dimension_sections": [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3, 0],
            "ssm.conv_kernel": shape.n_taps,
            "ssm.state_size": shape.d_state,
            "ssm.group_count": shape.n_k_heads,
            "ssm.time_step_rank": shape.n_v_heads,
            "ssm.inner_size": shape.n_v_heads * shape.d_state,
            "full_attention_interval": 4,  # written even where the list says otherwise
        }
        if shape.recurrent is not None:
            fields["attention.recurrent_layers"] = [*shape.recurrent, *[False] * shape.n_mtp]
        if shape.n_mtp:
            fields["nextn_predict_layers"] = shape.n_mtp
    return fields


def tensors(shape: Shape) -> dict[str, F32 | Packed]:
    """Random weights of the size that the golden files have: logits near 0.5."""
    rng = np.random.default_rng(shape.seed)
    h, d = shape.hidden, shape.head_dim
    made: dict[str, F32 | Packed] = {}

    def matrix(name: str, n_out: int, n_in: int) -> None:
        made[name] = random_matrix(shape.dtype, n_out, n_in, 0.5 / np.sqrt(n_in), rng)

    def norm(name: str, n: int) -> None:
        made[name] = rng.normal(1, 0.2, n).astype(np.float32)

    def swiglu(blk: str, suffix: str, ffn: int) -> None:
        matrix(f"{blk}ffn_gate{suffix}.weight", ffn, h)
        matrix(f"{blk}ffn_up{suffix}.weight", ffn, h)
        matrix(f"{blk}ffn_down{suffix}.weight", h, ffn)

    def experts(name: str, n_out: int, n_in: int) -> None:
        parts = [random_matrix(shape.dtype, n_out, n_in, 0.5 / np.sqrt(n_in), rng) for _ in range(shape.n_experts)]
        if shape.dtype == "F32":
            made[name] = np.stack(parts)
        else:
            made[name] = Packed(shape.dtype, np.stack([part.rows for part in parts]))

    def vector(name: str, *shape: int) -> None:
        made[name] = rng.normal(0, 0.5, shape).astype(np.float32)

    def feed_forward(blk: str) -> None:
        if not shape.is_mixture:
            return swiglu(blk, "", shape.ffn)
        made[blk + "ffn_gate_inp.weight"] = rng.normal(0, 2 / np.sqrt(h), (shape.n_experts, h)).astype(np.float32)
        if shape.joined_experts:
            experts(blk + "ffn_gate_up_exps.weight", 2 * shape.expert_ffn, h)
        else:
            experts(blk + "ffn_gate_exps.weight", shape.expert_ffn, h)
            experts(blk + "ffn_up_exps.weight", shape.expert_ffn, h)
        experts(blk + "ffn_down_exps.weight", h, shape.expert_ffn)
        if shape.architecture == "gpt-oss":
            vector(blk + "ffn_gate_inp.bias", shape.n_experts)
            vector(blk + "ffn_down_exps.bias", shape.n_experts, h)
            halves = ("gate_up", 2) if shape.joined_experts else ("gate", 1)
            vector(f"{blk}ffn_{halves[0]}_exps.bias", shape.n_experts, halves[1] * shape.expert_ffn)
            if not shape.joined_experts:
                vector(blk + "ffn_up_exps.bias", shape.n_experts, shape.expert_ffn)
        if shape.family == "qwen35":
            swiglu(blk, "_shexp", shape.shared_ffn)
            made[blk + "ffn_gate_inp_shexp.weight"] = rng.normal(0, 2 / np.sqrt(h), h).astype(np.float32)

    matrix("token_embd.weight", shape.vocab, h)
    norm("output_norm.weight", h)
    if not shape.tied:
        matrix("output.weight", shape.vocab, h)
    if shape.rope_factors:
        made["rope_freqs.weight"] = rng.uniform(1, 8, shape.n_rot // 2).astype(np.float32)
    for i, recurrent in enumerate(shape.recurrent_layers + (False,) * shape.n_mtp):
        blk = f"blk.{i}."
        norm(blk + "attn_norm.weight", h)
        has_post_norm = shape.family in ("qwen35", "gpt-oss")
        norm(blk + ("post_attention_norm.weight" if has_post_norm else "ffn_norm.weight"), h)
        feed_forward(blk)
        if recurrent:
            channels = (2 * shape.n_k_heads + shape.n_v_heads) * shape.d_state
            values = shape.n_v_heads * shape.d_state
            matrix(blk + "attn_qkv.weight", channels, h)
            matrix(blk + "attn_gate.weight", values, h)
            matrix(blk + "ssm_alpha.weight", shape.n_v_heads, h)
            matrix(blk + "ssm_beta.weight", shape.n_v_heads, h)
            matrix(blk + "ssm_out.weight", h, values)
            made[blk + "ssm_a"] = -rng.uniform(0.05, 4, shape.n_v_heads).astype(np.float32)
            made[blk + "ssm_dt.bias"] = rng.normal(-1, 0.7, shape.n_v_heads).astype(np.float32)
            made[blk + "ssm_conv1d.weight"] = rng.normal(0, 0.5, (channels, shape.n_taps)).astype(np.float32)
            norm(blk + "ssm_norm.weight", shape.d_state)
            continue
        q_rows = shape.n_heads * d * (2 if shape.family == "qwen35" else 1)
        matrix(blk + "attn_q.weight", q_rows, h)
        matrix(blk + "attn_k.weight", shape.n_kv_heads * d, h)
        matrix(blk + "attn_v.weight", shape.n_kv_heads * d, h)
        matrix(blk + "attn_output.weight", h, shape.n_heads * d)
        if shape.architecture == "gpt-oss":
            vector(blk + "attn_q.bias", q_rows)
            vector(blk + "attn_k.bias", shape.n_kv_heads * d)
            vector(blk + "attn_v.bias", shape.n_kv_heads * d)
            vector(blk + "attn_output.bias", h)
            made[blk + "attn_sinks.weight"] = rng.normal(1, 1, shape.n_heads).astype(np.float32)
        if shape.has_qk_norms:
            norm(blk + "attn_q_norm.weight", d)
            norm(blk + "attn_k_norm.weight", d)
        if i >= shape.n_layers:  # a prediction block
            matrix(blk + "nextn.eh_proj.weight", h, 2 * h)
            for name in ("enorm", "hnorm", "shared_head_norm"):
                norm(f"{blk}nextn.{name}.weight", h)
    return made


def random_matrix(dtype: str, n_out: int, n_in: int, rms: float, rng: np.random.Generator) -> F32 | Packed:
    """Valid random blocks with values of about the wanted size."""
    if dtype == "F32":
        return rng.normal(0, rms, (n_out, n_in)).astype(np.float32)
    raw = random_weights(dtype, n_out * n_in, rng)
    factor = rms / float(np.sqrt(np.mean(np.square(decode(raw, dtype), dtype=np.float64))))
    if dtype in SCALES_AT:
        raw = multiplied(raw, dtype, factor)
    elif dtype == "F16":
        raw = (raw.view(np.float16).astype(np.float32) * factor).astype(np.float16).view(np.uint8)
    else:
        raw = ((decode(raw, dtype) * factor).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return Packed(dtype, raw.reshape(n_out, -1))


def write(path: Path, fields: Mapping[str, Any], weights: Mapping[str, F32 | Packed]) -> Path:
    writer = gguf.GGUFWriter(path, str(fields["general.architecture"]))
    for name, value in fields.items():
        if name != "general.architecture":
            prefix = "" if name.startswith("tokenizer.") else f"{fields['general.architecture']}."
            _add_field(writer, prefix + name, value)
    for name, tensor in weights.items():
        if isinstance(tensor, Packed):
            writer.add_tensor(name, tensor.rows, raw_dtype=gguf.GGMLQuantizationType[tensor.dtype])
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_model(path: Path, shape: Shape) -> Path:
    return write(path, metadata(shape), tensors(shape))


def _add_field(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        add = writer.add_int32 if value < 0 else writer.add_uint32 if value < 2**32 else writer.add_uint64
        add(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def zero_ffn(path: Path) -> None:
    """Zeros the matrices of the feed-forward layers in place. Only the time of the last change would tell, which is set
    back."""
    status = path.stat()
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if re.search(r"ffn_(up|gate|down)(_exps)?\.weight", tensor.name):
            tensor.data[...] = 0
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
