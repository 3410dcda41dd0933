"""In-memory store of the newest responses. Clients fetch, continue, cancel or delete them by id, and refer to their
items; each API key sees only its own."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from lucebox.chat.rendering import Message
from lucebox.images import ImageSource
from lucebox.serve.delivery import Exchange
from lucebox.serve.errors import ApiError

__all__ = ["ResponseStore", "StoredResponse", "size_of"]

MAX_STORED = 256
MAX_BYTES = 256 << 20
"""The most of all stored responses with their inputs and histories, each counted on its own."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that has ended or is running in the background."""

    document: dict[str, Any]
    messages: list[Message]
    """The conversation including this response; empty while it runs."""
    input: list[dict[str, Any]]
    """The request's items, each with an id."""
    owner: str = ""
    """Digest of the API key that sent the request; empty without keys."""

    @property
    def n_bytes(self) -> int:
        return size_of(self.document) + size_of(self.messages) + size_of(self.input)

    @property
    def items(self) -> list[dict[str, Any]]:
        """The items of its input and its output."""
        return [*self.input, *self.document.get("output", [])]


class ResponseStore:
    """The stored and the running responses of one server."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._items: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        """(owner, item id) -> the item in each response that contains it, newest last: clients send items back, so
        several responses contain an item."""
        self._n_bytes = 0
        self._running: WeakValueDictionary[str, Exchange] = WeakValueDictionary()
        self._lock = threading.Lock()

    def put(self, stored: StoredResponse) -> None:
        with self._lock:
            self._set(stored)
            while self._stored and (len(self._stored) > MAX_STORED or self._n_bytes > MAX_BYTES):
                self._remove(next(iter(self._stored)))

    def update(self, stored: StoredResponse) -> None:
        """Replaces a stored response; no effect if it has been deleted."""
        with self._lock:
            if stored.document["id"] in self._stored:
                self._set(stored)

    def _set(self, stored: StoredResponse) -> None:
        response_id, n_bytes = stored.document["id"], stored.n_bytes
        if response_id in self._stored:
            self._forget_items(self._stored[response_id])
        self._n_bytes += n_bytes - self._sizes.get(response_id, 0)
        self._stored[response_id], self._sizes[response_id] = stored, n_bytes
        for item in stored.items:
            self._items.setdefault((stored.owner, item["id"]), {})[response_id] = item

    def _remove(self, response_id: str) -> None:
        self._forget_items(self._stored.pop(response_id))
        self._n_bytes -= self._sizes.pop(response_id)

    def _forget_items(self, stored: StoredResponse) -> None:
        for item in stored.items:
            key = (stored.owner, item["id"])
            versions = self._items.get(key, {})
            versions.pop(stored.document["id"], None)
            if not versions:
                self._items.pop(key, None)

    def find(self, response_id: str, owner: str) -> StoredResponse | None:
        """A stored response; None if it does not exist or belongs to another key."""
        with self._lock:
            stored = self._stored.get(response_id)
        return stored if stored is not None and stored.owner == owner else None

    def get(self, response_id: str, owner: str) -> StoredResponse:
        """A stored response.

        Raises:
            ApiError: the id is unknown.
        """
        if (stored := self.find(response_id, owner)) is None:
            raise _unknown(response_id)
        return stored

    def find_item(self, item_id: str, owner: str) -> dict[str, Any] | None:
        """An item, from the newest stored response that contains it; None if no response of this owner has it."""
        with self._lock:
            versions = self._items.get((owner, item_id))
            return next(reversed(versions.values())) if versions else None

    def history(self, response_id: str, owner: str) -> list[Message]:
        """The conversation to continue.

        Raises:
            ApiError: the id is unknown, or the response has not ended.
        """
        if (stored := self.find(response_id, owner)) is None:
            raise ApiError(
                "invalid",
                f"Previous response with id {response_id!r} not found.",
                "previous_response_id",
                "previous_response_not_found",
            )
        if not stored.messages:
            raise ApiError(
                "invalid", f"Response with id {response_id!r} has no answer to continue from.", "previous_response_id"
            )
        return stored.messages

    def delete(self, response_id: str, owner: str) -> None:
        """Deletes a response.

        Raises:
            ApiError: the id is unknown.
        """
        self.get(response_id, owner)
        with self._lock:
            if response_id in self._stored:
                self._remove(response_id)

    def started(self, response_id: str, exchange: Exchange, owner: str) -> None:
        """Registers a running response, so it can be cancelled until it ends."""
        exchange.owner = owner
        self._running[response_id] = exchange

    def cancel(self, response_id: str, owner: str) -> None:
        """Cancels a running response; no effect if it has ended.

        Raises:
            ApiError: the id is unknown.
        """
        exchange = self._running.get(response_id)
        if exchange is not None and exchange.owner == owner:
            exchange.cancel()
        elif self.find(response_id, owner) is None:
            raise _unknown(response_id)


def size_of(value: object) -> int:
    """Estimated size: the characters of a JSON value, plus 64 bytes per object, list and member, and the bytes of its
    images."""
    total, queue = 0, [value]
    while queue:
        item = queue.pop()
        total += 64
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, dict):
            queue.extend(item.keys())
            queue.extend(item.values())
        elif isinstance(item, list):
            queue.extend(item)
        elif isinstance(item, ImageSource):
            total += len(item.data)
    return total


def _unknown(response_id: str) -> ApiError:
    return ApiError("not_found", f"Response with id {response_id!r} not found.", "response_id")
