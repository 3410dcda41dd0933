"""Control tokens that a text only spells: marks that break the spelling without changing what is read.

A mark stands behind the first character of a spelling. Chat templates carry it along like any other character, and
trimming, splitting and joining go on as before. `Tokenizer.encode_marked` then takes whole spellings, which are the
template's own, for control tokens, and the rest, its marks dropped, for text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["MARK", "Spellings", "unmarked"]

# A sign that nobody writes, that Python's repr and case folding leave as it is. A text's own are doubled.
MARK = "\u2425"  # SYMBOL FOR DELETE FORM TWO
_MARKS = re.compile(f"{MARK}({MARK}?)")


def unmarked(text: str) -> str:
    """The text as it is to be read."""
    return _MARKS.sub(r"\1", text) if MARK in text else text


class Spellings:
    """Those of some tokens, each of two characters or more."""

    def __init__(self, tokens: Iterable[str]) -> None:
        known = sorted({token for token in tokens if len(token) > 1})
        self._whole = re.compile("|".join(map(re.escape, known)) or "(?!)")
        self._beginnings = {token[:n] for token in known for n in range(1, len(token))}
        self._longest = max(map(len, self._beginnings), default=0)

    def marked(self, text: str) -> str:
        """The text with every spelling broken; so is what its end begins, which the next text might complete."""
        places = set()  # of first characters
        found = self._whole.search(text)
        while found:
            places.add(found.start())
            found = self._whole.search(text, found.start() + 1)  # spellings may overlap
        end = len(text.rstrip())  # templates trim
        for start in range(max(0, end - self._longest), end):
            if text[start:end] in self._beginnings:
                places.add(start)
        if not places and MARK not in text:
            return text
        parts, at = [], 0
        for place in sorted(places):
            parts += [text[at : place + 1].replace(MARK, MARK * 2), MARK]
            at = place + 1
        return "".join([*parts, text[at:].replace(MARK, MARK * 2)])
