"""Single ops on numpy arrays, for tests and benchmarks."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


def rms_norm(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), device='cpu', writable=False)], w: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float, isa: str = 'auto', threads: int = 1) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None, None))]: ...

def gated_rms_norm(o: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], z: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], w: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float, isa: str = 'auto', threads: int = 1) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None, None))]: ...

def swiglu(gate: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], up: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], isa: str = 'auto', threads: int = 1) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]: ...

def rope_table(pos: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], axis: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], inv_freq: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], threads: int = 1) -> tuple[Annotated[NDArray[numpy.float32], dict(shape=(None, None))], Annotated[NDArray[numpy.float32], dict(shape=(None, None))]]: ...

def rope(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], cos: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], sin: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], pairs: str = 'halves', isa: str = 'auto', threads: int = 1) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None, None))]: ...

def kv_append(k: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], v: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], k_pages: Annotated[NDArray, dict(shape=(None, None, None, None), order='C', device='cpu')], v_pages: Annotated[NDArray, dict(shape=(None, None, None, None), order='C', device='cpu')], k_type: str, v_type: str, page_table: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], n_past: int, isa: str = 'auto', threads: int = 1) -> None: ...

def kv_move(k_pages: Annotated[NDArray, dict(shape=(None, None, None, None), order='C', device='cpu')], v_pages: Annotated[NDArray, dict(shape=(None, None, None, None), order='C', device='cpu')], k_type: str, v_type: str, page_table: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], path: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], n_past: int) -> None: ...

def attention(q: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], k_pages: Annotated[NDArray, dict(shape=(None, None, None, None), order='C', device='cpu')], v_pages: Annotated[NDArray, dict(shape=(None, None, None, None), order='C', device='cpu')], k_type: str, v_type: str, page_table: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], n_past: int, scale: float, gate: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), device='cpu', writable=False)] | None = None, parent: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, ancestors: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, isa: str = 'auto', threads: int = 1) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None, None))]: ...

def causal_conv(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], w: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], history: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], pending: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], accepted: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, parent: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, isa: str = 'auto', threads: int = 1) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]: ...

def delta_prepare(q: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), device='cpu')], k: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), device='cpu')], g: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], beta: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], a_neg: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], dt_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float, isa: str = 'auto', threads: int = 1) -> None: ...

def gated_delta(q: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), device='cpu', writable=False)], k: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), device='cpu', writable=False)], v: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), device='cpu', writable=False)], g: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], beta: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], S: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')], k_in: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')], k_out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')], delta: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')], cs_in: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], cs_out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], accepted: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, parent: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, ancestors: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, order: str = 'grouped', isa: str = 'auto', threads: int = 1) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None, None))]: ...

def dequantize(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], dtype: str, n: int) -> object:
    """n values of an element type as fp32."""

def quantize_q8(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], isa: str = 'auto') -> tuple:
    """Rows rounded to 8-bit blocks of 32: (q, scale, sum)."""

def linear(w: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], dtype: str, n_out: int, n_in: int, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], add: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None = None, activations: str = 'int8', isa: str = 'auto', threads: int = 1) -> object:
    """x w^T (+ add) with w [n_out, n_in] given as the bytes of its blocks."""

def embed(table: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], dtype: str, dim: int, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], isa: str = 'auto', threads: int = 1) -> object:
    """Rows of a table as fp32."""

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
