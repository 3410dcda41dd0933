"""Escapes control-token spellings in callers' text, so that only the chat template can write control tokens.

A mark is inserted after the first character of each spelling. Templates carry the mark like any other character, and
still trim, split and join the text as usual. `Tokenizer.encode_marked` then reads unmarked spellings, which the
template wrote, as control tokens. Everything else becomes plain text without its marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["MARK", "Spellings", "unmarked"]

# A character that no text uses, and that Python's repr and case folding leave unchanged. Marks in the input are
# doubled.
MARK = "\u2425"  # SYMBOL FOR DELETE FORM TWO
_MARKS = re.compile(f"{MARK}({MARK}?)")


def unmarked(text: str) -> str:
    """The text without its marks: the inverse of `Spellings.marked`."""
    return _MARKS.sub(r"\1", text) if MARK in text else text


class Spellings:
    """Finds and escapes the spellings of a set of tokens; tokens of one character are ignored."""

    def __init__(self, tokens: Iterable[str]) -> None:
        known = sorted({token for token in tokens if len(token) > 1})
        self._whole = re.compile("|".join(map(re.escape, known)) or "(?!)")
        self._prefixes = {token[:n] for token in known for n in range(1, len(token))}
        self._longest = max(map(len, self._prefixes), default=0)
        self._firsts = frozenset(token[0] for token in known)

    def marked(self, text: str) -> str:
        """The text with every spelling escaped, including a partial one at the end, which later text could complete."""
        starts = set()  # index of each spelling's first character
        found = self._whole.search(text)
        while found:
            starts.add(found.start())
            found = self._whole.search(text, found.start() + 1)  # spellings may overlap
        end = len(text.rstrip())  # templates trim
        tail = max(0, end - self._longest)
        if not self._firsts.isdisjoint(text[tail:end]):
            starts |= {start for start in range(tail, end) if text[start:end] in self._prefixes}
        if not starts and MARK not in text:
            return text
        parts, at = [], 0
        for start in sorted(starts):
            parts += [text[at : start + 1].replace(MARK, MARK * 2), MARK]
            at = start + 1
        return "".join([*parts, text[at:].replace(MARK, MARK * 2)])
