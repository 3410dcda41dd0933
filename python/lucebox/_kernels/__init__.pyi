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
    launch as launch,
    ops as ops,
    speculation as speculation,
    weights as weights
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

class SessionProbe:
    """A session as benchmarks and tests look at it."""

    def __init__(self, session: lucebox._engine.Session) -> None: ...

    def replay(self, by_length: Sequence[int], seed: int = 0) -> None:
        """
        For benchmarks: by_length[n] trees accept n tokens, whatever is sampled, so the text means nothing. Empty: off.
        """

    def time_parts(self, on: bool) -> None:
        """
        Whether steps with drafts are timed part by part, which slows them down. Sets part_seconds to 0.
        """

    @property
    def part_seconds(self) -> dict:
        """Sums since time_parts(): {draft, tree, verify, walk}."""

    def time_append(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], n_logits: int) -> float:
        """
        Seconds to compute an append and the logits of its last n_logits rows, without copying them to the host.
        """

    def profile_append(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], n_logits: int) -> list[tuple[str, int, float]]:
        """
        The work of time_append per kernel, longest first: (kernel, launches, seconds).
        """

    def time_draft_step(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: int, n: int = 20) -> dict:
        """
        Milliseconds of a speculative step of the draft model that waits for no host, the mean of n, and of the kernels of its parts: step_ms, draft_ms, tree_ms, verify_ms, walk_ms, commit_ms.
        """

    @staticmethod
    def profile_together(sessions: Sequence[lucebox._engine.Session], ids: Sequence[Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]]) -> list[tuple[str, int, float]]:
        """
        sync_together(), timed per kernel: (kernel, launches, seconds), which do not overlap.
        """

    def rank_logits(self) -> list[Annotated[NDArray[numpy.float32], dict(shape=(None,))]]:
        """The newest token's logits as each rank of a tensor split has them."""

    def step_timeline(self) -> tuple[list[tuple[int, int, int, int, int, int]], list[str]]:
        """
        Time stamps of the last token's step: (block, phase, task, began, waited, done) in ns, and the name of each task. Empty unless the megakernel made it; the pack must be built with LUCEBOX_TIMELINE.
        """
