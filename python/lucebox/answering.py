"""Requests on sessions of an `LLM`: prefill in the appends of a fresh computation, then a token at a time, parsed to
chunks and the result. The server's counterpart is serve/work.py."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from lucebox import _engine
from lucebox.errors import CancelledError
from lucebox.generation import NO_IDS, DecodeLoop, End, Ids
from lucebox.page_room import PageRoom
from lucebox.results import Chunk, Generation, Timings, TokenLogprob, ToolCall, Usage
from lucebox.serve.answer import Answer
from lucebox.serve.events import Event, ReasoningDelta, TextDelta
from lucebox.serve.parsed_text import ParsedText
from lucebox.serve.prefix_cache import append_ends, turn_ends
from lucebox.serve.prefix_cache.plan import PAGE
from lucebox.serve.request import GenerationRequest

if TYPE_CHECKING:
    from lucebox.api import LLM

__all__ = ["Answering", "PromptProgress", "answer_together", "cancellable"]

PromptProgress = Callable[[int, int], None]
"""Called with the tokens of the prompt that are computed, and with all of them."""

_stop: ContextVar[threading.Event | None] = ContextVar("stop", default=None)


@contextmanager
def cancellable(stop: threading.Event) -> Iterator[None]:
    """Generations that begin in this context end with CancelledError once `stop` is set."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


@dataclass(frozen=True, slots=True)
class NextRows:
    """A generation comes to its next token. A pass may compute its rows with others', and start to choose the token."""

    ids: Ids
    """Its timeline then."""
    sampler: Callable[[], _engine.Sampler]
    """Returns the sampler, ready for that choice."""


class Chosen:
    """A generation has chosen its next token, whose text comes next. `Answering.next_rows` may be computed before."""


Item: TypeAlias = NextRows | Chosen | Chunk


class Answering:
    """The answer to one request. `stream` runs it, or `answer_together` runs several."""

    def __init__(self, llm: LLM, request: GenerationRequest, progress: PromptProgress | None = None) -> None:
        self._llm = llm
        self._request = request
        self._progress = progress
        self._stop = _stop.get()
        self._items: list[Event | TokenLogprob] = []  # of the step in progress
        self.is_paused = False
        self._session: _engine.Session | None = None
        self._loop: DecodeLoop | None = None
        self._n_done = 0
        self._answer = Answer()
        self._output = ParsedText(request.parser, request.sampling.stop, self._items.append)
        self._boundaries = turn_ends(request.ids, llm.end_ids)

    def stream(self) -> Iterator[Chunk]:
        """The chunks of the answer; the last one carries the result."""
        self._llm.check_usable()
        pool = self._llm.pool
        with pool.session(self.nearest) as session:
            for item in self.begin(session):
                if isinstance(item, NextRows):
                    pool.passes.join(session, item.ids)
                elif isinstance(item, Chunk):
                    yield item

    def nearest(self, free: list[_engine.Session]) -> _engine.Session:
        """The session with the longest prefix that can be reused, among equals the one used last."""
        ids, chunk = self._request.ids, free[0].prefill_chunk
        ends = append_ends(len(ids), self._boundaries, chunk)
        return max(enumerate(free), key=lambda one: (one[1].matched_prefix(ids, ends), one[0]))[1]

    @property
    def session(self) -> _engine.Session:
        """The session that runs it."""
        assert self._session is not None
        return self._session

    @property
    def prompt(self) -> Ids:
        return self._request.ids

    @property
    def next_length(self) -> int:
        """Tokens of the timeline after the next turn."""
        if self._loop is None:
            return min(self._n_done + self.session.prefill_chunk, len(self._request.ids))
        return min(self._loop.n_prompt + self._loop.n_generated, self.session.context)

    def begin(self, session: _engine.Session, same: Answering | None = None) -> Generator[Item, None, None]:
        """Runs it on a session. same: an answering with the same prompt that is about to choose its first token."""
        self._session = session
        return self._run(session, same)

    def _run(self, session: _engine.Session, same: Answering | None) -> Generator[Item, None, None]:
        """The chunks, the rows before each, which the caller computes or leaves to this one, and the choices."""
        request, pool = self._request, self._llm.pool
        turn = pool.turn
        start = time.perf_counter()
        prefill = pool.cache.prefill(session, request.ids, self._boundaries)
        self._check()
        if same is None:
            with turn:
                self._n_done = next(prefill)
        else:
            with pool.turn_of(same.session, len(request.ids)):  # another thread may have swapped it out
                session.fork(same.session)
            self._n_done = len(request.ids)
        cached = self._n_done
        self._report_progress()
        while self._n_done < len(request.ids):
            self._check()
            with pool.turn_of(session, self.next_length):
                self._n_done = next(prefill)
            self._report_progress()
        with turn:
            session.expect(NO_IDS if request.prediction is None else request.prediction)
        self._loop = loop = DecodeLoop(
            self._llm,
            request.ids,
            request.sampling,
            self._llm.sampler(request.sampling),
            self._output,
            max_tokens=request.sampling.max_tokens or 0,
            skip_special=not request.parser.keeps_special,
            constraint=request.constraint,
            budget=request.budget,
        )
        prefill_s, decode_s = time.perf_counter() - start, 0.0

        end: End | None = None
        while end is None:
            self._check()
            ids: tuple[int, ...] = ()
            if loop.is_full:
                end = loop.cut()
            else:
                start = time.perf_counter()
                if (rows := self.next_rows()) is not None:
                    yield rows
                with pool.turn_of(session, self.next_length):
                    loop.choose(session)
                spent = time.perf_counter() - start
                yield Chosen()
                start = time.perf_counter()
                end = loop.tell()
                spent += time.perf_counter() - start
                if loop.n_generated == 1:
                    prefill_s += spent
                else:
                    decode_s += spent
                ids = (loop.last_id,)
            if end is None:
                yield self._chunk(ids)
        with turn:
            loop.remember(session)

        last = self._chunk(ids)
        answer = self._answer
        result = Generation(
            text=answer.text,
            ids=loop.ids,
            finish_reason="length" if end.reason == "length" else "stop",
            usage=Usage(len(request.ids), loop.n_generated, cached, loop.drafts, request.compression),
            timings=Timings(prefill_s, decode_s, len(request.ids) - cached, max(0, loop.n_generated - 1)),
            logprobs=tuple(answer.logprobs) if request.sampling.logprobs is not None else None,
            stop_string=end.stop_string,
            reasoning=answer.reasoning,
            tool_calls=tuple(ToolCall(call.id, call.name, call.arguments, call.is_broken) for call in answer.calls),
            warnings=tuple(answer.warnings),
        )
        yield Chunk(last.text, ids, last.logprobs, last.reasoning, result)

    def next_rows(self) -> NextRows | None:
        """The rows of the next token. None: it is known, or there is none."""
        assert self._loop is not None
        ids = self._loop.next_ids(self.session) if self._loop.goes_on else None
        return None if ids is None else NextRows(ids, self._loop.next_sampler)

    def _report_progress(self) -> None:
        if self._progress is not None:
            self._progress(self._n_done, len(self._request.ids))

    def _check(self) -> None:
        self._llm.check_usable()
        if self._stop is not None and self._stop.is_set():
            raise CancelledError("the generation was cancelled")

    def _chunk(self, ids: tuple[int, ...]) -> Chunk:
        """The items of the last step as a chunk."""
        for item in self._items:
            self._answer.take(item)
        text = "".join(item.text for item in self._items if isinstance(item, TextDelta))
        reasoning = "".join(item.text for item in self._items if isinstance(item, ReasoningDelta))
        logprobs = tuple(item for item in self._items if isinstance(item, TokenLogprob)) or None
        self._items.clear()
        return Chunk(text, ids, logprobs, reasoning)


class _Together:
    """Several requests at a time, on as many sessions as there are: a pass over the weights computes the next rows of
    all. Where answers have the same prompt, the first one computes it."""

    def __init__(self, llm: LLM, answerings: Sequence[Answering]) -> None:
        self.results: dict[Answering, Generation] = {}
        self._pool = llm.pool
        self._waiting = deque(answerings)
        self._running: list[Answering] = []  # oldest first
        self._items: dict[Answering, Generator[Item, None, None]] = {}  # of those that run
        self._rows: dict[Answering, NextRows] = {}  # that the next pass computes
        self._room = PageRoom(self._pool.engine, self._running, self._pool.free_pages)

    def run(self) -> None:
        try:
            while self._waiting or self._running:
                with self._pool.turn:
                    self._room.resume()
                    due = self._room.with_pages(self._running)
                for answering in due:
                    self._choose(answering)
                if self._pool.on_device:
                    self._send_ahead(due)
                self._rows.clear()
                for answering in due:
                    self._advance(answering)
                while self._start():
                    pass
                if not self._running and self._waiting:
                    self._pool.wait()
                self._compute(self._rows)
        finally:
            for answering in list(self._running):
                self._end(answering)

    def _start(self) -> bool:
        """Starts the first one that waits; False: none waits, or has no session or no pages yet."""
        if not self._waiting or self._room.has_paused:
            return False
        answering = self._waiting[0]
        n = len(answering.prompt)
        same = next(
            (one for one, row in self._rows.items() if len(row.ids) == n and one.prompt is answering.prompt), None
        )
        if same is None and self._running:
            with self._pool.turn:
                if not self._room.make_free(-(-n // PAGE)):
                    return False
        session = self._pool.take(answering.nearest if same is None else lambda free: free[0])
        if session is None:
            return False
        self._waiting.popleft()
        self._running.append(answering)
        self._items[answering] = answering.begin(session, same)
        self._advance(answering)
        return True

    def _choose(self, answering: Answering) -> None:
        """Runs one to its next token."""
        item = next(self._items[answering])
        assert isinstance(item, Chosen), "it has stopped before a choice"

    def _send_ahead(self, chosen: Sequence[Answering]) -> None:
        """Sends the next pass, which a device computes while texts are given out, unless pages are short. The row of an
        answer whose text ends it is computed for nothing."""
        rows = {answering: row for answering in chosen if (row := answering.next_rows()) is not None}
        with self._pool.turn:
            has_pages = all(answering.session.reserve(answering.next_length) for answering in rows)
        if has_pages:
            self._compute(rows)

    def _advance(self, answering: Answering) -> None:
        """Runs one to its next rows, or to its end."""
        for item in self._items[answering]:
            if isinstance(item, NextRows):
                self._rows[answering] = item
                return
            if isinstance(item, Chunk) and item.result is not None:
                self.results[answering] = item.result
        self._end(answering)

    def _end(self, answering: Answering) -> None:
        self._running.remove(answering)
        self._items.pop(answering).close()
        self._pool.give_back(answering.session)

    def _compute(self, rows: Mapping[Answering, NextRows]) -> None:
        if len(rows) < 2:
            return
        self._pool.passes.compute({answering.session: row.ids for answering, row in rows.items()})
        with self._pool.turn:
            sessions = [answering.session for answering in rows]
            _engine.start_samples(sessions, [row.sampler() for row in rows.values()])


def answer_together(llm: LLM, answerings: Sequence[Answering]) -> list[Generation]:
    """The answers, in the order of the requests."""
    llm.check_usable()
    together = _Together(llm, answerings)
    together.run()
    return [together.results[answering] for answering in answerings]
