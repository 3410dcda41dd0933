"""Compares a device's logits with the CPU's in fp32, on the same file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lucebox.generation.log_softmax import log_softmax

if TYPE_CHECKING:
    from lucebox.api import LLM

__all__ = ["Comparison", "compare"]

N_IDS = 64
SEED = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Logits after every token of a random text, compared with a reference."""

    reference: str
    """The reference: "cpu, f32 activations, f32 KV"."""
    n_tokens: int
    max_difference: float
    """Largest absolute difference of two logits; NaN if one is not finite."""
    mean_kl: float
    """KL(reference || device) in nat, mean over the tokens."""
    greedy_agreement: float
    """Share of positions at which both have the same argmax."""


def compare(llm: LLM, reference: LLM, n_tokens: int = N_IDS) -> Comparison:
    """Compares two LLMs of the same file; `reference` is on the CPU."""
    ids = np.random.default_rng(SEED).integers(0, llm.info.vocab, n_tokens).tolist()
    got, want = (model.logits(ids).astype(np.float64) for model in (llm, reference))
    p, q = log_softmax(want), log_softmax(got)
    options = reference.options
    return Comparison(
        reference=f"{options.device}, {options.activations} activations, {options.kv} KV",
        n_tokens=n_tokens,
        max_difference=float(np.abs(got - want).max()),
        mean_kl=float((np.exp(p) * (p - q)).sum(axis=1).mean()),
        greedy_agreement=float((got.argmax(axis=1) == want.argmax(axis=1)).mean()),
    )
