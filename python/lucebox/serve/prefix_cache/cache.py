"""`PrefixCache`: what prompts have in common is computed once. It brings sessions to the longest prefix there is,
and keeps what they compute; answers have the bits of a run without it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from numpy.typing import ArrayLike

from lucebox import _engine
from lucebox.serve.prefix_cache.library import Library
from lucebox.serve.prefix_cache.plan import PAGE, Plan
from lucebox.serve.prefix_cache.tree import Node

__all__ = ["PrefixCache", "Stats"]

DISK_BYTES = 16 << 30


@dataclass(frozen=True, slots=True)
class Stats:
    """What a prefix cache has done since it was made, and holds now."""

    lookups: int
    hits: int
    prompt_tokens: int
    """Of all prompts that were looked up."""
    reused_tokens: int
    segments: int
    memory_bytes: int
    memory_budget_bytes: int
    disk_bytes: int
    """Of all models in the folder."""
    evicted: int
    """Parts that left memory for want of room."""
    damaged: int
    """Files that could not be used when they were needed."""


class PrefixCache:
    """KV pages and recurrent states of prompts, for the sessions of one engine.

    `folder` keeps them over a restart, in up to disk_bytes for all models there; `fingerprint()` makes the text that
    says what they belong to. One thread calls `restore`, `store` and `prefill`; `stats` may be called by any.

    `ids` is a whole prompt everywhere, and `boundaries` are positions in it at which prompts may part or go on, such as
    the ends of the system prompt and of each turn: the same in all prompts that begin like this one.
    """

    def __init__(
        self,
        budget_bytes: int,
        folder: str | os.PathLike[str] | None = None,
        fingerprint: str = "",
        disk_bytes: int = DISK_BYTES,
    ) -> None:
        self._library = Library(budget_bytes, None if folder is None else Path(folder), fingerprint, disk_bytes)
        self._lookups = self._hits = self._prompt_tokens = self._reused_tokens = 0

    def close(self) -> None:
        """Writes to the folder what is not there yet."""
        self._library.close()

    def prefill(self, session: _engine.Session, ids: ArrayLike, boundaries: Iterable[int] = ()) -> Iterator[int]:
        """Restores a prefix, then computes and keeps the rest; yields the tokens done, first those that were reused,
        then after every append. At the end the session has the logits of the last token."""
        boundaries = tuple(boundaries)
        plan = Plan(ids, boundaries, session.prefill_chunk)
        done = self.restore(session, plan.ids, boundaries)
        yield done
        for end in plan.ends:
            if end > done:
                session.sync(plan.ids[:end])
                self.store(session, plan.ids, boundaries)
                yield end

    def restore(self, session: _engine.Session, ids: ArrayLike, boundaries: Iterable[int] = ()) -> int:
        """Makes the session hold the longest prefix of ids that is kept, never all of ids, and nothing else; returns
        its length. To go on as a cold run would, the rest is computed in appends that end at `append_ends`."""
        plan = Plan(ids, boundaries, session.prefill_chunk)
        with self._library.changed:
            reused = self._restore(session, plan)
        self._lookups += 1
        self._hits += reused > 0
        self._prompt_tokens += len(plan.ids)
        self._reused_tokens += reused
        return reused

    def store(self, session: _engine.Session, ids: ArrayLike, boundaries: Iterable[int] = ()) -> None:
        """Keeps what the session has computed of ids in the appends of a cold run. Called after every append: the
        recurrent state is there only then."""
        plan = Plan(ids, boundaries, session.prefill_chunk)
        with self._library.changed:
            self._store(session, plan)
            self._library.evict()

    def stats(self) -> Stats:
        library = self._library
        return Stats(
            lookups=self._lookups,
            hits=self._hits,
            prompt_tokens=self._prompt_tokens,
            reused_tokens=self._reused_tokens,
            segments=library.n_nodes,
            memory_bytes=library.memory.n_bytes,
            memory_budget_bytes=library.memory.budget_bytes,
            disk_bytes=library.disk.n_bytes,
            evicted=library.n_evicted,
            damaged=library.n_damaged,
        )

    def _restore(self, session: _engine.Session, plan: Plan) -> int:
        held = session.held(plan.ids, plan.ends[:-1])  # the last append is computed in any case, for its logits
        own = held if held == session.n_tokens or not session.recurrent_bytes else 0  # it can go on from there itself
        while (node := self._longest(session, plan)) is not None and node.end > own:
            if self._assemble(session, plan, node, held):
                return node.end
        if own == 0:
            session.reset()
        elif own < session.n_tokens:
            session.assemble(plan.ids[:own], plan.ends_to(own), -(-own // PAGE))
        return own

    def _longest(self, session: _engine.Session, plan: Plan) -> Node | None:
        path = self._library.walk(plan.segments(len(plan.ids) - 1))
        return next((node for node in reversed(path) if node.state or not session.recurrent_bytes), None)

    def _assemble(self, session: _engine.Session, plan: Plan, node: Node, held: int) -> bool:
        """Brings the session to a node, of which it holds so many tokens; False: a part is lost, and the node gone."""
        path = node.path()
        missing = [one for one in path if one.end > held]
        first = missing[0].segment.start if missing else node.end
        states = [node.state] if session.recurrent_bytes else []
        data = self._library.load([part for part in [*(one.pages for one in missing), *states] if part is not None])
        if data is None:
            return False
        state = data.pop() if states else None
        session.assemble(plan.ids[: node.end], plan.ends_to(node.end), first // PAGE, data, state)
        self._library.touch(path, node.state)
        self._library.evict()
        return True

    def _store(self, session: _engine.Session, plan: Plan) -> None:
        budget, n_bytes = self._library.memory.budget_bytes, 0
        node, path = self._library.root, list[Node]()
        for segment in plan.segments(session.held(plan.ids, plan.ends)):
            n_bytes += segment.n_pages * session.page_bytes
            if n_bytes > budget:
                break  # a prompt that does not fit is kept as far as it does
            known = node.children.get(segment.key)
            if known is None:
                pages = session.read_pages(segment.start // PAGE, segment.n_pages)
                known = self._library.add(node, segment, pages)
            node = known
            path.append(node)
            wants_state = session.recurrent_bytes and segment.keeps_state and node.end == session.n_tokens
            if wants_state and node.state is None and n_bytes + session.recurrent_bytes <= budget:
                self._library.add_state(node, session.read_recurrent())
        self._library.touch(path)
