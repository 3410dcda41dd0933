#!/usr/bin/env python3
"""Writes a DFlash drafter (version 1), a folder of safetensors, as a GGUF file with quantised matrices; norms stay F32.

ci/quantize_drafter.py FOLDER drafter.Q8_0.gguf --type Q8_0
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

NAMES = {
    "fc": "fc",
    "hidden_norm": "enc.output_norm",
    "norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TYPES = {"F16": gguf.LlamaFileType.MOSTLY_F16, "BF16": gguf.LlamaFileType.MOSTLY_BF16}
TYPES |= {"Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0, "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0}


def gguf_name(name: str) -> str:
    """The GGUF name of a safetensors tensor."""
    found = re.fullmatch(r"(?:layers\.(\d+)\.)?(.+)\.weight", name)
    if found is None or found[2] not in NAMES:
        raise SystemExit(f"{name} is no tensor of a DFlash drafter, version 1")
    return (f"blk.{found[1]}." if found[1] else "") + NAMES[found[2]] + ".weight"


def read(folder: Path) -> dict[str, NDArray[np.float32]]:
    """All tensors by their safetensors names."""
    tensors: dict[str, NDArray[np.float32]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        data = np.fromfile(file, np.uint8)
        start = 8 + int(data[:8].view(np.uint64)[0])
        header = json.loads(data[8:start].tobytes())
        header.pop("__metadata__", None)
        for name, tensor in header.items():
            first, end = tensor["data_offsets"]
            kind = gguf.GGMLQuantizationType[tensor["dtype"]]  # F32, F16 and BF16 have the same names in both
            tensors[name] = dequantize(data[start + first : start + end], kind).reshape(tensor["shape"])
    if not tensors:
        raise SystemExit(f"{folder} has no *.safetensors")
    return tensors


def write_fields(writer: gguf.GGUFWriter, config: Mapping[str, Any], dtype: str) -> None:
    nested = config["dflash_config"]
    rope = config.get("rope_parameters") or config
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_file_type(TYPES[dtype])
    writer.add_quantization_version(2)
    writer.add_block_count(config["num_hidden_layers"])
    if "max_position_embeddings" in config:
        writer.add_context_length(config["max_position_embeddings"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_uint32("dflash.block_size", nested.get("block_size", config.get("block_size")))
    writer.add_array("dflash.target_layers", [tap + 1 for tap in nested["target_layer_ids"]])
    writer.add_mask_token_id(nested["mask_token_id"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
        pattern = [kind == "sliding_attention" for kind in config["layer_types"]]
        writer.add_array("dflash.attention.sliding_window_pattern", pattern)
    if "is_causal" in config:
        writer.add_bool("dflash.attention.causal", config["is_causal"])


def write(folder: Path, out: Path, dtype: str) -> None:
    kind = gguf.GGMLQuantizationType[dtype]
    writer = gguf.GGUFWriter(out, "dflash")
    write_fields(writer, json.loads((folder / "config.json").read_text()), dtype)
    for name, tensor in sorted(read(folder).items()):
        if tensor.ndim == 1:
            writer.add_tensor(gguf_name(name), tensor)
        else:
            writer.add_tensor(gguf_name(name), quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="config.json and *.safetensors")
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="Q8_0", choices=TYPES, dest="dtype")
    args = parser.parse_args()
    write(args.folder, args.out, args.dtype)
    print(f"wrote {args.out}, {args.out.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
