"""Hooks by which a scheduler reports its work to metrics."""

from __future__ import annotations

from lucebox.generation.request import Finished
from lucebox.generation.sequence import Sequence

__all__ = ["Observer"]


class Observer:
    """Base observer, called from the driver thread. It records nothing."""

    def refused(self) -> None:
        """The queue was full."""

    def begun_step(self, n_sequences: int) -> None:
        """A turn begins that computes one token for each of n_sequences."""

    def sent_pass(self, n_rows: int) -> None:
        """A batched pass of n_rows was sent."""

    def spent_on_prompt(self, seconds: float) -> None: ...

    def spent_on_tokens(self, seconds: float, n_tokens: int = 0) -> None:
        """Time spent in a part of a decode turn, and the tokens sampled in it."""

    def first_token(self, seconds: float) -> None:
        """A sequence sampled its first token, `seconds` after its request."""

    def ended(self, sequence: Sequence, result: Finished | Exception) -> None:
        """A sequence ended, running or waiting."""
