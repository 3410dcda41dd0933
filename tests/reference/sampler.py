"""The sampler's distribution, filter by filter, and its source of randomness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_window: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)


def biased(logits: F32, options: Options) -> F32:
    """-100 forbids; anything else is added."""
    out = logits.copy()
    for token, bias in options.logit_bias.items():
        out[token] = -np.inf if bias <= -100 else out[token] + np.float32(bias)
    return out


def penalised(logits: F32, options: Options, prompt: Sequence[int], generated: Sequence[int]) -> F32:
    """The repetition penalty sees the last tokens of prompt and output, once each; the others count the output."""
    out = logits.copy()
    history = [*prompt, *generated]
    window = history if options.penalty_window < 0 else history[max(0, len(history) - options.penalty_window) :]
    for token in set(window):
        penalty = np.float32(options.repetition_penalty)
        out[token] = out[token] / penalty if out[token] > 0 else out[token] * penalty
    for token, count in Counter(generated).items():
        out[token] -= np.float32(options.frequency_penalty) * np.float32(count) + np.float32(options.presence_penalty)
    return out


def softmax(logits: F32, ids: Sequence[int]) -> F64:
    x = logits[list(ids)].astype(np.float64)
    e: F64 = np.exp(x - x.max())
    return e / e.sum()


def by_likelihood(logits: F32, ids: Sequence[int]) -> list[int]:
    return sorted(ids, key=lambda i: (-logits[i], i))


def top_k(logits: F32, ids: Sequence[int], k: int) -> list[int]:
    return by_likelihood(logits, ids)[:k] if k else list(ids)


def until(ids: Sequence[int], p: Mapping[int, float], share: float) -> list[int]:
    """The shortest prefix that has the share."""
    kept, total = [], 0.0
    for i in ids:
        kept.append(i)
        total += p[i]
        if total >= share:
            break
    return kept


def typical(logits: F32, ids: Sequence[int], share: float) -> list[int]:
    if share >= 1:
        return list(ids)
    p = dict(zip(ids, softmax(logits, ids), strict=True))
    entropy = -sum(x * np.log(x) for x in p.values() if x > 0)
    surprise = {i: abs(-np.log(x) - entropy) if x > 0 else np.inf for i, x in p.items()}
    return until(sorted(ids, key=lambda i: (surprise[i], -logits[i], i)), p, share)


def top_p(logits: F32, ids: Sequence[int], share: float) -> list[int]:
    if share >= 1:
        return list(ids)
    return until(by_likelihood(logits, ids), dict(zip(ids, softmax(logits, ids), strict=True)), share)


def min_p(logits: F32, ids: Sequence[int], share: float) -> list[int]:
    p = softmax(logits, ids)
    return [i for i, x in zip(ids, p, strict=True) if x >= share * p.max()]


def distribution(
    logits: F32, options: Options, prompt: Sequence[int] = (), generated: Sequence[int] = ()
) -> dict[int, float]:
    """Probability of each token that can be drawn, by id. The order: bias, penalties, temperature, top-k, typical,
    top-p, min-p."""
    x = penalised(biased(logits, options), options, prompt, generated) / np.float32(options.temperature)
    ids = top_k(x, range(len(x)), options.top_k)
    ids = typical(x, ids, float(np.float32(options.typical_p)))
    ids = top_p(x, ids, float(np.float32(options.top_p)))
    ids = sorted(min_p(x, ids, float(np.float32(options.min_p))))
    return {i: p for i, p in zip(ids, softmax(x, ids).tolist(), strict=True) if p > 0}


def splitmix(x: int) -> int:
    """SplitMix64 (Steele, Lea and Flood 2014): one step and its output."""
    mask = 2**64 - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def uniform_draw(seed: int, draw: int) -> float:
    return float(splitmix((splitmix(seed) + draw) % 2**64) >> 11) * 2.0**-53
