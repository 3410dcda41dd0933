"""Calls as tags, as Qwen3-Coder and Qwen3.5 write them:

    <tool_call>
    <function=f>
    <parameter=a>
    1
    </parameter>
    </function>
    </tool_call>

Values are plain text: the tool's schema says what each one is (`schema_types`). A value ends at a closing tag that
another parameter or the function's end follows, so text that quotes the tag alone does not end it. Also read: the
block without its outer tags, and JSON in them.
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

__all__ = ["BARE_OPEN", "CLOSE", "OPEN", "BareXmlReader", "XmlReader", "grammar", "written"]

BARE_OPEN = "<function="
_PARAMETER, _END_PARAMETER, _END_FUNCTION = "<parameter=", "</parameter>", "</function>"
_AFTER_VALUE = (_PARAMETER, _END_FUNCTION, CLOSE)
_MAX_NAME = 200
_MAX_SPACE = 64  # between two tags


class XmlReader(CallReader):
    """Reads what follows the opening tag."""

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
        """A function whose opening tag was read up to its name."""
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
        """Reads a value and the tags after it, of which it returns the last."""
        streams = is_text(schema)
        if streams:
            self.give('"')
        text, held, is_first = "", "", True
        while True:
            held += yield
            if is_first:
                is_first = False
                if held == "\n":
                    held = ""
                    continue
            while held and not _may_end_value(held):
                text, held = text + held[0], held[1:]
            if streams and text:
                self.give(json.dumps(text, ensure_ascii=False)[1:-1])
                text = ""
            tag = _after_value(held)
            if tag in _AFTER_VALUE:
                self.give('"' if streams else converted(text, schema))
                return tag


class BareXmlReader(XmlReader):
    """Reads what follows `<function=` where the outer tag is missing."""

    def _read(self) -> Steps:
        return (yield from self._calls())


def _between() -> Generator[None, str, str]:
    """What follows a function: the end of the block, another function, or as much as shows that it is neither."""
    read = ""
    while True:
        read += yield
        tag = read.lstrip()
        if tag in (CLOSE, BARE_OPEN) or not (CLOSE.startswith(tag) or BARE_OPEN.startswith(tag)):
            return read


def _tag_rest() -> Generator[None, str, str]:
    """The name in a tag, up to its closing bracket."""
    name = ""
    while (char := (yield)) != ">":
        name += char
        if len(name) > _MAX_NAME or char in "\n<":
            raise Malformed("a tag that does not close")
    if not name.strip():
        raise Malformed("a tag without a name")
    return name.strip()


def _one_of(tags: tuple[str, ...]) -> Generator[None, str, str]:
    """One of these tags, after white space."""
    read = ""
    while True:
        read = (read + (yield)).lstrip()
        if read in tags:
            return read
        if not any(tag.startswith(read) for tag in tags):
            raise Malformed(f"expected {' or '.join(tags)}")


def _after_value(held: str) -> str:
    """What follows the closing tag of a value in `held`, or an empty text."""
    held = held.removeprefix("\n")
    return held[len(_END_PARAMETER) :].lstrip() if held.startswith(_END_PARAMETER) else ""


def _may_end_value(held: str) -> bool:
    """Whether the text may turn out to be the end of a value and what follows it."""
    held = held.removeprefix("\n")
    if len(held) <= len(_END_PARAMETER):
        return _END_PARAMETER.startswith(held)
    if not held.startswith(_END_PARAMETER):
        return False
    after = held[len(_END_PARAMETER) :]
    tag = after.lstrip()
    return len(after) - len(tag) <= _MAX_SPACE and any(follower.startswith(tag) for follower in _AFTER_VALUE)


def written(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the model would have written it."""
    parameters = "".join(
        f"{_PARAMETER}{key}>\n{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}\n"
        f"{_END_PARAMETER}\n"
        for key, value in arguments.items()
    )
    return f"{OPEN}\n{BARE_OPEN}{name}>\n{parameters}{_END_FUNCTION}\n{CLOSE}"


def grammar(tools: Sequence[Tool], *, parallel: bool) -> str:
    """Lark rules: `calls` is one call, or several. Required parameters must come, each in the order of the schema."""
    one = " | ".join(f"call_{i}" for i in range(len(tools)))
    rules = [
        f"calls: {lines_of('one', parallel)}",
        f'one: "{OPEN}\\n" ({one}) "{_END_FUNCTION}\\n{CLOSE}"',
        'text[suffix="\\n</parameter>\\n"]: /(?s:.*)/',
    ]
    for i, tool in enumerate(tools):
        required = set(tool.parameters.get("required", ()))
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
    """A Lark string."""
    return json.dumps(text, ensure_ascii=False)
