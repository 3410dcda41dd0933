"""llama.cpp's own routes, and vLLM's names for the form of an answer."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from running import ASK, MODEL, Running

TEXT = "def add(first, second):\n    return"
GREEDY = {"prompt": TEXT, "temperature": 0, "n_predict": 12}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SCHEMA = {
    "type": "object",
    "properties": {"is_dog": {"type": "boolean"}},
    "required": ["is_dog"],
    "additionalProperties": False,
}


def post(server: Running, path: str, body: dict[str, Any], status: int = 200) -> Any:
    with server.client() as client:
        answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_completion(server: Running) -> None:
    """A document, a stream and OpenAI's API have the same text."""
    whole = post(server, "/completion", GREEDY)
    other = server.openai().completions.create(model=MODEL, prompt=TEXT, temperature=0, max_tokens=12)
    assert whole["content"] == other.choices[0].text
    assert (whole["stop"], whole["stop_type"]) == (True, "limit")
    assert (whole["tokens_predicted"], whole["tokens_evaluated"]) == (12, other.usage.prompt_tokens)
    with server.client() as client:
        lines = client.post("/completion", json={**GREEDY, "stream": True}).text.splitlines()
    parts = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [part["stop"] for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1]["timings"]["predicted_n"] == 12


def test_prompts_of_text_and_tokens(server: Running) -> None:
    head, tail = TEXT[:9], TEXT[9:]
    ids = post(server, "/tokenize", {"content": head, "add_special": True})["tokens"]
    mixed = post(server, "/completion", {**GREEDY, "prompt": [*ids, tail]})
    pieces = post(server, "/tokenize", {"content": head, "with_pieces": True})["tokens"]
    assert "".join(token["piece"] for token in pieces) == head
    ids += [token["id"] for token in post(server, "/tokenize", {"content": tail, "with_pieces": True})["tokens"]]
    assert mixed["content"] == post(server, "/completion", {**GREEDY, "prompt": ids})["content"]
    assert mixed["tokens_evaluated"] == len(ids)


def test_probabilities_and_biases(server: Running) -> None:
    answer = post(server, "/completion", {**GREEDY, "n_probs": 2, "n_predict": 1})
    (entry,) = answer["completion_probabilities"]
    assert entry["id"] == entry["top_logprobs"][0]["id"] and len(entry["top_logprobs"]) == 2
    for biases in ([[entry["id"], -100]], {str(entry["id"]): -100}):
        other = post(server, "/completion", {**GREEDY, "n_predict": 1, "n_probs": 1, "logit_bias": biases})
        assert other["completion_probabilities"][0]["id"] == entry["top_logprobs"][1]["id"]


def test_a_stop_string(server: Running) -> None:
    answer = post(server, "/completion", {**GREEDY, "n_predict": 100, "stop": ["e"], "ignore_eos": True})
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", "e")


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"json_schema": SCHEMA}, r'\{"is_dog": (true|false)\}'),
        ({"grammar": 'root ::= "yes" | no\nno ::= "no" [0-9]{2}'}, r"yes|no\d\d"),
        ({"grammar": 'start: "a" | "b"'}, "a|b"),
    ],
)
def test_formats(server: Running, fields: dict[str, Any], pattern: str) -> None:
    assert re.fullmatch(pattern, post(server, "/completion", {"prompt": TEXT, "n_predict": 40, **fields})["content"])


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_json": SCHEMA}, r'\{"is_dog": (true|false)\}'),
        ({"guided_json": json.dumps(SCHEMA)}, r'\{"is_dog": (true|false)\}'),
        ({"guided_regex": r"\d{3}"}, r"\d{3}"),
        ({"guided_choice": ['a "dog"', "a/cat\\"]}, r'a "dog"|a/cat\\'),
        ({"guided_grammar": 'root ::= "x" [0-9]'}, r"x\d"),
        ({"structured_outputs": {"json": SCHEMA}}, r'\{"is_dog": (true|false)\}'),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"structured_outputs": {"json_object": True}}, r"\{.*"),
    ],
    ids=str,
)
def test_vllms_names(server: Running, fields: dict[str, Any], pattern: str) -> None:
    body = {"messages": ASK, "max_tokens": 40, "reasoning_effort": "none", **fields}
    assert re.fullmatch(pattern, post(server, CHAT, body)["choices"][0]["message"]["content"], re.DOTALL)
    body = {"prompt": TEXT, "max_tokens": 40, **fields}
    assert re.fullmatch(pattern, post(server, COMPLETIONS, body)["choices"][0]["text"], re.DOTALL)


def test_a_schema_that_is_not_held_in_full(server: Running) -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "maxItems": 2, "uniqueItems": True}
    answer = post(server, COMPLETIONS, {"prompt": TEXT, "max_tokens": 40, "guided_json": schema})
    assert "uniqueItems" in answer["warnings"][0]
    answer = post(server, "/completion", {"prompt": TEXT, "n_predict": 40, "json_schema": schema})
    assert "uniqueItems" in answer["warnings"][0]


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (CHAT, {"guided_regex": "a", "guided_choice": ["b"]}, "more than once"),
        (CHAT, {"guided_regex": "a", "response_format": {"type": "json_object"}}, "more than once"),
        (COMPLETIONS, {"guided_choice": []}, "none of them empty"),
        (COMPLETIONS, {"guided_json": "{"}, "it is not JSON"),
        (COMPLETIONS, {"guided_json": "1"}, "not a JSON schema"),
        (COMPLETIONS, {"guided_grammar": "root ::= ((("}, "is not GBNF"),
        (COMPLETIONS, {"guided_grammar": "root ::= " + "(" * 9000}, "is not GBNF"),
        (COMPLETIONS, {"guided_grammar": "root ::= " + "\n" * 100_000 + '"a"'}, "more than 3 s"),
        (COMPLETIONS, {"guided_json": "[" + "1," * 400_000 + "1]"}, "not a JSON schema"),
        (COMPLETIONS, {"guided_json": "{" + " " * (1 << 20) + "}"}, "more than 1048576"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_forms_that_are_refused(server: Running, path: str, fields: dict[str, Any], message: str) -> None:
    body = {"messages": ASK} if path == CHAT else {"prompt": TEXT}
    assert message in post(server, path, {**body, "max_tokens": 1, **fields}, 400)["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/completion", {"prompt": TEXT, "n_predict": 0}, 400, "invalid_request_error"),
        ("/completion", {"prompt": TEXT, "other": 0}, 400, "invalid_request_error"),
        ("/completion", {"prompt": ["a", "b"]}, 400, "invalid_request_error"),
        ("/completion", {"prompt": TEXT, "grammar": "x", "json_schema": {}}, 400, "invalid_request_error"),
        ("/completion", {"prompt": TEXT, "logit_bias": [["a", 1]]}, 400, "invalid_request_error"),
        ("/completion", {"prompt": "a " * 3000}, 400, "exceed_context_size_error"),
        ("/completion", {"prompt": TEXT, "model": "other"}, 404, "not_found_error"),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, 501, "not_supported_error"),
        ("/rerank", {}, 501, "not_supported_error"),
    ],
    ids=str,
)
def test_errors_are_llama_cpps(server: Running, path: str, body: dict[str, Any], status: int, kind: str) -> None:
    error = post(server, path, body, status)["error"]
    assert (error["code"], error["type"]) == (status, kind)


def test_slots(server: Running) -> None:
    with server.client() as client:
        slots = client.get("/slots").json()
    assert [slot["id"] for slot in slots] == [0, 1] and {slot["n_ctx"] for slot in slots} == {2048}


def test_samplers_of_other_servers_are_named(server: Running) -> None:
    with server.client() as client:
        answer = client.post("/completion", json={**GREEDY, "mirostat": 0, "cache_prompt": True, "min_keep": 1})
    assert answer.headers["lucebox-ignored"] == "cache_prompt, min_keep, mirostat"
