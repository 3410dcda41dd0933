"""
Single ops and launches, for the self-test, tuning and benchmarks; no public interface.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

import lucebox._engine
from lucebox._kernels import (
    driver as driver,
    gpu_ops as gpu_ops,
    ops as ops,
    speculation as speculation
)


class Drafting:
    """
    A draft model beside one sequence of its target, step by step, for tests.
    """

    def __init__(self, engine: lucebox._engine.Engine) -> None: ...

    @property
    def kind(self) -> str: ...

    @property
    def max_depth(self) -> int: ...

    @property
    def taps(self) -> list[int]: ...

    @property
    def n_tokens(self) -> int: ...

    def append(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], parents: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ancestors: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple:
        """
        Rows of the target and of the draft: (hidden [rows, hidden], taps [rows, n_taps * hidden]).
        """

    def commit(self, path: Sequence[int]) -> None: ...

    def rewind(self, n_tokens: int) -> None: ...

    def save(self) -> bytes: ...

    def load(self, data: bytes) -> None: ...

    def propose(self, root: int, depth: int) -> tuple:
        """
        The likeliest tokens of each depth: (ids [depth, k], logprobs [depth, k], hidden [depth, hidden]).
        """
