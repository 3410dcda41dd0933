"""OpenAI's embeddings: /v1/embeddings."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Literal, cast

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from lucebox.errors import InvalidRequestError
from lucebox.generation.answer import Answer
from lucebox.generation.embedding import Pooling
from lucebox.serve.body_route import body_router
from lucebox.serve.errors import ApiError, openai_body
from lucebox.serve.protocols.body import Body, Ignored, Many, Name
from lucebox.serve.protocols.openapi import ERRORS, documented
from lucebox.serve.server import server_of

__all__ = ["EmbeddingRequest", "router"]

MAX_TEXTS = 2048  # as OpenAI


class EmbeddingRequest(Body):
    """OpenAI's embedding request."""

    model: Name | None = None
    input: str | Many[str] | Many[int] | Many[Many[int]] = Field(description="Text or tokens, one or several.")
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1, description="Only the first ones, for models trained so.")
    pooling: Pooling | None = Field(None, description="Instead of the model's own.")
    prompt_name: Name | None = Field(None, description="The model's prompt to put before each text.")
    input_type: Literal["query", "document", "passage"] | None = Field(None, description="Another name of prompt_name.")
    user: Ignored = None


def texts_of(body: EmbeddingRequest) -> list[str | list[int]]:
    given = body.input
    if isinstance(given, str):
        return [given]
    if given and isinstance(given[0], int):
        return [given]
    if not given or len(given) > MAX_TEXTS:
        raise ApiError("invalid", f"input has {len(given)} texts, expected 1 to {MAX_TEXTS}", "input")
    return cast("list[str | list[int]]", given)


def document(body: EmbeddingRequest, model: str, answers: Sequence[Answer]) -> dict[str, Any]:
    data = []
    (answer,) = answers
    assert answer.embedding is not None
    for i, pooler in enumerate(answer.embedding.poolers):
        try:
            vector = pooler.vector(normalize=True, dimensions=body.dimensions)
        except InvalidRequestError as error:
            raise ApiError("invalid", str(error), "dimensions") from error
        is_text = body.encoding_format == "base64"
        value = base64.b64encode(vector.tobytes()).decode() if is_text else vector.tolist()
        data.append({"object": "embedding", "index": i, "embedding": value})
    n_tokens = answer.embedding.n_tokens
    return {
        "object": "list",
        "data": data,
        "model": model,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }


router = body_router()


@router.post("/v1/embeddings", **documented("Embeds texts.", ERRORS))
async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
    server = server_of(request)
    running, model = await server.use(request, body.model)
    texts, prompt_name, path = texts_of(body), body.prompt_name or body.input_type, request.url.path
    if body.input_type is not None and prompt_name != body.input_type:
        raise ApiError("invalid", "input_type and prompt_name differ: they are one field", "input_type")
    embedding = await server.in_thread(request, lambda: running.model.embed(texts, body.pooling, path, prompt_name))

    def write(answers: Sequence[Answer]) -> dict[str, Any]:
        return document(body, model, answers)

    return server.document(running, [embedding], write, openai_body, body.ignored())
