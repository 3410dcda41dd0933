"""Calls as XML-like tags: Qwen3-Coder and Qwen3.5.

    <tool_call>
    <function=f>
    <parameter=a>
    1
    </parameter>
    </function>
    </tool_call>

Values are plain text; the tool's schema gives their types (`schema_types`). A value may quote tags, also a whole call:
`xml_tags` decides where it ends. The reader also accepts a block without outer tags, and JSON inside them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from lucebox.chat.dialects.broken_json import members_of
from lucebox.chat.dialects.hermes_json import JSON_FORM, OPEN, call_objects, closing, lines_of
from lucebox.chat.dialects.reader import Ahead, CallReader, Part, Steps, after_space, literal
from lucebox.chat.dialects.schema_types import (
    allows_others,
    choices_of,
    converted,
    forms_of,
    is_text,
    may_quote,
    property_schema,
    self_contained,
)
from lucebox.chat.dialects.text_values import lark_string, options_of, text_terminal
from lucebox.chat.dialects.xml_tags import (
    BARE_OPEN,
    CLOSE,
    END_FUNCTION,
    END_PARAMETER,
    PARAMETER,
    Kind,
    closes_again,
    find_tag,
    quotes_whole_calls,
)
from lucebox.chat.json_text import Malformed
from lucebox.chat.tools import Tool

__all__ = [
    "BARE_OPEN",
    "CLOSE",
    "OPEN",
    "BareXmlReader",
    "XmlReader",
    "grammar",
    "render_begun",
    "render_broken",
    "render_call",
]

_MAX_NAME = 200


class XmlReader(CallReader):
    """Reads a block from after its opening tag."""

    _text = _withheld = ""  # of the open value: text not emitted yet, and text not classified yet
    _schema: Mapping[str, Any] = MappingProxyType({})  # of the open value
    _streams = False  # the open value is a string, emitted as it arrives
    _has_quoted = False  # the open value quotes a call
    _has_opener = True  # the block began with its tag
    _ahead: str | None = None  # text after a call that is complete unless the rest of its value follows
    _has_next = False  # a further call begins in that text

    def _read(self) -> Steps:
        char = yield from after_space((yield))
        if char in "{[":
            yield from call_objects(self, char)
            return (yield from closing(self))
        yield from literal(BARE_OPEN, char)
        return (yield from self._calls())

    def finish(self) -> list[Part]:
        if self._ahead is not None:
            if self._has_next and closes_again(self._ahead, has_opener=self._has_opener):
                raise Malformed("more closing tags than calls follow: its last value may have quoted them")
            self.rest = "" if CLOSE.startswith(self._ahead.strip()) else self._ahead
            self._end_value()
            self._end_call(1)
        return self._take_parts()

    def cut(self) -> str:
        return _inside(self._withheld) if self._streams else self._text + self._withheld

    def _calls(self) -> Steps:
        while True:
            read = yield from self._call()
            if read is None:
                read = yield from _between()
            self.unread = read
            if read.lstrip() != BARE_OPEN:
                return "" if read.lstrip() == CLOSE else read

    def _call(self) -> Generator[None, str, str | None]:
        """Reads a function from its name on; returns the text read beyond its closing tag, None if none was read."""
        name = yield from _tag_rest(self.tools)
        self.begin(name)
        schema = self.tools.get(name, {})
        declared = {key for form in forms_of(schema) for key in form.properties}
        is_open = allows_others(schema)
        tag = yield from _one_of((PARAMETER, END_FUNCTION, CLOSE))
        if tag != PARAMETER:
            self._end_call(0)
            return "" if tag == CLOSE else None
        key = yield from _tag_rest(declared)
        keys: set[str] = set()
        while True:
            if key in keys:
                self.unread = f"{PARAMETER}{key}>"
                raise Malformed(f"the parameter {key[:100]!r} is written twice")
            self.give(f"{', ' if keys else '{'}{json.dumps(key, ensure_ascii=False)}: ")
            keys.add(key)
            kind, after = yield from self._value(key, property_schema(schema, key), declared)
            if kind in (Kind.FUNCTION, Kind.BLOCK):
                self._end_call(len(keys))
                return "" if kind is Kind.BLOCK and after is None else after
            key = after or (yield from _tag_rest(declared))
            if key not in declared and not is_open and may_quote(self._schema):
                self.unread = f"{PARAMETER}{key}>"
                raise Malformed(f"the parameter {key[:100]!r} is unknown: the value before it may have quoted it")

    def _end_call(self, n_parameters: int) -> None:
        self.give("}" if n_parameters else "{}")
        self._ahead = None
        self.end()

    def _value(
        self, key: str, schema: Mapping[str, Any], declared: Collection[str]
    ) -> Generator[None, str, tuple[Kind, str | None]]:
        """Reads a value and the tags that end it. A string is emitted as it arrives, other types once complete.

        Returns the kind of the end, and with Kind.NAMED the next parameter's name, otherwise text read beyond the tags.
        """
        self._schema, self._streams = schema, is_text(schema)
        self._text = self._withheld = ""
        self._given: list[str] = []
        self._has_quoted = False
        if self._streams:
            self.give('"')
        depth, is_inline, is_empty = 0, False, True
        char = yield
        if char == "\n":
            char = yield
        else:
            is_inline = True
        while True:
            self._withheld += char
            while self._withheld:
                found = None
                if _may_be_tag(self._withheld):
                    begins_line = is_inline or is_empty
                    found = find_tag(self._withheld, key, declared, depth=depth, begins_line=begins_line)
                if found is None:
                    self._take(1)
                    is_empty = False
                elif found.kind is Kind.MAYBE:
                    break
                elif found.kind in (Kind.INNER_OPEN, Kind.INNER_CLOSE):
                    depth += 1 if found.kind is Kind.INNER_OPEN else -1
                    self._has_quoted = True
                    self._take(found.end)
                    is_empty = False
                else:
                    after: str | None = found.name or None
                    looks_ahead = self.ahead is not Ahead.NONE and may_quote(schema)
                    if looks_ahead and found.kind in (Kind.FUNCTION, Kind.BLOCK):
                        self._give_text()
                        after = yield from self._look_ahead(key, found.kind)
                        if after is None:
                            continue
                    self._end_value()
                    return found.kind, after
            self._give_text()
            char = yield

    def _look_ahead(self, key: str, kind: Kind) -> Generator[None, str, str | None]:
        """Looks ahead after a call whose last value may quote tags: the value quoted them if the call's closing tags
        still follow. Returns the text read if the call is complete; None if the value continues.

        Once another call begins, only the end of the answer shows whether the value quoted that call too (`finish`).
        """
        self.may_end = True
        self._ahead, at = "", 0
        while True:
            self._ahead += yield
            if self._has_next:
                continue
            tag = self._ahead.lstrip()
            if kind is Kind.FUNCTION:
                if tag == CLOSE:
                    self._withheld, self._ahead, kind = self._withheld + self._ahead, "", Kind.BLOCK
                    continue
                if CLOSE.startswith(tag):
                    continue
            while (at := self._ahead.find("<", at)) >= 0:
                tag = self._ahead[at:]
                if tag in (OPEN, BARE_OPEN):
                    if self.ahead is Ahead.CALL:
                        return self._ahead
                    self._has_next = True
                    break
                found = find_tag(tag, key, (), depth=0, begins_line=False)
                if found is None and not OPEN.startswith(tag):
                    at += 1
                elif found is None or found.kind is Kind.MAYBE:
                    break
                else:
                    at -= self._ahead[at - 1 : at] == "\n"
                    self._text += self._withheld + self._ahead[:at]
                    self._withheld, self._ahead, self.may_end = self._ahead[at:], None, False
                    return None
            at = len(self._ahead) if at < 0 else at

    def _take(self, n: int) -> None:
        """Moves n decided characters to the value's text."""
        self._text, self._withheld = self._text + self._withheld[:n], self._withheld[n:]

    def _give_text(self) -> None:
        if self._streams and self._text:
            self.give(_inside(self._text))
            self._given.append(self._text)
            self._text = ""
        self.unread = self._text + self._withheld

    def _end_value(self) -> None:
        if self._has_quoted and not quotes_whole_calls("".join(self._given) + self._text):
            raise Malformed("a value quotes a call without its end, which tags of other values may have supplied")
        self._give_text()
        self.give('"' if self._streams else converted(self._text, self._schema))
        self._text = self._withheld = ""


class BareXmlReader(XmlReader):
    """Reads a block without the outer tag, from after `<function=`."""

    _has_opener = False

    def _read(self) -> Steps:
        return (yield from self._calls())


def _may_be_tag(text: str) -> bool:
    return text[0] == "<" or (text[0] == "\n" and text[1:2] in ("", "<"))


def _inside(text: str) -> str:
    """The text inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _between() -> Generator[None, str, str]:
    """Reads on after a function: the closing tag, the next function's tag, or text that is neither."""
    read = ""
    while True:
        read += yield
        tag = read.lstrip()
        if tag in (CLOSE, BARE_OPEN) or not (CLOSE.startswith(tag) or BARE_OPEN.startswith(tag)):
            return read


def _tag_rest(known: Collection[str]) -> Generator[None, str, str]:
    """Reads the name in a tag, up to the closing bracket, or up to the line's end if the name is known."""
    name = ""
    while (char := (yield)) != ">":
        if char == "\n" and name.strip() in known:
            break
        name += char
        if len(name) > _MAX_NAME or char in "\n<":
            raise Malformed("a tag that is not closed")
    if not name.strip():
        raise Malformed("a tag without a name")
    return name.strip()


def _one_of(tags: tuple[str, ...]) -> Generator[None, str, str]:
    """Reads one of these tags, after white space."""
    read = ""
    while True:
        read = (read + (yield)).lstrip()
        if read in tags:
            return read
        if not any(tag.startswith(read) for tag in tags):
            raise Malformed(f"expected {' or '.join(tags)}")


def render_call(name: str, arguments: Mapping[str, Any]) -> str:
    parameters = "".join(
        _parameter(key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for key, value in arguments.items()
    )
    return f"{OPEN}\n{BARE_OPEN}{name}>\n{parameters}{END_FUNCTION}\n{CLOSE}"


def render_begun(name: str) -> str:
    """A call of this dialect up to its name."""
    return f"{OPEN}\n{BARE_OPEN}{name}>"


def render_broken(name: str, arguments: str) -> str:
    """A call of this dialect that broke off inside its arguments."""
    text = f"{render_begun(name)}\n"
    for member in members_of(arguments):
        text += (
            _parameter(member.key, member.value) if member.is_complete else f"{PARAMETER}{member.key}>\n{member.value}"
        )
    return text if arguments.lstrip().startswith("{") else text + arguments


def _parameter(key: str, value: str) -> str:
    return f"{PARAMETER}{key}>\n{value}\n{END_PARAMETER}\n"


def grammar(tools: Sequence[Tool], *, parallel: bool) -> str:
    """Lark rules; `calls` is one call, or several if parallel. Parameters come in the schema's order."""
    one = " | ".join(f"call_{i}" for i in range(len(tools)))
    rules = [
        f"calls: {lines_of('one', parallel)}",
        f'one: "{OPEN}\\n" ({one}) "{END_FUNCTION}\\n{CLOSE}"',
    ]
    texts: dict[str, str] = {}  # rules of strings by their terminals
    for i, tool in enumerate(tools):
        forms = forms_of(tool.parameters)
        bodies = " | ".join(f"form_{i}_{f}" for f in range(len(forms)))
        rules.append(f"call_{i}: {lark_string(f'{BARE_OPEN}{tool.name}>' + chr(10))} ({bodies})")
        for f, form in enumerate(forms):
            names = [f"value_{i}_{f}_{k}{'' if key in form.required else '?'}" for k, key in enumerate(form.properties)]
            rules.append(f"form_{i}_{f}: " + (" ".join(names) or '""'))
            for k, (key, schema) in enumerate(form.properties.items()):
                opening = lark_string(f"{PARAMETER}{key}>\n")
                value = self_contained(schema if isinstance(schema, Mapping) else {}, tool.parameters)
                values = " | ".join(_value_rule(option, texts) for option in options_of(value))
                rules.append(f"value_{i}_{f}_{k}: {opening} ({values})")
    for terminal, rule in texts.items():
        rules += [f'{rule}[suffix="\\n</parameter>\\n"]: {rule.upper()}', f"{rule.upper()}: {terminal}"]
    return "\n".join(rules)


def _value_rule(schema: Mapping[str, Any], texts: dict[str, str]) -> str:
    closing = lark_string(f"\n{END_PARAMETER}\n")
    if choices := choices_of(schema):
        written = [c if isinstance(c, str) else json.dumps(c, ensure_ascii=False) for c in choices]
        return f"({' | '.join(map(lark_string, written))}) {closing}"
    if is_text(schema, among_others=True):
        return texts.setdefault(text_terminal(schema), f"text_{len(texts)}")
    return f"%json {json.dumps({**schema, 'x-guidance': JSON_FORM})} {closing}"
