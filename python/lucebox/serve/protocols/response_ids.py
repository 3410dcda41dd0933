"""Ids of stored responses and their items. A replica of a cluster puts its tag first in each, so that a request which
refers to one finds the replica that stores it."""

from __future__ import annotations

import re
import secrets

__all__ = ["TAG_DIGITS", "new_id", "tag_in"]

TAG_DIGITS = 10
_ID = re.compile(rf"(?:resp|msg|fc|fco|rs|cmp)_([0-9a-f]{{{TAG_DIGITS}}})[0-9a-f]{{14,38}}")


def new_id(prefix: str, tag: str) -> str:
    """tag: TAG_DIGITS hexadecimal digits, or none."""
    n_bytes = 24 if prefix == "resp" else 12
    return f"{prefix}_{tag}{secrets.token_hex(n_bytes - len(tag) // 2)}"


def tag_in(text: str) -> str | None:
    """The digits of an id of a response or an item where a replica puts its tag; None if the text is no such id."""
    found = _ID.fullmatch(text)
    return found[1] if found else None
