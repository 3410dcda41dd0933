"""Writes DFlash drafts with random weights, in each of the forms that exist: a folder of safetensors, GGUF as llama.cpp
exports it, and the older GGUF."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from reference import dflash, gguf_files
from safetensors.numpy import save_file

F32 = NDArray[np.float32]
Tensors = dict[str, F32]
T = TypeVar("T")

OLDER = "qwen35-dflash-draft"
OLDER_NAMES = {
    "fc.weight": "dflash.fc.weight",
    "enc.output_norm.weight": "dflash.hidden_norm.weight",
    "ffn_norm.weight": "post_attention_norm.weight",
}


@dataclass(frozen=True)
class DraftShape:
    hidden: int = 64
    ffn: int = 96
    vocab: int = 131
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 32
    block: int = 8
    mask_token: int = 130
    taps: tuple[int, ...] = (2, 0)
    n_target_layers: int = 4
    sliding: tuple[bool, ...] = (True, False, True)  # one per layer
    window: int = 10
    is_causal: bool | None = None
    logit_scale: float = 1.0
    softcap: float | None = None
    is_second: bool = False
    conv_taps: int = 3
    conv_group: int = 16
    rank: int = 8
    top_k: int = 4
    seed: int = 0

    @property
    def config(self) -> dflash.Config:
        return dflash.Config(
            n_layers=len(self.sliding),
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
            head_dim=self.head_dim,
            eps=1e-6,
            theta=1e4,
            block=self.block,
            mask_token=self.mask_token,
            taps=self.taps,
            sliding=self.sliding,
            window=self.window,
            is_causal=self.is_causal,
        )


def tensors(shape: DraftShape) -> Tensors:
    """Named as in safetensors; large enough that each of them shows in the result."""
    rng = np.random.default_rng(shape.seed)
    made: Tensors = {}
    h, d = shape.hidden, shape.head_dim

    def matrix(name: str, n_out: int, n_in: int) -> None:
        made[f"{name}.weight"] = rng.normal(0, 1 / np.sqrt(n_in), (n_out, n_in)).astype(np.float32)

    def norm(name: str, n: int) -> None:
        made[f"{name}.weight"] = rng.normal(1, 0.2, n).astype(np.float32)

    matrix("fc", h, len(shape.taps) * h)
    norm("hidden_norm", h)
    norm("norm", h)
    for i in range(len(shape.sliding)):
        at = f"layers.{i}."
        norm(at + "input_layernorm", h)
        norm(at + "post_attention_layernorm", h)
        matrix(at + "self_attn.q_proj", shape.n_heads * d, h)
        matrix(at + "self_attn.k_proj", shape.n_kv_heads * d, h)
        matrix(at + "self_attn.v_proj", shape.n_kv_heads * d, h)
        matrix(at + "self_attn.o_proj", h, shape.n_heads * d)
        norm(at + "self_attn.q_norm", d)
        norm(at + "self_attn.k_norm", d)
        matrix(at + "mlp.gate_proj", shape.ffn, h)
        matrix(at + "mlp.up_proj", shape.ffn, h)
        matrix(at + "mlp.down_proj", h, shape.ffn)
        if shape.is_second:
            for conv in ("attention_conv", "mlp_conv"):
                base = rng.normal(0, 0.5, (2, shape.conv_taps, h))
                made[f"{at}{conv}.base_kernel"] = base.astype(np.float32)
                matrix(f"{at}{conv}.kernel_projection", 2 * shape.conv_taps * (h // shape.conv_group), h)
    if shape.is_second:
        matrix("candidate_selector.predecessor_codebook", shape.vocab, shape.rank)
        matrix("candidate_selector.successor_codebook", shape.vocab, shape.rank)
        matrix("candidate_selector.hidden_projection", shape.rank, h)
    return made


def hf_config(shape: DraftShape) -> dict[str, Any]:
    nested: dict[str, Any] = {
        "block_size": shape.block,
        "mask_token_id": shape.mask_token,
        "target_layer_ids": list(shape.taps),
        "output_multiplier": shape.logit_scale,
        "final_logit_softcapping": shape.softcap,
    }
    if shape.is_second:
        nested |= {
            "conv_kernel_size": shape.conv_taps,
            "conv_group_size": shape.conv_group,
            "selector_rank": shape.rank,
            "selector_top_k": shape.top_k,
        }
    config: dict[str, Any] = {
        "architectures": ["DFlash2DraftModel" if shape.is_second else "DFlashDraftModel"],
        "model_type": "qwen3",
        "dflash_config": nested,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "vocab_size": shape.vocab,
        "num_hidden_layers": len(shape.sliding),
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "num_target_layers": shape.n_target_layers,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "layer_types": ["sliding_attention" if sliding else "full_attention" for sliding in shape.sliding],
        "sliding_window": shape.window,
        "use_sliding_window": True,
        "hidden_act": "silu",
        "attention_bias": False,
    }
    if shape.is_causal is not None:
        config["is_causal"] = shape.is_causal
    return config


def write_hf(folder: Path, config: dict[str, Any], named: Tensors) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(named, folder / "model.safetensors")
    return folder


def gguf_fields(shape: DraftShape, *, is_older: bool = False) -> dict[str, Any]:
    """Without the architecture prefix, except for general.* and tokenizer.*"""
    fields: dict[str, Any] = {
        "general.architecture": OLDER if is_older else "dflash",
        "block_count": len(shape.sliding),
        "context_length": 4096,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.ffn,
        "attention.head_count": shape.n_heads,
        "attention.head_count_kv": shape.n_kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": shape.window,
        "attention.sliding_window_pattern": list(shape.sliding),
        "rope.freq_base": 1e4,
    }
    if is_older:
        fields |= {
            "vocab_size": shape.vocab,
            "dflash.n_target_layers": len(shape.taps),
            "dflash.block_size": shape.block,
            "dflash.mask_token_id": shape.mask_token,
            "dflash.target_layer_ids": list(shape.taps),
        }
    else:
        fields |= {
            "block_size": shape.block,
            "target_layers": [i + 1 for i in shape.taps],
            "rope.dimension_sections": [shape.head_dim // 2, 0, 0, 0],
            "tokenizer.ggml.mask_token_id": shape.mask_token,
        }
    if shape.is_causal is not None:
        fields["attention.causal"] = shape.is_causal
    if shape.is_second:
        fields |= {
            "conv_kernel_size": shape.conv_taps,
            "conv_group_size": shape.conv_group,
            "selector_rank": shape.rank,
            "selector_top_k": shape.top_k,
        }
    return fields


def gguf_tensors(named: Mapping[str, T], *, is_older: bool = False) -> dict[str, T]:
    names = {hf: gguf for gguf, hf in (dflash.GGUF_NAMES | dflash.GGUF_LAYER_NAMES).items()}

    def gguf_name(name: str) -> str:
        prefix, rest = "", name
        if name.startswith("layers."):
            _, layer, rest = name.split(".", 2)
            prefix = f"blk.{layer}."
        stem = names[rest]
        return prefix + (OLDER_NAMES.get(stem, stem) if is_older else stem)

    return {gguf_name(name): tensor for name, tensor in named.items()}


def write_gguf(path: Path, shape: DraftShape) -> Path:
    return gguf_files.write(path, gguf_fields(shape), gguf_tensors(tensors(shape)))
