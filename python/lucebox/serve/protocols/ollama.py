"""Ollama's routes that compute something: /api/chat, /api/generate, /api/embed, /api/embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lucebox.errors import InvalidRequestError
from lucebox.generation.answer import Answer
from lucebox.generation.request import GenerationRequest
from lucebox.serve.body_route import body_router
from lucebox.serve.delivery import LINES
from lucebox.serve.errors import ApiError, ollama_body
from lucebox.serve.protocols.ollama_bodies import (
    ChatRequest,
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    check_generate,
    conversation_of,
    format_of,
    limits_of,
    name_of,
    options_of,
    prompt_of,
)
from lucebox.serve.protocols.ollama_stream import OllamaWriter, Route
from lucebox.serve.protocols.openai_common import LogprobWriter
from lucebox.serve.protocols.openapi import OLLAMA_ERRORS, documented
from lucebox.serve.running_model import RunningModel
from lucebox.serve.server import server_of

__all__ = ["router"]

MAX_TEXTS = 2048

router = body_router()


@router.post("/api/chat", **documented("Answers a conversation, in Ollama's format.", OLLAMA_ERRORS, lines=True))
async def chat(body: ChatRequest, request: Request) -> Response:
    running, writer = await _begun(request, body, "chat")
    if not body.messages:
        return JSONResponse(writer.loaded())
    sampling, limits = options_of(body), limits_of(body)

    def make() -> list[GenerationRequest]:
        return running.model.chat(conversation_of(body), sampling, limits, request.url.path)

    return await _answer(request, running, body, writer, make)


@router.post("/api/generate", **documented("Continues a prompt, in Ollama's format.", OLLAMA_ERRORS, lines=True))
async def generate(body: GenerateRequest, request: Request) -> Response:
    running, writer = await _begun(request, body, "generate")
    prompt = body.prompt
    check_generate(body)
    if not prompt:
        return JSONResponse(writer.loaded())
    sampling, limits = options_of(body), limits_of(body)

    def make() -> list[GenerationRequest]:
        if body.raw:
            answer_format = format_of(body)
            return running.model.complete(prompt, sampling, limits, request.url.path, answer_format=answer_format)
        return running.model.chat(prompt_of(body), sampling, limits, request.url.path)

    return await _answer(request, running, body, writer, make)


async def _begun(
    request: Request, body: ChatRequest | GenerateRequest, route: Route
) -> tuple[RunningModel, OllamaWriter]:
    running, model = await server_of(request).use(request, name_of(body.model))
    logprobs = LogprobWriter(running.model.loaded.tokenizer) if body.logprobs else None
    return running, OllamaWriter(route, body.model or model, logprobs)


async def _answer(
    request: Request,
    running: RunningModel,
    body: ChatRequest | GenerateRequest,
    writer: OllamaWriter,
    make: Callable[[], list[GenerationRequest]],
) -> Response:
    server = server_of(request)
    requests, ignored = await server.in_thread(request, lambda: (make(), body.ignored()))
    if body.stream is False:
        return server.document(running, requests, writer.document, ollama_body, ignored)
    return server.stream(running, requests, writer, ignored, media_type=LINES)


@router.post("/api/embed", **documented("Embeds texts, in Ollama's format.", OLLAMA_ERRORS, streams=False))
async def embed(body: EmbedRequest, request: Request) -> Response:
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise ApiError("invalid", f"input has {len(texts)} texts, expected 1 to {MAX_TEXTS}", "input")
    running, model = await server_of(request).use(request, name_of(body.model))

    def document(answers: Sequence[Answer]) -> dict[str, Any]:
        (answer,) = answers
        assert answer.embedding is not None and answer.finished is not None
        return {
            "model": body.model or model,
            "embeddings": _vectors(answer, body.dimensions),
            "total_duration": round(1e9 * (answer.finished.queue_s + answer.finished.timings.prefill_s)),
            "load_duration": 0,
            "prompt_eval_count": answer.embedding.n_tokens,
        }

    return await _embedded(request, running, body, texts, document)


@router.post("/api/embeddings", **documented("Embeds a text, in Ollama's older format.", OLLAMA_ERRORS, streams=False))
async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
    running, _ = await server_of(request).use(request, name_of(body.model))

    def document(answers: Sequence[Answer]) -> dict[str, Any]:
        return {"embedding": _vectors(answers[0], None)[0]}

    return await _embedded(request, running, body, [body.prompt], document)


async def _embedded(
    request: Request,
    running: RunningModel,
    body: EmbedRequest | EmbeddingsRequest,
    texts: Sequence[str],
    document: Callable[[list[Answer]], dict[str, Any]],
) -> Response:
    server = server_of(request)
    job = await server.in_thread(request, lambda: running.model.embed(texts, body.pooling, request.url.path))
    return server.document(running, [job], document, ollama_body, body.ignored())


def _vectors(answer: Answer, dimensions: int | None) -> list[list[float]]:
    assert answer.embedding is not None
    try:
        return [pooler.vector(normalize=True, dimensions=dimensions).tolist() for pooler in answer.embedding.poolers]
    except InvalidRequestError as error:
        raise ApiError("invalid", str(error), "dimensions") from error
