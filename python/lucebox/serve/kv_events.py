"""Publishes which prefixes each model's cache holds, for routers that send a prompt to the replica that has its prefix.
ZeroMQ messages in vLLM's format: (topic, sequence number, batch of events in msgpack).

Needs `pip install 'lucebox[router]'`. Subscribers see the tokens of all prompts.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import threading
import time
from collections import Counter
from queue import SimpleQueue
from typing import Any

import numpy as np

from lucebox.errors import InvalidRequestError, UnsupportedError
from lucebox.generation.prefix_cache import CacheListener, Node
from lucebox.generation.prefix_cache.plan import PAGE

__all__ = ["KvEvents"]

log = logging.getLogger("lucebox.serve")

HIGH_WATER = 100_000  # messages that wait for a slow subscriber before it loses some
HASH_BYTES = 8
LINGER_MS = 500  # for the last messages when the server stops


class KvEvents:
    """The publisher of one server, with a thread that owns the socket."""

    def __init__(self, endpoint: str, topic: str) -> None:
        """endpoint: as in vLLM, an address with * is bound, another one connected. topic: {model} is the model's name.

        Raises:
            UnsupportedError: a library is missing.
            InvalidRequestError: the endpoint cannot be used.
        """
        try:
            import msgpack
            import zmq
        except ModuleNotFoundError as error:
            raise UnsupportedError(f"{error.name} is not installed; run: pip install 'lucebox[router]'") from error
        self._pack = msgpack.packb
        self._topic = topic
        self._numbers: dict[bytes, itertools.count[int]] = {}
        self._queue: SimpleQueue[tuple[bytes, bytes] | None] = SimpleQueue()
        context: Any = zmq.Context.instance()
        self._socket = context.socket(zmq.PUB)
        self._socket.set_hwm(HIGH_WATER)
        self._socket.linger = LINGER_MS
        try:
            if "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://")):
                self._socket.bind(endpoint)
            else:
                self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._socket.close(0)
            raise InvalidRequestError(f"--kv-events {endpoint}: {error}; an endpoint is tcp://*:5557") from error
        self._thread = threading.Thread(target=self._send, name="lucebox-kv-events", daemon=True)
        self._thread.start()

    def listener(self, model: str, *, on_device: bool) -> CacheListener:
        """The listener of a model's prefix cache."""
        return _Listener(self, self._topic.replace("{model}", model).encode(), "GPU" if on_device else "CPU")

    def publish(self, topic: bytes, event: dict[str, Any]) -> None:
        """Queues an event. The array around the events and the map of each are vLLM's since 0.24."""
        self._queue.put((topic, self._pack([time.time(), [event], None])))

    def close(self) -> None:
        """Sends what is queued, and closes the socket."""
        self._queue.put(None)
        self._thread.join()

    def _send(self) -> None:
        while (message := self._queue.get()) is not None:
            topic, payload = message
            number = next(self._numbers.setdefault(topic, itertools.count()))
            self._socket.send_multipart((topic, number.to_bytes(8, "big"), payload))
        self._socket.close()


class _Listener(CacheListener):
    """Names each page by a hash of all tokens up to its end. Nodes of several owners, or with other append ends, may
    hold the same page: it is announced once, and removed with the last of them."""

    def __init__(self, events: KvEvents, topic: bytes, medium: str) -> None:
        self._events = events
        self._topic = topic
        self._medium = medium
        self._hashes: dict[Node, list[int]] = {}
        self._holders: Counter[int] = Counter()

    def stored(self, node: Node) -> None:
        before = self._hashes.get(node.parent) if node.parent is not None else None
        parent = before[-1] if before else None
        hashes = self._hashes[node] = _page_hashes(parent, node.segment.ids)
        self._holders.update(hashes)
        n_known = sum(self._holders[one] > 1 for one in hashes)  # the first ones: a page implies those before it
        if n_known == len(hashes):
            return
        tokens = np.frombuffer(node.segment.ids, np.int32)[n_known * PAGE :].tolist()
        self._events.publish(
            self._topic,
            {
                "type": "BlockStored",
                "block_hashes": hashes[n_known:],
                "parent_block_hash": hashes[n_known - 1] if n_known else parent,
                "token_ids": tokens,
                "block_size": PAGE,
                "lora_id": None,
                "medium": self._medium,
                "lora_name": None,
            },
        )

    def removed(self, node: Node) -> None:
        gone = []
        for one in self._hashes.pop(node, ()):
            self._holders[one] -= 1
            if not self._holders[one]:
                del self._holders[one]
                gone.append(one)
        if gone:
            self._events.publish(self._topic, {"type": "BlockRemoved", "block_hashes": gone, "medium": self._medium})

    def cleared(self) -> None:
        self._hashes.clear()
        self._holders.clear()
        self._events.publish(self._topic, {"type": "AllBlocksCleared"})


def _page_hashes(parent: int | None, ids: bytes) -> list[int]:
    """Hashes of the pages of tokens that follow a page with the hash `parent`."""
    size = 4 * PAGE
    hashes = []
    last = b"" if parent is None else parent.to_bytes(HASH_BYTES, "big")
    for at in range(0, len(ids), size):
        last = hashlib.blake2b(last + ids[at : at + size], digest_size=HASH_BYTES).digest()
        hashes.append(int.from_bytes(last, "big"))
    return hashes
