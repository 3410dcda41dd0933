"""Chooses a replica for each request: the one that stores the response it refers to, the one that computed its prefix,
or the less busy of two. Runs in the ingress.

Ray's own prefix router is not used: it cannot send a request to the replica of a stored response, keeps the texts of
all prompts in one process, and is private.
"""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from lucebox.ray.relayed import Relayed, replica_tag
from lucebox.serve.prefix_table import PrefixTable

__all__ = ["PrefixRouter"]


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # Ray's classes have no types
    def initialize_state(self, slots: int) -> None:
        """slots: as in `PrefixTable.holder`."""
        self._slots = slots
        self._prefixes: PrefixTable[ReplicaID] = PrefixTable()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # if all of these are full
        relayed = _relayed(pending_request)
        others = random.sample(candidate_replicas, min(2, len(candidate_replicas)))
        if relayed is None:
            return [others]
        for one in candidate_replicas if relayed.tag is not None else ():
            if relayed.tag == replica_tag(one.replica_id.deployment_id.name, one.replica_id.unique_id):
                return [[one]]
        known = {one.replica_id: one for one in candidate_replicas}
        holder = self._prefixes.holder(relayed.digests, {one: self._queue(one) for one in known}, self._slots)
        return [others] if holder is None else [[known[holder]], others]

    def _queue(self, replica: ReplicaID) -> int:
        """Requests at a replica, as far as this router knows."""
        return self.replica_queue_len_cache.get(replica) or 0

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        if (relayed := _relayed(pending_request)) is not None:
            self._prefixes.add(relayed.digests, replica_id)


def _relayed(pending: PendingRequest) -> Relayed | None:
    first = pending.args[0] if pending.args else None
    return first if isinstance(first, Relayed) else None
