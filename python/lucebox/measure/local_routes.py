"""Weights that make a synthetic mixture choose experts with the locality of text, while all other weights are random.

Token t has the embedding of state t % n: random signs, so large that what the layers add hardly turns it. In each
layer, the router's rows are the least-squares solution that gives the experts of a state (routes.py) a logit and all
others 0. The head gives the token after t the largest logit. So greedy decoding goes through the states in order, and
so do prompts of consecutive ids.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lucebox.measure.routes import Routes, synthetic_routes

__all__ = ["LocalRoutes"]

SIZE = 128.0  # of an embedding's values; those that 40 layers add have a root mean square of about 7
HEAD_SIZE = 0.05
LOGIT = 16.0  # of chosen experts; a random bias of a router has a standard deviation of 1
Bytes = NDArray[np.uint8]
Signs = NDArray[np.bool_]


class LocalRoutes:
    def __init__(self, hidden: int, vocab: int, n_experts: int, n_used: int, rng: np.random.Generator) -> None:
        self.n_states = min(vocab, hidden * 3 // 4)  # more make the least squares ill-conditioned
        self._signs = rng.integers(0, 2, (self.n_states, hidden)) > 0
        values = np.where(self._signs, 1.0, -1.0)
        self._solve = values.T @ np.linalg.inv(values @ values.T)  # [hidden, states]
        self._n_experts, self._n_used, self._rng = n_experts, n_used, rng
        self.layers: list[Routes] = []
        """[states, used] of each router made so far."""

    def router(self) -> NDArray[np.float32]:
        """Weights [experts, hidden] of the next layer's router, F32; appends its routes to `layers`."""
        routes = synthetic_routes(self.n_states, self._n_experts, self._n_used, self._rng)
        self.layers.append(routes)
        logits = np.zeros((self.n_states, self._n_experts))
        np.put_along_axis(logits, routes, LOGIT, axis=1)
        rows: NDArray[np.float32] = (self._solve @ logits).T.astype(np.float32)
        return rows

    def embedding(self, dtype: str) -> Bytes:
        """The rows of the states; token t has row t % n_states."""
        return ENCODERS[dtype](self._signs, SIZE).reshape(-1)

    def head(self, dtype: str) -> Bytes:
        """The rows of the first n_states tokens."""
        return ENCODERS[dtype](np.roll(self._signs, 1, axis=0), HEAD_SIZE).reshape(-1)


def _plain(dtype: type[np.floating]) -> Callable[[Signs, float], Bytes]:
    return lambda signs, size: np.where(signs, size, -size).astype(dtype).view(np.uint8)


def _bf16(signs: Signs, size: float) -> Bytes:
    return (np.where(signs, size, -size).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def _q8_0(signs: Signs, size: float) -> Bytes:
    codes = np.where(signs, 127, -127).astype(np.int8).view(np.uint8).reshape(len(signs), -1, 32)
    return _with_halves(codes, size / 127, before=True)


def _q6_k(signs: Signs, size: float) -> Bytes:
    """Codes 32 +- 31 with scales of 1."""
    codes = np.where(signs, 63, 1).astype(np.uint8).reshape(len(signs), -1, 2, 4, 32)
    nibbles, upper = codes & 15, codes >> 4
    low = nibbles[:, :, :, :2] | nibbles[:, :, :, 2:] << 4  # [rows, blocks, half, 2, 32]
    high = upper[..., 0, :] | upper[..., 1, :] << 2 | upper[..., 2, :] << 4 | upper[..., 3, :] << 6
    shape = codes.shape[:2]
    block = [low.reshape(*shape, 128), high.reshape(*shape, 64), np.ones((*shape, 16), np.uint8)]
    return _with_halves(np.concatenate(block, axis=2), size / 31, before=False)


def _with_halves(blocks: Bytes, scale: float, before: bool) -> Bytes:
    """The blocks with an f16 before or after each."""
    half = np.broadcast_to(np.array([scale], np.float16).view(np.uint8), (*blocks.shape[:2], 2))
    return np.concatenate([half, blocks] if before else [blocks, half], axis=2)


ENCODERS: dict[str, Callable[[Signs, float], Bytes]] = {
    "F32": _plain(np.float32),
    "F16": _plain(np.float16),
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q6_K": _q6_k,
}
