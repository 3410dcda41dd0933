"""Types of parameters that are written as plain text, from the tool's JSON schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["DEFINITIONS", "converted", "is_text", "properties_of", "property_schema"]

DEFINITIONS = ("$defs", "definitions")  # keys of the root schema that $ref points into
_MAX_DEPTH = 16  # of nested references and alternatives


def properties_of(schema: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The schemas of each property, also behind references and in alternatives."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for part in _parts(schema, schema, _MAX_DEPTH):
        properties = part.get("properties")
        for name, value in properties.items() if isinstance(properties, Mapping) else ():
            found.setdefault(name, []).append(value if isinstance(value, Mapping) else {})
    return found


def property_schema(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The schema of one property, with the definitions it may refer to; empty if the property is unknown."""
    schemas = properties_of(schema).get(key)
    if not schemas:
        return {}
    definitions = {name: schema[name] for name in DEFINITIONS if name in schema}
    return {**definitions, **(schemas[0] if len(schemas) == 1 else {"anyOf": schemas})}


def is_text(schema: Mapping[str, Any], *, among_others: bool = False) -> bool:
    """Whether every value is a string; with among_others, whether a value may be a string."""
    kinds = set(_types(schema, schema, _MAX_DEPTH))
    return not kinds or ("string" in kinds if among_others else kinds == {"string"})


def converted(text: str, schema: Mapping[str, Any]) -> str:
    """The JSON value of a text. A text that matches no type of the schema becomes a string; the tool reports it."""
    kinds = set(_types(schema, schema, _MAX_DEPTH))
    if text.lower() in ("true", "false") and "boolean" in kinds:
        return text.lower()
    if text in ("null", "None") and "null" in kinds:
        return "null"
    try:
        value = json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return text.strip() if _type_of(value) & kinds else json.dumps(text, ensure_ascii=False)


def _refused(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _type_of(value: object) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    if isinstance(value, float):
        return {"number", "integer"} if value.is_integer() else {"number"}
    if value is None:
        return {"null"}
    return {"object"} if isinstance(value, dict) else {"array"} if isinstance(value, list) else set()


def _types(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Iterator[str]:
    """The types a schema allows; none if it does not restrict them."""
    for part in _parts(schema, root, depth):
        kind = part.get("type")
        if isinstance(kind, str):
            yield kind
        elif isinstance(kind, list):
            yield from (item for item in kind if isinstance(item, str))
        elif "const" in part or "enum" in part:
            values = part.get("enum", [part.get("const")])
            for value in values if isinstance(values, list) else []:
                yield from {"string"} if isinstance(value, str) else _type_of(value)
        elif "properties" in part:
            yield "object"
        elif "items" in part:
            yield "array"


def _parts(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    """The schema, then the schemas that it combines or refers to."""
    if depth == 0:
        return
    yield schema
    for name in ("anyOf", "oneOf", "allOf"):
        options = schema.get(name)
        for option in options if isinstance(options, list) else []:
            if isinstance(option, Mapping):
                yield from _parts(option, root, depth - 1)
    if isinstance(reference := schema.get("$ref"), str):
        found: object = root
        for step in reference.removeprefix("#/").split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping):
            yield from _parts(found, root, depth - 1)
