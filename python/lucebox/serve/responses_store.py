"""The newest responses, in memory: clients fetch, continue, cancel or delete them by id."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from lucebox.serve.delivery import Exchange
from lucebox.serve.errors import ApiError
from lucebox.serve.rendering import Message

__all__ = ["ResponseStore", "StoredResponse"]

MAX_STORED = 256


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that has ended, or that is running in the background."""

    document: dict[str, Any]
    messages: list[Message]
    """The conversation including this response; empty while it runs."""
    input: str | list[dict[str, Any]]
    """The request's input."""


class ResponseStore:
    """The stored and the running responses of one server."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._running: WeakValueDictionary[str, Exchange] = WeakValueDictionary()
        self._lock = threading.Lock()

    def put(self, stored: StoredResponse) -> None:
        with self._lock:
            self._stored[stored.document["id"]] = stored
            while len(self._stored) > MAX_STORED:
                self._stored.popitem(last=False)

    def update(self, stored: StoredResponse) -> None:
        """Replaces a stored response; does nothing if it was deleted meanwhile."""
        with self._lock:
            if stored.document["id"] in self._stored:
                self._stored[stored.document["id"]] = stored

    def find(self, response_id: str) -> StoredResponse | None:
        with self._lock:
            return self._stored.get(response_id)

    def get(self, response_id: str) -> StoredResponse:
        """A stored response.

        Raises:
            ApiError: the id is unknown.
        """
        if (stored := self.find(response_id)) is None:
            raise _unknown(response_id)
        return stored

    def history(self, response_id: str) -> list[Message]:
        """The conversation to continue.

        Raises:
            ApiError: the id is unknown, or the response has not ended.
        """
        stored = self.get(response_id)
        if not stored.messages:
            raise ApiError(
                "invalid", f"Response with id {response_id!r} has no answer to continue from.", "previous_response_id"
            )
        return stored.messages

    def delete(self, response_id: str) -> None:
        """Deletes a response.

        Raises:
            ApiError: the id is unknown.
        """
        with self._lock:
            if self._stored.pop(response_id, None) is None:
                raise _unknown(response_id)

    def started(self, response_id: str, exchange: Exchange) -> None:
        """Registers a running response, which can be cancelled until it ends."""
        self._running[response_id] = exchange

    def cancel(self, response_id: str) -> None:
        """Cancels a running response; does nothing if it has ended.

        Raises:
            ApiError: the id is unknown.
        """
        exchange = self._running.get(response_id)
        if exchange is not None:
            exchange.cancel()
        elif self.find(response_id) is None:
            raise _unknown(response_id)


def _unknown(response_id: str) -> ApiError:
    return ApiError("not_found", f"Response with id {response_id!r} not found.", "response_id")
