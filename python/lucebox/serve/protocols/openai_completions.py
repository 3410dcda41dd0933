"""OpenAI's text completions: /v1/completions continues a raw prompt."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, cast

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from lucebox.generation.answer import Answer
from lucebox.generation.events import TextDelta, Warning
from lucebox.generation.request import Finished, GenerationRequest, Item, Progress, PromptToken
from lucebox.results import TokenLogprob
from lucebox.serve.body_route import body_router
from lucebox.serve.delivery import KEEP_ALIVE, sse
from lucebox.serve.errors import ApiError, openai_body, openai_error
from lucebox.serve.model import Limits
from lucebox.serve.protocols.body import Ignored, Many, Name, OpenAISampled, Stop, Stops, sampling_of, stops_of
from lucebox.serve.protocols.openai_common import (
    DONE,
    LogprobWriter,
    StreamOptions,
    TextOffsets,
    comment,
    timings,
    usage,
    usage_so_far,
    wants_progress,
    wants_usage,
)
from lucebox.serve.protocols.openapi import ERRORS, documented
from lucebox.serve.protocols.router_fields import RouterFields
from lucebox.serve.protocols.structured_outputs import Guided, guided_format
from lucebox.serve.running_model import RunningModel
from lucebox.serve.server import server_of

__all__ = ["CompletionRequest", "router"]

DEFAULT_MAX_TOKENS = 16  # OpenAI's default; a continuation of raw text may never end by itself


class CompletionRequest(OpenAISampled, Guided, RouterFields):
    """OpenAI's text completion."""

    model: Name | None = None
    prompt: str | Many[str] | Many[int] | Many[Many[int]] = Field(description="Text or tokens, one prompt or several.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=0, description="Default 16; 0 only with echo.")
    stop: Stop | Stops | None = None
    n: int | None = Field(None, ge=1, le=16)
    echo: bool | None = Field(None, description="Return the prompt before each text.")
    logprobs: int | None = Field(None, ge=0, le=20)
    user: Ignored = None
    store: Ignored = None
    metadata: Ignored = None


def prompts_of(body: CompletionRequest) -> list[str | list[int]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise ApiError("invalid", "prompt is empty", "prompt")
    # No walk over the items, which may be a million: the validation has found them all of one type.
    return [prompt] if isinstance(prompt[0], int) else cast("list[str | list[int]]", prompt)


def finish_reason(finished: Finished) -> str:
    return "length" if finished.reason == "length" else "stop"


class CompletionWriter:
    """Formats a completion: streamed or as one document."""

    def __init__(self, body: CompletionRequest, model: str, heads: Sequence[str], logprobs: LogprobWriter) -> None:
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._echoed = heads  # echoed prompt of each answer, or ""
        self._with_usage = wants_usage(body.stream_options)
        self._with_logprobs = body.logprobs is not None
        self._logprobs = logprobs
        self._pending: list[list[PromptToken | TokenLogprob]] = [[] for _ in heads]
        self._offsets = [TextOffsets() for _ in heads]
        self._n = body.n or 1
        self._finished: dict[int, Finished] = {}
        self._progress: dict[int, Progress] = {}

    def open(self) -> bytes:
        return b"".join(self._chunk(i, text) for i, text in enumerate(self._echoed) if text) or KEEP_ALIVE

    def write(self, index: int, item: Item) -> bytes:
        match item:
            case TextDelta(text):
                return self._chunk(index, text)
            case PromptToken() | TokenLogprob():
                self._pending[index].append(item)
            case Progress():
                self._progress[index] = item
            case Warning(text):
                return comment(text)
            case Finished():
                self._finished[index] = item
                return self._chunk(index, "", finish_reason(item))
        return b""

    def beat(self) -> bytes:
        return KEEP_ALIVE

    def close(self) -> bytes:
        if not self._with_usage:
            return DONE
        finished = [self._finished[i] for i in range(len(self._echoed))]
        totals = {"usage": usage(finished, self._n), "timings": timings(finished[0])}
        return sse({**self._head, "choices": [], **totals}) + DONE

    def fail(self, error: ApiError) -> bytes:
        return sse(openai_error(error))

    def document(self, answers: Sequence[Answer]) -> dict[str, Any]:
        finished = [answer.finished for answer in answers if answer.finished is not None]
        choices = [
            self._choice(
                i, self._echoed[i] + answer.text, [*answer.prompt, *answer.logprobs], finish_reason(finished[i])
            )
            for i, answer in enumerate(answers)
        ]
        totals = {"usage": usage(finished, self._n), "timings": timings(finished[0])}
        warnings = [warning for answer in answers for warning in answer.warnings]
        return {**self._head, "choices": choices, **totals} | ({"warnings": warnings} if warnings else {})

    def _chunk(self, index: int, text: str, reason: str | None = None) -> bytes:
        chunk = {**self._head, "choices": [self._choice(index, text, self._pending[index], reason)]}
        self._pending[index] = []
        if self._with_usage:
            chunk["usage"] = usage_so_far(self._progress.get(index))
        return sse(chunk)

    def _choice(
        self, index: int, text: str, tokens: Sequence[PromptToken | TokenLogprob], reason: str | None
    ) -> dict[str, Any]:
        logprobs = None
        if self._with_logprobs:
            logprobs = self._logprobs.completion(tokens, self._offsets[index])
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


router = body_router()


@router.post("/v1/completions", **documented("Continues a text.", ERRORS))
async def completions(body: CompletionRequest, request: Request) -> Response:
    server = server_of(request)
    running, model = await server.use(request, body.model)
    if body.max_tokens == 0 and not body.echo:
        raise ApiError("invalid", "max_tokens is 0, which returns nothing without echo", "max_tokens")
    with_progress = wants_progress(body.stream_options)
    n_answers = len(prompts_of(body)) * (body.n or 1)
    if n_answers > running.scheduler.capacity:
        message = f"{n_answers} answers are more than this server's queue and slots hold: {running.scheduler.capacity}"
        raise ApiError("invalid", message, "prompt")
    requests, heads = await server.in_thread(request, lambda: _requests(running, body))
    writer = CompletionWriter(body, model, heads, LogprobWriter(running.model.loaded.tokenizer))
    if body.stream:
        return server.stream(running, requests, writer, body.ignored(), with_progress=with_progress)
    return server.document(running, requests, writer.document, openai_body, body.ignored())


def _requests(running: RunningModel, body: CompletionRequest) -> tuple[list[GenerationRequest], list[str]]:
    """The requests of all prompts, and the text echoed before each answer."""
    sampling = sampling_of(body)
    if body.logprobs is not None:
        sampling["logprobs"] = body.logprobs
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    limits = Limits(max_tokens, stops_of(body.stop))
    answer_format = guided_format(body)
    scores_prompt = body.echo is True and body.logprobs is not None
    requests: list[GenerationRequest] = []
    heads: list[str] = []
    for prompt in prompts_of(body):
        prompt_requests = running.model.complete(
            prompt,
            sampling,
            limits,
            "/v1/completions",
            body.n or 1,
            answer_format=answer_format,
            scores_prompt=scores_prompt,
        )
        text = prompt if isinstance(prompt, str) else running.model.loaded.detokenize(prompt)
        requests += prompt_requests
        heads += [text if body.echo else ""] * len(prompt_requests)
    return requests, heads
