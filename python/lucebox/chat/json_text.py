"""An incremental JSON scanner, one character at a time, for text that is still being generated."""

from __future__ import annotations

import json
import re

__all__ = ["JsonScanner", "Malformed", "respaced"]

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_UNICODE = re.compile(r"\\u[0-9a-fA-F]{0,4}")
_LEXEMES = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|\s+|[^"\s]', re.DOTALL)
_LITERALS = ("true", "false", "null")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_MAX_DEPTH = 256


def respaced(text: str) -> str:
    """The beginning of a JSON text with the white space of json.dumps. A blank that ends a number stays, because
    without it the number could go on."""
    parts: list[str] = []
    last = ""  # last character outside strings
    is_apart = False  # white space precedes
    for found in _LEXEMES.finditer(text):
        lexeme = found[0]
        if lexeme.isspace():
            is_apart = True
            continue
        if last in (",", ":") or (is_apart and last.isalnum() and lexeme[0].isalnum()):
            parts.append(" ")
        parts.append(lexeme)
        last, is_apart = lexeme[-1], False
    if is_apart and (last in (",", ":") or last.isalnum()):
        parts.append(" ")
    return "".join(parts)


class Malformed(ValueError):
    """The text does not continue as it must; the message says why."""


class JsonScanner:
    """Scans one JSON value. The results of `push` join to valid JSON: in strings, raw control characters are escaped, a
    backslash that begins no escape is doubled (C:\\path), and one before an apostrophe dropped. No key may repeat."""

    def __init__(self) -> None:
        self.done = False
        self._open: list[str] = []  # brackets
        self._expected = "value"
        self._scalar = ""  # the open number or literal
        self._escape = ""  # an escape that is not complete
        self._key: str | None = None  # the open key, while inside one
        self._keys: list[set[str]] = []  # keys of each open bracket

    def push(self, char: str) -> str | None:
        """The text that the character completes, often the character itself; None if the value had ended, so the
        character was not consumed.

        Raises:
            Malformed: the character cannot follow.
        """
        if self._expected == "string":
            text = self._in_string(char)
            if self._key is not None:
                self._read_key(text)
            return text
        if self._expected == "scalar":
            if char.isalnum() or char in "+-.":
                self._scalar += char
                return char
            self._end_scalar()
            if self.done:
                return None
        if char in " \t\r\n":
            return char
        self._structure(char)
        return char

    def finish(self) -> None:
        """Ends the text, which completes a number.

        Raises:
            Malformed: the value is incomplete.
        """
        if self._expected == "scalar":
            self._end_scalar()
        if not self.done:
            raise Malformed("the JSON is incomplete")

    def _structure(self, char: str) -> None:
        expected = self._expected
        if expected in ("value", "value or end"):
            if char == "]" and expected == "value or end":
                self._close()
            else:
                self._begin_value(char)
        elif expected in ("key", "key or end"):
            if char == '"':
                self._expected, self._after_string, self._key = "string", "colon", ""
            elif char == "}" and expected == "key or end":
                self._close()
            else:
                raise Malformed(f"expected a key, got {char!r}")
        elif expected == "colon":
            if char != ":":
                raise Malformed(f"expected a colon, got {char!r}")
            self._expected = "value"
        elif char == "," and self._open:
            self._expected = "key" if self._open[-1] == "{" else "value"
        elif self._open and char == ("}" if self._open[-1] == "{" else "]"):
            self._close()
        else:
            raise Malformed(f"unexpected {char!r}")

    def _begin_value(self, char: str) -> None:
        if char == "{" or char == "[":
            if len(self._open) == _MAX_DEPTH:
                raise Malformed(f"nested more than {_MAX_DEPTH} levels deep")
            self._open.append(char)
            self._keys.append(set())
            self._expected = "key or end" if char == "{" else "value or end"
        elif char == '"':
            self._expected, self._after_string = "string", "end"
        elif char in "-0123456789tfn":
            self._expected, self._scalar = "scalar", char
        else:
            raise Malformed(f"expected a value, got {char!r}")

    _after_string = "end"  # the state that the closing quote leads to

    def _in_string(self, char: str) -> str:
        if self._escape:
            return self._in_escape(char)
        if char == "\\":
            self._escape = char
            return ""
        if char == '"':
            self._expected = self._after_string
            if self._expected == "end":
                self._end_value()
        elif char < " ":
            return _ESCAPES.get(char, f"\\u{ord(char):04x}")
        return char

    def _in_escape(self, char: str) -> str:
        escape = self._escape + char
        if len(escape) == 2 and char in '"\\/bfnrt':
            self._escape = ""
            return escape
        if _UNICODE.fullmatch(escape):
            self._escape = escape if len(escape) < 6 else ""
            return "" if self._escape else escape
        kept, self._escape = self._escape, ""
        if escape == "\\'":
            return char
        return f"\\{kept}{self._in_string(char)}"

    def _read_key(self, text: str) -> None:
        assert self._key is not None
        if self._expected == "string":
            self._key += text
            return
        key, self._key = json.loads(f'"{self._key}"'), None
        if key in self._keys[-1]:
            raise Malformed(f"the key {key[:100]!r} is written twice")
        self._keys[-1].add(key)

    def _end_scalar(self) -> None:
        if self._scalar not in _LITERALS and not _NUMBER.fullmatch(self._scalar):
            raise Malformed(f"{self._scalar!r} is not a JSON value")
        self._end_value()

    def _close(self) -> None:
        self._open.pop()
        self._keys.pop()
        self._end_value()

    def _end_value(self) -> None:
        self._expected = "comma or end"
        self.done = not self._open
