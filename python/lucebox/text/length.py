"""A lower bound of a text's length in tokens, without tokenizing all of it: the encoder takes up to 400 bytes of memory
per byte of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lucebox.text.spellings import unmarked
from lucebox.text.tokenizer import Tokenizer

__all__ = ["BYTES_PER_TOKEN", "tokens_beyond"]

BYTES_PER_TOKEN = 8
"""Texts with more bytes per token of the limit are counted in slices first. Prose and code have 3 to 5."""
SLICE = 1 << 16
"""Characters."""
CUT_TOKENS = 16
"""Tokens that a cut between slices may add, at most."""


def tokens_beyond(tokenizer: Tokenizer, texts: Iterable[str], limit: int) -> int | None:
    """At least how many tokens the texts have, if that is surely more than the limit; None if they may fit."""
    known = [text for text in texts if text]
    n_chars = sum(map(len, known))  # at most its bytes
    if n_chars <= BYTES_PER_TOKEN * limit:
        return None
    if (at_least := n_chars // tokenizer.longest_token) > limit:
        return at_least
    n = 0
    for text in known:
        for part in _slices(text):
            n += max(0, len(tokenizer.encode(unmarked(part), add_bos=False)) - CUT_TOKENS)
            if n > limit:
                return n
    return None


def _slices(text: str) -> Iterator[str]:
    return (text[start : start + SLICE] for start in range(0, len(text), SLICE))
