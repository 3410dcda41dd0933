"""Responses that can be fetched, gone on from or ended by their id: the newest ones, in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from lucebox.serve.delivery import Exchange
from lucebox.serve.errors import ApiError
from lucebox.serve.rendering import Message

__all__ = ["Kept", "ResponseStore"]

MAX_KEPT = 256


@dataclass(frozen=True, slots=True)
class Kept:
    """A response that has ended, or is made in the background."""

    document: dict[str, Any]
    messages: list[Message]
    """Of the whole conversation with it; empty while it is made."""
    input: str | list[dict[str, Any]]


class ResponseStore:
    """Of one server."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._running: WeakValueDictionary[str, Exchange] = WeakValueDictionary()
        self._lock = threading.Lock()

    def put(self, kept: Kept) -> None:
        with self._lock:
            self._kept[kept.document["id"]] = kept
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)

    def update(self, kept: Kept) -> None:
        """Another state of a response; nothing where it was deleted meanwhile."""
        with self._lock:
            if kept.document["id"] in self._kept:
                self._kept[kept.document["id"]] = kept

    def find(self, response_id: str) -> Kept | None:
        with self._lock:
            return self._kept.get(response_id)

    def get(self, response_id: str) -> Kept:
        """A kept response.

        Raises:
            ApiError: there is none of this id.
        """
        if (kept := self.find(response_id)) is None:
            raise _unknown(response_id)
        return kept

    def history(self, response_id: str) -> list[Message]:
        """The messages to go on from.

        Raises:
            ApiError: there is none of this id, or it has no end yet.
        """
        kept = self.get(response_id)
        if not kept.messages:
            raise ApiError(
                "invalid", f"Response with id {response_id!r} has no answer to go on from.", "previous_response_id"
            )
        return kept.messages

    def delete(self, response_id: str) -> None:
        """Forgets a response.

        Raises:
            ApiError: there is none of this id.
        """
        with self._lock:
            if self._kept.pop(response_id, None) is None:
                raise _unknown(response_id)

    def started(self, response_id: str, exchange: Exchange) -> None:
        """From now until it ends it can be cancelled."""
        self._running[response_id] = exchange

    def cancel(self, response_id: str) -> None:
        """Ends a response that is being made.

        Raises:
            ApiError: there is none of this id, running or kept.
        """
        exchange = self._running.get(response_id)
        if exchange is not None:
            exchange.cancel()
        elif self.find(response_id) is None:
            raise _unknown(response_id)


def _unknown(response_id: str) -> ApiError:
    return ApiError("not_found", f"Response with id {response_id!r} not found.", "response_id")
