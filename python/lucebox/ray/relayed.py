"""A request as the ingress relays it to a replica, with the digests and the tag that its router reads."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lucebox.serve.protocols.response_ids import TAG_DIGITS, tag_in

__all__ = ["REPLICA_HEADER", "Head", "Relayed", "model_tag", "prefix_digests", "replica_tag", "stored_tag"]

BLOCK = 1024
"""Characters of a block of a plain prompt."""
DIGEST_BYTES = 8
MAX_PREFIXES = 1000
"""Prefixes of a prompt that are remembered, the longest ones: one request must not fill the router's table."""
MODEL_DIGITS = 4
REPLICA_HEADER = b"lucebox-replica"
"""Response header with the tag of the replica that answered."""
_NOT_SHOWN = frozenset({"cache_control", "id", "status"})
"""Fields of a message that the model does not see, and that clients change between turns."""

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


def prefix_digests(body: Any) -> tuple[bytes, ...]:
    """Digests of the MAX_PREFIXES longest prefixes: of a conversation, prefixes end with a message, of a prompt, with a
    block. System messages do not count: conversations share them, and should not share a replica for that."""
    if not isinstance(body, dict):
        return ()
    digests: deque[bytes] = deque(maxlen=MAX_PREFIXES)
    last = b""
    for unit in _units(body):
        last = hashlib.blake2b(last + unit.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
        digests.append(last)
    return tuple(digests)


def _units(body: dict[str, Any]) -> Iterator[str]:
    for field in ("messages", "input", "prompt"):
        value = body.get(field)
        if isinstance(value, str) and field == "prompt":
            for at in range(0, len(value) - BLOCK + 1, BLOCK):
                yield value[at : at + BLOCK]
        elif isinstance(value, str):
            yield "".join(_texts({"role": "user", "content": value}))
        elif isinstance(value, list):
            messages = [one for one in value if isinstance(one, dict)]
            for message in messages:
                if message.get("role") not in ("system", "developer"):
                    yield "".join(_texts({"role": message.get("role"), **message}))


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value, each after a separator; without its field names, so that equal forms of a message agree."""
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, str):
            yield "\0" + one
        elif isinstance(one, dict):
            if one.get("type") in ("text", "input_text", "output_text"):
                one = one.get("text")
                stack.append(one)
            else:
                stack.extend(item for name, item in reversed(one.items()) if name not in _NOT_SHOWN)
        elif isinstance(one, list):
            stack.extend(reversed(one))


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
