"""/v1/embeddings through OpenAI's SDK."""

from __future__ import annotations

import numpy as np
import pytest
from lucebox import LLM
from running import MODEL, Running
from sdks import openai

TEXTS = ["def add(a, b):\n", "import os", "x = 1\n" * 200]


def test_embeddings_are_those_of_the_api(server: Running) -> None:
    """The SDK asks for base64."""
    client = server.openai()
    mean = {"pooling": "mean"}
    answer = client.embeddings.create(model=MODEL, input=TEXTS, extra_body=mean)
    vectors = np.array([one.embedding for one in answer.data])
    with LLM(MODEL, context=1024, threads=1) as llm:
        want, n_tokens = llm.embed(TEXTS, pooling="mean"), sum(len(llm.tokenize(text)) for text in TEXTS)
        ids = llm.tokenize(TEXTS[0])
    assert vectors.shape == want.shape and answer.usage.prompt_tokens == answer.usage.total_tokens == n_tokens
    np.testing.assert_allclose(vectors, want, atol=1e-3)  # the server's prefill chunk has other rows
    (one,) = client.embeddings.create(model=MODEL, input=ids, encoding_format="float", extra_body=mean).data
    np.testing.assert_allclose(one.embedding, vectors[0], atol=1e-6)
    (short,) = client.embeddings.create(model=MODEL, input=TEXTS[0], dimensions=8, extra_body=mean).data
    assert len(short.embedding) == 8 and np.linalg.norm(short.embedding) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"input": "x"}, "not made for embeddings"),
        ({"input": [], "extra_body": {"pooling": "mean"}}, "0 texts"),
        ({"input": "", "extra_body": {"pooling": "mean"}}, "1 to"),
        ({"input": "x", "extra_body": {"pooling": "best"}}, "pooling"),
        ({"input": "x", "dimensions": 10**6, "extra_body": {"pooling": "mean"}}, "dimensions"),
    ],
)
def test_what_is_refused(server: Running, body: dict, reason: str) -> None:
    with pytest.raises(openai.BadRequestError, match=reason):
        server.openai().embeddings.create(model=MODEL, **body)
