"""Digests of a prompt's prefixes, by which a request finds the replica that has computed them."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from typing import Any

__all__ = ["prefix_digests"]

BLOCK = 1024
"""Characters of a block of a plain prompt."""
DIGEST_BYTES = 8
MAX_PREFIXES = 1000
"""Prefixes of a prompt that are remembered, the longest ones: one request must not fill the router's table."""
_NOT_SHOWN = frozenset({"cache_control", "id", "status"})
"""Fields of a message that the model does not see, and that clients change between turns."""


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
