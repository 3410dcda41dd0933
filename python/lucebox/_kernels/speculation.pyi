"""Suffix drafts and the width of a step."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

import lucebox._engine.speculation


class SuffixDrafter:
    """Drafts from text that occurred before."""

    def __init__(self, context: int, expected: int = 0, outputs: lucebox._engine.speculation.EarlierOutputs | None = None) -> None: ...

    @staticmethod
    def planned_bytes(context: int, expected: int) -> int: ...

    @property
    def n_tokens(self) -> int: ...

    def push(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def truncate(self, n_tokens: int) -> None: ...

    def expect(self, text: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def propose(self, max_rows: int = 64) -> tuple:
        """
        (tree, expected number of accepted tokens, length of the match, source).
        """

def merge(a: tuple[Sequence[int], Sequence[int], Sequence[float]], b: tuple[Sequence[int], Sequence[int], Sequence[float]], max_rows: int = 64) -> tuple[list[int], list[int], list[float]]: ...

def expected_tokens(tree: tuple[Sequence[int], Sequence[int], Sequence[float]]) -> list[float]:
    """Expected number of accepted tokens of the first 1, 2, ... rows."""

class DraftPlanner:
    """Decides what each decode step verifies."""

    def __init__(self, append: Sequence[tuple[int, float]], plain_ms: float, draft_ms: float = 0.0, has_model: bool = False, draft_budget: int = 0, context_ms: float = 0.0, draft_depth: int = 0, first_ms: float = 0.0) -> None: ...

    def set_costs(self, append: Sequence[tuple[int, float]], plain_ms: float, draft_ms: float = 0.0, context_ms: float = 0.0, draft_depth: int = 0, first_ms: float = 0.0) -> None: ...

    @property
    def draft_depth(self) -> int: ...

    @property
    def model_may_pay(self) -> bool: ...

    def choose(self, text: tuple[Sequence[int], Sequence[int], Sequence[float]] | None = None, max_rows: int = 64) -> str: ...

    def tree(self, model: tuple[Sequence[int], Sequence[int], Sequence[float]] | None = None) -> tuple[list[int], list[int], list[float]]: ...

    @property
    def rows_ahead(self) -> int: ...

    def set_model_tree(self, model: tuple[Sequence[int], Sequence[int], Sequence[float]], rows: int) -> None: ...

    @property
    def experience(self) -> list[float]: ...

    @experience.setter
    def experience(self, arg: Sequence[float], /) -> None: ...

    def start_sequence(self, is_timed: bool) -> None: ...

    def add_draft_time(self, ms: float) -> None: ...

    def add_step_time(self, rows: int, ms: float) -> None: ...

    def add_accepted(self, path: Sequence[int]) -> None: ...

    @property
    def credit(self) -> float: ...
