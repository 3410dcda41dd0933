"""One request in progress: waits for a session, computes its prompt in chunks after the reused prefix, then one token
per turn, parsed to events. A turn is `compute`, then `emit`."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from lucebox import _engine
from lucebox.generation.decode import DecodeLoop, End
from lucebox.generation.loaded_model import LoadedModel
from lucebox.generation.mask_ahead import MaskAhead
from lucebox.generation.parsed_text import ParsedText
from lucebox.generation.prefix_cache import PrefixCache, chunks_together, turn_ends
from lucebox.generation.prompt_scores import scored_prefill
from lucebox.generation.request import Embedded, Finished, GenerationRequest, Scored, Sink, Started
from lucebox.results import DraftCounts, ExpertCounts, Timings, Usage
from lucebox.text import NO_IDS, Ids

__all__ = ["Sequence"]


class Sequence:
    """A request with its sink. It holds a session from `begin` to `release`."""

    def __init__(
        self, request: GenerationRequest, sink: Sink, deadline: float = math.inf, leader: Sequence | None = None
    ) -> None:
        """deadline: time.perf_counter() value at which it times out. leader: another sequence with the same prompt,
        submitted together with this one."""
        self.request = request
        self.sink = sink
        self.deadline = deadline
        self.leader = leader
        """The sequence whose computed prompt this one forks; None: this sequence computes the prompt."""
        self.owner = threading.get_ident()
        """The thread that submitted the sequence."""
        self.submitted = time.perf_counter()
        self.is_cancelled = self.is_over = False
        self.is_paused = False
        """Whether the sequence waits for KV pages."""
        self.error: Exception | None = None
        """The error of a batched pass with a row of this sequence, which `compute` raises."""
        self.handicap_s = 0.0
        """Engine time charged at the start."""
        self.turn_began = self.others_s = 0.0
        """Start of the current chunk, and the time of other sequences' turns within it."""
        self.pass_number = 0
        """Number of the scheduler's last pass with this sequence, where sequences decode in groups."""
        self.queue_s: float | None = None
        self.first_token_s: float | None = None
        self.prefill_s = self.decode_s = 0.0
        self.n_prompt = len(request.ids) + (request.labels.n_rows if request.labels else 0)
        self.cached = self._n_done = 0
        self._expert_counts: Callable[[], ExpertCounts | None] = lambda: None
        self._experts: ExpertCounts | None = None
        self._session: _engine.Session | None = None
        self._prefill: Iterator[int] | None = None
        self._between_layers: Callable[[], None] | None = None
        self._loop: DecodeLoop | None = None
        self._masks: MaskAhead | None = None

    def begin(
        self,
        model: LoadedModel,
        cache: PrefixCache,
        outputs: _engine.speculation.EarlierOutputs | None,
        between_layers: Callable[[Sequence], None],
        on_late_mask: Callable[[], None],
    ) -> None:
        """Begins on its session. outputs: earlier outputs to draft from; None: the outputs of all requests.
        between_layers: called between the layers of a long prompt's chunks.
        on_late_mask: called in another thread when a mask is ready that was late."""
        request, sampling, session = self.request, self.request.sampling, self.session
        self._expert_counts, self._experts = model.expert_counts, model.expert_counts()
        self._cache = cache
        self._between_layers = partial(between_layers, self)
        self._boundaries = turn_ends(request.ids, model.end_ids)
        self._is_dense = model.options.sparse_prefill == 0  # sparse attention uses the buffers of long chunks
        if self.leader is None:
            self.lead()
        else:
            session.reset()
        session.share_outputs(outputs)
        sampler = model.sampler(sampling)
        session.set_sampling(sampler)
        session.expect(NO_IDS if request.prediction is None else request.prediction)
        if request.constraint is not None:
            self._masks = MaskAhead(request.constraint, request.sender, on_late_mask)
        self._output = ParsedText(request.parser, sampling.stop, self.sink.put)
        self._loop = DecodeLoop(
            model,
            request.ids,
            sampling,
            sampler,
            self._output,
            max_tokens=sampling.max_tokens or 0,
            skip_special=not request.parser.keeps_special,
            constraint=self._masks,
            budget=request.budget,
        )

    def lead(self) -> None:
        """Restores the reusable prefix from the session or the cache, and prepares to compute the rest of the
        prompt."""
        start = time.perf_counter()
        self.leader, request, session = None, self.request, self.session
        if request.embedding is not None:
            self._prefill = request.embedding.prefill(session)
        elif request.scores_prompt:
            self._prefill = scored_prefill(session, request.ids, request.sampling.logprobs or 0, self.sink)
        else:
            self._prefill = self._cache.prefill(
                session, request.ids, self._boundaries, request.sender, self._between_layers
            )
            if request.labels is not None:
                self._prefill = request.labels.prefill(session, self._prefill, len(request.ids))
        self._take_over(next(self._prefill))
        self.prefill_s += time.perf_counter() - start

    def follow(self) -> None:
        """Forks the leader's session, which has computed the prompt."""
        assert self.leader is not None
        self.session.fork(self.leader.session)
        self.leader = None
        self._take_over(self.n_prompt)

    def _take_over(self, n_reused: int) -> None:
        self.cached = self._n_done = n_reused
        self.sink.put(Started(self.n_prompt, n_reused))
        self.sink.prefilled(n_reused, self.n_prompt)

    def release(self) -> None:
        """Ends the sequence, which no longer holds its session."""
        self.is_over = True
        if self._masks is not None:
            self._masks.abandon()
        self._session = self._prefill = self._between_layers = None

    @property
    def session(self) -> _engine.Session:
        assert self._session is not None
        return self._session

    @session.setter
    def session(self, session: _engine.Session) -> None:
        self._session = session
        self.queue_s = time.perf_counter() - self.submitted

    @property
    def engine_s(self) -> float:
        """Engine time used so far, which decides who gets the next turn."""
        return self.handicap_s + self.prefill_s + self.decode_s

    @property
    def next_length(self) -> int:
        """Tokens of the timeline after the next turn."""
        if self.request.embedding is not None:
            return max(map(len, self.request.embedding.texts))
        if self.is_prefilling:
            rows = self.session.prefill_chunk * chunks_together(self.session)
            return min(self._n_done + rows, self.n_prompt, self.session.context)
        return min(self.n_prompt + self.n_generated, self.session.context)

    @property
    def is_prefilling(self) -> bool:
        return self._n_done < self.n_prompt

    @property
    def is_due(self) -> bool:
        """Whether the sequence has a turn to compute: it waits neither for pages, nor for a leader's prompt, nor for
        its reader, nor for a mask."""
        return not (self.is_paused or self.leader is not None or self.sink.is_full or self.waits_for_mask)

    @property
    def waits_for_mask(self) -> bool:
        return self._masks is not None and not self.is_prefilling and not self._masks.is_ready

    def has_mask(self, seconds: float) -> bool:
        """Waits at most this long for the next mask; whether there is one, or the next token needs none."""
        return self._masks is None or self._masks.wait(seconds)

    @property
    def fits_between_layers(self) -> bool:
        """Whether the next turn may run between the layers of another sequence's chunk."""
        is_plain = self._is_dense and self.request.is_answer
        return not self.is_prefilling or (is_plain and self.n_prompt - self._n_done <= self.session.step_rows)

    @property
    def n_generated(self) -> int:
        return 0 if self._loop is None else self._loop.n_generated

    @property
    def drafts(self) -> DraftCounts | None:
        return None if self._loop is None else self._loop.drafts

    @property
    def experts(self) -> ExpertCounts | None:
        """Hits, misses and copies of experts since the sequence began, other sequences included."""
        before, now = self._experts, self._expert_counts()
        return None if before is None or now is None else now - before

    @property
    def may_continue(self) -> bool:
        """After `compute`: whether another token follows, unless the newest token's text ends the generation."""
        return not self.is_prefilling and self._decode.may_continue

    @property
    def _decode(self) -> DecodeLoop:
        assert self._loop is not None
        return self._loop

    def next_ids(self) -> Ids | None:
        """The timeline that a batched pass computes before `compute`; None: nothing to compute."""
        loop = self._decode
        is_over = self.is_prefilling or loop.is_full or self.error is not None
        return None if is_over else loop.next_ids(self.session)

    def next_sampler(self) -> _engine.Sampler | None:
        """The sampler of the next token after a batched pass, for `_engine.start_samples`. None: its mask failed, and
        `compute` raises the reason."""
        try:
            return self._decode.next_sampler()
        except Exception as error:
            self.error = error
            return None

    def compute(self, pass_s: float = 0.0) -> None:
        """Computes a chunk of the prompt, or a token.

        pass_s: seconds of the batched pass that computed this token's rows.
        """
        if self.error is not None:
            raise self.error
        start = time.perf_counter() - pass_s
        if self.is_prefilling:
            assert self._prefill is not None
            self._decode.begin_append(self.session)
            self.turn_began, self.others_s = start, 0.0
            self._n_done = next(self._prefill)
            self.prefill_s += time.perf_counter() - start - self.others_s
            self.sink.prefilled(self._n_done, self.n_prompt)
            if not self.is_prefilling and self.request.embedding is not None:
                self.sink.put(Embedded(self.request.embedding))
            elif not self.is_prefilling and self.request.labels is not None:
                self.sink.put(Scored(self.request.labels))
        elif not (loop := self._decode).is_full:
            loop.sample(self.session)
            self._add_token_time(start)

    def emit(self) -> Finished | None:
        """Emits the text of the token that `compute` sampled, if any. Returns the result after the last turn."""
        loop = self._decode
        if loop.n_generated == 0:
            is_over = not self.is_prefilling and loop.is_full
            return self._finished(loop.stop_at_limit()) if is_over else None
        start = time.perf_counter()
        end = loop.emit()
        self._add_token_time(start)
        if end is None:
            self.sink.end_token(loop.last_id)
            return None
        loop.remember(self.session)
        return self._finished(end)

    def _add_token_time(self, start: float) -> None:
        """Adds the time of a token. The first token counts as prefill."""
        if self.n_generated == 1:
            self.prefill_s += time.perf_counter() - start
        else:
            self.decode_s += time.perf_counter() - start

    def _finished(self, end: End) -> Finished:
        return Finished(
            reason=end.reason,
            stop_string=end.stop_string,
            usage=Usage(
                self.n_prompt,
                self.n_generated,
                self.cached,
                self.drafts,
                self.request.compression,
                experts=self.experts,
            ),
            reasoning_tokens=self._output.reasoning_tokens,
            timings=Timings(self.prefill_s, self.decode_s, self.n_prompt - self.cached, max(0, self.n_generated - 1)),
            queue_s=self.queue_s or 0.0,
            ids=self._decode.ids,
        )
