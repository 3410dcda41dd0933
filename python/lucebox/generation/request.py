"""Requests, and the items other than text events that a sequence puts into its sink."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from lucebox import _engine
from lucebox.errors import InvalidRequestError
from lucebox.generation.decode import StopReason
from lucebox.generation.embedding import Embedding, Pooling
from lucebox.generation.errors import PromptTooLongError
from lucebox.generation.events import Budget, Constraint, Event, Parser, PlainText
from lucebox.generation.labels import MAX_LABELS, Labels
from lucebox.generation.loaded_model import LoadedModel
from lucebox.options import Sampling
from lucebox.results import PromptCompression, Timings, TokenLogprob, Usage
from lucebox.text import Ids

__all__ = [
    "SENDER",
    "Embedded",
    "Failed",
    "Finished",
    "GenerationRequest",
    "Item",
    "Progress",
    "PromptToken",
    "PromptTooLongError",
    "Scored",
    "Sink",
    "Started",
    "answer_room",
    "embedding_request",
    "label_request",
    "prompt_requests",
]


# Digest of the API key whose request is being prepared; empty without keys.
SENDER: ContextVar[str] = ContextVar("sender", default="")


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    ids: Ids
    """[n_prompt]; prompt and answer fit in the context (`answer_room`)."""
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
    """Embed these texts instead of generating: `ids` concatenates their ids, and max_tokens is 0."""
    labels: Labels | None = None
    """Score these labels as the next text instead of generating; max_tokens is 0."""
    scores_prompt: bool = False
    """Also return the prompt's tokens, each with its log probability and sampling.logprobs alternatives."""
    compression: PromptCompression | None = None
    """The record of the prompt's compression; None: the prompt is uncompressed."""
    images: tuple[_engine.EncodedImage, ...] = ()
    """The images in the prompt, whose rows stay in memory while the request exists."""

    @property
    def is_answer(self) -> bool:
        """Whether it continues the prompt, and does nothing else."""
        return self.embedding is None and self.labels is None and not self.scores_prompt


def answer_room(n_prompt: int, context: int) -> int:
    """Maximum tokens of an answer. The last one is sampled from a full context and needs no place in it.

    Raises:
        PromptTooLongError: the prompt does not fit.
    """
    if n_prompt > context:
        raise PromptTooLongError(n_prompt, context)
    return context + 1 - n_prompt


def prompt_requests(
    model: LoadedModel, ids: Ids, sampling: Sampling, n: int, parts: Callable[[], dict[str, Any]]
) -> list[GenerationRequest]:
    """n requests to continue a prompt. max_tokens is clamped to the room in the context; seeds are consecutive, and
    start from the clock if none is given.

    parts: supplies the other fields of each request.

    Raises:
        InvalidRequestError: the prompt has no tokens or does not fit, or an option is out of range.
    """
    if not len(ids):
        raise InvalidRequestError("the prompt has no tokens")
    room = answer_room(len(ids), model.memory_plan.context)
    max_tokens = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
    model.sampler(sampling)  # checks the options
    seed = time.time_ns() if sampling.seed is None else sampling.seed
    return [
        GenerationRequest(ids, replace(sampling, max_tokens=max_tokens, seed=seed + i), **parts()) for i in range(n)
    ]


def embedding_request(
    model: LoadedModel,
    texts: Sequence[str | Sequence[int]],
    pooling: Pooling | None,
    prompt_name: str | None = None,
    endpoint: str = "",
) -> GenerationRequest:
    """The request for the embeddings of texts after a prompt of the model; None is its default prompt. Ids have no
    prompt.

    Raises:
        UnsupportedError: the model is not made for embeddings, and no pooling is given.
        InvalidRequestError: a text has no token or more than the context, there is no such pooling or prompt, or a
            prompt is named for ids.
    """
    chosen = model.embedder.choose(pooling)
    are_texts = all(isinstance(text, str) for text in texts)
    if prompt_name is not None and not are_texts:
        raise InvalidRequestError("prompt_name needs texts: a prompt is text before a text, and ids were given")
    prompt = model.embedder.prompt(prompt_name) if are_texts else ""
    ids = [model.ids_to_embed(text, prompt) for text in texts]
    n_skipped = 0 if chosen.pools_prompt or not prompt else len(model.prompt_ids(prompt))
    if any(len(one) <= n_skipped for one in ids):
        raise InvalidRequestError("a text to embed has no token after the model's prompt, which is not pooled")
    embedding = Embedding(ids, chosen, n_skipped)
    return GenerationRequest(np.concatenate(ids), Sampling(max_tokens=0), endpoint=endpoint, embedding=embedding)


def label_request(
    model: LoadedModel,
    prompt: Ids,
    labels: Sequence[str | Sequence[int]],
    endpoint: str = "",
    images: tuple[_engine.EncodedImage, ...] = (),
) -> GenerationRequest:
    """The request for the log probabilities of labels after a prompt. Each label is tokenized alone. images: the
    images of the prompt.

    Raises:
        InvalidRequestError: the prompt has no tokens or does not fit, there are no labels or too many, or one is empty,
            too long, or has an id outside the vocabulary.
    """
    if not len(prompt):
        raise InvalidRequestError("the prompt has no tokens")
    context = model.memory_plan.context
    answer_room(len(prompt), context)
    ids = [
        model.tokenizer.encode(label, add_bos=False) if isinstance(label, str) else model.ids(label)
        for label in labels[: MAX_LABELS + 1]
    ]
    chunk = model.options.prefill_chunk or context
    scored = Labels([np.asarray(one, np.int32) for one in ids], min(context - len(prompt), chunk))
    return GenerationRequest(prompt, Sampling(max_tokens=0), endpoint=endpoint, labels=scored, images=images)


@dataclass(frozen=True, slots=True)
class Started:
    """The request has a session."""

    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Tokens so far. No sequence emits it: who delivers an answer adds it, if the client wants to see its speed."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class PromptToken:
    """A prompt token with its log probability, like TokenLogprob; the first token has none."""

    id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Embedded:
    embedding: Embedding


@dataclass(frozen=True, slots=True)
class Scored:
    labels: Labels


@dataclass(frozen=True, slots=True)
class Finished:
    reason: StopReason
    stop_string: str | None
    usage: Usage
    reasoning_tokens: int
    timings: Timings
    queue_s: float
    ids: tuple[int, ...] = ()
    """All generated ids, an end token included."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The request failed; no item follows."""

    error: Exception


Item: TypeAlias = Started | Progress | Event | Embedded | Scored | PromptToken | TokenLogprob | Finished | Failed


class Sink:
    """Receives the items of one sequence from the driver thread, which it must not block."""

    @property
    def is_full(self) -> bool:
        """Whether the reader is too slow, so the sequence is not computed further."""
        return False

    def put(self, item: Item) -> None:
        """Takes the next item; the last one is Finished or Failed."""
        raise NotImplementedError

    def prefilled(self, done: int, total: int) -> None:
        """Reports how many tokens of the prompt are computed."""

    def end_token(self, id: int) -> None:
        """Marks the end of the items of one token, except for the last token."""
