"""DFlash 1 and 2 in fp64: committed rows, a block of masked rows, the selector. Tensors are named as in safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from reference.decoder import rms_norm, silu, softmax
from reference.rope import plain_frequencies

F64 = NDArray[np.float64]

GGUF_NAMES = {
    "fc.weight": "fc.weight",
    "enc.output_norm.weight": "hidden_norm.weight",
    "output_norm.weight": "norm.weight",
    "selector_predecessor.weight": "candidate_selector.predecessor_codebook.weight",
    "selector_successor.weight": "candidate_selector.successor_codebook.weight",
    "selector_hidden.weight": "candidate_selector.hidden_projection.weight",
}
GGUF_LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "attn_conv_base": "attention_conv.base_kernel",
    "attn_conv_proj.weight": "attention_conv.kernel_projection.weight",
    "ffn_conv_base": "mlp_conv.base_kernel",
    "ffn_conv_proj.weight": "mlp_conv.kernel_projection.weight",
}


def hf_name(name: str) -> str:
    """The name in safetensors of a tensor in GGUF."""
    if not name.startswith("blk."):
        return GGUF_NAMES[name]
    _, layer, rest = name.split(".", 2)
    return f"layers.{layer}.{GGUF_LAYER_NAMES[rest]}"


@dataclass(frozen=True)
class Config:
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    eps: float
    theta: float
    block: int
    mask_token: int
    taps: tuple[int, ...]
    sliding: tuple[bool, ...]
    window: int
    is_causal: bool | None = None  # None: sliding layers are

    @staticmethod
    def of(config: Mapping[str, Any]) -> Config:
        """From a checkpoint's config.json."""
        nested = config["dflash_config"]
        return Config(
            n_layers=config["num_hidden_layers"],
            n_heads=config["num_attention_heads"],
            n_kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            eps=config["rms_norm_eps"],
            theta=config["rope_parameters"]["rope_theta"],
            block=nested["block_size"],
            mask_token=nested["mask_token_id"],
            taps=tuple(nested["target_layer_ids"]),
            sliding=tuple(kind == "sliding_attention" for kind in config["layer_types"]),
            window=config["sliding_window"] or 0,
            is_causal=config.get("is_causal"),
        )


class Dflash:
    def __init__(self, config: Config, tensors: Mapping[str, ArrayLike]) -> None:
        self.config = config
        self.frequencies = plain_frequencies(config.theta, config.head_dim)  # and rope_scale: without scaling
        self.rope_scale = 1.0
        self.w = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
        self.is_second = "layers.0.attention_conv.base_kernel" in self.w
        empty = np.zeros((0, config.n_kv_heads, config.head_dim))
        self.keys, self.values = [empty] * config.n_layers, [empty] * config.n_layers  # of committed rows

    def product(self, name: str, x: F64) -> F64:
        y: F64 = x @ self.w[f"{name}.weight"].T
        return y

    def norm(self, name: str, x: F64) -> F64:
        return rms_norm(x, self.w[f"{name}.weight"], self.config.eps)

    def heads(self, x: F64) -> F64:
        return x.reshape(len(x), -1, self.config.head_dim)

    def rope(self, x: F64, positions: NDArray[np.int64]) -> F64:
        half = self.config.head_dim // 2
        angle = positions[:, None, None] * self.frequencies
        c, s = self.rope_scale * np.cos(angle), self.rope_scale * np.sin(angle)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)

    def keys_values(self, layer: int, x: F64, first: int) -> tuple[F64, F64]:
        at = f"layers.{layer}.self_attn."
        k = self.norm(at + "k_norm", self.heads(self.product(at + "k_proj", x)))
        return self.rope(k, np.arange(first, first + len(x))), self.heads(self.product(at + "v_proj", x))

    def commit(self, tapped: F64) -> None:
        """tapped [rows, n_taps * hidden]: outputs of the target's layers for rows that join the sequence."""
        context = self.norm("hidden_norm", self.product("fc", tapped))
        for layer in range(self.config.n_layers):
            k, v = self.keys_values(layer, context, len(self.keys[layer]))
            self.keys[layer] = np.concatenate([self.keys[layer], k])
            self.values[layer] = np.concatenate([self.values[layer], v])

    def sees(self, layer: int, past: int) -> NDArray[np.bool_]:
        """[block, past + block]"""
        c = self.config
        ahead = np.arange(past + c.block)[None] - np.arange(past, past + c.block)[:, None]
        causal = c.sliding[layer] if c.is_causal is None else c.is_causal
        seen = ahead <= 0 if causal else np.full(ahead.shape, True)
        return seen & (np.abs(ahead) < c.window) if c.sliding[layer] else seen

    def attention(self, layer: int, x: F64) -> F64:
        at, past = f"layers.{layer}.self_attn.", len(self.keys[layer])
        c = self.config
        q = self.norm(at + "q_norm", self.heads(self.product(at + "q_proj", x)))
        q = self.rope(q, np.arange(past, past + len(x)))
        k, v = self.keys_values(layer, x, past)
        group = c.n_heads // c.n_kv_heads
        keys = np.repeat(np.concatenate([self.keys[layer], k]), group, axis=1)
        values = np.repeat(np.concatenate([self.values[layer], v]), group, axis=1)
        scores = np.einsum("thd,shd->hts", q, keys) / np.sqrt(c.head_dim)
        weights = softmax(np.where(self.sees(layer, past), scores, -np.inf))
        return self.product(at + "o_proj", np.einsum("hts,shd->thd", weights, values).reshape(len(x), -1))

    def mlp(self, layer: int, x: F64) -> F64:
        at = f"layers.{layer}.mlp."
        return self.product(at + "down_proj", silu(self.product(at + "gate_proj", x)) * self.product(at + "up_proj", x))

    def convolve(self, base: F64, kernels: F64, x: F64) -> F64:
        """base [n_taps, hidden], kernels [rows, n_taps, groups]; a block begins with zeros."""
        y = np.zeros_like(x)
        for back in range(min(len(base), len(x))):
            kernel = base[back] + np.repeat(kernels[:, back], x.shape[1] // kernels.shape[2], axis=1)
            y[back:] += kernel[back:] * x[: len(x) - back]
        return y

    def residual(self, layer: int, norm: str, conv: str, part: Any, x: F64) -> F64:
        y = self.norm(f"layers.{layer}.{norm}", x)
        if not self.is_second:
            return x + part(layer, y)
        at = f"layers.{layer}.{conv}."
        base = self.w[at + "base_kernel"]
        kernels = self.product(at + "kernel_projection", y).reshape(len(y), 2, base.shape[1], -1)
        return x + self.convolve(base[1], kernels[:, 1], part(layer, self.convolve(base[0], kernels[:, 0], y)))

    def propose(self, embedding: F64, root: int) -> F64:
        """[block - 1, hidden]: the normed rows behind the newest token."""
        x = embedding[[root] + [self.config.mask_token] * (self.config.block - 1)]
        for layer in range(self.config.n_layers):
            x = self.residual(layer, "input_layernorm", "attention_conv", self.attention, x)
            x = self.residual(layer, "post_attention_layernorm", "mlp_conv", self.mlp, x)
        return self.norm("norm", x)[1:]

    def select(self, hidden: F64, logits: F64, root: int, k: int) -> list[NDArray[np.float64]]:
        """DFlash 2: of each row the k likeliest tokens' scores beside the token chosen before, as [k, (id, score)], the
        best first."""
        rows, before = [], root
        codes = {name: self.w[f"candidate_selector.{name}_codebook.weight"] for name in ("predecessor", "successor")}
        for x, row in zip(self.product("candidate_selector.hidden_projection", hidden), logits, strict=True):
            ids = np.argsort(-row, kind="stable")[:k]
            scores = row[ids] + codes["successor"][ids] @ (codes["predecessor"][before] * x)
            order = np.argsort(-scores, kind="stable")
            rows.append(np.stack([ids[order], scores[order]], axis=1))
            before = int(ids[order[0]])
        return rows
