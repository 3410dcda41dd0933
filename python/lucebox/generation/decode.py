"""The decode loop of one request: sample a token, then detokenise it and decide whether it is the last one. The caller
prefills the prompt, schedules the steps and receives the text. Between the two halves of a step the caller may send the
next step's forward pass, so the device computes while the text is emitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lucebox import _engine
from lucebox.generation.loaded_model import LoadedModel
from lucebox.options import Sampling
from lucebox.results import DraftCounts, TokenLogprob
from lucebox.text import Ids, StreamDecoder

__all__ = [
    "Budget",
    "Constraint",
    "DecodeLoop",
    "DraftTally",
    "End",
    "Output",
    "StopReason",
]

StopReason: TypeAlias = Literal["stop", "stop_string", "length"]


@dataclass(frozen=True, slots=True)
class End:
    reason: StopReason
    stop_string: str | None = None


class Output(Protocol):
    """Receives the text of a generation and searches it for stop strings."""

    def logprob(self, value: TokenLogprob) -> None:
        """Takes the log probability of the next token, before its text."""
        ...

    def push(self, text: str) -> str | None:
        """Takes the text that one token completes, often empty. Returns the stop string that ends the generation, if
        any."""
        ...

    def flush(self, text: str) -> str | None:
        """Takes the last text and emits all withheld text. Returns a stop string found in it, if any."""
        ...


class Constraint(Protocol):
    """Restricts the next token. One thread calls it after every token."""

    @property
    def done(self) -> bool:
        """Whether no further token is allowed: the answer ends here."""
        ...

    def mask(self) -> NDArray[np.uint32] | None:
        """[vocab / 32] bits, one per token, lowest bit first; None allows all tokens."""
        ...

    def accept(self, token: int) -> None: ...


class Budget(Protocol):
    """Limits the reasoning. One thread calls it after every token."""

    def push(self, token: int) -> list[int]:
        """Tokens to append next without sampling; if `token` is an end token, they replace it."""
        ...


class DraftTally:
    """Counts the drafts of one request from differences of the session's counters: other requests may use the session
    in between."""

    def __init__(self) -> None:
        self._drafted = 0
        self._lengths: list[int] = []  # accepted tokens of each verified tree; the last one may still grow
        self._ahead = (0, 0)  # (trees, tokens) that sample() verified and the next sync() will adopt

    def synced(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Counts a sync(). It advances in the newest tree, adopts a tree that was verified ahead, or verifies a
        tree."""
        if self._lengths:
            self._lengths[-1] += after["accepted"] - before["accepted"]
        trees, tokens = self._ahead
        self._drafted += tokens + after["drafted"] - before["drafted"]
        self._lengths += [0] * (trees + after["verified"] - before["verified"])
        self._ahead = (0, 0)

    def sampled(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Records a tree that sample() verified ahead. A tree after the last token belongs to no request."""
        self._ahead = (after["verified"] - before["verified"], after["drafted"] - before["drafted"])

    @property
    def counts(self) -> DraftCounts:
        by_length = Counter(self._lengths)
        lengths = tuple(by_length[n] for n in range(max(self._lengths, default=-1) + 1))
        return DraftCounts(len(self._lengths), self._drafted, sum(self._lengths), lengths)


class DecodeLoop:
    """The tokens of one request after its prompt, one per step: `sample`, then `emit`."""

    def __init__(
        self,
        model: LoadedModel,
        prompt: Ids,
        sampling: Sampling,
        sampler: _engine.Sampler,
        output: Output,
        *,
        max_tokens: int,
        skip_special: bool = True,
        constraint: Constraint | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.n_prompt = len(prompt)
        self.n_generated = 0
        self._max_tokens = max_tokens
        self._ids: Ids = np.empty(len(prompt) + max_tokens, np.int32)
        self._ids[: len(prompt)] = prompt
        self._sampler = sampler
        self._sampler.set_prompt(prompt[prompt < model.info.vocab])  # rows of images have other ids
        self._n_top = sampling.logprobs
        self._ends = set(sampling.stop_ids) | (set() if sampling.ignore_eos else set(model.end_ids))
        self._decoder = StreamDecoder(model.tokenizer, skip_special=skip_special)
        self._output = output
        self._constraint = constraint
        self._budget = budget
        self._forced: list[int] = []  # tokens that the thinking budget forces next, without sampling
        self._tally = None if model.options.draft == "none" else DraftTally()
        self._before: Mapping[str, Any] | None = None  # the session's counters before the pass of the next step
        self._is_started = False  # sampling of the next token has started

    @property
    def ids(self) -> tuple[int, ...]:
        """The generated ids, an end token included."""
        return tuple(self._ids[self.n_prompt : self.n_prompt + self.n_generated].tolist())

    @property
    def last_id(self) -> int:
        """The newest token."""
        return int(self._ids[self.n_prompt + self.n_generated - 1])

    @property
    def drafts(self) -> DraftCounts | None:
        """Draft counts so far; None if the model was opened without drafts."""
        return None if self._tally is None else self._tally.counts

    @property
    def is_full(self) -> bool:
        """Whether max_tokens have been generated."""
        return self.n_generated == self._max_tokens

    @property
    def may_continue(self) -> bool:
        """Whether another token follows, unless the newest token's text ends the generation."""
        is_done = self._constraint is not None and self._constraint.done
        is_end = self.n_generated > 0 and self.last_id in self._ends
        return not (self.is_full or is_done or is_end)

    def begin_append(self, session: _engine.Session) -> None:
        """Call before an append of the prompt: if it has one row, the session drafts below it, for this request."""
        self._before = self._counts(session)

    def next_ids(self, session: _engine.Session) -> Ids | None:
        """The timeline that a batched pass computes before `sample`; None: the next token is forced, without
        sampling."""
        if self._forced:
            return None
        if self._before is None:
            self._before = self._counts(session)
        return self._ids[: self.n_prompt + self.n_generated]

    def next_sampler(self) -> _engine.Sampler:
        """The sampler of the next token after a batched pass, for `_engine.start_samples`."""
        if not self._is_started:
            self._set_mask()
            self._is_started = True
        return self._sampler

    def _set_mask(self) -> None:
        if self._constraint is not None:
            self._sampler.set_mask(self._constraint.mask())

    def sample(self, session: _engine.Session) -> None:
        """Appends the next token, sampled or forced."""
        n = self.n_prompt + self.n_generated
        logprob: TokenLogprob | None = None
        if self._forced:
            token = self._force(self._forced.pop(0))
        else:
            token, logprob = self._sampled(session, n)
        if self._budget is not None:
            forced = self._budget.push(token)
            if forced and token in self._ends:
                self._sampler.drop_last()
                token, logprob = self._force(forced.pop(0)), None
                self._budget.push(token)
            self._forced += forced
        if logprob is not None:
            self._output.logprob(logprob)
        if self._constraint is not None:
            self._constraint.accept(token)
        self._ids[n] = token
        self.n_generated += 1

    def emit(self) -> End | None:
        """Passes the newest token's text to the output. Returns the reason if the generation ends here, else None."""
        token = self.last_id
        if token in self._ends:
            return self._flush("stop")
        stop = self._output.push(self._decoder.push(token))
        if stop is not None:
            return End("stop_string", stop)
        if self._constraint is not None and self._constraint.done:
            return self._flush("stop")
        return self.stop_at_limit() if self.is_full else None

    def stop_at_limit(self) -> End:
        return self._flush("length")

    def _force(self, token: int) -> int:
        """Takes a forced token. Penalties count it as generated text."""
        self._sampler.record_forced(token)
        return token

    def _sampled(self, session: _engine.Session, n: int) -> tuple[int, TokenLogprob | None]:
        """Samples the token after the first n, with its log probability if the request wants it."""
        before = self._counts(session) if self._before is None else self._before
        self._before = None
        session.sync(self._ids[:n])  # one row; none after a batched pass; more if another request ran in between
        synced = self._counts(session)
        if not self._is_started:
            self._set_mask()
        self._is_started = False
        token = session.sample(self._sampler)
        if self._tally is not None:
            self._tally.synced(before, synced)
            self._tally.sampled(synced, self._counts(session))
        if self._n_top is None:
            return token, None
        value, top = session.logprobs(token, self._n_top)
        return token, TokenLogprob(token, value, tuple(top))

    def _counts(self, session: _engine.Session) -> Mapping[str, Any]:
        """The session's draft counters; empty if drafts are not counted."""
        return {} if self._tally is None else session.draft_counts

    def remember(self, session: _engine.Session) -> None:
        """Lets later requests draft from the generated tokens."""
        session.remember(self._ids[self.n_prompt : self.n_prompt + self.n_generated])

    def _flush(self, reason: StopReason) -> End:
        stop = self._output.flush(self._decoder.finish())
        return End(reason) if stop is None else End("stop_string", stop)
