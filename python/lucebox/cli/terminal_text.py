"""Escapes text of others (models, files, servers) before a terminal can obey it."""

from __future__ import annotations

import unicodedata
from typing import TextIO

__all__ = ["escaped", "for_stream"]

# Format characters that only join or separate letters, as scripts and emoji need.
_HARMLESS = frozenset("\u200b\u200c\u200d\u2060\u00ad")


def escaped(text: str, keep: str = "\n\t") -> str:
    """The text with control characters and marks that reorder it as \\x1b or \\u202e; `keep` stays.

    Control characters start commands of the terminal: they move the cursor, set the title, write the clipboard.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep or not _is_command(char) else _escape(char) for char in text
    )


def for_stream(text: str, stream: TextIO) -> str:
    """The text as it may be written to a stream: escaped for a terminal, unchanged for a pipe or a file."""
    return escaped(text) if stream.isatty() else text


def _is_command(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") and char not in _HARMLESS


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
