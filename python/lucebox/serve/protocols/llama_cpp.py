"""llama.cpp's own routes: /completion, /slots, and the refusal of /rerank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lucebox.chat.conversation import AnswerFormat
from lucebox.generation.answer import Answer
from lucebox.generation.events import TextDelta, Warning
from lucebox.generation.request import Finished, GenerationRequest, Item
from lucebox.results import TokenLogprob
from lucebox.serve.body_route import body_router
from lucebox.serve.delivery import KEEP_ALIVE, sse
from lucebox.serve.errors import ApiError, llama_cpp_body, llama_cpp_error
from lucebox.serve.model import Limits, with_api_errors
from lucebox.serve.protocols.body import Bias, Biases, Ignored, Many, Name, Sampled, Stops, sampling_of, token_biases
from lucebox.serve.protocols.openai_common import LogprobWriter, comment
from lucebox.serve.protocols.openapi import ERRORS, LLAMA_CPP_ERRORS, documented
from lucebox.serve.protocols.structured_outputs import grammar_format
from lucebox.serve.running_model import RunningModel
from lucebox.serve.server import server_of

__all__ = ["CompletionRequest", "router"]

_NAMES = {  # body field -> Sampling field
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "penalty_window",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "ignore_eos": "ignore_eos",
}
Pair = Annotated[tuple[int, Bias], Field(strict=False)]


class CompletionRequest(Sampled):
    """llama.cpp's completion."""

    prompt: str | Many[int | str] = Field(description="Text, tokens, or a list of both.")
    n_predict: int | None = Field(None, ge=-1, le=2**31 - 1, description="-1: as much as the context holds.")
    stream: bool | None = None
    stop: Stops | None = None
    min_p: float | None = Field(None, ge=0, le=1)
    typical_p: float | None = Field(None, gt=0, le=1)
    repeat_penalty: float | None = Field(None, gt=0, le=100)
    repeat_last_n: int | None = Field(None, ge=-1, le=2**31 - 1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: Biases | Many[Pair] | None = Field(
        None, description="Added to the logits of token ids: an object, or pairs."
    )
    seed: int | None = Field(None, ge=-1, le=2**63 - 1, description="-1: any.")
    ignore_eos: bool | None = None
    n_probs: int | None = Field(None, ge=0, le=20)
    grammar: str | None = Field(None, description="GBNF or Lark.")
    json_schema: dict[str, Any] | None = None
    model: Name | None = None
    cache_prompt: Ignored = None
    id_slot: Ignored = None
    n_keep: Ignored = None
    n_cache_reuse: Ignored = None
    n_indent: Ignored = None
    t_max_predict_ms: Ignored = None
    samplers: Ignored = None
    mirostat: Ignored = None
    mirostat_tau: Ignored = None
    mirostat_eta: Ignored = None
    dynatemp_range: Ignored = None
    dynatemp_exponent: Ignored = None
    xtc_probability: Ignored = None
    xtc_threshold: Ignored = None
    dry_multiplier: Ignored = None
    dry_base: Ignored = None
    dry_allowed_length: Ignored = None
    dry_penalty_last_n: Ignored = None
    dry_sequence_breakers: Ignored = None
    min_keep: Ignored = None
    return_tokens: Ignored = None
    timings_per_token: Ignored = None
    post_sampling_probs: Ignored = None
    response_fields: Ignored = None
    lora: Ignored = None


def _sampling(body: CompletionRequest) -> dict[str, Any]:
    """The fields of `Sampling` that were sent."""
    sampling = sampling_of(body)
    sampling |= {field: value for name, field in _NAMES.items() if (value := getattr(body, name)) is not None}
    if body.seed is not None and body.seed >= 0:
        sampling["seed"] = body.seed
    if body.n_probs:
        sampling["logprobs"] = body.n_probs
    if isinstance(body.logit_bias, dict):
        sampling["logit_bias"] = token_biases(body.logit_bias)
    elif body.logit_bias is not None:
        sampling["logit_bias"] = token_biases({str(token): bias for token, bias in body.logit_bias})
    return sampling


def _format(body: CompletionRequest) -> AnswerFormat | None:
    if body.grammar and body.json_schema is not None:
        raise ApiError("invalid", "grammar and json_schema exclude each other", "grammar")
    if body.json_schema is not None:
        return AnswerFormat("json_schema", body.json_schema)
    return grammar_format(body.grammar) if body.grammar else None


def _prompt(running: RunningModel, body: CompletionRequest) -> str | list[int]:
    """The prompt as text or tokens."""
    if isinstance(body.prompt, str):
        return body.prompt
    if len(body.prompt) > 1 and all(isinstance(part, str) for part in body.prompt):
        raise ApiError("invalid", "several prompts: send them to /v1/completions, or one request each", "prompt")
    texts = [part for part in body.prompt if isinstance(part, str)]
    with_api_errors(lambda: running.model.loaded.check_length(texts))
    ids: list[int] = []
    for i, part in enumerate(body.prompt):
        if isinstance(part, int):
            ids.append(part)
        else:
            encode = partial(running.model.loaded.tokenizer.encode, part, add_bos=None if i == 0 else False)
            ids += with_api_errors(encode)
    return ids


class CompletionWriter:
    def __init__(self, model: str, logprobs: LogprobWriter | None) -> None:
        self._model = model
        self._logprobs = logprobs
        self._pending: list[TokenLogprob] = []
        self._finished: Finished | None = None

    def open(self) -> bytes:
        return KEEP_ALIVE

    def write(self, index: int, item: Item) -> bytes:
        match item:
            case TextDelta(text):
                return sse(self._part(text))
            case TokenLogprob():
                self._pending.append(item)
            case Warning(text):
                return comment(text)
            case Finished():
                self._finished = item
        return b""

    def beat(self) -> bytes:
        return KEEP_ALIVE

    def close(self) -> bytes:
        assert self._finished is not None
        return sse(self._part("") | self._ending(self._finished))

    def fail(self, error: ApiError) -> bytes:
        return sse(llama_cpp_error(error))

    def document(self, answers: Sequence[Answer]) -> dict[str, Any]:
        (answer,) = answers
        assert answer.finished is not None
        self._pending = answer.logprobs
        part = self._part(answer.text) | self._ending(answer.finished)
        return part | ({"warnings": answer.warnings} if answer.warnings else {})

    def _part(self, text: str) -> dict[str, Any]:
        part: dict[str, Any] = {"index": 0, "content": text, "tokens": [], "stop": False}
        if self._logprobs is not None and self._pending:
            part["completion_probabilities"] = self._logprobs.chat(self._pending)
            self._pending = []
        return part

    def _ending(self, finished: Finished) -> dict[str, Any]:
        times, usage = finished.timings, finished.usage
        return {
            "stop": True,
            "model": self._model,
            "stop_type": {"length": "limit", "stop_string": "word"}.get(finished.reason, "eos"),
            "stopping_word": finished.stop_string or "",
            "truncated": False,
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "tokens_cached": usage.cached_tokens,
            "timings": {
                "prompt_n": usage.prompt_tokens - usage.cached_tokens,
                "prompt_ms": round(1e3 * times.prefill_s, 3),
                "prompt_per_second": round(times.prefill_tok_s, 3),
                "predicted_n": usage.completion_tokens,
                "predicted_ms": round(1e3 * times.decode_s, 3),
                "predicted_per_second": round(times.decode_tok_s, 3),
            },
        }


router = body_router()


@router.post("/completion", **documented("Continues a text, in llama.cpp's format.", LLAMA_CPP_ERRORS))
@router.post("/completions", include_in_schema=False)
async def completion(body: CompletionRequest, request: Request) -> Response:
    server = server_of(request)
    running, model = await server.use(request, body.model)
    if body.n_predict == 0:
        raise ApiError("invalid", "it is 0, which generates nothing", "n_predict")
    sampling = _sampling(body)
    n = body.n_predict
    limits = Limits(n if n is not None and n > 0 else None, tuple(body.stop or ()))

    def make() -> list[GenerationRequest]:
        prompt = _prompt(running, body)
        return running.model.complete(prompt, sampling, limits, request.url.path, answer_format=_format(body))

    requests = await server.in_thread(request, make)
    logprobs = LogprobWriter(running.model.loaded.tokenizer, with_ids=True) if body.n_probs else None
    writer = CompletionWriter(model, logprobs)
    if body.stream:
        return server.stream(running, requests, writer, body.ignored())
    return server.document(running, requests, writer.document, llama_cpp_body, body.ignored())


@router.get(
    "/slots",
    summary="The slots, in llama.cpp's format; no text.",
    response_model=list[dict[str, Any]],
    responses={401: ERRORS[401], 403: ERRORS[403]},
)
async def slots(request: Request, model: str | None = None) -> Response:
    models = server_of(request).models
    loaded = models.loaded_replicas(models.find(model))
    slots = [(running, is_busy) for running in loaded for is_busy in running.scheduler.busy()]
    facts = [
        {
            "id": i,
            "n_ctx": running.model.context,
            "speculative": running.model.loaded.options.draft != "none",
            "is_processing": is_busy,
        }
        for i, (running, is_busy) in enumerate(slots)
    ]
    return JSONResponse(facts)


@router.post("/v1/rerank", include_in_schema=False)
@router.post("/rerank", include_in_schema=False)
@router.post("/v1/reranking", include_in_schema=False)
@router.post("/reranking", include_in_schema=False)
async def rerank(request: Request) -> Response:
    name = server_of(request).models.default.name
    raise ApiError(
        "unsupported",
        f"{name} is no reranker, and lucebox serves none yet; rank by the similarity of /v1/embeddings instead",
    )
