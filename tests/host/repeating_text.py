"""Text that repeats itself as code does."""

from __future__ import annotations

import numpy as np


def code_like(n: int, rng: np.random.Generator, vocab: int = 200) -> list[int]:
    """Tokens of a skewed distribution, with passages that repeat earlier ones with a few changes."""
    tokens: list[int] = []
    while len(tokens) < n:
        if len(tokens) > 50 and rng.random() < 0.4:
            start = int(rng.integers(0, len(tokens) - 20))
            passage = tokens[start : start + int(rng.integers(5, 200))]
            tokens += [int(rng.integers(vocab)) if rng.random() < 0.03 else token for token in passage]
        else:
            tokens += [int(token) for token in np.minimum(rng.zipf(1.3, 20), vocab) - 1]
    return tokens[:n]
