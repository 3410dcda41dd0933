"""The part of a text that may be cut: all but its head, and all but its tail if the tail is the question."""

from __future__ import annotations

from lucebox.compression.pieces import Span, TokenCounts, pieces

__all__ = ["cuttable"]

# Most tokens of the head, which stays, in whole pieces: the name of a file, an instruction.
HEAD_TOKENS = 32
# Least tokens of the tail (the question), which is kept, in whole pieces.
TAIL_TOKENS = 96
# The tail grows to the beginning of its paragraph, up to this many tokens.
PARAGRAPH_TOKENS = 256


def cuttable(text: str, span: Span, count: TokenCounts, *, has_question: bool) -> Span:
    """The part of a span of a text that may be cut; empty if head and tail cover the span.

    has_question: the span ends with the question, so its tail stays.
    """
    begin, end = span
    units = pieces(text, span, count)
    start = begin
    for _, stop in units:
        if count((begin, stop)) > HEAD_TOKENS:
            break
        start = stop
    if not has_question:
        return start, end
    tail = next((unit[0] for unit in reversed(units) if count((unit[0], end)) >= TAIL_TOKENS), begin)
    paragraph = text.rfind("\n\n", begin, tail) + 2
    if paragraph >= 2 and count((paragraph, end)) <= PARAGRAPH_TOKENS:
        tail = paragraph
    return start, max(start, tail)
