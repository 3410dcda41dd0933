"""Requests to the scheduler, and the items it returns besides the events of the text."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeAlias

from lucebox.generation.decode import StopReason
from lucebox.generation.embedding import Embedding
from lucebox.generation.events import Budget, Constraint, Event, Parser, PlainText
from lucebox.options import Sampling
from lucebox.results import PromptCompression, Timings, TokenLogprob, Usage
from lucebox.serve.errors import ApiError
from lucebox.text import Ids

__all__ = [
    "SENDER",
    "Embedded",
    "Failed",
    "Finished",
    "GenerationRequest",
    "Ids",
    "Item",
    "PromptToken",
    "Started",
    "StopReason",
]


SENDER: ContextVar[str] = ContextVar("sender", default="")
"""Digest of the API key of the HTTP request that is being handled; empty without keys."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request for one answer."""

    ids: Ids
    """[n_prompt]; prompt and max_tokens fit in the context."""
    sampling: Sampling
    """max_tokens is set."""
    parser: Parser = field(default_factory=PlainText)
    constraint: Constraint | None = None
    budget: Budget | None = None
    endpoint: str = ""
    """Label in the metrics."""
    sender: str = field(default_factory=SENDER.get)
    """Digest of the API key of the request; empty without keys."""
    prediction: Ids | None = None
    """Text that the answer is likely to repeat, for the suffix drafter; None: none is known."""
    embedding: Embedding | None = None
    """Embed these texts instead of answering: ids are theirs in one row, max_tokens is 0."""
    scores_prompt: bool = False
    """Also return the prompt's tokens, each with its log probability and sampling.logprobs alternatives."""
    compression: PromptCompression | None = None
    """The record of the prompt's compression; None: it is whole."""


@dataclass(frozen=True, slots=True)
class Started:
    """The request was admitted to a slot."""

    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class PromptToken:
    """A prompt token, like TokenLogprob; the first has no log probability."""

    id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Embedded:
    """The texts are embedded."""

    embedding: Embedding


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete."""

    reason: StopReason
    stop_string: str | None
    usage: Usage
    reasoning_tokens: int
    timings: Timings
    queue_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The request failed; no item follows."""

    error: ApiError


Item: TypeAlias = Started | Event | Embedded | PromptToken | TokenLogprob | Finished | Failed
