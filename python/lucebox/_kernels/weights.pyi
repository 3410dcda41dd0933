"""Types and layouts of weights, and their loading to a device."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

import lucebox._engine.gpu


def dequantize(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], dtype: str, n: int) -> object:
    """n values of an element type as fp32."""

def quantize_q8(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], isa: str = 'auto') -> tuple:
    """Rows rounded to 8-bit blocks of 32: (q, scale, sum)."""

def to_planes(blocks: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], dtype: str, n_out: int, n_in: int, task_rows: int = 0) -> object:
    """Weights as a device keeps them; task_rows: that many rows at a time."""

def from_planes(planes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], dtype: str, n_out: int, n_in: int) -> object: ...

def plane_layout(dtype: str, n_out: int, n_in: int) -> tuple:
    """(offset, row bytes) of each plane, and the bytes of all."""

def load_planes(pack: lucebox._engine.gpu.Pack, weights: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], dtypes: Sequence[str], n_out: Sequence[int], n_in: Sequence[int], threads: int = 1, slot_bytes: int = 2097152, progress_bytes: int = 33554432, progress: object | None = None) -> list:
    """
    The planes of matrices, brought to the device as a model's are and read back.
    """

def time_load(pack: lucebox._engine.gpu.Pack, path: str, threads: int, slot_bytes: int = 2097152, progress: object | None = None) -> dict:
    """
    Brings a model's weights to the device and drops them: seconds, and bytes there.
    """

def weight_table(pack: lucebox._engine.gpu.Pack, path: str) -> tuple[list[int], list[int]]:
    """
    Addresses of a loaded model's matrices by slot: of the host's table, and of the device's.
    """

def matrix_shards(path: str, shares: Sequence[int]) -> list[tuple[str, int, int, str, list[list[tuple[int, int]]]]]:
    """
    Lists each matrix of a model as (name, n_out, n_in, axis, shards). axis: "none", "rows" or "columns"; shards: the (first, count) ranges that each shard has. shares: how much of the model each shard gets, [1, 1] for equal parts.
    """

def row_shards(sections: Sequence[tuple[int, int, int, bool]], shares: Sequence[int]) -> list[list[tuple[int, int]]]:
    """
    Divides the rows of a matrix among shards with these shares; returns the (first, count) ranges of each. A section is (groups, units per group, rows per unit, is_tiled).
    """
