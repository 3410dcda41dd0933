"""Cuts a text into pieces, the units that selection keeps or drops: lines, sentences of long lines, words of long
sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lucebox.compression.scores import Starts

__all__ = ["MAX_PIECE", "Span", "TokenCounts", "pieces"]

# Characters [start, stop) of a text.
Span = tuple[int, int]

# Tokens of a piece. A longer line is cut at sentences, a longer sentence between words, a longer word anywhere.
MAX_PIECE = 64

_LINE = re.compile(r"[^\n]*\n\s*(?:\n|\Z)|[^\n]*\n|[^\n]+")  # blank lines belong to the preceding line
_SENTENCE = re.compile(r".*?(?:[.!?][\"')\]]*(?:\s+|\Z)|[\u3002\uff01\uff1f]|\Z)", re.DOTALL)
_WORD = re.compile(r"\S+\s*|\s+")  # matches in linear time, like the other patterns


class TokenCounts:
    """Counts the tokens of spans of one text. A token belongs to the span in which it begins."""

    def __init__(self, starts: Starts) -> None:
        """starts: [n_tokens] character at which each token begins, ascending."""
        self._starts = starts

    @property
    def total(self) -> int:
        """Tokens of the text."""
        return len(self._starts)

    def __call__(self, span: Span) -> int:
        return int(self._starts.searchsorted(span[1]) - self._starts.searchsorted(span[0]))

    def end_of(self, start: int, n_tokens: int) -> int | None:
        """The start, in characters, of the token that follows n_tokens from `start`; None if the text ends first."""
        at = int(self._starts.searchsorted(start)) + n_tokens
        return int(self._starts[at]) if at < len(self._starts) else None


def pieces(text: str, span: Span, count: TokenCounts) -> list[Span]:
    """The pieces of a span, in order; together they cover it."""
    found: list[Span] = []
    for line in _matches(_LINE, text, span):
        if count(line) <= MAX_PIECE:
            found.append(line)
            continue
        for sentence in _matches(_SENTENCE, text, line):
            found += [sentence] if count(sentence) <= MAX_PIECE else _runs_of_words(text, sentence, count)
    return found


def _matches(pattern: re.Pattern[str], text: str, span: Span) -> Iterator[Span]:
    return (found.span() for found in pattern.finditer(text, *span) if found.end() > found.start())


def _runs_of_words(text: str, span: Span, count: TokenCounts) -> Iterator[Span]:
    """Groups the words of a span into pieces of at most MAX_PIECE tokens."""
    start = stop = span[0]
    for _, end in _matches(_WORD, text, span):
        if count((start, end)) > MAX_PIECE and stop > start:
            yield start, stop
            start = stop
        stop = end
        while (cut := count.end_of(start, MAX_PIECE)) is not None and cut < stop:
            if cut <= start:  # several tokens within one character
                break
            yield start, cut
            start = cut
    if span[1] > start:
        yield start, span[1]
