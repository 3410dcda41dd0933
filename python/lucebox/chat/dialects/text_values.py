"""String arguments that a call writes as plain text: Lark terminals that enforce their schemas, and the schema keywords
that no terminal enforces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from lucebox.chat.dialects.schema_types import choices_of, forms_of, is_text, parts_of, self_contained

__all__ = ["ANNOTATIONS", "lark_string", "options_of", "text_terminal", "unheld_keywords", "unheld_of"]

ANY = "/(?s:.*)/"
NO_CLOSER = r"~/(?s:.*)\n<\/parameter(?s:.*)/"
"""Without it, the closing tag of a string that is still too short would count as its text."""
ANNOTATIONS = ("$defs", "title", "description", "default", "examples", "discriminator")
"""Schema keywords that restrict no value."""
_KEYWORDS = ("const", "enum", "format", "maxLength", "minLength", "pattern")
_MAX_LENGTH = 1000  # a mask takes 1.7 ms for a string with a length limit, else 4 us (medians, vocabulary 248320)
_ESCAPED = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL)  # escaped characters and classes, which are not operators


def lark_string(text: str) -> str:
    """The literal of a text in a Lark grammar, quotes included."""
    return json.dumps(text, ensure_ascii=False)


def text_terminal(schema: Mapping[str, Any], no_closer: str = NO_CLOSER) -> str:
    """A Lark terminal for the strings of a self-contained schema, as far as the schema can be enforced. no_closer: a
    terminal for texts without the tag that ends a string."""
    if not _is_plain(schema):
        return ANY
    least, most = (_length(schema.get(key)) for key in ("minLength", "maxLength"))
    pattern = schema.get("pattern")
    whole = _whole(pattern) if isinstance(pattern, str) else None
    terminals = [] if whole is None else [f"/{whole}/"]
    if least or most is not None:
        terminals.append(f"/(?s:.{{{least or 0},{'' if most is None else most}}})/")
    if least or whole is not None:
        terminals.append(no_closer)
    return " & ".join(terminals) or ANY


def unheld_keywords(parameters: Mapping[str, Any]) -> list[str]:
    """Schema keywords of a tool's text parameters that `text_terminal` does not enforce."""
    return sorted({keyword for form in forms_of(parameters) for keyword in _unheld(form.properties, parameters)})


def options_of(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The alternatives of a self-contained schema that consists of nothing else; otherwise the schema."""
    keys = schema.keys() - ANNOTATIONS
    options = schema.get(next(iter(keys))) if keys in ({"anyOf"}, {"oneOf"}) else None
    if not isinstance(options, list) or not all(isinstance(option, Mapping) for option in options):
        return [schema]
    shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return [one for option in options for one in options_of({**option, **shared})]


def _unheld(properties: Mapping[str, Any], parameters: Mapping[str, Any]) -> Iterator[str]:
    for part in properties.values():
        for schema in options_of(self_contained(part if isinstance(part, Mapping) else {}, parameters)):
            if not choices_of(schema) and is_text(schema, among_others=True):
                yield from unheld_of(schema)


def unheld_of(schema: Mapping[str, Any]) -> set[str]:
    """Keywords of a self-contained schema of strings that `text_terminal` does not enforce."""
    found = {key for one in parts_of(schema) for key in _KEYWORDS if one.get(key) is not None}
    return found - (_held(schema) if _is_plain(schema) else set())


def _held(schema: Mapping[str, Any]) -> set[str]:
    held = {key for key in ("minLength", "maxLength") if _length(schema.get(key)) is not None}
    pattern = schema.get("pattern")
    return held | {"pattern"} if isinstance(pattern, str) and _whole(pattern) is not None else held


def _is_plain(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "string" and len(list(parts_of(schema))) == 1


def _length(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _MAX_LENGTH else None


def _whole(pattern: str) -> str | None:
    """A regular expression, in slashes, for whole texts that contain a match of the pattern; None if the pattern has
    anchors elsewhere than at its ends."""
    bare = _ESCAPED.sub(lambda found: "x" * len(found[0]), pattern)
    begins, ends = bare.startswith("^"), bare.endswith("$")
    inner = pattern[begins : len(pattern) - ends]
    bare = bare[begins : len(bare) - ends]
    if "^" in bare or "$" in bare or ((begins or ends) and _has_choice(bare)):
        return None
    escaped = re.sub(r"\\.|/", lambda found: r"\/" if found[0] == "/" else found[0], inner, flags=re.DOTALL)
    text = f"(?:{escaped})".replace("\n", r"\n")
    return ("" if begins else "(?s:.*)") + text + ("" if ends else "(?s:.*)")


def _has_choice(bare: str) -> bool:
    """Whether the pattern has top-level alternatives, outside all groups."""
    depth = 0
    for char in bare:
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            return True
    return False
