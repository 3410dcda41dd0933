"""Calls as XML-like tags: Qwen3-Coder and Qwen3.5.

    <tool_call>
    <function=f>
    <parameter=a>
    1
    </parameter>
    </function>
    </tool_call>

Values are plain text; the tool's schema gives their types (`schema_types`). A value ends at a closing tag only if
another parameter or the end of the function follows, so a value may quote the tag. The reader also accepts a block
without outer tags, and JSON inside them.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from lucebox.serve.dialects.hermes_json import CLOSE, JSON_FORM, OPEN, call_objects, closing, lines_of
from lucebox.serve.dialects.reader import CallReader, Steps, after_space, literal
from lucebox.serve.dialects.schema_types import converted, is_text, property_schema
from lucebox.serve.json_text import Malformed
from lucebox.serve.tools import Tool

__all__ = ["BARE_OPEN", "CLOSE", "OPEN", "BareXmlReader", "XmlReader", "grammar", "render_call"]

BARE_OPEN = "<function="
_PARAMETER, _END_PARAMETER, _END_FUNCTION = "<parameter=", "</parameter>", "</function>"
_AFTER_VALUE = (_PARAMETER, _END_FUNCTION, CLOSE)
_MAX_NAME = 200
_MAX_SPACE = 64  # characters of white space between two tags


class XmlReader(CallReader):
    """Reads a block from after its opening tag."""

    def _read(self) -> Steps:
        char = yield from after_space((yield))
        if char in "{[":
            yield from call_objects(self, char)
            return (yield from closing(self))
        yield from literal(BARE_OPEN, char)
        return (yield from self._calls())

    def _calls(self) -> Steps:
        while True:
            yield from self._call()
            read = yield from _between()
            if read.lstrip() != BARE_OPEN:
                return "" if read.lstrip() == CLOSE else read

    def _call(self) -> Generator[None, str, None]:
        """Reads a function from its name on."""
        name = yield from _tag_rest()
        self.begin(name)
        schema = self.tools[name]
        tag = yield from _one_of((_PARAMETER, _END_FUNCTION))
        n = 0
        while tag == _PARAMETER:
            key = yield from _tag_rest()
            self.give(f"{'{' if n == 0 else ', '}{json.dumps(key, ensure_ascii=False)}: ")
            tag = yield from self._value(property_schema(schema, key))
            n += 1
        if tag != _END_FUNCTION:
            raise Malformed(f"expected {_END_FUNCTION!r}")
        self.give("{}" if n == 0 else "}")
        self.end()

    def _value(self, schema: Mapping[str, Any]) -> Generator[None, str, str]:
        """Reads a value, its closing tag and the tag after that; returns the last one.

        A string is emitted as it arrives, other types once they are complete.
        """
        streams = is_text(schema)
        if streams:
            self.give('"')
        text, withheld, is_first = "", "", True
        while True:
            withheld += yield
            if is_first:
                is_first = False
                if withheld == "\n":
                    withheld = ""
                    continue
            while withheld and not _may_end_value(withheld):
                text, withheld = text + withheld[0], withheld[1:]
            if streams and text:
                self.give(json.dumps(text, ensure_ascii=False)[1:-1])
                text = ""
            tag = _after_value(withheld)
            if tag in _AFTER_VALUE:
                self.give('"' if streams else converted(text, schema))
                return tag


class BareXmlReader(XmlReader):
    """Reads a block without the outer tag, from after `<function=`."""

    def _read(self) -> Steps:
        return (yield from self._calls())


def _between() -> Generator[None, str, str]:
    """Reads on after a function: the closing tag, the next function's tag, or text that is neither."""
    read = ""
    while True:
        read += yield
        tag = read.lstrip()
        if tag in (CLOSE, BARE_OPEN) or not (CLOSE.startswith(tag) or BARE_OPEN.startswith(tag)):
            return read


def _tag_rest() -> Generator[None, str, str]:
    """Reads the name in a tag, up to the closing bracket."""
    name = ""
    while (char := (yield)) != ">":
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


def _after_value(text: str) -> str:
    """The text after the closing tag of a value; empty if `text` does not begin with that tag."""
    text = text.removeprefix("\n")
    return text[len(_END_PARAMETER) :].lstrip() if text.startswith(_END_PARAMETER) else ""


def _may_end_value(text: str) -> bool:
    """Whether the text is a prefix of a closing tag followed by one of _AFTER_VALUE."""
    text = text.removeprefix("\n")
    if len(text) <= len(_END_PARAMETER):
        return _END_PARAMETER.startswith(text)
    if not text.startswith(_END_PARAMETER):
        return False
    after = text[len(_END_PARAMETER) :]
    tag = after.lstrip()
    return len(after) - len(tag) <= _MAX_SPACE and any(follower.startswith(tag) for follower in _AFTER_VALUE)


def render_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call in this dialect."""
    parameters = "".join(
        f"{_PARAMETER}{key}>\n{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}\n"
        f"{_END_PARAMETER}\n"
        for key, value in arguments.items()
    )
    return f"{OPEN}\n{BARE_OPEN}{name}>\n{parameters}{_END_FUNCTION}\n{CLOSE}"


def grammar(tools: Sequence[Tool], *, parallel: bool) -> str:
    """Lark rules; `calls` is one call, or several if parallel. Parameters come in the schema's order."""
    one = " | ".join(f"call_{i}" for i in range(len(tools)))
    rules = [
        f"calls: {lines_of('one', parallel)}",
        f'one: "{OPEN}\\n" ({one}) "{_END_FUNCTION}\\n{CLOSE}"',
        'text[suffix="\\n</parameter>\\n"]: /(?s:.*)/',
    ]
    for i, tool in enumerate(tools):
        required = set(tool.parameters.get("required", ()))  # the others are optional
        names = [f"value_{i}_{k}{'' if key in required else '?'}" for k, key in enumerate(_properties(tool))]
        rules.append(f"call_{i}: {_quoted(f'{BARE_OPEN}{tool.name}>' + chr(10))} {' '.join(names)}")
        for k, key in enumerate(_properties(tool)):
            opening = _quoted(f"{_PARAMETER}{key}>\n")
            rules.append(f"value_{i}_{k}: {opening} {_value_rule(property_schema(tool.parameters, key))}")
    return "\n".join(rules)


def _properties(tool: Tool) -> list[str]:
    properties = tool.parameters.get("properties", {})
    return list(properties) if isinstance(properties, Mapping) else []


def _value_rule(schema: Mapping[str, Any]) -> str:
    closing = _quoted(f"\n{_END_PARAMETER}\n")
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if choices:
        texts = [c if isinstance(c, str) else json.dumps(c, ensure_ascii=False) for c in choices]
        return f"({' | '.join(map(_quoted, texts))}) {closing}"
    if is_text(schema, among_others=True):
        return "text"
    return f"%json {json.dumps({**schema, 'x-guidance': JSON_FORM})} {closing}"


def _quoted(text: str) -> str:
    """A Lark string literal."""
    return json.dumps(text, ensure_ascii=False)
