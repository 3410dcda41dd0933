"""Matches names that users type: suggests the nearest known name, and finds a name case-insensitively."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["did_you_mean", "same_name"]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ "; did you mean X?" with the nearest known name; empty if none is near."""
    from difflib import get_close_matches  # imports re

    by_lower = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[found[0]]}?" if found else ""


def same_name(word: str, known: Iterable[str]) -> str | None:
    """The known name that equals the word, ignoring case."""
    return next((name for name in known if name.lower() == word.lower()), None)
