"""Restores white space between texts that a call or reasoning separated, for protocols with a single text per message.

The parser drops white space around calls and reasoning, because templates add it again.
"""

from __future__ import annotations

from collections.abc import Iterable

from lucebox.generation.answer import Answer, Reasoning, Text

__all__ = ["Seams", "joined", "reasoning_of", "text_of"]

SPACE = "\n\n"


def joined(parts: Iterable[str]) -> str:
    """The parts with white space between them."""
    text = ""
    for part in parts:
        text += _space(text, part) + part
    return text


def text_of(answer: Answer) -> str:
    return joined(block.text for block in answer.blocks if isinstance(block, Text))


def reasoning_of(answer: Answer) -> str:
    return joined(block.text for block in answer.blocks if isinstance(block, Reasoning))


class Seams:
    """Adds the white space to a stream's deltas, so that they join to the text of joined()."""

    def __init__(self) -> None:
        self._ends = {Text: "", Reasoning: ""}  # last character so far
        self._open: type[Text] | type[Reasoning] | None = None

    def delta(self, kind: type[Text] | type[Reasoning], text: str) -> str:
        space = "" if self._open is kind else _space(self._ends[kind], text)
        self._open, self._ends[kind] = kind, text[-1:] or self._ends[kind]
        return space + text

    def interrupt(self) -> None:
        """Notes that a call or reasoning interrupts the text here."""
        self._open = None


def _space(before: str, after: str) -> str:
    if not before or not after or before[-1].isspace() or after[0].isspace():
        return ""
    return SPACE
