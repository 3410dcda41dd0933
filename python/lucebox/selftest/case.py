"""A case of the self-test, and the table of error limits of a device against the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucebox.selftest import ops

__all__ = ["LIMITS", "Array", "Case", "Limit", "Parts", "in_parts", "same", "unit_one"]

Array = NDArray[Any]
Parts = Sequence[Array]


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest allowed difference of a value from the CPU's, in the case's unit."""

    error: float
    reason: str


LIMITS = {
    "exact": Limit(0, "no arithmetic, or rounding that is defined to the bit"),
    "rope": Limit(1e-6, "two products and a sum, fused or not"),
    "row": Limit(1e-5, "fp32 sums in another order; the chip's own root, exponential and reciprocal (2 ulp each)"),
    "recurrence": Limit(2e-5, "fp32 sums in another order; each of up to 200 rows depends on the ones before"),
    "sum": Limit(1e-6, "fp32 sums of up to 17408 terms in another order"),
    "matrix": Limit(1e-5, "matrix units add exact 16-bit products in fp32 and may truncate the bits they shift out"),
    "attention": Limit(1e-5, "fp32 scores and sums in another order; the chip's own exponential"),
    "attention_f16": Limit(3e-3, "queries and weights are rounded to f16 for the matrix units"),
    "attention_bf16": Limit(2.5e-2, "queries and weights are rounded to bf16 for the matrix units"),
    "half": Limit(8e-3, "both operands are rounded to bf16, 2^-9 each, and one term may dominate a sum"),
    "int16": Limit(1e-4, "a device rounds x to 16 bits for products with quantised weights"),
    "skinny": Limit(
        1e-3, "x of 8 bits is rounded again, to 11; the subtracted minimum may be several times the weight"
    ),
    "int8": Limit(2e-4, "among 256 or more values, one halfway between two 8-bit codes may take either"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One call on the device and the CPU's result."""

    op: str
    limit: str
    expected: Callable[[], Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    collect: Callable[[Any], Array] = np.asarray
    """Turns the device's result into an array comparable with `expected`."""
    unit: Callable[[], Array] | None = None
    """The unit of errors. None: the largest value of each row. A product uses the sum of its terms' absolute values,
    because the terms may cancel."""
    without: tuple[str, ...] = ()
    """Kernels whose names contain one of these words are removed from the pack, so that their fallbacks run."""

    @property
    def label(self) -> str:
        words = [*map(_word, self.arguments), *(f"{name}={_word(value)}" for name, value in self.options.items())]
        return f"{self.op}({', '.join(words)})" + "".join(f" without {word}" for word in self.without)


def _word(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return str(list(value.shape))
    return f"[{', '.join(map(_word, value))}]" if isinstance(value, list) else str(value)


def same(op: str, limit: str, *arguments: Any, unit: Callable[[], Array] | None = None, **options: Any) -> Case:
    """A case whose expected result is the CPU op of this name, with the same arguments."""
    return Case(op, limit, partial(ops.function(op), *arguments, **options), arguments, options, unit=unit)


def in_parts(
    op: str, limit: str, expected: Callable[[], Parts], kept: Callable[[Parts], Parts], *arguments: Any, **options: Any
) -> Case:
    """A case with several outputs (a result and the state after it); the unit of each output is its largest value.
    `kept` selects the outputs that are defined."""

    def unit() -> Array:
        parts = kept(expected())
        return np.concatenate([np.full(part.size, np.abs(part).max(initial=0)) for part in parts])

    def flat(parts: Parts) -> Array:
        return np.concatenate([np.ravel(part) for part in kept(parts)])

    return Case(op, limit, lambda: flat(expected()), arguments, options, flat, unit)


def unit_one() -> Array:
    """Errors are absolute."""
    return np.ones(())
