"""Requests on sessions of an `LLM`: prefill in the appends of a fresh computation, then a token at a time, parsed to
chunks and the result. The server's counterpart is serve/work.py."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lucebox import _engine
from lucebox.errors import CancelledError
from lucebox.generation import NO_IDS, DecodeLoop, End, Ids
from lucebox.results import Chunk, Generation, Timings, TokenLogprob, ToolCall, Usage
from lucebox.serve.answer import Answer
from lucebox.serve.events import Event, ReasoningDelta, TextDelta
from lucebox.serve.parsed_text import ParsedText
from lucebox.serve.prefix_cache import append_ends, turn_ends
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
    """Made ready for that choice."""


class Answering:
    """The answer to one request. `stream` runs it, or `answer_together` runs several."""

    def __init__(self, llm: LLM, request: GenerationRequest, progress: PromptProgress | None = None) -> None:
        self._llm = llm
        self._request = request
        self._progress = progress
        self._stop = _stop.get()
        self._items: list[Event | TokenLogprob] = []  # of the step in progress
        self._answer = Answer()
        self._output = ParsedText(request.parser, request.sampling.stop, self._items.append)
        self._boundaries = turn_ends(request.ids, llm.end_ids)

    def stream(self) -> Iterator[Chunk]:
        """The chunks of the answer; the last one carries the result."""
        self._llm.check_usable()
        pool = self._llm.pool
        with pool.session(self.nearest) as session:
            for item in self.run(session):
                if isinstance(item, NextRows):
                    pool.passes.join(session, item.ids)
                else:
                    yield item

    def nearest(self, free: list[_engine.Session]) -> _engine.Session:
        """The session with the longest prefix that can be reused, among equals the one used last."""
        ids, chunk = self._request.ids, free[0].prefill_chunk
        ends = append_ends(len(ids), self._boundaries, chunk)
        return max(enumerate(free), key=lambda one: (one[1].held(ids, ends), one[0]))[1]

    def run(self, session: _engine.Session) -> Generator[NextRows | Chunk, None, None]:
        """The chunks, and the rows before each: the caller computes them or leaves them to the next step."""
        request, turn = self._request, self._llm.pool.turn
        start = time.perf_counter()
        prefill = self._llm.pool.cache.prefill(session, request.ids, self._boundaries)
        n_done = cached = -1
        while n_done < len(request.ids):
            self._check()
            with turn:
                n_done = next(prefill)
            cached = n_done if cached < 0 else cached
            if self._progress is not None:
                self._progress(n_done, len(request.ids))
        with turn:
            session.expect(NO_IDS if request.prediction is None else request.prediction)
        loop = DecodeLoop(
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
                if (rows := loop.next_ids(session)) is not None:
                    yield NextRows(rows, loop.next_sampler)
                with turn:
                    end = loop.step(session)
                spent = time.perf_counter() - start
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


def answer_together(llm: LLM, answerings: Sequence[Answering]) -> list[Generation]:
    """The answers, as many at a time as there are sessions: a pass over the weights computes the next rows of all."""
    llm.check_usable()
    pool, waiting = llm.pool, deque(answerings)
    results: dict[Answering, Generation] = {}
    running: dict[Answering, tuple[_engine.Session, Generator[NextRows | Chunk, None, None]]] = {}
    try:
        while waiting or running:
            while waiting and (session := pool.take(waiting[0].nearest)) is not None:
                answering = waiting.popleft()
                running[answering] = (session, answering.run(session))
            if not running:
                pool.wait()
            rows: dict[_engine.Session, NextRows] = {}
            for answering, (session, items) in list(running.items()):
                for item in items:
                    if isinstance(item, NextRows):
                        rows[session] = item
                        break
                    if item.result is not None:
                        results[answering] = item.result
                else:
                    del running[answering]
                    pool.give_back(session)
            if len(rows) > 1:
                pool.passes.compute({session: row.ids for session, row in rows.items()})
                with pool.turn:
                    _engine.start_samples(list(rows), [row.sampler() for row in rows.values()])
    finally:
        for session, items in running.values():
            items.close()
            pool.give_back(session)
    return [results[answering] for answering in answerings]
