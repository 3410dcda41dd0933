"""A tool's JSON schema as calls need it: the parameters with their schemas, and the types of values written as text.

References, `allOf` and alternatives are followed at the root and in each parameter.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

__all__ = [
    "Form",
    "allows_others",
    "choices_of",
    "converted",
    "forms_of",
    "is_text",
    "kinds_of",
    "may_quote",
    "parts_of",
    "property_schema",
    "self_contained",
]

_MAX_DEPTH = 16  # of nested references and alternatives
_MAX_FORMS = 16
_COMBINING = ("anyOf", "oneOf", "allOf")
_WHOLE = "arguments"  # key in $defs under which the whole schema is stored for references


@dataclass(frozen=True, slots=True)
class Form:
    """One form that an object may take: its properties in order, and those that are required."""

    properties: Mapping[str, Any] = field(default_factory=dict)
    required: frozenset[str] = frozenset()

    def __or__(self, other: Form) -> Form:
        """The object that has both forms."""
        properties = dict(self.properties)
        for key, schema in other.properties.items():
            known = properties.get(key, schema)
            properties[key] = schema if known == schema else {"allOf": [known, schema]}
        return Form(properties, self.required | other.required)


def forms_of(schema: Mapping[str, Any]) -> list[Form]:
    """The forms of an object with this schema, at least one. Too many alternatives are merged into one form, which
    requires only the properties that all of them require."""
    forms = list(itertools.islice(_forms(schema, schema, _MAX_DEPTH), _MAX_FORMS * _MAX_FORMS))
    if len(forms) <= _MAX_FORMS:
        return forms or [Form()]
    merged: dict[str, Any] = {}
    for form in forms:
        for key, value in form.properties.items():
            known = merged.get(key, value)
            merged[key] = value if known == value else {"anyOf": [known, value]}
    return [Form(merged, frozenset.intersection(*(form.required for form in forms)))]


def _forms(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Iterator[Form]:
    if depth == 0 or schema.get("type", "object") != "object":
        return
    properties, required = schema.get("properties"), schema.get("required")
    own = Form(
        properties if isinstance(properties, Mapping) else {},
        frozenset(key for key in required if isinstance(key, str)) if isinstance(required, list) else frozenset(),
    )
    factors: list[Iterable[Form]] = []
    if (target := _target(schema, root)) is not None:
        factors.append(_forms(target, root, depth - 1))
    factors += [_forms(part, root, depth - 1) for part in _options(schema, "allOf")]
    for name in ("anyOf", "oneOf"):
        if options := _options(schema, name):
            factors.append(itertools.chain.from_iterable(_forms(option, root, depth - 1) for option in options))
    for parts in itertools.product(*factors):
        form = own
        for part in parts:
            form |= part
        yield form


def property_schema(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The self-contained schema of one property; empty if the property is unknown."""
    found: list[Any] = []
    for form in forms_of(schema):
        if key in form.properties and form.properties[key] not in found:
            found.append(form.properties[key])
    if not found:
        return {}
    part = found[0] if len(found) == 1 else {"anyOf": found}
    return self_contained(part if isinstance(part, Mapping) else {}, schema)


def self_contained(part: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a schema, made self-contained: it includes the definitions it refers to."""
    if not _has_reference(part):
        return dict(part)
    whole = {"type": "object", **{key: value for key, value in _moved(root).items() if key not in ("$schema", "$id")}}
    return {**_moved(part), "$defs": {_WHOLE: whole}}


def _moved(value: Any) -> Any:
    """A schema whose references point into the definition of the whole schema."""
    if isinstance(value, Mapping):
        return {
            key: f"#/$defs/{_WHOLE}{item[1:]}"
            if key == "$ref" and isinstance(item, str) and item.startswith("#")
            else _moved(item)
            for key, item in value.items()
        }
    return [_moved(item) for item in value] if isinstance(value, list) else value


def _has_reference(value: Any) -> bool:
    if isinstance(value, Mapping):
        return isinstance(value.get("$ref"), str) or any(map(_has_reference, value.values()))
    return isinstance(value, list) and any(map(_has_reference, value))


def choices_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """All values that a self-contained schema enumerates; None if it does not enumerate them."""
    return _choices(schema, schema, _MAX_DEPTH)


def _choices(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> list[Any] | None:
    if depth == 0:
        return None
    if isinstance(values := schema.get("enum"), list):
        return values
    if "const" in schema:
        return [schema["const"]]
    if schema.get("type") == "null":
        return [None]
    target = _target(schema, root)
    for part in ([] if target is None else [target]) + _options(schema, "allOf"):
        if (values := _choices(part, root, depth - 1)) is not None:
            return values
    for name in ("anyOf", "oneOf"):
        found = [_choices(option, root, depth - 1) for option in _options(schema, name)]
        if found and None not in found:
            return [value for values in found for value in values or ()]
    return None


def is_text(schema: Mapping[str, Any], *, among_others: bool = False) -> bool:
    """Whether every value is a string; with among_others, whether a value may be a string."""
    kinds = kinds_of(schema)
    return not kinds or ("string" in kinds if among_others else kinds == {"string"})


def kinds_of(schema: Mapping[str, Any]) -> set[str]:
    """The types that a self-contained schema allows; empty if it does not restrict them."""
    return set(_types(schema, schema, _MAX_DEPTH))


def may_quote(schema: Mapping[str, Any]) -> bool:
    """Whether a value may contain other text: strings do, and lists and objects of strings."""
    kinds = kinds_of(schema)
    return not kinds or not kinds.isdisjoint(("string", "array", "object"))


def allows_others(schema: Mapping[str, Any]) -> bool:
    """Whether an object may have properties that its schema does not name."""
    parts = list(parts_of(schema))
    named = any(isinstance(part.get("properties"), Mapping) for part in parts)
    return not named or any(
        part.get("additionalProperties") not in (None, False) or part.get("patternProperties") for part in parts
    )


def converted(text: str, schema: Mapping[str, Any]) -> str:
    """The JSON value of a text. A text that matches no type of the schema becomes a string; the tool reports it."""
    kinds = kinds_of(schema)
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


def parts_of(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A self-contained schema, then the schemas that it combines or refers to."""
    return _parts(schema, schema, _MAX_DEPTH)


def _parts(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    """The schema, then the schemas that it combines or refers to."""
    if depth == 0:
        return
    yield schema
    for name in _COMBINING:
        for option in _options(schema, name):
            yield from _parts(option, root, depth - 1)
    if (target := _target(schema, root)) is not None:
        yield from _parts(target, root, depth - 1)


def _options(schema: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    options = schema.get(name)
    return [option for option in options if isinstance(option, Mapping)] if isinstance(options, list) else []


def _target(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema that a reference points to."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for step in filter(None, reference[1:].split("/")):
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            found = found.get(step) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None
