"""The vision tower of Qwen3.5 in fp64, from the tensors of a multimodal projector (GGUF)."""

from __future__ import annotations

from math import erf
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray
from reference.decoder import F64, weights_of

erf_of = np.vectorize(erf)


def layer_norm(x: F64, weight: F64, bias: F64, eps: float) -> F64:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias


def gelu_tanh(x: F64) -> F64:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu(x: F64) -> F64:
    return 0.5 * x * (1 + erf_of(x / np.sqrt(2)))


def place(i: NDArray[np.int64], columns: int, merge: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and column of patch i in the tower's order: block by block of merge x merge patches."""
    block, inside = i // merge**2, i % merge**2
    per_row = columns // merge
    return block // per_row * merge + inside // merge, block % per_row * merge + inside % merge


def bilinear(table: F64, row: NDArray[np.int64], column: NDArray[np.int64], height: int, width: int) -> F64:
    """Entries of a table [side, side, dim] whose corners are at the corner patches."""
    side = len(table)
    y, x = (at * (side - 1) / max(n - 1, 1) for at, n in ((row, height), (column, width)))
    top, left = np.floor(y).astype(int), np.floor(x).astype(int)
    bottom, right = np.minimum(top + 1, side - 1), np.minimum(left + 1, side - 1)
    v, u = (y - top)[:, None], (x - left)[:, None]
    upper = table[top, left] * (1 - u) + table[top, right] * u
    return upper * (1 - v) + (table[bottom, left] * (1 - u) + table[bottom, right] * u) * v


class VisionTower:
    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self.w = weights_of(reader)

        def field(key: str) -> int:
            return int(reader.fields[f"clip.vision.{key}"].contents())

        self.n_layers, self.width, self.n_heads = (
            field(key) for key in ("block_count", "embedding_length", "attention.head_count")
        )
        self.patch, self.merge = field("patch_size"), field("spatial_merge_size")
        self.eps = 1e-6

    def linear(self, name: str, x: F64) -> F64:
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def norm(self, name: str, x: F64) -> F64:
        return layer_norm(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"], self.eps)

    def positions(self, height: int, width: int, row: NDArray[np.int64], column: NDArray[np.int64]) -> F64:
        """The table, bilinear: its corners are at the corner patches."""
        side = round(len(self.w["v.position_embd.weight"]) ** 0.5)
        table = self.w["v.position_embd.weight"].reshape(side, side, -1)
        return bilinear(table, row, column, height, width)

    def rows(self, rgb: NDArray[np.uint8]) -> F64:
        """[height / unit * width / unit, hidden] of an image [height, width, 3]."""
        p, m = self.patch, self.merge
        height, width = rgb.shape[0] // p, rgb.shape[1] // p
        grid = np.indices((height, width)).reshape(2, height // m, m, width // m, m)
        row, column = grid.transpose(0, 1, 3, 2, 4).reshape(2, -1)  # block by block
        pixels = (rgb.astype(np.float64) / 255 - 0.5) / 0.5
        patches = pixels.reshape(height, p, width, p, 3).transpose(0, 2, 4, 1, 3)[row, column].reshape(len(row), -1)
        weight = self.w["v.patch_embd.weight"] + self.w["v.patch_embd.weight.1"]
        x = patches @ weight.reshape(self.width, -1).T + self.w["v.patch_embd.bias"]
        x = x + self.positions(height, width, row, column)
        quarter = self.width // self.n_heads // 4
        frequencies = 10000.0 ** (-np.arange(quarter) / quarter)
        angle = np.concatenate([row[:, None] * frequencies, column[:, None] * frequencies], 1)[:, None]
        for i in range(self.n_layers):
            x = x + self.attention(f"v.blk.{i}.", self.norm(f"v.blk.{i}.ln1", x), angle)
            up = gelu_tanh(self.linear(f"v.blk.{i}.ffn_up", self.norm(f"v.blk.{i}.ln2", x)))
            x = x + self.linear(f"v.blk.{i}.ffn_down", up)
        merged = self.norm("v.post_ln", x).reshape(len(x) // m**2, -1)
        return self.linear("mm.2", gelu(self.linear("mm.0", merged)))

    def attention(self, blk: str, x: F64, angle: F64) -> F64:
        q, k, v = self.linear(blk + "attn_qkv", x).reshape(len(x), 3, self.n_heads, -1).transpose(1, 0, 2, 3)

        def turned(t: F64) -> F64:
            a, b = np.split(t, 2, -1)
            return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)

        scores = np.einsum("ihd,jhd->hij", turned(q), turned(k)) / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return self.linear(blk + "attn_out", np.einsum("hij,jhd->ihd", weights, v).reshape(len(x), -1))
