"""Writes a GGUF with the shape of a real model and random weights, for measuring speed without downloading anything.

The cost of dense decoding does not depend on the weights' values. The routers of mixtures are random too, so all
experts are chosen equally often and the choices of successive tokens are independent: a batch reads more experts than
with real text. With local routes (local_routes.py), successive tokens share experts as in text.

Every block is valid and finite; its scale gives weights a standard deviation near 0.02. Tensor types follow
llama-quantize's presets without an importance matrix, so the bytes per type match a published file. The vocabulary is
made up: 256 byte tokens, two merges, then "<t258>" and on.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lucebox.measure.local_routes import LocalRoutes

__all__ = ["PRESETS", "SHAPES", "Shape", "summary", "tensors_of", "write", "write_sparse"]

ALIGNMENT = 32
POOL_BYTES = 64 << 20  # random bytes per tensor type; each tensor starts at a random block of this pool


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; the delta-net fields are 0 if every layer is attention."""

    architecture: str
    n_layers: int
    hidden: int
    ffn: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_base: float
    is_tied: bool
    rope_dim: int = 0
    attention_interval: int = 1  # every n-th layer is full attention
    n_key_heads: int = 0
    n_value_heads: int = 0
    state_dim: int = 0
    conv_width: int = 0
    n_prediction_blocks: int = 0  # MTP, after the layers
    taps: tuple[int, ...] = ()  # DFlash drafter: target layers whose output it reads
    block_size: int = 0  # tokens of its block
    window: int = 0  # sliding window, in rows: of a drafter's layers but the last, of gpt-oss's even ones; 0: none
    n_experts: int = 0  # mixtures; ffn is then unused
    n_used: int = 0  # experts that a token chooses
    expert_ffn: int = 0
    shared_ffn: int = 0  # of the shared expert; 0: none
    # Gemma 4, whose layers but every `attention_interval`-th have a window and heads of their own
    window_heads: tuple[int, int] = (0, 0)  # KV heads and head_dim of layers with a window
    n_shared: int = 0  # last layers, which read the keys and values of others
    token_input: int = 0  # width of each layer's own input of a token; 0: none

    def is_attention(self, layer: int) -> bool:
        return (layer + 1) % self.attention_interval == 0

    @property
    def family(self) -> str:
        """The architecture without its experts."""
        return self.architecture.removesuffix("moe")


def qwen35(
    n_layers: int,
    hidden: int,
    ffn: int,
    n_heads: int,
    n_kv_heads: int,
    n_value_heads: int,
    is_tied: bool,
    vocab: int = 248320,
) -> Shape:
    return Shape(
        "qwen35",
        n_layers,
        hidden,
        ffn,
        n_heads,
        n_kv_heads,
        head_dim=256,
        vocab=vocab,
        context=262144,
        rope_base=1e7,
        is_tied=is_tied,
        rope_dim=64,
        attention_interval=4,
        n_key_heads=16,
        n_value_heads=n_value_heads,
        state_dim=128,
        conv_width=4,
    )


def qwen3(n_layers: int, hidden: int, ffn: int, n_heads: int, n_kv_heads: int, vocab: int = 151936) -> Shape:
    return Shape(
        "qwen3",
        n_layers,
        hidden,
        ffn,
        n_heads,
        n_kv_heads,
        head_dim=128,
        vocab=vocab,
        context=40960,
        rope_base=1e6,
        is_tied=True,
    )


def mixture(dense: Shape, n_experts: int, n_used: int, expert_ffn: int, shared_ffn: int = 0) -> Shape:
    """The shape with a mixture of experts in every layer."""
    return replace(
        dense,
        architecture=f"{dense.architecture}moe",
        is_tied=False,
        n_experts=n_experts,
        n_used=n_used,
        expert_ffn=expert_ffn,
        shared_ffn=shared_ffn,
    )


def gpt_oss(n_layers: int, n_experts: int, hidden: int = 2880, n_heads: int = 64, vocab: int = 201088) -> Shape:
    """Its experts are MXFP4 in every file."""
    return Shape(
        "gpt-oss",
        n_layers,
        hidden,
        hidden,
        n_heads,
        n_kv_heads=n_heads // 8,
        head_dim=64,
        vocab=vocab,
        context=131072,
        rope_base=150000,
        is_tied=False,
        window=128,
        n_experts=n_experts,
        n_used=4,
        expert_ffn=hidden,
    )


def gemma4(
    n_layers: int,
    hidden: int,
    ffn: int,
    n_heads: int,
    kv_heads: tuple[int, int],
    window: int = 1024,
    head_dims: tuple[int, int] = (256, 512),
    vocab: int = 262144,
    period: int = 6,
) -> Shape:
    """kv_heads, head_dims: of layers with a window and of the others. Where the heads differ in number, the others
    have no values of their own."""
    return Shape(
        "gemma4",
        n_layers,
        hidden,
        ffn,
        n_heads,
        kv_heads[1],
        head_dim=head_dims[1],
        vocab=vocab,
        context=262144,
        rope_base=1e6,
        is_tied=True,
        attention_interval=period,
        window=window,
        window_heads=(kv_heads[0], head_dims[0]),
    )


def dflash(n_layers: int, target: Shape, n_heads: int, taps: tuple[int, ...]) -> Shape:
    """The shape of a DFlash drafter for `target`: Qwen3 layers of the target's width, without embedding and head."""
    return Shape(
        "dflash",
        n_layers,
        target.hidden,
        target.ffn,
        n_heads,
        n_kv_heads=n_heads // 4,
        head_dim=128,
        vocab=target.vocab,
        context=target.context,
        rope_base=target.rope_base,
        is_tied=True,
        taps=taps,
        block_size=16,
    )


SHAPES = {
    "qwen35-tiny": qwen35(4, 512, 1024, 2, 1, 16, True, vocab=2048),
    "qwen35-0.8b": qwen35(24, 1024, 3584, 8, 2, 16, True),
    "qwen35-9b": qwen35(32, 4096, 12288, 16, 4, 32, False),
    "qwen35-27b": qwen35(64, 5120, 17408, 24, 4, 48, False),
    "qwen3-tiny": qwen3(2, 512, 1024, 4, 2, vocab=2048),
    "qwen3-0.6b": qwen3(28, 1024, 3072, 16, 8),
    "qwen3-1.7b": qwen3(28, 2048, 6144, 16, 8),
    "qwen35moe-tiny": mixture(qwen35(4, 512, 1024, 2, 1, 16, False, vocab=2048), 16, 4, 256, 256),
    "qwen35moe-35b-a3b": mixture(qwen35(40, 2048, 6144, 16, 2, 32, False), 256, 8, 512, 512),
    "qwen3moe-30b-a3b": mixture(qwen3(48, 2048, 6144, 32, 4), 128, 8, 768),
    "gpt-oss-tiny": gpt_oss(2, 8, hidden=288, n_heads=8, vocab=2048),
    "gpt-oss-20b": gpt_oss(24, 32),
    "gpt-oss-120b": gpt_oss(36, 128),
    "gemma4-tiny": gemma4(6, 512, 1024, 4, (2, 1), window=128, vocab=2048, period=3),
    "gemma4-e4b": replace(gemma4(42, 2560, 10240, 8, (2, 2), window=512), n_shared=18, token_input=256),
    "gemma4-31b": gemma4(60, 5376, 21504, 32, (16, 4)),
    "gemma4-26b-a4b": replace(gemma4(30, 2816, 2112, 16, (8, 2)), n_experts=128, n_used=8, expert_ffn=704),
}


SHAPES |= {
    "qwen36-27b-dflash": replace(dflash(5, SHAPES["qwen35-27b"], 32, (1, 16, 31, 46, 61)), window=2048),
    "qwen35-tiny-dflash": dflash(2, SHAPES["qwen35-tiny"], 4, (0, 2)),
    "qwen35-0.8b-dflash": dflash(5, SHAPES["qwen35-0.8b"], 8, (1, 6, 11, 16, 21)),
    "qwen35-27b-dflash": dflash(5, SHAPES["qwen35-27b"], 32, (1, 16, 31, 46, 61)),
}


class TypeInfo(NamedTuple):
    id: int  # in the GGUF tensor table
    block: int  # values
    block_bytes: int
    fallback: str = ""  # the type used if a row is not a whole number of blocks


TYPES = {
    "F32": TypeInfo(0, 1, 4),
    "F16": TypeInfo(1, 1, 2),
    "BF16": TypeInfo(30, 1, 2),
    "Q4_0": TypeInfo(2, 32, 18, "F16"),
    "Q8_0": TypeInfo(8, 32, 34, "F16"),
    "Q4_K": TypeInfo(12, 256, 144, "Q4_0"),
    "Q5_K": TypeInfo(13, 256, 176, "Q8_0"),
    "Q6_K": TypeInfo(14, 256, 210, "Q8_0"),
    "MXFP4": TypeInfo(39, 32, 17),
    "NVFP4": TypeInfo(40, 64, 36, "F16"),
}


class Preset(NamedTuple):
    file_type: int  # general.file_type
    base: str


PRESETS = {
    "F32": Preset(0, "F32"),
    "F16": Preset(1, "F16"),
    "BF16": Preset(32, "BF16"),
    "Q4_0": Preset(2, "Q4_0"),
    "Q8_0": Preset(7, "Q8_0"),
    "Q4_K_S": Preset(14, "Q4_K"),
    "Q4_K_M": Preset(15, "Q4_K"),
    "Q5_K_S": Preset(16, "Q5_K"),
    "Q5_K_M": Preset(17, "Q5_K"),
    "Q6_K": Preset(18, "Q6_K"),
    "NVFP4": Preset(39, "NVFP4"),
}


# --- contents of the file


class Tensor(NamedTuple):
    name: str
    dims: tuple[int, ...]  # fastest first, as GGUF stores them
    fill: str  # "weight", or the name of an F32 filling
    type: str = "F32"

    @property
    def n_bytes(self) -> int:
        info = TYPES[self.type]
        return prod(self.dims) // info.block * info.block_bytes


def tensors_of(shape: Shape, preset: str, has_local_routes: bool = False) -> list[Tensor]:
    """Every tensor of the model with the type the preset gives it, in file order."""
    typed = [
        tensor._replace(type=weight_type(tensor, shape, preset)) if tensor.fill == "weight" else tensor
        for tensor in untyped_tensors(shape)
    ]
    return [local_tensor(tensor) for tensor in typed] if has_local_routes else typed


def local_tensor(tensor: Tensor) -> Tensor:
    """Fills the embedding, the head and the routers with the weights of local routes. A quantised embedding is Q8_0: a
    token reads one row of it."""
    if tensor.name == "token_embd.weight":
        return tensor._replace(fill="local", type=tensor.type if TYPES[tensor.type].block == 1 else "Q8_0")
    is_local = tensor.name == "output.weight" or tensor.name.endswith("ffn_gate_inp.weight")
    return tensor._replace(fill="local") if is_local else tensor


def untyped_tensors(shape: Shape) -> Iterator[Tensor]:
    hidden = shape.hidden
    if shape.taps:
        yield Tensor("fc.weight", (len(shape.taps) * hidden, hidden), "weight")
        yield Tensor("enc.output_norm.weight", (hidden,), "near one")
    else:
        yield Tensor("token_embd.weight", (hidden, shape.vocab), "weight")
    yield Tensor("output_norm.weight", (hidden,), "near one")
    if shape.architecture == "gemma4":
        yield from gemma4_tensors(shape)
        return
    if not shape.is_tied:
        yield Tensor("output.weight", (hidden, shape.vocab), "weight")
    second_norm = "post_attention_norm" if shape.family in ("qwen35", "gpt-oss") else "ffn_norm"
    for layer in range(shape.n_layers + shape.n_prediction_blocks):
        prefix = f"blk.{layer}."
        is_prediction = layer >= shape.n_layers
        mixer = attention_tensors(shape) if is_prediction or shape.is_attention(layer) else delta_net_tensors(shape)
        block = [
            *(prediction_tensors(shape) if is_prediction else ()),
            Tensor("attn_norm.weight", (hidden,), "near one"),
            *mixer,
            Tensor(f"{second_norm}.weight", (hidden,), "near one"),
            *(swiglu_tensors("", hidden, shape.ffn) if shape.n_experts == 0 else mixture_tensors(shape)),
        ]
        for tensor in block:
            yield tensor._replace(name=prefix + tensor.name)


def swiglu_tensors(suffix: str, hidden: int, ffn: int, *n_experts: int) -> list[Tensor]:
    return [
        Tensor(f"ffn_gate{suffix}.weight", (hidden, ffn, *n_experts), "weight"),
        Tensor(f"ffn_up{suffix}.weight", (hidden, ffn, *n_experts), "weight"),
        Tensor(f"ffn_down{suffix}.weight", (ffn, hidden, *n_experts), "weight"),
    ]


def mixture_tensors(shape: Shape) -> list[Tensor]:
    hidden, n, ffn = shape.hidden, shape.n_experts, shape.expert_ffn
    found = [Tensor("ffn_gate_inp.weight", (hidden, n), "normal"), *swiglu_tensors("_exps", hidden, ffn, n)]
    if shape.architecture == "gpt-oss":
        found += [
            Tensor("ffn_gate_inp.bias", (n,), "normal"),
            Tensor("ffn_gate_exps.bias", (ffn, n), "normal"),
            Tensor("ffn_up_exps.bias", (ffn, n), "normal"),
            Tensor("ffn_down_exps.bias", (hidden, n), "normal"),
        ]
    if shape.shared_ffn:
        found += swiglu_tensors("_shexp", hidden, shape.shared_ffn)
        found.append(Tensor("ffn_gate_inp_shexp.weight", (hidden,), "normal"))
    return found


def gemma4_tensors(shape: Shape) -> Iterator[Tensor]:
    """Everything but the embedding and the last norm."""
    hidden, n, width = shape.hidden, shape.n_layers, shape.token_input
    yield Tensor("rope_freqs.weight", (shape.head_dim // 2,), "rope factors")
    if width:
        yield Tensor("per_layer_token_embd.weight", (n * width, shape.vocab), "weight")
        yield Tensor("per_layer_model_proj.weight", (hidden, n * width), "weight")
        yield Tensor("per_layer_proj_norm.weight", (width,), "near one")
    for layer in range(n):
        norms = ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"]
        found = [*gemma4_attention(shape, layer), *swiglu_tensors("", hidden, shape.ffn)]
        if shape.n_experts:
            norms += ["pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"]
            experts, ffn = shape.n_experts, shape.expert_ffn
            found += [
                Tensor("ffn_gate_inp.weight", (hidden, experts), "normal"),
                Tensor("ffn_gate_inp.scale", (hidden,), "near one"),
                Tensor("ffn_gate_up_exps.weight", (hidden, 2 * ffn, experts), "weight"),
                Tensor("ffn_down_exps.weight", (ffn, hidden, experts), "weight"),
                Tensor("ffn_down_exps.scale", (experts,), "near one"),
            ]
        if width:
            norms.append("post_norm")
            found += [Tensor("inp_gate.weight", (hidden, width), "weight"),
                      Tensor("proj.weight", (width, hidden), "weight")]  # fmt: skip
        found.append(Tensor("layer_output_scale.weight", (1,), "near one"))
        for tensor in (*(Tensor(f"{name}.weight", (hidden,), "near one") for name in norms), *found):
            yield tensor._replace(name=f"blk.{layer}.{tensor.name}")


def gemma4_attention(shape: Shape, layer: int) -> list[Tensor]:
    hidden, sees_all = shape.hidden, shape.is_attention(layer)
    kv_heads, dim = (shape.n_kv_heads, shape.head_dim) if sees_all else shape.window_heads
    found = [
        Tensor("attn_q.weight", (hidden, shape.n_heads * dim), "weight"),
        Tensor("attn_output.weight", (shape.n_heads * dim, hidden), "weight"),
        Tensor("attn_q_norm.weight", (dim,), "near one"),
    ]
    if layer < shape.n_layers - shape.n_shared:
        found += [
            Tensor("attn_k.weight", (hidden, kv_heads * dim), "weight"),
            Tensor("attn_k_norm.weight", (dim,), "near one"),
        ]
        if not sees_all or shape.n_kv_heads == shape.window_heads[0]:
            found.append(Tensor("attn_v.weight", (hidden, kv_heads * dim), "weight"))
    return found


def prediction_tensors(shape: Shape) -> list[Tensor]:
    hidden = shape.hidden
    return [
        Tensor("nextn.eh_proj.weight", (2 * hidden, hidden), "weight"),
        Tensor("nextn.enorm.weight", (hidden,), "near one"),
        Tensor("nextn.hnorm.weight", (hidden,), "near one"),
        Tensor("nextn.shared_head_norm.weight", (hidden,), "near one"),
    ]


def attention_tensors(shape: Shape) -> list[Tensor]:
    hidden, queries, keys = shape.hidden, shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    q_rows = 2 * queries if shape.family == "qwen35" else queries  # qwen35: query and output gate
    products = [
        Tensor("attn_q.weight", (hidden, q_rows), "weight"),
        Tensor("attn_k.weight", (hidden, keys), "weight"),
        Tensor("attn_v.weight", (hidden, keys), "weight"),
        Tensor("attn_output.weight", (queries, hidden), "weight"),
    ]
    if shape.architecture == "gpt-oss":
        return [
            *products,
            Tensor("attn_q.bias", (queries,), "normal"),
            Tensor("attn_k.bias", (keys,), "normal"),
            Tensor("attn_v.bias", (keys,), "normal"),
            Tensor("attn_output.bias", (hidden,), "normal"),
            Tensor("attn_sinks.weight", (shape.n_heads,), "normal"),
        ]
    return [
        *products,
        Tensor("attn_q_norm.weight", (shape.head_dim,), "near one"),
        Tensor("attn_k_norm.weight", (shape.head_dim,), "near one"),
    ]


def delta_net_tensors(shape: Shape) -> list[Tensor]:
    hidden, n_value_heads = shape.hidden, shape.n_value_heads
    values = n_value_heads * shape.state_dim
    channels = 2 * shape.n_key_heads * shape.state_dim + values  # query, key, value
    return [
        Tensor("attn_qkv.weight", (hidden, channels), "weight"),
        Tensor("attn_gate.weight", (hidden, values), "weight"),
        Tensor("ssm_conv1d.weight", (shape.conv_width, channels), "convolution"),
        Tensor("ssm_dt.bias", (n_value_heads,), "normal"),
        Tensor("ssm_a", (n_value_heads,), "decay rate"),
        Tensor("ssm_beta.weight", (hidden, n_value_heads), "weight"),
        Tensor("ssm_alpha.weight", (hidden, n_value_heads), "weight"),
        Tensor("ssm_norm.weight", (shape.state_dim,), "near one"),
        Tensor("ssm_out.weight", (values, hidden), "weight"),
    ]


def weight_type(tensor: Tensor, shape: Shape, preset: str) -> str:
    name, chosen, n_layers = tensor.name, PRESETS[preset].base, shape.n_layers
    if shape.architecture == "gpt-oss" and "_exps." in name:
        return "MXFP4"
    if chosen in ("F32", "F16", "BF16"):
        return chosen
    layer = int(name.split(".")[1]) if name.startswith("blk.") else -1
    mixes_values = "attn_v." in name or "attn_qkv." in name
    is_down = "ffn_down" in name
    if name == "output.weight" or (shape.is_tied and name == "token_embd.weight"):
        chosen = "Q8_0" if chosen == "Q8_0" else "Q6_K"
    elif preset.endswith("_K_M") and (mixes_values or is_down):
        # the first and last eighth of the layers and every third between them get more bits
        first, last = n_layers // 8, 7 * n_layers // 8
        if layer < first or layer >= last or (layer - first) % 3 == 2:
            chosen = "Q6_K"
    elif preset == "Q4_K_S" and ((mixes_values and layer < 4) or (is_down and layer < n_layers // 8)):
        chosen = "Q5_K"
    while tensor.dims[0] % TYPES[chosen].block:
        chosen = TYPES[chosen].fallback
    return chosen


# --- random contents

Bytes = NDArray[np.uint8]


def random_blocks(type_name: str, n: int, rng: np.random.Generator) -> Bytes:
    """[n, block_bytes] valid blocks."""
    size = TYPES[type_name].block_bytes
    if TYPES[type_name].block == 1:
        x: NDArray[np.float32] = rng.standard_normal(n, dtype=np.float32) * np.float32(0.02)
        if type_name == "F16":
            return x.astype(np.float16).view(np.uint8).reshape(n, size)
        if type_name == "BF16":
            return ((x.view(np.uint32) + 0x8000) >> 16).astype(np.uint16).view(np.uint8).reshape(n, size)
        return x.view(np.uint8).reshape(n, size)

    out = rng.integers(0, 256, (n, size), dtype=np.uint8)
    spread = rng.uniform(0.75, 1.25, n)

    def put_half(offset: int, values: NDArray[np.float64]) -> None:
        out[:, offset : offset + 2] = values.astype(np.float16).view(np.uint8).reshape(n, 2)

    if type_name == "Q4_0":
        put_half(0, 4.3e-3 * spread)
    elif type_name == "Q8_0":
        put_half(0, 2.7e-4 * spread)
        quants = out[:, 2:]
        quants[quants == 0x80] = 0x81  # quantisers write -127..127
    elif type_name == "Q4_K":
        put_half(0, 8.5e-5 * spread)
        put_half(2, 7.5 * 8.5e-5 * spread)  # scale of the minimum, chosen so that the mean is near 0
    elif type_name == "Q5_K":
        put_half(0, 4.2e-5 * spread)
        put_half(2, 15.5 * 4.2e-5 * spread)
    elif type_name == "MXFP4":
        out[:, 0] = rng.integers(119, 122, n)  # exponents; a code has a root mean square of 2.9
    elif type_name == "Q6_K":
        scales = out[:, 192:208].view(np.int8)
        scales >>= 1  # -64..63
        put_half(208, 2.9e-5 * spread)
    elif type_name == "NVFP4":
        out[:, :4] = rng.integers(3, 5, (n, 4))  # e4m3 of 2^-9 each
    return out


FILLS: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "near one": lambda rng, n: 1 + 0.05 * rng.standard_normal(n),
    "convolution": lambda rng, n: 0.3 * rng.standard_normal(n),
    "decay rate": lambda rng, n: -rng.uniform(0.05, 8.0, n),  # -exp(A_log)
    "normal": lambda rng, n: rng.standard_normal(n),
    "rope factors": lambda rng, n: np.where(np.arange(n) < n // 4, 1.0, 1e30),  # the other pairs do not rotate
}


# --- GGUF

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
SCALARS = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}
pack_length = struct.Struct("<Q").pack


class Array(NamedTuple):
    element: int
    items: list[str] | list[int] | list[bool]


def metadata(shape: Shape, name: str, preset: str) -> Iterator[tuple[str, int, object]]:
    arch = shape.architecture
    yield "general.architecture", STRING, arch
    yield "general.type", STRING, "model"
    yield "general.name", STRING, f"synthetic {name}"
    yield "general.alignment", U32, ALIGNMENT
    yield "general.file_type", U32, PRESETS[preset].file_type
    yield "general.quantization_version", U32, 2
    yield f"{arch}.block_count", U32, shape.n_layers + shape.n_prediction_blocks
    yield f"{arch}.context_length", U32, shape.context
    yield f"{arch}.embedding_length", U32, shape.hidden
    if shape.n_experts:
        yield f"{arch}.expert_count", U32, shape.n_experts
        yield f"{arch}.expert_used_count", U32, shape.n_used
        yield f"{arch}.expert_feed_forward_length", U32, shape.expert_ffn
        if shape.shared_ffn:
            yield f"{arch}.expert_shared_feed_forward_length", U32, shape.shared_ffn
    if not shape.n_experts or arch == "gemma4":
        yield f"{arch}.feed_forward_length", U32, shape.ffn
    yield f"{arch}.attention.head_count", U32, shape.n_heads
    if arch == "gemma4":
        yield from gemma4_metadata(shape)
    else:
        yield f"{arch}.attention.head_count_kv", U32, shape.n_kv_heads
    yield f"{arch}.attention.key_length", U32, shape.head_dim
    yield f"{arch}.attention.value_length", U32, shape.head_dim
    yield f"{arch}.attention.layer_norm_rms_epsilon", F32, 1e-6
    yield f"{arch}.rope.freq_base", F32, shape.rope_base
    if arch == "gpt-oss":
        yield f"{arch}.attention.sliding_window", U32, shape.window
        yield f"{arch}.rope.scaling.type", STRING, "yarn"
        yield f"{arch}.rope.scaling.factor", F32, 32.0
        yield f"{arch}.rope.scaling.original_context_length", U32, 4096
    if shape.family == "qwen35":
        yield f"{arch}.rope.dimension_count", U32, shape.rope_dim
        yield f"{arch}.rope.dimension_sections", ARRAY, Array(I32, [11, 11, 10, 0])
        yield f"{arch}.ssm.conv_kernel", U32, shape.conv_width
        yield f"{arch}.ssm.state_size", U32, shape.state_dim
        yield f"{arch}.ssm.group_count", U32, shape.n_key_heads
        yield f"{arch}.ssm.time_step_rank", U32, shape.n_value_heads
        yield f"{arch}.ssm.inner_size", U32, shape.n_value_heads * shape.state_dim
        yield f"{arch}.full_attention_interval", U32, shape.attention_interval
        if shape.n_prediction_blocks:
            yield f"{arch}.nextn_predict_layers", U32, shape.n_prediction_blocks
    end, pad = shape.vocab - 1, shape.vocab - 2
    if arch == "dflash":
        yield f"{arch}.block_size", U32, shape.block_size
        yield f"{arch}.target_layers", ARRAY, Array(I32, [tap + 1 for tap in shape.taps])
        if shape.window:
            yield f"{arch}.attention.sliding_window", U32, shape.window
            pattern = [layer < shape.n_layers - 1 for layer in range(shape.n_layers)]
            yield f"{arch}.attention.sliding_window_pattern", ARRAY, Array(BOOL, pattern)
        yield "tokenizer.ggml.mask_token_id", U32, pad
        return
    merged = ["ab", "cd"]
    made_up = (f"<t{i}>" for i in range(256 + len(merged), pad))
    tokens = [*byte_tokens(), *merged, *made_up, "<|endoftext|>", "<|im_end|>"]
    yield "tokenizer.ggml.model", STRING, "gpt2"
    yield "tokenizer.ggml.pre", STRING, PRE_TOKENIZERS[shape.family]
    yield "tokenizer.ggml.tokens", ARRAY, Array(STRING, tokens)
    yield "tokenizer.ggml.token_type", ARRAY, Array(I32, [1] * pad + [3, 3])  # 1 normal, 3 control
    yield "tokenizer.ggml.merges", ARRAY, Array(STRING, [" ".join(pair) for pair in merged])
    yield "tokenizer.ggml.eos_token_id", U32, end
    yield "tokenizer.ggml.padding_token_id", U32, pad
    yield "tokenizer.ggml.add_bos_token", BOOL, False


# gemma4: the made-up vocabulary is byte-level, unlike Gemma's own.
PRE_TOKENIZERS = {"qwen35": "qwen35", "qwen3": "qwen2", "gpt-oss": "gpt-4o", "gemma4": "qwen2"}


def gemma4_metadata(shape: Shape) -> Iterator[tuple[str, int, object]]:
    sees_all = [shape.is_attention(layer) for layer in range(shape.n_layers)]
    kv_heads, dim = shape.window_heads
    yield (
        "gemma4.attention.head_count_kv",
        ARRAY,
        Array(I32, [shape.n_kv_heads if all_ else kv_heads for all_ in sees_all]),
    )
    yield "gemma4.attention.key_length_swa", U32, dim
    yield "gemma4.attention.value_length_swa", U32, dim
    yield "gemma4.attention.sliding_window", U32, shape.window
    yield "gemma4.attention.sliding_window_pattern", ARRAY, Array(BOOL, [not all_ for all_ in sees_all])
    yield "gemma4.attention.shared_kv_layers", U32, shape.n_shared
    yield "gemma4.embedding_length_per_layer_input", U32, shape.token_input
    yield "gemma4.rope.freq_base_swa", F32, 1e4
    yield "gemma4.rope.dimension_count", U32, shape.head_dim
    yield "gemma4.rope.dimension_count_swa", U32, dim
    yield "gemma4.final_logit_softcapping", F32, 30.0


def byte_tokens() -> list[str]:
    """The printable character byte-level BPE uses for each byte: itself, or the next unused one from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unused = count(0x100)
    return [chr(byte if byte in printable else next(unused)) for byte in range(256)]


def encode(type_id: int, value: object) -> bytes:
    if isinstance(value, Array):
        n = len(value.items)
        head = struct.pack("<IQ", value.element, n)
        if value.element != STRING:
            return head + struct.pack(f"<{n}{SCALARS[value.element][1:]}", *value.items)
        texts = [str(item).encode() for item in value.items]  # a vocabulary: up to 2^18 items
        return head + b"".join(pack_length(len(text)) + text for text in texts)
    if isinstance(value, str):
        text = value.encode()
        return pack_length(len(text)) + text
    return struct.pack(SCALARS[type_id], value)


def padding(n_bytes: int) -> bytes:
    return bytes(-n_bytes % ALIGNMENT)


def header(shape: Shape, name: str, preset: str, tensors: list[Tensor], template: str | None = None) -> bytes:
    pairs = list(metadata(shape, name, preset))
    if template is not None:
        pairs.append(("tokenizer.chat_template", STRING, template))
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(pairs))]
    for key, type_id, value in pairs:
        parts += [encode(STRING, key), struct.pack("<I", type_id), encode(type_id, value)]
    offset = 0
    for tensor in tensors:
        parts += [
            encode(STRING, tensor.name),
            struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims),
            struct.pack("<IQ", TYPES[tensor.type].id, offset),
        ]
        offset += tensor.n_bytes + len(padding(tensor.n_bytes))
    head = b"".join(parts)
    return head + padding(len(head))


def write(
    path: Path,
    shape: Shape,
    name: str,
    preset: str,
    seed: int,
    template: str | None = None,
    local: LocalRoutes | None = None,
) -> None:
    """template: the chat template, without which the model only continues prompts. local: of this shape, which has a
    head of its own."""
    rng = np.random.Generator(np.random.SFC64(seed))
    tensors = tensors_of(shape, preset, local is not None)
    pools: dict[str, Bytes] = {}

    def write_weights(file: BinaryIO, tensor: Tensor, n_bytes: int) -> None:
        if tensor.type not in pools:
            pools[tensor.type] = random_blocks(tensor.type, POOL_BYTES // TYPES[tensor.type].block_bytes, rng)
        pool = pools[tensor.type]
        write_cyclic(file, pool.reshape(-1), int(rng.integers(len(pool))) * pool.shape[1], n_bytes)

    with path.open("wb") as file:
        file.write(header(shape, name, preset, tensors, template))
        for tensor in tensors:
            if tensor.fill == "weight":
                write_weights(file, tensor, tensor.n_bytes)
            elif tensor.fill != "local":
                file.write(FILLS[tensor.fill](rng, prod(tensor.dims)).astype(np.float32).tobytes())
            elif local is not None and tensor.name == "token_embd.weight":
                write_cyclic(file, local.embedding(tensor.type), 0, tensor.n_bytes)
            elif local is not None and tensor.name == "output.weight":
                rows = local.head(tensor.type)
                file.write(rows.data)
                write_weights(file, tensor, tensor.n_bytes - len(rows))
            elif local is not None:
                file.write(local.router().tobytes())
            file.write(padding(tensor.n_bytes))


def write_sparse(path: Path, shape: Shape, name: str, preset: str) -> None:
    """Writes only the header and rope factors, which a load checks. The other tensors are a sparse hole of zeros, which
    takes no disk space."""
    tensors = tensors_of(shape, preset)
    head = header(shape, name, preset, tensors)
    with path.open("wb") as file:
        file.write(head)
        for tensor in tensors:
            if tensor.fill == "rope factors":
                factors = FILLS[tensor.fill](np.random.default_rng(0), prod(tensor.dims))
                file.write(factors.astype(np.float32).tobytes() + padding(tensor.n_bytes))
            else:
                file.seek(tensor.n_bytes + len(padding(tensor.n_bytes)), os.SEEK_CUR)
        file.truncate()


def write_cyclic(file: BinaryIO, pool: Bytes, start: int, n_bytes: int) -> None:
    while n_bytes:
        part = pool[start : start + n_bytes]
        file.write(part.data)
        n_bytes -= len(part)
        start = 0


def summary(shape: Shape, preset: str, has_local_routes: bool = False) -> str:
    tensors, values, sizes = Counter[str](), Counter[str](), Counter[str]()
    for tensor in tensors_of(shape, preset, has_local_routes):
        tensors[tensor.type] += 1
        values[tensor.type] += prod(tensor.dims)
        sizes[tensor.type] += tensor.n_bytes
    lines = [
        f"{name:5} {tensors[name]:4} tensors {values[name] / 1e6:9.1f} M values {sizes[name] / 2**20:9.1f} MiB"
        for name in sorted(tensors)
    ]
    return "\n".join(
        [
            *lines,
            f"all   {sum(tensors.values()):4} tensors {sum(values.values()) / 1e6:9.1f} M values "
            f"{sum(sizes.values()) / 2**20:9.1f} MiB",
        ]
    )
