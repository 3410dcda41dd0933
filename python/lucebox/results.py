"""The results of a generation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Chunk", "DraftCounts", "FinishReason", "Generation", "Timings", "TokenLogprob", "Usage"]

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log probability of one token under the model (before temperature, penalties and filters)."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most likely (id, logprob), best first."""


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Counts of the drafted and accepted tokens of one request."""

    verifies: int
    """Trees of drafted tokens that the model verified, each in one step."""
    drafted_tokens: int
    accepted_tokens: int
    """Drafted tokens that are in the text: each saved a step."""
    by_length: tuple[int, ...]
    """[n] verifies that accepted n tokens, up to the longest."""

    @property
    def tokens_per_verify(self) -> float:
        """Mean tokens that a verify yields: the accepted ones, and the one sampled after them; 0 without a verify."""
        return 1 + self.accepted_tokens / self.verifies if self.verifies else 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens reused from the session or the cache."""
    drafts: DraftCounts | None = None
    """None where the model was opened without drafts."""

    @property
    def tokens_per_step(self) -> float:
        """Generated tokens per step of the model: 1 where no drafted token was accepted."""
        accepted = self.drafts.accepted_tokens if self.drafts else 0
        return self.completion_tokens / max(1, self.completion_tokens - accepted)


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of one request."""

    prefill_s: float
    decode_s: float
    prefill_tokens: int
    decode_tokens: int

    @property
    def prefill_tok_s(self) -> float:
        return self.prefill_tokens / self.prefill_s if self.prefill_s > 0 else 0.0

    @property
    def decode_tok_s(self) -> float:
        return self.decode_tokens / self.decode_s if self.decode_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation."""

    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a streamed generation. The last chunk carries the whole result."""

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    result: Generation | None = field(default=None)
