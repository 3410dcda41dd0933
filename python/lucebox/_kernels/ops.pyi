"""Single ops on numpy arrays."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


def run(op: str, threads: int = 1, isa: str = 'auto', **fields) -> dict:
    """
    Runs an op on its fields, by the names in src/cpp/ops/operands.h: a dict of what it writes. An output that is given the name of an input takes that input's memory.
    """

def dequantize(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], dtype: str, n: int) -> object:
    """n values of an element type as fp32."""

def quantize_q8(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], isa: str = 'auto') -> tuple:
    """Rows rounded to 8-bit blocks of 32: (q, scale, sum)."""

class LinearGroup:
    """Products of one x with several weights, sharing its rounding."""

    def __init__(self, weights: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], dtypes: Sequence[str], n_out: Sequence[int], n_in: int, max_rows: int, activations: str = 'int8', isa: str = 'auto', threads: int = 1) -> None: ...

    def run(self, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], y: Sequence[Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]], add: Sequence[Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]] | None = None) -> None:
        """Writes each product into its y."""

def convert(x: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], from_: str, to: str) -> object:
    """Bytes of one element type as another's, to nearest even."""

def to_planes(blocks: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], dtype: str, n_out: int, n_in: int, task_rows: int = 0) -> object:
    """Weights as a device keeps them; task_rows: that many rows at a time."""

def from_planes(planes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], dtype: str, n_out: int, n_in: int) -> object: ...

def plane_layout(dtype: str, n_out: int, n_in: int) -> tuple:
    """(offset, row bytes) of each plane, and the bytes of all."""
