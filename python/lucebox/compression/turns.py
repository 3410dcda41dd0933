"""Remembers how the messages of earlier turns were cut, so that later turns render the same prefix and reuse it."""

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
    """The cut messages of conversations, by digests of their messages. The oldest of 256 is forgotten.

    A conversation is found again where it has grown: by the digest of its longest prefix that was cut.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[CutMessage, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, messages: Sequence[Mapping[str, Any]], settings: str) -> tuple[int, tuple[CutMessage, ...]]:
        """The messages that a cut prefix covers, and its cut messages; 0 and none where no prefix is known.

        settings: what else decides the result: the scorer, the ratio, the sender of the request.
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
