"""What the grammars of one request have cost so far, and the compiled ones, which its answers share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

__all__ = ["GrammarWork", "grammar_work"]


@dataclass(slots=True)
class GrammarWork:
    """The grammars of one request."""

    spent_s: float = 0.0
    compiled: dict[str, Any] = field(default_factory=dict)
    """The compiled ones by their text, which the answers of the request share."""


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
