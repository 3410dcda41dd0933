"""Limits on the shape of a JSON text, checked before it is parsed: nesting, members and items.

Parsing and validation cost time and memory per value, not per byte. Counting uses methods of `bytes` on slices: each
holds the GIL for milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator

from lucebox.errors import InvalidRequestError

__all__ = ["MAX_DEPTH", "Shape", "check_shape"]

MAX_DEPTH = 128
"""Objects and lists in each other."""
MAX_MEMBERS = 100_000
"""Objects, lists and members of objects, together. A long agent's conversation has 20,000."""
MAX_ITEMS = 1 << 20
"""Items of all lists: token ids, for example."""
SLICE = 1 << 18

_ALL_BUT_BRACKETS = bytes(i for i in range(256) if i not in b"[]{}")


class Shape:
    """Counts of a JSON text's structure, at most: characters inside strings may count too."""

    def __init__(self, n_members: int = 0, n_items: int = 0) -> None:
        self.n_members = n_members
        self.n_items = n_items


def check_shape(text: bytes, name: str) -> Shape:
    """Refuses a text with too many values or too deep nesting. Malformed JSON may pass.

    Raises:
        InvalidRequestError: a limit is exceeded, or the text is not UTF-8 JSON. The message begins with the name.
    """
    if b"\0" in text:
        raise InvalidRequestError(f"{name} is not JSON in UTF-8: it has a NUL byte")
    n_opened = _opened(text)
    most = Shape(n_opened + text.count(b":"), text.count(b","))
    if n_opened <= MAX_DEPTH and most.n_members <= MAX_MEMBERS and most.n_items <= MAX_ITEMS:
        return most  # even if none of these characters is inside a string
    found = Shape()
    n_quotes = depth = 0
    for part in _slices(text):
        part = part.replace(b"\\\\", b"").replace(b'\\"', b"")  # every remaining quote delimits a string
        texts = part.split(b'"')
        structure = b"".join(texts[n_quotes % 2 :: 2])
        n_quotes += len(texts) - 1
        if n_quotes > 2 * (MAX_MEMBERS + MAX_ITEMS):
            raise _refused(name, "strings", MAX_MEMBERS + MAX_ITEMS)
        found.n_members += _opened(structure) + structure.count(b":")
        if found.n_members > MAX_MEMBERS:
            raise _refused(name, "objects, lists and members", MAX_MEMBERS)
        found.n_items += structure.count(b",")
        if found.n_items > MAX_ITEMS:
            raise _refused(name, "items", MAX_ITEMS)
        for byte in structure.translate(None, _ALL_BUT_BRACKETS):
            depth += 1 if byte in b"[{" else -1
            if depth > MAX_DEPTH:
                raise InvalidRequestError(f"{name} has more than {MAX_DEPTH} objects and lists in each other")
    return found


def _slices(text: bytes) -> Iterator[bytes]:
    """The text in slices that divide no escape sequence."""
    start = 0
    while start < len(text):
        stop = start + SLICE
        while text[stop - 1 : stop] == b"\\":
            stop += 1
        yield text[start:stop]
        start = stop


def _opened(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _refused(name: str, things: str, limit: int) -> InvalidRequestError:
    return InvalidRequestError(f"{name} has more than {limit} {things}")
