"""Cases of the sampler: filters, penalties, biases and masks, batched sequences, walks down trees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucebox._engine import Sampler
from lucebox.selftest.case import Array, Case, Parts, case
from lucebox.selftest.inputs import normal


def samples(rng: np.random.Generator) -> Iterator[Case]:
    """Consecutive tokens; each starts with the token counts and draw number of the previous one."""
    filters = {"temperature": 0.8, "top_k": 50, "typical_p": 0.95, "top_p": 0.9, "min_p": 0.01}
    penalties = {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1, "penalty_window": 3}
    bias = {"logit_bias": [(0, -100.0), (1, 2.0)]}
    for steps, vocab in ((4, 1), (20, 37), (3, 32_003)):
        prompt = rng.integers(0, vocab, 5, np.int32)
        x, ties = 3 * normal(rng, steps, vocab), rng.integers(0, 9, (steps, vocab)).astype(np.float32)
        for logits in (x, ties):
            mask = rng.integers(0, 2**32, (vocab + 31) // 32, np.uint32) | 4  # allows token 2, which no bias forbids
            masked = {"mask": mask} if vocab > 2 else {}
            for options in ({}, penalties, {"temperature": 1.0}, filters, {**filters, **penalties}, masked):
                some: dict[str, Any] = {**options, **(bias if vocab > 1 else {}), "seed": int(rng.integers(1 << 32))}
                yield case(
                    "sample_batched", "exact", logits[None], prompt, reference=_sampled_each, kept=_tokens, **some
                )


def together(rng: np.random.Generator) -> Iterator[Case]:
    """Consecutive tokens of several sequences, each with its own logits."""
    for sequences, steps, vocab in ((3, 4, 37), (5, 2, 32_003)):
        prompt, logits = rng.integers(0, vocab, 5, np.int32), 3 * normal(rng, sequences, steps, vocab)
        for options in ({}, {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "frequency_penalty": 0.2}):
            some: dict[str, Any] = {**options, "seed": int(rng.integers(1 << 32))}
            yield case("sample_batched", "exact", logits, prompt, reference=_sampled_each, kept=_tokens, **some)


def walks(rng: np.random.Generator) -> Iterator[Case]:
    """Walks down trees that end after no, some and many accepted tokens."""
    for rows, vocab in ((1, 5), (20, 3), (64, 2), (40, 1_003)):
        tokens = rng.integers(0, vocab, rows, np.int32)
        parents = np.array([-1, *(rng.integers(max(0, i - 3), i) for i in range(1, rows))], np.int32)
        prompt, logits = rng.integers(0, vocab, 5, np.int32), normal(rng, rows, vocab)
        for options in ({}, {"temperature": 1.0, "frequency_penalty": 0.2}):
            some: dict[str, Any] = {**options, "seed": int(rng.integers(1 << 32))}
            some |= {"tree": (tokens, parents), "ring_capacity": 64}
            yield case("sample_batched", "exact", logits[None], prompt, reference=_walked, kept=_tokens, **some)


def _sampler(vocab: int, prompt: NDArray[np.int32], **options: Any) -> Sampler:
    sampler = Sampler(vocab, **options)
    sampler.set_prompt(prompt)
    return sampler


def _walked(logits: Array, prompt: NDArray[np.int32], tree: Any, ring_capacity: int, **options: Any) -> Parts:
    tokens, parents = tree
    sampler = _sampler(logits.shape[2], prompt, **options)
    row, chosen = 0, []
    while row >= 0:
        chosen.append(sampler.sample(logits[0, row]))
        children = [i for i in range(row + 1, len(tokens)) if parents[i] == row and tokens[i] == chosen[-1]]
        row = children[0] if children else -1
    return [np.array(chosen, np.int32)]


def _sampled(
    logits: Array, prompt: NDArray[np.int32], mask: NDArray[np.uint32] | None = None, **options: Any
) -> Parts:  # fmt: skip
    sampler = _sampler(logits.shape[1], prompt, **options)
    sampler.set_mask(mask)
    return [np.array([sampler.sample(row) for row in logits], np.int32)]


def _sampled_each(logits: Array, prompt: NDArray[np.int32], **options: Any) -> Parts:
    return [_sampled(own, prompt, **options)[0] for own in logits]


def _tokens(results: Sequence[Any]) -> Parts:
    """Of a device's results, the tokens of each sequence; -1 where there was a problem."""
    return [
        one if isinstance(one, np.ndarray) else np.where(one["problems"] == 0, one["tokens"], -1) for one in results
    ]
