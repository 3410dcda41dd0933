"""The grammar of calls in Gemma 4's format: its objects are no JSON, so a schema becomes rules, value by value.

Keys come in the order in which templates write them, and each at most once. Numbers and literals are JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lucebox.chat.dialects.hermes_json import JSON_FORM, MAX_CALLS, arguments_schema
from lucebox.chat.dialects.schema_types import Form, allows_others, choices_of, forms_of, kinds_of, parts_of
from lucebox.chat.dialects.text_values import ANNOTATIONS, lark_string, options_of, text_terminal, unheld_of
from lucebox.chat.tools import Tool
from lucebox.errors import InvalidRequestError

__all__ = ["CLOSE", "OPEN", "QUOTE", "TAGS", "grammar", "in_order", "unheld_keywords"]

OPEN, CLOSE, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
TAGS = {"tag_open": OPEN, "tag_close": CLOSE, "tag_quote": QUOTE}
_NO_QUOTE = r"~/(?s:.*)<\|\"\|>(?s:.*)/"
_KEY = r"/[^\s:,{}\[\]<\"|]{1,64}/"  # of an object that does not name its keys
_COMMA = ' "," '
_SCALARS = ("boolean", "integer", "null", "number")
_MAX_RULES = 4000
_MAX_LINKS = 16  # of references to references


def in_order(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The members of an object in the order of templates (Jinja's dictsort)."""
    return sorted(values.items(), key=lambda item: item[0].lower())


def grammar(tools: Sequence[Tool], *, parallel: bool) -> str:
    """Lark rules; `calls` is one call, or several if parallel."""
    one = " | ".join(f"call_{i}" for i in range(len(tools)))
    rules = [
        f"calls: one{{1,{MAX_CALLS}}}" if parallel else "calls: one",
        f"one: tag_open ({one}) tag_close",
        *(f"{rule}: {json.dumps(tag)}" for rule, tag in TAGS.items()),
    ]
    texts: dict[str, str] = {}
    for i, tool in enumerate(tools):
        values = _Values(f"value_{i}", arguments_schema(tool), texts)
        begun = lark_string(f"call:{tool.name}")
        rules += [f"call_{i}: {begun} {values.root}", *values.rules]
    for terminal, rule in texts.items():
        rules += [f"{rule}[suffix={json.dumps(QUOTE)}]: {rule.upper()}", f"{rule.upper()}: {terminal}"]
    return "\n".join([*rules, f"KEY: {_KEY}"])


def unheld_keywords(parameters: Mapping[str, Any]) -> list[str]:
    """Schema keywords of a tool's parameters that the grammar does not enforce."""
    return sorted(_Values("value", arguments_schema(Tool("", parameters=dict(parameters))), {}).unheld)


class _Values:
    """The rules of a self-contained schema. texts: rules of strings by their terminals, which all tools share."""

    def __init__(self, prefix: str, schema: Mapping[str, Any], texts: dict[str, str]) -> None:
        self._prefix, self._texts = prefix, texts
        self._shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
        self._names: dict[str, str] = {}
        self.rules: list[str] = []
        self.unheld: set[str] = set()
        self.root = self.rule(schema)

    def rule(self, part: Any) -> str:
        """The name of the rule of a part of the schema."""
        schema = {**part, **self._shared} if isinstance(part, Mapping) else dict(self._shared)
        key = json.dumps({name: value for name, value in schema.items() if name != "$defs"}, sort_keys=True)
        if key not in self._names:
            if len(self._names) == _MAX_RULES:
                raise InvalidRequestError(
                    f"the schema of a tool has more than {_MAX_RULES} parts, which no grammar holds"
                )
            self._names[key] = name = f"{self._prefix}_{len(self._names)}"
            self.rules.append(f"{name}: " + " | ".join(self._alternatives(_resolved(schema), name)))
        return self._names[key]

    def _alternatives(self, schema: Mapping[str, Any], name: str) -> Iterator[str]:
        if choices := choices_of(schema):
            yield from map(_written, choices)
            return
        options = options_of(schema)
        if options != [schema]:
            yield from map(self.rule, options)
            return
        kinds = kinds_of(schema) or {"string", "number", "boolean", "null", "array", "object"}
        if "string" in kinds:
            yield self._text({**schema, "type": "string"})
        if scalars := [kind for kind in _SCALARS if kind in kinds]:
            yield "%json " + json.dumps({**schema, "type": scalars, "x-guidance": JSON_FORM})
        if "array" in kinds:
            yield self._list(schema)
        if "object" in kinds:
            for i, form in enumerate(forms_of({**schema, "type": "object"})):
                yield self._object(schema, form, f"{name}_{i}")

    def _text(self, schema: Mapping[str, Any]) -> str:
        self.unheld |= unheld_of(schema)
        return "tag_quote " + self._texts.setdefault(text_terminal(schema, _NO_QUOTE), f"text_{len(self._texts)}")

    def _list(self, schema: Mapping[str, Any]) -> str:
        part = next((one for one in parts_of(schema) if "items" in one or "prefixItems" in one), schema)
        first, items = part.get("prefixItems", ()), part.get("items", {})
        if isinstance(items, list):  # as before JSON Schema 2020-12
            first, items = items, part.get("additionalItems", {})
        least, most = _bounds(schema, "Items")
        given = _COMMA.join(map(self.rule, first))
        n = len(first)
        if items is False or (most is not None and most <= n):
            return f'"[" {given} "]"' if given else '"[]"'
        item = self.rule(items)
        if given:
            return f'"[" {given} ("," {item}){_times(least - n, most and most - n)} "]"'
        more = f'{item} ("," {item}){_times(least - 1, most and most - 1)}'
        return f'"[" {more} "]"' if least else f'"[" ({more})? "]"'

    def _object(self, schema: Mapping[str, Any], form: Form, name: str) -> str:
        """Declared members, or any if none is declared."""
        members = {**{key: {} for key in form.required}, **form.properties}
        least, most = _bounds(schema, "Properties")
        if members or not allows_others(schema):
            self.unheld |= {key for key in ("minProperties", "maxProperties") if schema.get(key) is not None}
            return f'"{{" ({self._members(in_order(members), form.required, name)}) "}}"'
        self.unheld |= {"patternProperties"} & schema.keys()
        others: Any = next(
            (one["additionalProperties"] for one in parts_of(schema) if "additionalProperties" in one), {}
        )
        member = f'KEY ":" {self.rule(others)}'
        more = f'{member} ("," {member}){_times(least - 1, most and most - 1)}'
        if most == 0:
            return '"{}"'
        return f'"{{" {more} "}}"' if least else f'"{{" ({more})? "}}"'

    def _members(self, members: list[tuple[str, Any]], required: frozenset[str], name: str) -> str:
        """The members in order; those that are not required may be left out."""
        n = len(members)
        rests = [f"{name}_{k}" for k in range(n)] + ['""']  # the members from k on, after another one
        values = [self.rule(part) for _, part in members]
        for k in range(1, n):
            key, begun = members[k][0], lark_string(f",{members[k][0]}:")
            text = f"{rests[k]}: {begun} {values[k]} {rests[k + 1]}"
            self.rules.append(text if key in required else f"{text} | {rests[k + 1]}")
        first = []
        for k, (key, _) in enumerate(members):
            first.append(f"{lark_string(key + ':')} {values[k]} {rests[k + 1]}")
            if key in required:
                break
        else:
            first.append('""')
        return " | ".join(first)


def _resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A self-contained schema that only refers to another one, or combines only one, is that schema."""
    for _ in range(_MAX_LINKS):
        keys = schema.keys() - ANNOTATIONS
        parts = list(parts_of(schema))
        if not (keys == {"$ref"} or (keys == {"allOf"} and len(schema["allOf"]) == 1)) or len(parts) < 2:
            break
        schema = {**parts[1], **{key: schema[key] for key in ("$defs",) if key in schema}}
    return schema


def _bounds(schema: Mapping[str, Any], of: str) -> tuple[int, int | None]:
    """The least and the largest number of items or properties."""
    least, most = (
        next((one[key] for one in parts_of(schema) if type(one.get(key)) is int and one[key] >= 0), None)
        for key in (f"min{of}", f"max{of}")
    )
    return least or 0, most


def _times(least: int, most: int | None) -> str:
    least = max(least, 0)
    return f"{{{least},{'' if most is None else most}}}" if least or most is not None else "*"


def _written(value: Any) -> str:
    """The Lark expression for a constant of the schema, as a call writes it."""
    if isinstance(value, Mapping):
        members = _COMMA.join(f"{lark_string(key + ':')} {_written(one)}" for key, one in in_order(value))
        return f'"{{" {members} "}}"' if members else '"{}"'
    if isinstance(value, list):
        return f'"[" {_COMMA.join(map(_written, value))} "]"' if value else '"[]"'
    if isinstance(value, str):
        return f"tag_quote {lark_string(value)} tag_quote" if value else "tag_quote tag_quote"
    return lark_string(json.dumps(value))
