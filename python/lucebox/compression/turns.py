"""Remembers the cuts of earlier turns, so later turns render the same prefix and reuse it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from lucebox.results import CutMessage

__all__ = ["EarlierTurns"]

CAPACITY = 256  # conversations


class EarlierTurns:
    """An LRU cache of cut messages, keyed by digests of conversation prefixes. CAPACITY entries.

    A conversation that has grown is found by the digest of its longest known prefix.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[CutMessage, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, messages: Sequence[Mapping[str, Any]], settings: str) -> tuple[int, tuple[CutMessage, ...]]:
        """(length of the longest known prefix in messages, its cut messages); (0, ()) if no prefix is known.

        settings: the other inputs of the result: scorer, ratio, sender of the request.
        """
        digests = _digests(messages, settings)
        with self._lock:
            for n_messages in range(len(messages), 0, -1):
                cut = self._known.get(digests[n_messages - 1])
                if cut is not None:
                    self._known.move_to_end(digests[n_messages - 1])
                    return n_messages, cut
        return 0, ()

    def put(self, messages: Sequence[Mapping[str, Any]], settings: str, cut: tuple[CutMessage, ...]) -> None:
        key = _digests(messages, settings)[-1]
        with self._lock:
            self._known[key] = cut
            self._known.move_to_end(key)
            if len(self._known) > CAPACITY:
                self._known.popitem(last=False)


def _digests(messages: Sequence[Mapping[str, Any]], settings: str) -> list[str]:
    """For each message, the digest of the conversation up to it."""
    state = hashlib.sha256(settings.encode())
    digests = []
    for message in messages:
        state.update(json.dumps(message, sort_keys=True).encode() + b"\n")
        digests.append(state.hexdigest())
    return digests
