"""What the scheduler is asked, and what it answers with besides the events of the text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from lucebox.options import Sampling
from lucebox.results import Timings, TokenLogprob, Usage
from lucebox.serve.errors import ApiError
from lucebox.serve.events import Budget, Constraint, Event, Parser, PlainText

__all__ = ["Failed", "Finished", "GenerationRequest", "Ids", "Item", "PromptToken", "Started", "StopReason"]

Ids: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]
StopReason: TypeAlias = Literal["stop", "stop_string", "length"]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One answer to be generated."""

    ids: Ids
    """The prompt; it leaves room for max_tokens in the context."""
    sampling: Sampling
    """With max_tokens set."""
    parser: Parser = field(default_factory=PlainText)
    constraint: Constraint | None = None
    budget: Budget | None = None
    endpoint: str = ""
    """For the records."""
    scores_prompt: bool = False
    """Give out the prompt's tokens too, with what sampling.logprobs asks for of each."""


@dataclass(frozen=True, slots=True)
class Started:
    """The request has its place on the engine."""

    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class PromptToken:
    """A token of the prompt; like TokenLogprob, but nothing can be said of the first."""

    id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is whole."""

    reason: StopReason
    stop_string: str | None
    usage: Usage
    reasoning_tokens: int
    timings: Timings
    queue_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """There is no (more) answer."""

    error: ApiError


Item: TypeAlias = Started | Event | PromptToken | TokenLogprob | Finished | Failed
