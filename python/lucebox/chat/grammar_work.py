"""The time that the grammars of one request have taken, and its limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from lucebox.errors import InvalidRequestError

__all__ = ["SECONDS", "GrammarWork", "grammar_work"]

SECONDS = 3.0
"""For all grammars of a request together, the start of processes and waiting not included. The compilations for its
further answers have as much again."""


@dataclass(slots=True)
class GrammarWork:
    """The grammars of one request. Each of its answers compiles its grammar; the first compilation of a grammar counts
    as its own, so that the number of answers does not decide whether a grammar is too large."""

    spent_s: float = 0.0
    repeated_s: float = 0.0
    """Compilations of the same grammars for further answers."""
    _compiled: set[str] = field(default_factory=set)

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

    def check_compilation(self, grammar: str) -> None:
        """As check, for a compilation in this process, which may be for a further answer.

        Raises:
            InvalidRequestError: the grammars have taken too long.
        """
        if grammar not in self._compiled:
            self.check()
        elif self.repeated_s >= SECONDS:
            raise InvalidRequestError(
                f"the constraint cannot be compiled for each answer: that takes more than {SECONDS:g} s; ask for fewer "
                "answers (n) in a request"
            )

    def add_compilation(self, grammar: str, seconds: float) -> None:
        """Counts a compilation in this process; seconds: of a processor, so that a busy machine refuses nothing."""
        if grammar in self._compiled:
            self.repeated_s += seconds
        else:
            self._compiled.add(grammar)
            self.spent_s += seconds


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
