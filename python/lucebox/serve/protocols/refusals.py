"""Explains why a body is refused: one message with the JSON path, the value found there, and the allowed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lucebox.serve.errors import ApiError

__all__ = ["refusal"]

_EXPECTED = {
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "bool_type": "true or false",
    "int_type": "an integer",
    "float_type": "a number",
    "none_required": "null",
}
_KIND_KEYS = ("type", "role")  # keys that discriminate the members of a union


@dataclass(frozen=True, slots=True)
class _Fault:
    path: tuple[str, ...]
    """Keys and indices of the body."""
    member: tuple[str, ...]
    """Union members that the validation tried along the path."""
    kind: str
    message: str
    expected: str

    @property
    def is_kind(self) -> bool:
        """Whether the fault only says that this union member is for another kind of object."""
        return self.kind == "literal_error" and self.path[-1:] != () and self.path[-1] in _KIND_KEYS


def refusal(body: Any, errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The refusal of a body, from the errors of its validation: every member of a union reports its own."""
    faults = [_fault(body, error) for error in errors]
    others = {fault.member for fault in faults if fault.is_kind}
    meant = [fault for fault in faults if fault.member not in others] or faults
    depth = max(len(fault.path) for fault in faults)
    if max(len(fault.path) for fault in meant) < depth - 1:
        meant = faults  # no member of the deepest union is for this kind of object
    kinds = [fault for fault in meant if fault.is_kind or fault.kind == "union_tag_invalid"]
    first = max(kinds or meant, key=lambda fault: len(fault.path))
    path = ".".join(first.path)
    same = [fault for fault in meant if fault.path == first.path]
    allowed = " or ".join(dict.fromkeys(fault.expected for fault in same if fault.expected))
    if first.kind == "extra_forbidden":
        return ApiError("invalid", f"Unrecognized request argument supplied: {path}", path)
    if allowed:
        return ApiError("invalid", f"{path}: {_shown(body, first.path)} is not supported; allowed: {allowed}", path)
    return ApiError("invalid", f"{path}: {first.message}" if path else first.message, path or None)


def _fault(body: Any, error: Mapping[str, Any]) -> _Fault:
    path, member, at = [], [], body
    loc = [part for part in error["loc"] if part not in ("body", "query", "path")]
    for i, part in enumerate(loc):
        if (isinstance(at, Mapping) and part in at) or (
            isinstance(at, list) and isinstance(part, int) and part < len(at)
        ):
            at = at[part]
        elif not (error["type"] == "missing" and i == len(loc) - 1):
            member.append(str(part))
            continue
        path.append(str(part))
    context = error.get("ctx") or {}
    expected = _EXPECTED.get(error["type"], "")
    if error["type"] == "literal_error":
        expected = str(context.get("expected", ""))
    elif error["type"] == "union_tag_invalid":
        path.append(str(context["discriminator"]).strip("'"))
        expected = str(context["expected_tags"])
    return _Fault(tuple(path), tuple(member), error["type"], str(error["msg"]), expected)


def _shown(body: Any, path: Sequence[str]) -> str:
    """The value at a path, abbreviated."""
    at = body
    for part in path:
        at = at[int(part)] if isinstance(at, list) else at.get(part) if isinstance(at, Mapping) else None
    if isinstance(at, Mapping | list):
        return "an object" if isinstance(at, Mapping) else "a list"
    return repr(at)[:100]
