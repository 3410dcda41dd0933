"""A case of the self-test, and the table of error limits of a device against the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucebox.selftest import ops

__all__ = ["LIMITS", "Array", "Case", "Limit", "Parts", "case", "row_unit"]

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
    "fp8": Limit(1.7e-2, "fp8 matrix units truncate the 34 terms of each of four steps to 13 bits"),
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
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    reference: Callable[[], Any]
    """The CPU's result: an array, several, or arrays by name."""
    kept: Callable[[Parts], Parts] | None = None
    """Selects the defined parts of a result, or what is compared of it."""
    unit: Callable[[], Array] | float | None = None
    """The unit of errors. None: the largest value of each row, or of each part of a result. A product uses the sum of
    its terms' absolute values, because the terms may cancel."""
    without: tuple[str, ...] = ()
    """Kernels whose names contain one of these words are removed from the pack, so that their fallbacks run."""

    def collect(self, result: Any) -> Array:
        """A result as one array. Splits 64-bit masks into numbers that fp64 represents exactly."""
        parts = self._parts(result)
        if len(parts) == 1:
            return np.asarray(parts[0])
        words = (part.view(np.uint32) if part.dtype == np.uint64 else part for part in map(np.ravel, parts))
        return np.concatenate([part.astype(np.float64) for part in words])

    def unit_of(self, expected: Any) -> Array:
        """The unit of errors of this CPU's result."""
        if self.unit is not None:
            return np.asarray(self.unit() if callable(self.unit) else self.unit)
        parts = self._parts(expected)
        if len(parts) == 1:
            return row_unit(parts[0])
        sizes = [part.nbytes // min(part.itemsize, 4) for part in parts]
        return np.concatenate([np.full(n, np.abs(p).max(initial=0)) for n, p in zip(sizes, parts, strict=True)])

    def _parts(self, result: Any) -> Parts:
        parts = [result] if isinstance(result, np.ndarray) else list(getattr(result, "values", lambda: result)())
        return self.kept(parts) if self.kept else parts

    @property
    def label(self) -> str:
        words = [*map(_word, self.arguments), *(f"{name}={_word(value)}" for name, value in self.options.items())]
        return f"{self.op}({', '.join(words)})" + "".join(f" without {word}" for word in self.without)


def _word(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return str(list(value.shape))
    return f"[{', '.join(map(_word, value))}]" if isinstance(value, list) else str(value)


def row_unit(expected: Array) -> Array:
    """[..., 1]: the largest finite absolute value of each row."""
    finite = np.where(np.isfinite(expected), np.abs(expected), 0)
    return np.asarray(finite.max(axis=-1, keepdims=True))


def case(
    op: str, limit: str, *arguments: Any, reference: Callable[..., Any] | None = None,
    kept: Callable[[Parts], Parts] | None = None, unit: Callable[[], Array] | float | None = None,
    without: tuple[str, ...] = (), **options: Any,
) -> Case:  # fmt: skip
    """A case with a CPU function of the same arguments: `reference`, or the op."""
    on_cpu = {name: value for name, value in options.items() if name != "sequences"}
    expected = partial(reference or ops.function(op), *arguments, **on_cpu)
    return Case(op, limit, arguments, options, expected, kept, unit, without)
