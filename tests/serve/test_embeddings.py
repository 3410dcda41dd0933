"""/v1/embeddings through OpenAI's SDK."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import httpx
import numpy as np
import pytest
from lucebox import LLM
from running import MODEL, Running, in_process
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
        ({"input": [5] * 2100, "extra_body": {"pooling": "mean"}}, "2100"),
        ({"input": "", "extra_body": {"pooling": "mean"}}, "1 to"),
        ({"input": "x", "extra_body": {"pooling": "best"}}, "pooling"),
        ({"input": "x", "dimensions": 10**6, "extra_body": {"pooling": "mean"}}, "dimensions"),
    ],
)
def test_what_is_refused(server: Running, body: dict, reason: str) -> None:
    with pytest.raises(openai.BadRequestError, match=reason):
        server.openai().embeddings.create(model=MODEL, **body)


def test_prompts(data: Path, tmp_path: Path) -> None:
    """By the fields that clients of other servers send."""
    folder = tmp_path / "model"
    shutil.copytree(data / "tiny" / "qwen35_a", folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    prompts = {"prompts": {"query": "q: ", "document": "d: "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    with LLM(folder, device="cpu", draft="none", context=256) as llm:
        want = {prompt: llm.embed(llm.tokenize(f"{prompt}: a")) for prompt in "qd"}
        with in_process(llm) as url:
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

            def vector(**fields: str) -> list[float]:
                return client.embeddings.create(model="model", input="a", extra_body=fields).data[0].embedding

            for fields, prompt in (
                ({}, "q"),
                ({"prompt_name": "document"}, "d"),
                ({"input_type": "passage"}, "d"),
                ({"input_type": "query", "prompt_name": "query"}, "q"),
            ):
                np.testing.assert_allclose(vector(**fields), want[prompt], atol=1e-6)
            with pytest.raises(openai.BadRequestError, match="the model's prompts are query, document"):
                vector(prompt_name="other")
            with pytest.raises(openai.BadRequestError, match="input_type and prompt_name differ"):
                vector(prompt_name="query", input_type="document")
            ollama = httpx.post(f"{url}/api/embed", json={"model": "model", "input": ["a"]}).json()["embeddings"]
            np.testing.assert_allclose(ollama[0], want["q"], atol=1e-6)
