"""Runs draft models and their fp64 references through the same appends; files of prediction blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from engines import largest_difference, log_softmax, open_engine
from lucebox import _kernels
from numpy.typing import NDArray
from reference import dflash, draft_files, gguf_files
from reference.decoder import Decoder
from reference.draft_files import DraftShape
from reference.gguf_files import Shape
from reference.mtp import Mtp
from tolerances import tolerance
from tree_data import path_to, random_tree

F64 = NDArray[np.float64]
TARGET = Shape("qwen35", n_layers=4, recurrent=(True, False, True, False), n_mtp=1)
FIRST = DraftShape()
SECOND = replace(FIRST, is_second=True)
# Rows of each append and the number of kept rows; negative: a tree, of which a path is kept. The last chain is
# longer than a chunk of kMaxTree rows.
APPENDS = ((13, 13), (1, 1), (-7, 0), (5, 2), (-23, 0), (1, 1), (100, 100), (-64, 0))


class Pair:
    """A target with its draft model and the draft model's reference, run through the same appends."""

    def __init__(self, target: Path, draft: str, reference: dflash.Dflash | Mtp, **options: Any) -> None:
        self.engine = open_engine(target, draft=draft, prefill_chunk=128, **options)
        self.tolerance = tolerance("logits", "f32_device" if "pack" in options else "f32")
        self.drafting = _kernels.Drafting(self.engine)
        self.reference = reference
        self.w = Decoder(target).w
        self.ids: list[int] = []

    def append(self, ids: NDArray[np.int32], parent: NDArray[np.int32], ancestors: NDArray[np.uint64]) -> tuple:
        depth = np.arange(len(ids))
        if len(parent):
            depth = np.array([bin(int(a)).count("1") - 1 for a in ancestors])
        positions = np.ascontiguousarray(np.stack([len(self.ids) + depth] * 3), np.int32)
        return self.drafting.append(ids, positions, parent, ancestors)

    def keep(self, ids: NDArray[np.int32], rows: NDArray[np.int32], hidden: F64, tapped: F64) -> None:
        self.drafting.commit(rows.tolist())
        kept = ids[rows]
        if isinstance(self.reference, Mtp):
            self.reference.commit(kept, hidden[rows].astype(np.float64))
        else:
            self.reference.commit(tapped[rows].astype(np.float64))
        self.ids += kept.tolist()

    def step(self, rows: int, n_kept: int, rng: np.random.Generator) -> None:
        """Appends random ids. For a tree (rows < 0), keeps the path to a random node."""
        n = abs(rows)
        ids = rng.integers(0, len(self.w["token_embd.weight"]), n, dtype=np.int32)
        parent, ancestors = random_tree(n, rng) if rows < 0 else (np.zeros(0, np.int32), np.zeros(0, np.uint64))
        hidden, tapped = self.append(ids, parent, ancestors)
        path = path_to(parent, int(rng.integers(0, n))) if rows < 0 else np.arange(n_kept, dtype=np.int32)
        self.keep(ids, path, hidden, tapped)

    def logits(self, hidden: F64) -> F64:
        result: F64 = hidden @ self.w.get("output.weight", self.w["token_embd.weight"]).T
        return result

    def check(self, root: int) -> None:
        depth = self.drafting.max_depth
        ids, logprobs, hidden = self.drafting.propose(root, depth)
        if isinstance(self.reference, Mtp):
            want_hidden, logits = self.reference.propose(root, depth)
        else:
            want_hidden = self.reference.propose(self.w["token_embd.weight"], root)
            logits = self.logits(want_hidden)
        assert largest_difference(hidden, want_hidden) < self.tolerance
        if isinstance(self.reference, dflash.Dflash) and self.reference.is_second:
            selected = self.reference.select(want_hidden, logits, root, ids.shape[1])
            check_selection(ids, logprobs, selected, self.tolerance)
        else:
            check_candidates(ids, logprobs, log_softmax(logits), self.tolerance)


def check_candidates(ids: NDArray[np.int32], logprobs: NDArray[np.float32], want: F64, tolerance: float) -> None:
    """Checks the k likeliest tokens of each row and their order, except ties."""
    k = ids.shape[1]
    assert largest_difference(logprobs, np.take_along_axis(want, ids, axis=1)) < tolerance
    assert largest_difference(logprobs, -np.sort(-want, axis=1)[:, :k]) < tolerance
    assert (np.diff(logprobs, axis=1) <= 0).all()
    assert all(len(set(row)) == k for row in ids.tolist())


def check_selection(ids: NDArray[np.int32], logprobs: NDArray[np.float32], want: list[F64], tolerance: float) -> None:
    """[k, (id, score)] of each row, the best first; logprobs are among the k."""
    assert np.array_equal(ids, np.array([row[:, 0] for row in want], np.int32))
    assert largest_difference(logprobs, log_softmax(np.array([row[:, 1] for row in want]))) < tolerance


def reference_of(shape: DraftShape) -> dflash.Dflash:
    return dflash.Dflash(shape.config, draft_files.tensors(shape))


def run(pair: Pair, appends: Sequence[tuple[int, int]] = APPENDS) -> None:
    rng = np.random.default_rng(0)
    for rows, n_kept in appends:
        pair.step(rows, n_kept, rng)
        pair.check(root=int(rng.integers(0, TARGET.vocab)))


HF_HEAD = {
    "nextn.eh_proj": "fc",
    "nextn.enorm": "pre_fc_norm_embedding",
    "nextn.hnorm": "pre_fc_norm_hidden",
    "nextn.shared_head_norm": "norm",
    "attn_norm": "layers.0.input_layernorm",
    "post_attention_norm": "layers.0.post_attention_layernorm",
} | {
    name.removesuffix(".weight"): f"layers.0.{hf.removesuffix('.weight')}"
    for name, hf in dflash.GGUF_LAYER_NAMES.items()
    if name.startswith(("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"))
}


def head_tensors(shape: Shape) -> dict[str, NDArray[np.float32]]:
    """The block's tensors, named as in GGUF."""
    return {name: x for name, x in gguf_files.tensors(shape).items() if name.startswith(f"blk.{shape.n_layers}.")}


def head_config(shape: Shape) -> dict[str, Any]:
    sections = gguf_files.metadata(shape)["rope.dimension_sections"]
    return {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": shape.n_layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "vocab_size": shape.vocab,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_context,
        "rms_norm_eps": 1e-6,
        "linear_num_key_heads": shape.n_k_heads,
        "linear_num_value_heads": shape.n_v_heads,
        "linear_key_head_dim": shape.d_state,
        "linear_value_head_dim": shape.d_state,
        "linear_conv_kernel_dim": shape.n_taps,
        "mtp_num_hidden_layers": shape.n_mtp,
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25, "mrope_section": sections[:3]},
    }


def write_head(path: Path, shape: Shape, prefix: str | None = None) -> Path:
    """Writes the block alone: as GGUF, or with a name prefix as a safetensors folder."""
    named = head_tensors(shape)
    if prefix is None:
        return gguf_files.write(path, gguf_files.metadata(shape), named)
    renamed = {}
    for name, tensor in named.items():
        stem = name.removeprefix(f"blk.{shape.n_layers}.").removesuffix(".weight")
        renamed[f"{prefix}{HF_HEAD[stem]}.weight"] = tensor - 1 if tensor.ndim == 1 else tensor  # norms of Qwen3.5
    return draft_files.write_hf(path, head_config(shape), renamed)
