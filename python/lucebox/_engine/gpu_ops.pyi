"""Single ops on a device, as in ops, with a gpu.Pack first."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

import lucebox._engine.gpu


def rms_norm(pack: lucebox._engine.gpu.Pack, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], w: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float) -> object: ...

def rms_norm_strided(pack: lucebox._engine.gpu.Pack, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], w: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float) -> object:
    """The norm of the first len(w) values of each head of x."""

def gated_rms_norm(pack: lucebox._engine.gpu.Pack, o: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], z: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], w: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float) -> object: ...

def swiglu(pack: lucebox._engine.gpu.Pack, gate: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], up: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> object: ...

def rope(pack: lucebox._engine.gpu.Pack, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], cos: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], sin: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], pairs: str = 'halves') -> object: ...

def softmax(pack: lucebox._engine.gpu.Pack, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], scale: float = 1.0, grid: bool = False) -> object:
    """grid: every row over all blocks, in one cooperative launch."""

def arg_max(pack: lucebox._engine.gpu.Pack, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], grid: bool = False) -> object: ...

def convert(pack: lucebox._engine.gpu.Pack, x: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], from_: str, to: str) -> object: ...

def embed(pack: lucebox._engine.gpu.Pack, table: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], dtype: str, dim: int, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> object: ...

def linear(pack: lucebox._engine.gpu.Pack, w: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], dtype: str, n_out: int, n_in: int, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], add: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None = None, activations: str = 'int8') -> object: ...

def linear_group(pack: lucebox._engine.gpu.Pack, weights: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], dtypes: Sequence[str], n_out: Sequence[int], n_in: int, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], add: Sequence[Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]] | None = None, activations: str = 'int8') -> list[object]:
    """Up to four products of one x, those of one type in one launch."""

def read_memory(pack: lucebox._engine.gpu.Pack, x: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> object:
    """Sums of the 32-bit words that each block has read."""

def time_linear(pack: lucebox._engine.gpu.Pack, dtypes: Sequence[str], n_out: Sequence[int], n_in: int, rows: int = 1, activations: str = 'int8', sets: int = 1, replays: int = 20, tries: int = 5) -> dict:
    """
    Seconds of the mat-vec of x already rounded, over `sets` rotated sets of weights, the bytes it moves, and the launch.
    """

def read_bandwidth(pack: lucebox._engine.gpu.Pack, bytes: int = 1073741824, sets: int = 1, replays: int = 20, tries: int = 5) -> float:
    """
    Bytes a second of a kernel that only reads `bytes` a launch, from `sets` buffers in turn.
    """

def matmul(pack: lucebox._engine.gpu.Pack, w: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], dtype: str, n_out: int, n_in: int, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], add: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None = None, activations: str = 'int8') -> object:
    """The product with many rows of x, on matrix units."""

def matmul_group(pack: lucebox._engine.gpu.Pack, weights: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], dtypes: Sequence[str], n_out: Sequence[int], n_in: int, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], add: Sequence[Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]] | None = None, activations: str = 'int8') -> list[object]:
    """Up to four products of one x, those of one type in one launch."""

def time_matmul(pack: lucebox._engine.gpu.Pack, dtypes: Sequence[str], n_out: Sequence[int], n_in: int, rows: int, activations: str = 'int8', sets: int = 1, replays: int = 20, tries: int = 5) -> dict:
    """
    Seconds of the product of x already rounded to 8 or 16 bits (16-bit numbers are made within the time), over `sets` rotated sets of weights, the bytes it moves, and the launch of its tiles.
    """

def choose(manifest_json: str, n_sms: int, op: str, rows: int, dim: int, heads: int = 1) -> dict:
    """The launch of an op on rows, as a dict."""

def choose_embed(manifest_json: str, n_sms: int, dtype: str, vocab: int, dim: int, rows: int = 1) -> dict: ...

def choose_linear(manifest_json: str, n_sms: int, dtypes: Sequence[str], n_out: Sequence[int], n_in: int, rows: int = 1, activations: str = 'int8') -> list[dict]:
    """The launches of a group, one for each type in it."""

def choose_batch(manifest_json: str, n_sms: int, dtypes: Sequence[str], n_out: Sequence[int], n_in: int, rows: int, activations: str = 'int8') -> dict:
    """
    The launches of a group of products with many rows, the bits its x is rounded to, its scratch memory.
    """
