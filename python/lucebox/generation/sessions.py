"""The session pool of a model: one session per running sequence, created on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lucebox import _engine
from lucebox.errors import OutOfMemoryError

__all__ = ["SessionPool"]

# One of the free sessions.
Choose = Callable[[list[_engine.Session]], _engine.Session]


class SessionPool:
    """Up to `limit` sessions of one engine. The first one is created immediately.

    Only the driver thread takes sessions and gives them back.
    """

    def __init__(self, engine: _engine.Engine, limit: int) -> None:
        self.free = [_engine.Session(engine)]
        """Free sessions, least recently used first."""
        self.limit = limit
        self._engine: _engine.Engine | None = engine
        self._in_use: dict[_engine.Session, int] = {}  # session -> thread it was taken for
        self._senders: dict[_engine.Session, str] = {}

    @property
    def n_in_use(self) -> int:
        return len(self._in_use)

    @property
    def has_room(self) -> bool:
        """Whether another session may be taken: one is free, or the limit is not reached."""
        return self.n_in_use < self.limit

    @property
    def owners(self) -> set[int]:
        """The threads for which sessions were taken."""
        return set(self._in_use.values())

    @property
    def latest(self) -> _engine.Session:
        """The most recently used free session, else one in use; for inspection only, not to compute with."""
        return self.free[-1] if self.free else next(reversed(self._in_use))

    def all(self) -> list[_engine.Session]:
        return [*self.free, *self._in_use]

    def is_free(self, session: _engine.Session) -> bool:
        return session not in self._in_use

    def make(self, n: int) -> None:
        """Creates sessions until n are free.

        Raises:
            OutOfMemoryError: other programs hold the memory.
        """
        assert self._engine is not None
        while len(self.free) < n:
            self.free.insert(0, _engine.Session(self._engine))

    def resize(self, n: int) -> None:
        """Sets the limit to n and creates the sessions."""
        self.limit = n
        self.make(n - self.n_in_use)

    def take(self, choose: Choose, owner: int | None = None) -> _engine.Session | None:
        """Takes a session chosen from the free ones; None if all are in use.

        owner: the thread that uses the session; None: the current thread."""
        if self.has_room and not self.free:
            try:
                self.make(1)
            except OutOfMemoryError:
                self.limit = self.n_in_use  # other programs took the memory since the model was loaded
        if not self.has_room:
            return None
        session = choose(self.free)
        self.free.remove(session)
        self._in_use[session] = threading.get_ident() if owner is None else owner
        return session

    def give_back(self, session: _engine.Session) -> None:
        del self._in_use[session]
        self.free.append(session)

    def sender_of(self, session: _engine.Session) -> str:
        """The sender of the request that used the session last."""
        return self._senders.get(session, "")

    def set_sender(self, session: _engine.Session, sender: str) -> None:
        """Assigns a session to a sender. Empties it if another sender used it last, so timing reveals nothing about
        that sender."""
        if self.sender_of(session) != sender:
            session.reset()
            self._senders[session] = sender

    def reset_oldest(self) -> bool:
        """Empties the least recently used free session that holds KV pages. False: none does."""
        holder = next((session for session in self.free if session.n_pages), None)
        if holder is not None:
            holder.reset()
        return holder is not None

    def reset(self) -> None:
        """Empties the free sessions."""
        for session in self.free:
            session.reset()

    def close(self) -> None:
        """Drops the free sessions; sessions in use live as long as their holders."""
        self.free.clear()
        self._in_use.clear()
        self._senders.clear()
        self._engine = None
