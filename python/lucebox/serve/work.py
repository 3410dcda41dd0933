"""One request on one session: what is known of its prompt, the rest in chunks, then a token at a time, its text parsed
as it comes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lucebox import _engine
from lucebox.api import LLM
from lucebox.results import Timings, TokenLogprob, Usage
from lucebox.serve.channel import Sink
from lucebox.serve.events import Event, ReasoningDelta, TextDelta
from lucebox.serve.prefix_cache import PrefixCache
from lucebox.serve.prompt_scores import scored_prefill
from lucebox.serve.request import Finished, GenerationRequest, Ids, Started, StopReason
from lucebox.text import StopMatcher, StreamDecoder

__all__ = ["Job", "Slot", "Work", "turn_ends"]


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way, and where its items go."""

    request: GenerationRequest
    sink: Sink
    deadline: float
    """Of time.perf_counter()."""
    submitted: float = field(default_factory=time.perf_counter)
    is_cancelled: bool = False


class Slot:
    """A session, and when it was last given to a job."""

    def __init__(self, session: _engine.Session) -> None:
        self.session = session
        self.used_at = 0.0


class Work:
    """A job on a slot, between its turns."""

    def __init__(self, llm: LLM, slot: Slot, job: Job, cache: PrefixCache) -> None:
        request = job.request
        self.job = job
        self.slot = slot
        self.spent_s = 0.0
        """The engine's time so far, as the scheduler counts it."""
        self.queue_s = time.perf_counter() - job.submitted
        self.first_token_s: float | None = None
        self.prefill_s = self.decode_s = 0.0
        self.n_prompt = len(request.ids)
        self.n_generated = 0
        if request.scores_prompt:
            self._prefill = scored_prefill(slot.session, request.ids, request.sampling.logprobs or 0, job.sink)
        else:
            self._prefill = cache.prefill(slot.session, request.ids, turn_ends(request.ids, llm.end_ids))
        self.cached = self._n_done = next(self._prefill)  # from the slot or the cache
        self._ids: Ids = np.empty(self.n_prompt + (request.sampling.max_tokens or 0), np.int32)
        self._ids[: self.n_prompt] = request.ids
        self._sampling = request.sampling
        self._sampler = llm.sampler(request.sampling)
        self._sampler.set_prompt(request.ids)
        self._ends = set(request.sampling.stop_ids) | (set() if request.sampling.ignore_eos else set(llm.end_ids))
        self._decoder = StreamDecoder(llm.tokenizer, skip_special=not request.parser.keeps_special)
        self._parser = request.parser
        self._constraint = request.constraint
        self._budget = request.budget
        self._forced: list[int] = []  # tokens that come next without being sampled
        self._stopper = StopMatcher(request.sampling.stop)
        self._reasoning_tokens = 0
        self._is_reasoning = False
        slot.used_at = job.submitted
        job.sink.put(Started(self.n_prompt, self.cached))

    @property
    def is_prefilling(self) -> bool:
        return self._n_done < self.n_prompt

    def step(self) -> Finished | None:
        """One turn; the result with the last one."""
        start = time.perf_counter()
        if self.is_prefilling:
            self._n_done = next(self._prefill)
            self.prefill_s += time.perf_counter() - start
            wants_more = self.is_prefilling or self._sampling.max_tokens != 0
            return None if wants_more else self._finished("length", None)
        reason = self._decode()
        self.decode_s += time.perf_counter() - start
        return reason and self._finished(*reason)

    def _decode(self) -> tuple[StopReason, str | None] | None:
        """A token. With the last one the reason, and the stop string that was hit."""
        n = self.n_prompt + self.n_generated
        token = self._forced.pop(0) if self._forced else self._sample(n)
        if self._budget is not None:
            forced = self._budget.push(token)
            if forced and token in self._ends:
                token = forced.pop(0)
                self._budget.push(token)
            self._forced += forced
        if self._constraint is not None:
            self._constraint.accept(token)
        self._ids[n] = token
        self.n_generated += 1
        if token in self._ends:
            return self._flush() or ("stop", None)
        stop = self._emit(self._parser.push(self._decoder.push(token)))
        self._reasoning_tokens += self._is_reasoning
        if stop is not None:
            return "stop_string", stop
        if self._constraint is not None and self._constraint.done:
            return self._flush() or ("stop", None)
        if self.n_generated == self._sampling.max_tokens:
            return self._flush() or ("length", None)
        return None

    def _sample(self, n: int) -> int:
        """The token after the first n."""
        session, n_top = self.slot.session, self._sampling.logprobs
        session.sync(self._ids[:n])
        if self._constraint is not None:
            self._sampler.set_mask(self._constraint.mask())
        token = session.sample(self._sampler)
        if n_top is not None:
            value, top = session.logprobs(token, n_top)
            self.job.sink.put(TokenLogprob(token, value, tuple(top)))
        return token

    def _emit(self, events: list[Event]) -> str | None:
        """Hands events on; the stop string that ends the text, which is searched in the answer only."""
        put = self.job.sink.put
        for event in events:
            self._is_reasoning = isinstance(event, ReasoningDelta)
            if not isinstance(event, TextDelta):
                if held := self._stopper.finish():
                    put(TextDelta(held))
                put(event)
                continue
            text, stop = self._stopper.push(event.text)
            if text:
                put(TextDelta(text))
            if stop is not None:
                return stop
        return None

    def _flush(self) -> tuple[StopReason, str | None] | None:
        """What is held back at the end; there may be a stop string in it."""
        events = self._parser.push(self._decoder.finish()) + self._parser.finish()
        stop = self._emit(events)
        if stop is not None:
            return "stop_string", stop
        if held := self._stopper.finish():
            self.job.sink.put(TextDelta(held))
        return None

    def _finished(self, reason: StopReason, stop_string: str | None) -> Finished:
        return Finished(
            reason=reason,
            stop_string=stop_string,
            usage=Usage(self.n_prompt, self.n_generated, self.cached),
            reasoning_tokens=self._reasoning_tokens,
            timings=Timings(self.prefill_s, self.decode_s, self.n_prompt - self.cached, self.n_generated),
            queue_s=self.queue_s,
        )


def turn_ends(ids: Ids, end_ids: Sequence[int]) -> list[int]:
    """Where the turns of a prompt end: other prompts may go on from there."""
    found: list[int] = (np.flatnonzero(np.isin(ids, end_ids)) + 1).tolist()
    return found
