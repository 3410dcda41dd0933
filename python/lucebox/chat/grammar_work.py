"""The time that the grammars of one request have taken, and its limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from lucebox.errors import InvalidRequestError

__all__ = ["GrammarWork", "grammar_work"]

SECONDS = 3.0
"""For all grammars of a request together, the start of processes and waiting not included."""


@dataclass(slots=True)
class GrammarWork:
    """The grammars of one request."""

    spent_s: float = 0.0

    @property
    def left_s(self) -> float:
        return SECONDS - self.spent_s

    def check(self) -> None:
        """Refuses further work beyond the limit.

        Raises:
            InvalidRequestError: the grammars have taken too long.
        """
        if self.left_s <= 0:
            reason = f"the grammars of the request take more than {SECONDS:g} s"
            raise InvalidRequestError(f"the constraint cannot be compiled: {reason}")


_WORK: ContextVar[GrammarWork | None] = ContextVar("grammar_work", default=None)


@contextmanager
def grammar_work() -> Iterator[GrammarWork]:
    """The work of the request that is being prepared; inside an outer block, the outer one's."""
    if (outer := _WORK.get()) is not None:
        yield outer
        return
    token = _WORK.set(work := GrammarWork())
    try:
        yield work
    finally:
        _WORK.reset(token)
