"""Turns a small checkpoint into a GGUF file, with the names, keys and row orders of llama.cpp's converter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from reference import checkpoints, gguf_files

F32 = NDArray[np.float32]

ARCHITECTURES = {"gemma4_text": "gemma4", "ministral3": "mistral3", "phi3": "phi3", "smollm3": "smollm3"}
PERMUTED = ("mistral3", "smollm3")  # architectures whose rope pairs are adjacent in GGUF
LAYER_NAMES = {hf: gguf for gguf, hf in checkpoints.LAYER_NAMES.items()} | {
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
}
GEMMA4_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "layer_scalar": "layer_output_scale",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "router.proj": "ffn_gate_inp",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps",
    "experts.down_proj": "ffn_down_exps",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
}
TOWER = ("model.vision_tower.", "model.embed_vision.")
TOWER_NAMES = {
    "model.vision_tower.patch_embedder.input_proj": "v.patch_embd.weight",
    "model.vision_tower.patch_embedder.position_embedding_table": "v.position_embd.weight",
    "model.vision_tower.std_bias": "v.std_bias",
    "model.vision_tower.std_scale": "v.std_scale",
    "model.embed_vision.embedding_projection": "mm.input_projection.weight",
}
TOWER_LAYER_NAMES = {
    "input_layernorm": "ln1",
    "pre_feedforward_layernorm": "ln2",
    "post_attention_layernorm": "attn_post_norm",
    "post_feedforward_layernorm": "ffn_post_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ASSISTANT = "gemma4-assistant"
TOP_NAMES = {hf: gguf for gguf, hf in checkpoints.TOP_NAMES.items()} | {
    "pre_projection": "nextn.pre_projection",
    "post_projection": "nextn.post_projection",
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
}


def to_gguf(folder: Path, path: Path) -> Path:
    """The text model of a checkpoint, or an assistant of Gemma 4."""
    whole = json.loads((folder / "config.json").read_text())
    config = whole.get("text_config", whole)
    weights = {
        name.replace("model.language_model.", "model."): value
        for name, value in values_of(folder / "model.safetensors").items()
        if not name.startswith((*TOWER, "masked_embedding."))
    }
    architecture = ARCHITECTURES[config["model_type"]]
    own: dict[str, Any] = {}
    if whole["model_type"] == "gemma4_assistant":
        architecture = ASSISTANT
        own = {
            "embedding_length_out": whole["backbone_hidden_size"],
            "nextn_predict_layers": config["num_hidden_layers"],
        }
    fields = {"general.architecture": architecture, **metadata(config), **own}
    tensors: dict[str, F32 | gguf_files.Packed] = {}
    for name, value in weights.items():
        if architecture in PERMUTED and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            value = permute(value, heads)
        tensors[gguf_name(name, architecture)] = value
    scaling = config["rope_parameters"]
    for key in ("long", "short"):
        if factors := scaling.get(f"{key}_factor"):
            tensors[f"rope_factors_{key}.weight"] = np.array(factors, np.float32)
    if architecture in ("gemma4", ASSISTANT):
        pairs = fields["attention.key_length"] // 2
        rotated = int(pairs * scaling["full_attention"]["partial_rotary_factor"])
        tensors["rope_freqs.weight"] = np.array([1.0] * rotated + [1e30] * (pairs - rotated), np.float32)
    return gguf_files.write(path, fields, tensors)


def to_projector(folder: Path, path: Path, **changes: Any) -> Path:
    """The vision tower of a checkpoint of Gemma 4 as a multimodal projector. changes: of metadata."""
    config = json.loads((folder / "config.json").read_text())
    vision = config["vision_config"]
    tensors: dict[str, F32 | gguf_files.Packed] = {}
    for name, value in values_of(folder / "model.safetensors").items():
        if not name.startswith(TOWER):
            continue
        stem = name.removesuffix(".weight").removesuffix(".linear")
        if stem in TOWER_NAMES:
            if stem.endswith("input_proj"):  # a convolution: channels first
                side = vision["patch_size"]
                value = np.ascontiguousarray(value.reshape(-1, side, side, 3).transpose(0, 3, 1, 2))
            tensors[TOWER_NAMES[stem]] = value
            continue
        layer, kind = stem.removeprefix("model.vision_tower.encoder.layers.").split(".", 1)
        module, _, bound = kind.rpartition(".")
        if bound.endswith(("_min", "_max")):
            tensors[f"v.blk.{layer}.{TOWER_LAYER_NAMES[module]}.{bound}"] = value.reshape(1)
        else:
            tensors[f"v.blk.{layer}.{TOWER_LAYER_NAMES[kind]}.weight"] = value
    fields = {
        "general.architecture": "clip",
        "vision.projector_type": "gemma4v",
        "vision.projection_dim": config["text_config"]["hidden_size"],
        "vision.block_count": vision["num_hidden_layers"],
        "vision.embedding_length": vision["hidden_size"],
        "vision.attention.head_count": vision["num_attention_heads"],
        "vision.feed_forward_length": vision["intermediate_size"],
        "vision.patch_size": vision["patch_size"],
        "vision.attention.layer_norm_epsilon": vision["rms_norm_eps"],
        "vision.image_mean": [0.0, 0.0, 0.0],
        "vision.image_std": [1.0, 1.0, 1.0],
    }
    return gguf_files.write(path, fields | changes, tensors)


def values_of(path: Path) -> dict[str, F32]:
    """All tensors of a file in fp32."""
    values = {}
    for name, (dtype, array) in checkpoints.read_tensors(path).items():
        if dtype == "I64":
            continue  # the order of an assistant's vocabulary
        assert dtype in ("BF16", "F32")
        values[name] = (array.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else array
    return values


def permute(rows: F32, n_heads: int) -> F32:
    """Row i of a head's first half becomes row 2i, row i of the second half row 2i + 1."""
    return rows.reshape(n_heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def gguf_name(name: str, architecture: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in TOP_NAMES:
        return f"{TOP_NAMES[stem]}.weight"
    _, _, layer, kind = stem.split(".", 3)
    names = LAYER_NAMES | GEMMA4_NAMES if architecture.startswith("gemma4") else LAYER_NAMES
    own = names[kind]
    return f"blk.{layer}.{own}" if own.endswith(".scale") else f"blk.{layer}.{own}.weight"


def gemma4_metadata(config: dict[str, Any]) -> dict[str, Any]:
    n, n_shared = config["num_hidden_layers"], config["num_kv_shared_layers"]
    sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
    full = {"head_dim": config.get("global_head_dim")}
    if config["attention_k_eq_v"]:
        full["num_key_value_heads"] = config.get("num_global_key_value_heads")
    overrides = {int(i): own for i, own in config.get("per_layer_config", {}).items()}
    if not overrides:  # saved before transformers 5.24
        overrides = {i: full for i, slides in enumerate(sliding) if not slides}
    large, small = overrides[sliding.index(False)]["head_dim"], config["head_dim"]
    kv_heads = [overrides.get(i, {}).get("num_key_value_heads", config["num_key_value_heads"]) for i in range(n)]
    ffn = [config["intermediate_size"] * (2 if config["use_double_wide_mlp"] and i >= n - n_shared else 1)
           for i in range(n)]  # fmt: skip
    experts = {
        "expert_count": config["num_experts"],
        "expert_used_count": config["top_k_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
    }
    return {
        **(experts if config["enable_moe_block"] else {}),
        **({"final_logit_softcapping": cap} if (cap := config["final_logit_softcapping"]) else {}),
        "block_count": n,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "feed_forward_length": ffn if len(set(ffn)) > 1 else ffn[0],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": kv_heads if len(set(kv_heads)) > 1 else kv_heads[0],
        "attention.key_length": large,
        "attention.value_length": large,
        "attention.key_length_swa": small,
        "attention.value_length_swa": small,
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": sliding,
        "attention.shared_kv_layers": n_shared,
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_parameters"]["full_attention"]["rope_theta"],
        "rope.freq_base_swa": config["rope_parameters"]["sliding_attention"]["rope_theta"],
        "rope.dimension_count": large,
        "rope.dimension_count_swa": small,
    }


def metadata(config: dict[str, Any]) -> dict[str, Any]:
    if config["model_type"] == "gemma4_text":
        return gemma4_metadata(config)
    scaling = config["rope_parameters"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    fields: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": scaling["rope_theta"],
        "rope.dimension_count": int(head_dim * scaling.get("partial_rotary_factor", 1)),
        "vocab_size": config["vocab_size"],
    }
    original = scaling.get("original_max_position_embeddings")
    if original is not None:
        fields["rope.scaling.original_context_length"] = original
    if scaling["rope_type"] == "longrope":
        factor = config["max_position_embeddings"] / original
        fields["rope.scaling.attn_factor"] = float(np.sqrt(1 + np.log(factor) / np.log(original)))
    if scaling["rope_type"] == "yarn":
        fields |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": scaling["factor"],
            "rope.scaling.yarn_beta_fast": scaling["beta_fast"],
            "rope.scaling.yarn_beta_slow": scaling["beta_slow"],
            "rope.scaling.yarn_log_multiplier": scaling["mscale_all_dim"],
            "attention.temperature_scale": scaling["llama_4_scaling_beta"],
        }
    return fields
