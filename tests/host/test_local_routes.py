"""Synthetic mixtures whose tokens share experts as text does."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from lucebox.measure.local_routes import ENCODERS, LocalRoutes
from lucebox.measure.routes import repeats, synthetic_routes


@pytest.mark.parametrize("n_experts", [128, 256])
def test_routes_repeat_as_measured_on_text(n_experts: int, seed: int) -> None:
    routes = synthetic_routes(1500, n_experts, 8, np.random.default_rng(seed))
    assert all(len(set(row)) == 8 for row in routes.tolist())
    assert abs(repeats(routes, 1) - 0.45) < 0.02
    assert abs(repeats(routes, 8) - 0.80) < 0.02


def hits_of_lru(routes: np.ndarray, n_experts: int, slots: int) -> float:
    order, hits, half = list(range(n_experts)), 0, len(routes) // 2
    for token, row in enumerate(routes.tolist()):
        hits += len(set(order[:slots]) & set(row)) * (token >= half)
        order = row + [expert for expert in order if expert not in row]
    return hits / routes[half:].size


def test_caches_find_as_many_as_with_text(seed: int) -> None:
    routes = synthetic_routes(1500, 256, 8, np.random.default_rng(seed))
    assert 0.83 < hits_of_lru(routes, 256, 85) < 0.92
    assert 0.89 < hits_of_lru(routes, 256, 102) < 0.95
    assert 0.91 < hits_of_lru(routes, 256, 128) < 0.97


@pytest.mark.parametrize("dtype", list(ENCODERS))
def test_rows_of_signs(dtype: str, seed: int) -> None:
    signs = np.random.default_rng(seed).integers(0, 2, (3, 512)) > 0
    kind = gguf.GGMLQuantizationType[dtype]
    rows = ENCODERS[dtype](signs, 0.75).reshape(3, -1)
    values = rows.view(np.float32) if dtype == "F32" else gguf.dequantize(rows, kind)
    assert np.array_equal(values > 0, signs)
    assert np.abs(np.abs(values) - 0.75).max() < 0.75 * 2**-10


def test_routers_choose_the_experts_of_a_state(seed: int) -> None:
    """With noise as large as what layers add to the embedding."""
    rng = np.random.default_rng(seed)
    local = LocalRoutes(256, 1000, 64, 8, rng)
    embedding = local.embedding("F32").view(np.float32).reshape(local.n_states, 256)
    router = local.router()
    logits = (embedding + rng.normal(0, 7, embedding.shape)) @ router.T
    chosen = np.sort(np.argsort(-logits, axis=1)[:, :8], axis=1)
    assert (chosen == np.sort(local.layers[0], axis=1)).mean() > 0.99
    head = local.head("F32").view(np.float32).reshape(local.n_states, 256)
    assert np.array_equal((embedding @ head.T).argmax(axis=1), np.roll(np.arange(local.n_states), -1))
