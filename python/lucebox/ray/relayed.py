"""A request as the ingress relays it to a replica, with the digests and the tag that its router reads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from lucebox.serve.protocols.response_ids import TAG_DIGITS, tag_in

__all__ = ["REPLICA_HEADER", "Head", "Relayed", "model_tag", "replica_tag", "stored_tag"]

MODEL_DIGITS = 4
REPLICA_HEADER = b"lucebox-replica"
"""Response header with the tag of the replica that answered."""

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Relayed:
    method: str
    path: str
    query: bytes
    headers: Headers
    client: tuple[str, int] | None
    body: bytes
    digests: tuple[bytes, ...] = ()
    """One for each of the longest prefixes of the prompt, the shortest first."""
    tag: str | None = None
    """Of the replica that stores what the request refers to."""


@dataclass(frozen=True, slots=True)
class Head:
    """Sent by a replica before the parts of the body."""

    status: int
    headers: Headers


def replica_tag(deployment: str, unique_id: str) -> str:
    """The tag of a replica in the ids of its stored responses. It begins with the tag of its model."""
    return model_tag(deployment) + _digits(unique_id, TAG_DIGITS - MODEL_DIGITS)


def model_tag(deployment: str) -> str:
    """The first digits of the tags of all replicas of a deployment."""
    return _digits(deployment, MODEL_DIGITS)


def _digits(text: str, n: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=n // 2).hexdigest()


def stored_tag(path: str, body: Any) -> str | None:
    """The tag in the first id of a stored response or item that a request refers to."""
    for part in path.split("/"):
        if tag := tag_in(part):
            return tag
    if not isinstance(body, dict):
        return None
    if isinstance(previous := body.get("previous_response_id"), str):
        return tag_in(previous)
    items = body.get("input")
    ids = (item.get("id") for item in items if isinstance(item, dict)) if isinstance(items, list) else ()
    return next((tag for one in ids if isinstance(one, str) and (tag := tag_in(one))), None)
