"""/v1/score: log probabilities of labels."""

from __future__ import annotations

import pytest
from lucebox import LLM
from running import MODEL, Running

ASK = [{"role": "user", "content": "write function add"}]
LABELS = ["def", "class", "import os", [5, 6]]


@pytest.mark.parametrize("form", ["prompt", "tokens", "messages"])
def test_scores_are_those_of_the_api(server: Running, form: str) -> None:
    with LLM(MODEL, context=2048, threads=1) as llm:
        prompt = {"prompt": "x = ", "tokens": llm.tokenize("x = "), "messages": ASK}[form]
        want = llm.choose(prompt, LABELS)
    with server.client() as client:
        body = {"model": MODEL, "labels": LABELS, "messages" if form == "messages" else "prompt": prompt}
        answer = client.post("/v1/score", json=body).raise_for_status().json()
    assert [row["label"] for row in answer["data"]] == [label.text for label in want.labels]
    assert [row["tokens"] for row in answer["data"]] == [list(label.ids) for label in want.labels]
    assert [row["logprob"] for row in answer["data"]] == pytest.approx(
        [label.logprob for label in want.labels], abs=1e-6
    )
    assert sum(row["probability"] for row in answer["data"]) == pytest.approx(1)
    assert answer["usage"]["prompt_tokens"] == want.usage.prompt_tokens and answer["usage"]["completion_tokens"] == 0


def test_many_questions_about_one_document_compute_it_once(server: Running) -> None:
    document = "".join(f"line {i} of a file\n" for i in range(60))
    with server.client() as client:
        usages = [
            client.post("/v1/score", json={"prompt": f"{document}\nQ{i}:", "labels": ["yes", "no"]}).json()["usage"]
            for i in range(3)
        ]
    assert usages[2]["prompt_tokens_details"]["cached_tokens"] > 0.8 * usages[2]["prompt_tokens"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"labels": ["a"]}, "either prompt or messages"),
        ({"labels": ["a"], "prompt": "x", "messages": ASK}, "either prompt or messages"),
        ({"labels": [], "prompt": "x"}, "labels"),
        ({"labels": ["a", ""], "prompt": "x"}, "label 1 has 0 tokens"),
        ({"labels": ["a"], "prompt": "x", "chat_template_kwargs": {}}, "needs messages"),
        ({"labels": ["a"], "prompt": ""}, "no tokens"),
        ({"labels": [[-1]], "prompt": "x"}, "token ids"),
        ({"labels": ["a"], "prompt": "x", "temperature": 1}, "temperature"),
    ],
)
def test_what_is_refused(server: Running, body: dict, reason: str) -> None:
    with server.client() as client:
        answer = client.post("/v1/score", json=body)
    assert answer.status_code == 400 and reason in answer.text
