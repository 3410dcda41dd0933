"""One request on one session: prefill in chunks after the reused prefix, then one token per turn, parsed to events.
A turn is `compute`, then `tell`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from lucebox import _engine
from lucebox.api import LLM
from lucebox.generation.decode import DecodeLoop, End
from lucebox.generation.parsed_text import ParsedText
from lucebox.generation.prefix_cache import PrefixCache, turn_ends
from lucebox.generation.prompt_scores import scored_prefill
from lucebox.generation.request import Embedded, Finished, GenerationRequest, Started
from lucebox.results import DraftCounts, Timings, Usage
from lucebox.serve.channel import Sink
from lucebox.text import NO_IDS, Ids

__all__ = ["Job", "Slot", "Work"]


@dataclass(slots=True, eq=False)
class Job:
    """A queued or running request, and the sink of its items."""

    request: GenerationRequest
    sink: Sink
    deadline: float
    """Time of time.perf_counter() at which the request times out."""
    leader: Job | None = None
    """Another job with the same prompt, submitted together with this one."""
    submitted: float = field(default_factory=time.perf_counter)
    is_cancelled: bool = False


class Slot:
    """A session, the submission time of its latest job, and that job's sender."""

    def __init__(self, session: _engine.Session) -> None:
        self.session = session
        self.used_at = 0.0
        self.sender = ""


class Work:
    """A job running on a slot."""

    def __init__(
        self,
        llm: LLM,
        slot: Slot,
        job: Job,
        cache: PrefixCache,
        outputs: _engine.speculation.EarlierOutputs | None = None,
        leader: Work | None = None,
        *,
        between_layers: Callable[[Work], None],
    ) -> None:
        """outputs: earlier ones to draft from; None: those of all requests. leader: computes the same prompt; this work
        waits until `follow` or `lead`. between_layers: called within the chunks of a long prompt."""
        request = job.request
        self.job = job
        self.slot = slot
        self.is_paused = False
        self.leader = leader
        self.spent_s = self.others_s = 0.0
        """Engine time used so far, and that of other works within this one's chunk; maintained by the scheduler."""
        self.turn_began = 0.0
        self._is_dense = llm.options.sparse_prefill == 0  # sparse attention has the buffers of long chunks
        self.queue_s = time.perf_counter() - job.submitted
        self.first_token_s: float | None = None
        self.prefill_s = self.decode_s = 0.0
        self.n_prompt = len(request.ids)
        if slot.sender != request.sender:
            slot.session.reset()
            slot.sender = request.sender
        self.cached = self._n_done = 0
        self._cache = cache
        self._boundaries = turn_ends(request.ids, llm.end_ids)
        self._between_layers = partial(between_layers, self)
        if leader is None:
            self.lead()
        else:
            slot.session.reset()
        slot.session.share_outputs(outputs)
        slot.session.expect(NO_IDS if request.prediction is None else request.prediction)
        sampling = request.sampling
        self._output = ParsedText(request.parser, sampling.stop, job.sink.put)
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

    def lead(self) -> None:
        """Begins the prompt after the prefix reused from the slot or the cache."""
        self.leader, request, slot = None, self.job.request, self.slot
        if request.embedding is not None:
            self._prefill = request.embedding.prefill(slot.session)
        elif request.scores_prompt:
            scored = request.sampling.logprobs or 0
            self._prefill = scored_prefill(slot.session, request.ids, scored, self.job.sink)
        else:
            self._prefill = self._cache.prefill(
                slot.session, request.ids, self._boundaries, request.sender, self._between_layers
            )
        self._begun(next(self._prefill))

    def follow(self) -> None:
        """Takes over the prompt that the leader has computed."""
        assert self.leader is not None
        self.slot.session.fork(self.leader.slot.session)
        self.leader = None
        self._begun(self.n_prompt)

    def _begun(self, n_reused: int) -> None:
        self.cached = self._n_done = n_reused
        self.job.sink.put(Started(self.n_prompt, self.cached))

    @property
    def session(self) -> _engine.Session:
        return self.slot.session

    @property
    def next_length(self) -> int:
        """Tokens of the timeline after the next turn."""
        if self.is_prefilling:
            return min(self._n_done + self.slot.session.prefill_chunk, self.n_prompt)
        return min(self.n_prompt + self.n_generated, self.slot.session.context)

    @property
    def is_prefilling(self) -> bool:
        return self._n_done < self.n_prompt

    @property
    def fits_between_layers(self) -> bool:
        """Whether its next turn may run between the layers of another work's chunk."""
        request = self.job.request
        is_plain = self._is_dense and request.embedding is None and not request.scores_prompt
        return not self.is_prefilling or (is_plain and self.n_prompt - self._n_done <= self.slot.session.step_rows)

    @property
    def n_generated(self) -> int:
        return self._loop.n_generated

    @property
    def drafts(self) -> DraftCounts | None:
        return self._loop.drafts

    @property
    def goes_on(self) -> bool:
        """After `compute`: a token follows, unless this one's text ends the generation."""
        return not self.is_prefilling and self._loop.goes_on

    def next_ids(self) -> Ids | None:
        """What a pass of several sessions makes this one's timeline before `compute`; None: nothing."""
        return None if self.is_prefilling or self._loop.is_full else self._loop.next_ids(self.slot.session)

    def next_sampler(self) -> _engine.Sampler:
        """After such a pass: the sampler of the next token, for `_engine.start_samples`."""
        return self._loop.next_sampler()

    def compute(self, pass_s: float = 0.0) -> None:
        """A chunk of the prompt or a token.

        pass_s: seconds of the pass of several sessions that computed this token's rows.
        """
        start = time.perf_counter() - pass_s
        if self.is_prefilling:
            self.others_s = 0.0
            self._n_done = next(self._prefill)
            self.prefill_s += time.perf_counter() - start - self.others_s
            if self.job.request.embedding is not None and not self.is_prefilling:
                self.job.sink.put(Embedded(self.job.request.embedding))
            return
        self._loop.choose(self.slot.session)
        self._spent_since(start)

    def tell(self) -> Finished | None:
        """The text of the token that `compute` chose, if it did. After the last turn, the result."""
        if self.n_generated == 0:
            return None if self.is_prefilling or not self._loop.is_full else self._finished(End("length"))
        start = time.perf_counter()
        end = self._loop.tell()
        if end is None and self._loop.is_full:
            end = self._loop.cut()
        self._spent_since(start)
        if end is None:
            return None
        self._loop.remember(self.slot.session)
        return self._finished(end)

    def _spent_since(self, start: float) -> None:
        """Counts the time of a token. The first one belongs to the prompt."""
        if self.n_generated == 1:
            self.prefill_s += time.perf_counter() - start
        else:
            self.decode_s += time.perf_counter() - start

    def _finished(self, end: End) -> Finished:
        return Finished(
            reason=end.reason,
            stop_string=end.stop_string,
            usage=Usage(self.n_prompt, self.n_generated, self.cached, self.drafts, self.job.request.compression),
            reasoning_tokens=self._output.reasoning_tokens,
            timings=Timings(self.prefill_s, self.decode_s, self.n_prompt - self.cached, max(0, self.n_generated - 1)),
            queue_s=self.queue_s,
        )
