"""What a scheduler reports of its work, for metrics."""

from __future__ import annotations

from lucebox.generation.request import Finished
from lucebox.generation.sequence import Sequence

__all__ = ["Observer"]


class Observer:
    """Hears of the work of a scheduler, from the thread that computes. By itself it keeps nothing."""

    def refused(self) -> None:
        """The queue was full."""

    def begun_step(self, n_sequences: int) -> None:
        """A turn computes a token of each of these sequences."""

    def sent_pass(self, n_rows: int) -> None:
        """A pass computes these rows of several sequences."""

    def spent_on_prompt(self, seconds: float) -> None: ...

    def spent_on_tokens(self, seconds: float, n_tokens: int = 0) -> None:
        """The time of a part of a turn of tokens, and the tokens sampled in it."""

    def first_token(self, seconds: float) -> None:
        """A sequence sampled its first token, this long after its request."""

    def ended(self, sequence: Sequence, result: Finished | Exception) -> None:
        """A sequence ended, running or waiting."""
