"""`PrefixCache`: restores the longest cached prefix of a prompt into a session, and stores what sessions compute.

Answers are bit-identical to those without the cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from lucebox import _engine
from lucebox.errors import LuceboxError, OutOfMemoryError
from lucebox.generation.prefix_cache.listener import CacheListener
from lucebox.generation.prefix_cache.plan import PAGE, Ids, Plan, chunks_together, min_append, state_bytes
from lucebox.generation.prefix_cache.store import PartStore
from lucebox.generation.prefix_cache.tree import Node

__all__ = ["PrefixCache", "Stats"]

DISK_BYTES = 16 << 30


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters since the creation of a prefix cache, and its current size."""

    lookups: int
    hits: int
    prompt_tokens: int
    """Tokens of all prompts that were looked up."""
    reused_tokens: int
    segments: int
    memory_bytes: int
    memory_budget_bytes: int
    disk_bytes: int
    """Bytes of all models in the folder."""
    evicted: int
    """Parts evicted from memory."""
    damaged: int
    """Files that could not be read when they were needed."""


class PrefixCache:
    """KV pages and states of prompts, for the sessions of one engine.

    `folder` keeps them across restarts, up to `disk_bytes` for all models in the folder. `fingerprint` identifies the
    model and its options; the function of that name makes it. One thread at a time calls `restore`, `store` and
    `prefill`; any thread may call `stats`.

    In all methods `ids` is a complete prompt. `boundaries` are positions where prompts may diverge or continue, such as
    the ends of the system prompt and of each turn. Prompts with a common prefix must have the same boundaries in it.
    A prefix is restored only for the `owner` that it was stored for, one of `owners`.
    """

    def __init__(
        self,
        budget_bytes: int,
        folder: str | os.PathLike[str] | None = None,
        fingerprint: str = "",
        disk_bytes: int = DISK_BYTES,
        owners: Sequence[str] = ("",),
        engine: _engine.Engine | None = None,
        listener: CacheListener | None = None,
    ) -> None:
        """engine: set if prefixes keep their pages in its KV cache, as on a GPU. Their bytes are copied to main memory
        when the pages are needed elsewhere, or to write a file. listener: learns what the cache holds."""
        self._parts = PartStore(
            budget_bytes, None if folder is None else Path(folder), fingerprint, disk_bytes, owners, engine, listener
        )
        self.free_pages: Callable[[], bool] | None = None
        """Frees KV pages so that a prefix can be restored; False: none can be freed. None: `drop_pages`."""
        self._lookups = self._hits = self._prompt_tokens = self._reused_tokens = 0

    def close(self) -> None:
        """Writes pending parts to the folder."""
        self._parts.close()

    def prefill(
        self,
        session: _engine.Session,
        ids: ArrayLike,
        boundaries: Iterable[int] = (),
        owner: str = "",
        between_layers: Callable[[], None] | None = None,
    ) -> Iterator[int]:
        """Restores a prefix, then computes and stores the rest of the prompt.

        Yields the number of tokens done: first the reused ones, then after every sync, which is one append unless the
        devices compute several at the same time. At the end the session holds
        the logits of the last token. between_layers: as in `Session.sync`.
        """
        boundaries = tuple(boundaries)
        done = self.restore(session, ids, boundaries, owner)
        yield done
        with self._parts.changed:
            plan, _ = self._plan(session, ids, boundaries, owner)
        for end in plan.sync_ends(done, chunks_together(session), keeps_states=state_bytes(session) > 0):
            self._sync(session, plan, end, between_layers)
            self.store(session, plan.ids, boundaries, owner)
            yield end

    def restore(self, session: _engine.Session, ids: ArrayLike, boundaries: Iterable[int] = (), owner: str = "") -> int:
        """Sets the session to the longest cached proper prefix of ids; returns its length.

        For bit-identical results, the caller computes the rest in appends that end at `append_ends`.
        """
        boundaries = tuple(boundaries)
        with self._parts.changed:
            reused = self._restore(session, ids, boundaries, owner)
        self._lookups += 1
        self._hits += reused > 0
        self._prompt_tokens += len(np.asarray(ids))
        self._reused_tokens += reused
        return reused

    def store(self, session: _engine.Session, ids: ArrayLike, boundaries: Iterable[int] = (), owner: str = "") -> None:
        """Stores the session's prefix of ids, as far as its appends match the appends of a cold run.

        Called after every append, because the session holds the state of its last position only.
        """
        with self._parts.changed:
            plan, _ = self._plan(session, ids, boundaries, owner)
            self._store(session, plan)
            self._parts.evict()

    def forget(self, session: _engine.Session, ids: ArrayLike, boundaries: Iterable[int] = (), owner: str = "") -> None:
        """Drops all prefixes of ids after one of them led to an error: a file may be damaged despite a valid
        checksum."""
        with self._parts.changed:
            _, path = self._plan(session, ids, boundaries, owner)
            parts = [node.pages for node in path[:1] if node.pages is not None]
            self._parts.drop_damaged(parts, "a prompt that reused it failed")

    def drop_pages(self) -> bool:
        """Frees the least recently used KV pages and moves their bytes to main memory. False: no unshared pages are
        left."""
        with self._parts.changed:
            return self._parts.drop_run()

    def stats(self) -> Stats:
        parts = self._parts
        return Stats(
            lookups=self._lookups,
            hits=self._hits,
            prompt_tokens=self._prompt_tokens,
            reused_tokens=self._reused_tokens,
            segments=parts.n_nodes,
            memory_bytes=parts.memory.n_bytes,
            memory_budget_bytes=parts.memory.budget_bytes,
            disk_bytes=parts.disk.n_bytes,
            evicted=parts.n_evicted,
            damaged=parts.n_damaged,
        )

    def _sync(self, session: _engine.Session, plan: Plan, end: int, between_layers: Callable[[], None] | None) -> None:
        """Computes the prompt up to an append end. A sync of several appends takes their window pages one append at a
        time, so the KV cache may become full in the middle. The rest then follows in single appends."""
        stop = end
        while session.n_tokens < end:
            try:
                session.sync(plan.ids[:stop], between_layers=between_layers)
            except OutOfMemoryError:
                if not self._free_pages():
                    raise
            stop = next((one for one in plan.ends if one > session.n_tokens), end)

    def _free_pages(self) -> bool:
        return (self.free_pages or self.drop_pages)()

    def _plan(
        self, session: _engine.Session, ids: ArrayLike, boundaries: Iterable[int], owner: str
    ) -> tuple[Plan, list[Node]]:
        """The plan of a prompt, and the nodes of its longest cached proper prefix. Where rows are invariant, the plan
        adopts the append ends of these nodes; else only nodes with the prompt's own ends are reused."""
        chunk, whole = session.prefill_chunk, session.images_are_whole
        plan = Plan(ids, boundaries, chunk, owner, images_are_whole=whole)
        if session.rows_are_invariant:
            path = self._parts.follow(owner, plan.ids[:-1], session)
            known = tuple(end for node in path for end in node.segment.ends)
            node = path[-1] if path else self._parts.root(owner)
            shared = max((_n_equal(plan.ids[node.end :], child) for child in node.children.values()), default=0)
            parting = node.end if node.children else None
            if min_append(chunk) <= shared < len(plan.ids) - node.end:
                parting = node.end + shared // PAGE * PAGE
            return Plan(plan.ids, boundaries, chunk, owner, known=known, parting=parting, images_are_whole=whole), path
        segments = list(plan.segments(len(plan.ids) - 1))
        path = self._parts.walk(owner, segments)
        if path and path[-1].children and len(path) < len(segments):
            plan = Plan(plan.ids, boundaries, chunk, owner, parting=path[-1].end, images_are_whole=whole)
        return plan, path

    def _restore(self, session: _engine.Session, ids: ArrayLike, boundaries: Iterable[int], owner: str) -> int:
        while True:
            plan, path = self._plan(session, ids, boundaries, owner)
            # The last append is always computed, for its logits.
            if session.rows_are_invariant:
                matched = session.matched_prefix(plan.ids[:-1], ())
            else:
                matched = session.matched_prefix(plan.ids, plan.ends[:-1])
            own = matched if matched >= session.own_floor else 0
            node = next((one for one in reversed(path) if one.has_state(session)), None)
            if node is None or node.end <= own:
                break
            try:
                if self._assemble(session, plan, node, matched):
                    return node.end
            except OutOfMemoryError:
                if not self._free_pages():
                    break
        if own == 0:
            session.reset()
        elif own < session.n_tokens:
            try:
                session.assemble(plan.ids[:own], [*plan.ends_to(own - 1), own], -(-own // PAGE))
            except OutOfMemoryError:  # the session was swapped out and does not fit back
                session.reset()
                return 0
        return own

    def _assemble(self, session: _engine.Session, plan: Plan, node: Node, matched: int) -> bool:
        """Sets the session to a node's prefix. The session already holds `matched` tokens of it.

        False if a part could not be read or is not a state of this model; the node is then dropped.

        Raises:
            OutOfMemoryError: the KV cache has too few free pages; the session is unchanged.
        """
        path = node.path()
        missing = [one for one in path if one.end > matched]
        first = missing[0].segment.start if missing else node.end
        pages = [one.pages for one in missing if one.pages is not None]
        parts = [*pages, *node.state_parts]
        data = self._parts.load(parts)
        if data is None:
            return False
        states = {part.kind: one for part, one in zip(node.state_parts, data[len(pages) :], strict=True)}
        ends = plan.ends_to(node.end)
        try:
            session.assemble(
                plan.ids[: node.end],
                ends,
                first // PAGE,
                data[: len(pages)],
                states.get("state"),
                states.get("windows"),
            )
        except OutOfMemoryError:
            raise
        except LuceboxError as error:
            self._parts.drop_damaged(parts, error)
            session.reset()
            return False
        self._parts.touch(path, node.state_parts)
        self._parts.evict()
        return True

    def _store(self, session: _engine.Session, plan: Plan) -> None:
        budget, n_bytes = self._parts.memory.budget_bytes, 0
        if budget == 0:
            return
        page_bytes, n_state_bytes = session.page_bytes, state_bytes(session)
        if self._parts.keeps_runs:  # pages in the KV cache take no main memory
            page_bytes, n_state_bytes = 0, session.recurrent_bytes
        node, path = self._parts.root(plan.owner), list[Node]()
        for segment in plan.segments(session.matched_prefix(plan.ids, plan.ends)):
            n_bytes += segment.n_pages * page_bytes
            if n_bytes > budget:
                break  # a prompt larger than the budget is stored as far as it fits
            known = node.children.get(segment.key)
            if known is None:
                known = self._parts.add(node, segment, session)
            node = known
            path.append(node)
            wants_state = segment.keeps_state and node.end == session.n_tokens and not node.has_state(session)
            if wants_state and n_bytes + n_state_bytes <= budget:
                self._parts.add_state(node, session)
        self._parts.touch(path)


def _n_equal(ids: Ids, node: Node) -> int:
    """How many leading tokens of ids are the tokens of a node's segment."""
    own = np.frombuffer(node.segment.ids, np.int32)[: len(ids)]
    different = np.flatnonzero(own != ids[: len(own)])
    return int(different[0]) if len(different) else len(own)
