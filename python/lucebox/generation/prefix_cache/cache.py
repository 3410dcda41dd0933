"""`PrefixCache`: restores the longest cached prefix of a prompt into a session, and stores what sessions compute.

Answers are bit-identical to those without the cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from numpy.typing import ArrayLike

from lucebox import _engine
from lucebox.errors import LuceboxError, OutOfMemoryError
from lucebox.generation.prefix_cache.plan import PAGE, Plan
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
    """KV pages and recurrent states of prompts, for the sessions of one engine.

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
    ) -> None:
        """engine: set if prefixes keep their pages in its KV cache, as on a GPU. Their bytes are copied to main memory
        when the pages are needed elsewhere, or to write a file."""
        self._parts = PartStore(
            budget_bytes, None if folder is None else Path(folder), fingerprint, disk_bytes, owners, engine
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

        Yields the number of tokens done: first the reused ones, then after every append. At the end the session holds
        the logits of the last token. between_layers: as in `Session.sync`.
        """
        boundaries = tuple(boundaries)
        plan = Plan(ids, boundaries, session.prefill_chunk, owner)
        done = self.restore(session, plan.ids, boundaries, owner)
        yield done
        for end in plan.ends:
            if end > done:
                session.sync(plan.ids[:end], between_layers=between_layers)
                self.store(session, plan.ids, boundaries, owner)
                yield end

    def restore(self, session: _engine.Session, ids: ArrayLike, boundaries: Iterable[int] = (), owner: str = "") -> int:
        """Sets the session to the longest cached proper prefix of ids; returns its length.

        For bit-identical results, the caller computes the rest in appends that end at `append_ends`.
        """
        plan = Plan(ids, boundaries, session.prefill_chunk, owner)
        with self._parts.changed:
            reused = self._restore(session, plan)
        self._lookups += 1
        self._hits += reused > 0
        self._prompt_tokens += len(plan.ids)
        self._reused_tokens += reused
        return reused

    def store(self, session: _engine.Session, ids: ArrayLike, boundaries: Iterable[int] = (), owner: str = "") -> None:
        """Stores the session's prefix of ids, as far as its appends match the appends of a cold run.

        Called after every append, because the session holds the recurrent state of its last position only.
        """
        plan = Plan(ids, boundaries, session.prefill_chunk, owner)
        with self._parts.changed:
            self._store(session, plan)
            self._parts.evict()

    def forget(self, session: _engine.Session, ids: ArrayLike, boundaries: Iterable[int] = (), owner: str = "") -> None:
        """Drops all prefixes of ids after one of them led to an error: a file may be damaged despite a valid
        checksum."""
        plan = Plan(ids, boundaries, session.prefill_chunk, owner)
        with self._parts.changed:
            path = self._parts.walk(plan.owner, plan.segments(len(plan.ids)))
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

    def _restore(self, session: _engine.Session, plan: Plan) -> int:
        while True:
            matched = session.matched_prefix(
                plan.ids, plan.ends[:-1]
            )  # the last append is always computed, for its logits
            # A recurrent state exists at the session's end only; KV can be truncated.
            own = matched if matched == session.n_tokens or not session.recurrent_bytes else 0
            node = self._longest(session, plan)
            if node is None or node.end <= own:
                break
            try:
                if self._assemble(session, plan, node, matched):
                    return node.end
            except OutOfMemoryError:
                if not (self.free_pages or self.drop_pages)():
                    break
        if own == 0:
            session.reset()
        elif own < session.n_tokens:
            try:
                session.assemble(plan.ids[:own], plan.ends_to(own), -(-own // PAGE))
            except OutOfMemoryError:  # the session was swapped out and does not fit back
                session.reset()
                return 0
        return own

    def _longest(self, session: _engine.Session, plan: Plan) -> Node | None:
        """The node of the longest cached prefix from which a session can continue."""
        path = self._parts.walk(plan.owner, plan.segments(len(plan.ids) - 1))
        return next((node for node in reversed(path) if node.state or not session.recurrent_bytes), None)

    def _assemble(self, session: _engine.Session, plan: Plan, node: Node, matched: int) -> bool:
        """Sets the session to a node's prefix. The session already holds `matched` tokens of it.

        False if a part could not be read or is not a state of this model; the node is then dropped.

        Raises:
            OutOfMemoryError: the KV cache has too few free pages; the session is unchanged.
        """
        path = node.path()
        missing = [one for one in path if one.end > matched]
        first = missing[0].segment.start if missing else node.end
        states = [node.state] if session.recurrent_bytes else []
        parts = [part for part in [*(one.pages for one in missing), *states] if part is not None]
        data = self._parts.load(parts)
        if data is None:
            return False
        state = data.pop() if states else None
        try:
            session.assemble(plan.ids[: node.end], plan.ends_to(node.end), first // PAGE, data, state)
        except OutOfMemoryError:
            raise
        except LuceboxError as error:
            self._parts.drop_damaged(parts, error)
            session.reset()
            return False
        self._parts.touch(path, node.state)
        self._parts.evict()
        return True

    def _store(self, session: _engine.Session, plan: Plan) -> None:
        budget, n_bytes = self._parts.memory.budget_bytes, 0
        node, path = self._parts.root(plan.owner), list[Node]()
        for segment in plan.segments(session.matched_prefix(plan.ids, plan.ends)):
            n_bytes += segment.n_pages * session.page_bytes
            if n_bytes > budget:
                break  # a prompt larger than the budget is stored as far as it fits
            known = node.children.get(segment.key)
            if known is None:
                known = self._parts.add(node, segment, session)
            node = known
            path.append(node)
            wants_state = session.recurrent_bytes and segment.keeps_state and node.end == session.n_tokens
            if wants_state and node.state is None and n_bytes + session.recurrent_bytes <= budget:
                self._parts.add_state(node, session.read_recurrent())
        self._parts.touch(path)
