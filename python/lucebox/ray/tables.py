"""Checks names and types in the tables of an application's config, which come from YAML or Python."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, get_type_hints

from lucebox.errors import InvalidRequestError
from lucebox.names import did_you_mean

__all__ = ["checked", "named"]


def named(table: Any, known: Collection[str], where: str) -> Mapping[str, Any]:
    """The table, after a check of its names.

    Raises:
        InvalidRequestError: it is no table, or has another name.
    """
    if not isinstance(table, Mapping):
        raise InvalidRequestError(f"{where}: expected a table, got {table!r}")
    for name in table:
        if name not in known:
            hint = did_you_mean(str(name), known) or f"; there are {', '.join(known)}"
            raise InvalidRequestError(f"{where}: no option {name!r}{hint}")
    return table


def checked(cls: type, table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Values for the fields of a dataclass, lists as tuples.

    Raises:
        InvalidRequestError: the type of a value is wrong. A string in place of a list must be refused: each of its
            characters would become an API key or an alias.
    """
    from pydantic import TypeAdapter, ValidationError

    types, values = get_type_hints(cls), {}
    for name, value in table.items():
        given = tuple(value) if isinstance(value, list) else value
        try:
            values[name] = TypeAdapter(types[name]).validate_python(given, strict=True)
        except ValidationError as error:
            expected = error.errors()[0]["msg"].replace("valid tuple", "list")
            # Without the value, which may be a key.
            raise InvalidRequestError(f"{where}: {name}: {expected}, got {type(value).__name__}") from None
    return values
