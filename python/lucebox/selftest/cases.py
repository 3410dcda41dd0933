"""Lists every case of the self-test, on fresh random inputs of odd sizes. One file per op family generates them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from lucebox.selftest import attention, delta_net, draft, elementwise, experts, products, ranks, sampling, vision
from lucebox.selftest.case import Case

__all__ = ["OF_MODELS", "cases"]

OF_MODELS = re.compile(
    "cast_(gated_)?(rms_norm|swiglu)_.*|gemm_sm90_.*_gated_kernel"  # an op and the cast or the product that reads it
    "|(route_)?find_(experts|streamed)_kernel|fill_slots_kernel|stream_experts_kernel"  # experts in slots
    "|gated_delta_rows_kernel(_batched)?|delta_inputs_small_kernel_batched"  # trees row by row
)
"""Kernels that only the engine launches, for several ops or with a state of its own. tests/gpu compares them with the
kernels that they replace; the self-test leaves them out."""


def cases(rng: np.random.Generator, wide: str, fp8: Sequence[str]) -> Iterator[Case]:
    """All cases. wide: the type to which x is rounded before it is multiplied with BF16 weights: BF16, or F16 if the
    matrix units lack BF16. fp8: the pack's kernels for prompts with fp8 weights, which round x to fp8."""
    yield from elementwise.embeds(rng)
    yield from elementwise.norms(rng)
    yield from products.products(rng)
    yield from products.groups(rng)
    yield from products.gemms(rng, wide, fp8)
    yield from elementwise.swiglu_and_rope(rng)
    yield from elementwise.rounded(rng)
    yield from products.megakernels(rng)
    yield from experts.routes(rng)
    yield from experts.mixtures(rng)
    yield from delta_net.inputs(rng)
    yield from delta_net.recurrences(rng)
    yield from attention.caches(rng)
    yield from attention.attentions(rng)
    yield from attention.packed(rng)
    yield from attention.scorers(rng)
    yield from elementwise.reads(rng)
    yield from ranks.exchanges(rng)
    yield from sampling.samples(rng)
    yield from sampling.together(rng)
    yield from sampling.walks(rng)
    yield from draft.rows(rng)
    yield from draft.top_tokens(rng)
    yield from draft.selections(rng)
    yield from draft.trees(rng)
    yield from vision.towers(rng)
