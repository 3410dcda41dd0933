"""Turns a GGUF model of the llama, qwen3 or qwen3moe family back into a Hugging Face checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray
from reference.linear import e4m3_values, to_bf16
from safetensors.numpy import save_file

F32 = NDArray[np.float32]
Typed = dict[str, tuple[str, NDArray[Any]]]  # (dtype, values or bytes in the tensor's shape)

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def hf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in TOP_NAMES:
        return f"{TOP_NAMES[stem]}.weight"
    _, layer, kind = stem.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[kind]}.weight"


def unpermute(rows: F32, n_heads: int) -> F32:
    """GGUF row 2i of a llama head is row i of the checkpoint, row 2i+1 is row i + half."""
    return rows.reshape(n_heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def from_gguf(path: Path) -> tuple[dict[str, Any], dict[str, F32]]:
    """(config.json, tensors)"""
    reader = GGUFReader(path)
    architecture: str = reader.fields["general.architecture"].contents()

    def field(name: str) -> Any:
        return reader.fields[f"{architecture}.{name}"].contents()

    tensors: dict[str, F32] = {}
    for tensor in reader.tensors:
        shape = tuple(int(n) for n in reversed(tensor.shape))
        values = dequantize(tensor.data, tensor.tensor_type).reshape(shape).astype(np.float32)
        if architecture == "llama" and tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            heads = field("attention.head_count" if "attn_q" in tensor.name else "attention.head_count_kv")
            values = np.ascontiguousarray(unpermute(values, heads))
        if "_exps." in tensor.name:  # as before transformers 5: a matrix per expert
            _, layer, kind = tensor.name.removesuffix("_exps.weight").split(".")
            for expert, matrix in enumerate(values):
                name = f"model.layers.{layer}.mlp.experts.{expert}.{kind.removeprefix('ffn_')}_proj.weight"
                tensors[name] = np.ascontiguousarray(matrix)
        else:
            tensors[hf_name(tensor.name)] = values
    is_mixture = architecture == "qwen3moe"
    experts = (
        {
            "model_type": "qwen3_moe",
            "num_experts": field("expert_count"),
            "num_experts_per_tok": field("expert_used_count"),
            "moe_intermediate_size": field("expert_feed_forward_length"),
            "norm_topk_prob": True,
        }
        if is_mixture
        else {"intermediate_size": field("feed_forward_length")}
    )
    config = {
        "model_type": architecture,
        "num_hidden_layers": field("block_count"),
        "hidden_size": field("embedding_length"),
        "num_attention_heads": field("attention.head_count"),
        "num_key_value_heads": field("attention.head_count_kv"),
        "head_dim": field("attention.key_length"),
        "max_position_embeddings": field("context_length"),
        "rms_norm_eps": field("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_type": "default", "rope_theta": field("rope.freq_base")},
        "vocab_size": len(tensors["model.embed_tokens.weight"]),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "hidden_act": "silu",
        "attention_bias": False,
        **experts,
    }
    return config, tensors


def join_experts(tensors: dict[str, F32]) -> dict[str, F32]:
    """The experts of a layer in two tensors, as transformers 5 saves them."""
    kept = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    layers = {name.split(".experts.")[0] for name in tensors if ".experts." in name}
    for layer in layers:
        n = sum(name.startswith(f"{layer}.experts.") and "down" in name for name in tensors)
        gate, up, down = (
            np.stack([tensors[f"{layer}.experts.{e}.{kind}_proj.weight"] for e in range(n)])
            for kind in ("gate", "up", "down")
        )
        kept[f"{layer}.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        kept[f"{layer}.experts.down_proj"] = down
    return kept


def write(folder: Path, config: dict[str, Any], tensors: dict[str, F32]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def nvfp4(name: str, shape: tuple[int, int], maker: str, rng: np.random.Generator) -> tuple[Typed, F32]:
    """Random tensors of a matrix as a maker's tool writes them, and its values as that tool reads them back."""
    codes = rng.integers(0, 16, shape, dtype=np.uint8)
    scales = rng.integers(0, 0x7F, (shape[0], shape[1] // 16), dtype=np.uint8)
    stem = name.removesuffix("weight")
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    made: Typed = {f"{stem}weight_scale": ("F8_E4M3", scales)}
    if maker == "modelopt":
        factor = np.float32(rng.uniform(1e-5, 1e-4))
        made |= {f"{stem}weight": ("U8", packed), f"{stem}weight_scale_2": ("F32", np.array(factor))}
        made[f"{stem}input_scale"] = ("F32", np.array(np.float32(0.25)))
        by_block = e4m3_values()[scales] * factor
    else:
        factor = np.float32(rng.uniform(1e4, 1e5))
        made |= {f"{stem}weight_packed": ("U8", packed), f"{stem}weight_global_scale": ("F32", np.array([factor]))}
        made[f"{stem}input_global_scale"] = ("F32", np.array([4], np.float32))
        by_block = e4m3_values()[scales] / factor
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    values = np.where(codes < 8, 1, -1).astype(np.float32) * magnitudes[codes & 7]
    return made, values * by_block.repeat(16, axis=1)


def few_bits(folder: Path, gguf: Path, kind: str) -> tuple[Path, int]:
    """A checkpoint of a GGUF's model, and the bytes of its matrices on a device. fp8: a scale per row; modelopt and
    compressed-tensors: NVFP4; mixed: feed-forward blocks in NVFP4, attention in FP8, the head in BF16."""
    config, weights = from_gguf(gguf)
    rng = np.random.default_rng(0)
    typed: Typed = {}
    n_bytes = 0
    for name, tensor in weights.items():
        if not name.endswith(("proj.weight", "lm_head.weight")):
            typed[name] = ("F32", tensor)
            n_bytes += tensor.nbytes if tensor.ndim > 1 else 0
        elif kind == "mixed" and name.startswith("lm_head"):
            typed[name] = ("BF16", to_bf16(tensor))
            n_bytes += 2 * tensor.size
        elif kind == "fp8" or (kind == "mixed" and "self_attn" in name):
            codes, scales = fp8_rows(tensor)
            typed |= {name: ("F8_E4M3", codes), f"{name}_scale": ("F32", scales)}
            n_bytes += tensor.size // 128 * 132
        else:
            made, _ = nvfp4(name, tensor.shape, "modelopt" if kind == "mixed" else kind, rng)
            typed |= made
            n_bytes += tensor.size // 64 * 36 + 8 * len(tensor)
    path = write(folder, config, {"x": np.zeros(1, np.float32)})
    write_tensors(path / "model.safetensors", typed)
    return path, n_bytes


def fp8_rows(values: F32) -> tuple[NDArray[np.uint8], F32]:
    """Codes and a scale per row."""
    scales = np.abs(values).max(axis=1, keepdims=True) / np.float32(448)
    middles = (e4m3_values()[:0x7E] + e4m3_values()[1:0x7F]) / 2
    codes = np.searchsorted(middles, np.abs(values / scales)).astype(np.uint8)
    return codes | (values < 0).astype(np.uint8) << 7, scales


def read_tensors(path: Path) -> Typed:
    """Tensors of U8, I64, F32 and BF16; values of BF16 as their bits."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    types = {"U8": np.uint8, "I64": np.int64, "F32": np.float32, "BF16": np.uint16}
    found: Typed = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            first, end = (8 + size + at for at in entry["data_offsets"])
            values = np.frombuffer(data[first:end], types[entry["dtype"]])
            found[name] = (entry["dtype"], values.reshape(entry["shape"]))
    return found


def write_tensors(path: Path, tensors: Mapping[str, tuple[str, NDArray[Any]]]) -> None:
    """The library has no numpy type for FP8 and BF16: (dtype, bytes in the tensor's shape)."""
    header, at = {}, 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(np.ascontiguousarray(array).tobytes() for _, array in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
