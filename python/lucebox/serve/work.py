"""One request on one session: prefill in chunks after the reused prefix, then one token per turn, parsed to events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lucebox import _engine
from lucebox.api import LLM
from lucebox.generation import NO_IDS, DecodeLoop, End
from lucebox.results import DraftCounts, Timings, TokenLogprob, Usage
from lucebox.serve.channel import Sink
from lucebox.serve.events import Event, Parser, ReasoningDelta, TextDelta
from lucebox.serve.prefix_cache import PrefixCache
from lucebox.serve.prompt_scores import scored_prefill
from lucebox.serve.request import Finished, GenerationRequest, Ids, Started
from lucebox.text import StopMatcher

__all__ = ["Job", "ParsedText", "Slot", "Work", "turn_ends"]


@dataclass(slots=True, eq=False)
class Job:
    """A queued or running request, and the sink of its items."""

    request: GenerationRequest
    sink: Sink
    deadline: float
    """Time of time.perf_counter() at which the request times out."""
    submitted: float = field(default_factory=time.perf_counter)
    is_cancelled: bool = False


class Slot:
    """A session, and the submission time of its latest job."""

    def __init__(self, session: _engine.Session) -> None:
        self.session = session
        self.used_at = 0.0


class ParsedText:
    """The output of a decode loop: parses the text into events and puts them into a sink."""

    def __init__(self, parser: Parser, stops: Sequence[str], sink: Sink) -> None:
        self._parser = parser
        self._stopper = StopMatcher(stops)
        self._put = sink.put
        self._is_reasoning = False
        self.reasoning_tokens = 0

    def logprob(self, value: TokenLogprob) -> None:
        self._put(value)

    def push(self, text: str) -> str | None:
        stop = self._emit(self._parser.push(text))
        self.reasoning_tokens += self._is_reasoning
        return stop

    def flush(self, text: str) -> str | None:
        stop = self._emit(self._parser.push(text) + self._parser.finish())
        if stop is None and (held := self._stopper.finish()):
            self._put(TextDelta(held))
        return stop

    def _emit(self, events: list[Event]) -> str | None:
        """Puts events; returns the stop string that ends the answer. Reasoning and calls are not searched for one."""
        for event in events:
            self._is_reasoning = isinstance(event, ReasoningDelta)
            if not isinstance(event, TextDelta):
                if held := self._stopper.finish():
                    self._put(TextDelta(held))
                self._put(event)
                continue
            text, stop = self._stopper.push(event.text)
            if text:
                self._put(TextDelta(text))
            if stop is not None:
                return stop
        return None


class Work:
    """A job running on a slot."""

    def __init__(self, llm: LLM, slot: Slot, job: Job, cache: PrefixCache) -> None:
        request = job.request
        self.job = job
        self.slot = slot
        self.spent_s = 0.0
        """Engine time used so far, maintained by the scheduler."""
        self.queue_s = time.perf_counter() - job.submitted
        self.first_token_s: float | None = None
        self.prefill_s = self.decode_s = 0.0
        self.n_prompt = len(request.ids)
        if request.scores_prompt:
            self._prefill = scored_prefill(slot.session, request.ids, request.sampling.logprobs or 0, job.sink)
        else:
            self._prefill = cache.prefill(slot.session, request.ids, turn_ends(request.ids, llm.end_ids))
        self.cached = self._n_done = next(self._prefill)  # the prefix reused from the slot or the cache
        slot.session.expect(NO_IDS if request.prediction is None else request.prediction)
        sampling = request.sampling
        self._output = ParsedText(request.parser, sampling.stop, job.sink)
        self._loop = DecodeLoop(
            llm,
            request.ids,
            sampling,
            llm.sampler(sampling),
            self._output,
            max_tokens=sampling.max_tokens or 0,
            skip_special=not request.parser.keeps_special,
            constraint=request.constraint,
            budget=request.budget,
        )
        slot.used_at = job.submitted
        job.sink.put(Started(self.n_prompt, self.cached))

    @property
    def is_prefilling(self) -> bool:
        return self._n_done < self.n_prompt

    @property
    def n_generated(self) -> int:
        return self._loop.n_generated

    @property
    def drafts(self) -> DraftCounts | None:
        return self._loop.drafts

    def step(self) -> Finished | None:
        """One turn: a chunk of the prompt or a token. The last turn returns the result."""
        start = time.perf_counter()
        if self.is_prefilling:
            self._n_done = next(self._prefill)
            self.prefill_s += time.perf_counter() - start
            return None if self.is_prefilling or not self._loop.is_full else self._finished(End("length"))
        end = self._loop.step(self.slot.session)
        if end is None and self._loop.is_full:
            end = self._loop.cut()
        self.decode_s += time.perf_counter() - start
        if end is None:
            return None
        self._loop.remember(self.slot.session)
        return self._finished(end)

    def _finished(self, end: End) -> Finished:
        return Finished(
            reason=end.reason,
            stop_string=end.stop_string,
            usage=Usage(self.n_prompt, self.n_generated, self.cached, self.drafts),
            reasoning_tokens=self._output.reasoning_tokens,
            timings=Timings(self.prefill_s, self.decode_s, self.n_prompt - self.cached, self.n_generated),
            queue_s=self.queue_s,
        )


def turn_ends(ids: Ids, end_ids: Sequence[int]) -> list[int]:
    """Positions after the end tokens of a prompt, where turns end and other prompts may continue."""
    found: list[int] = (np.flatnonzero(np.isin(ids, end_ids)) + 1).tolist()
    return found
