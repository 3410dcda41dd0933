"""/v1/responses: counted and compacted conversations, events of stored responses, `include` and log probabilities."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lucebox.serve.protocols.encoded_reasoning import decode_reasoning, encode_reasoning
from running import MODEL, Running
from sdks import openai
from test_events import checked_responses

GREEDY = {"model": MODEL, "temperature": 0, "max_output_tokens": 12}
CITY = {
    "type": "object",
    "properties": {"city": {"const": "Oslo"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "w", "parameters": CITY}


def test_input_tokens_equal_the_usage(server: Running) -> None:
    client = server.openai()
    asked: dict[str, Any] = {"instructions": "Be brief.", "tools": [TOOL], "model": MODEL}
    first = client.responses.create(input="My dog is called Rex.", max_output_tokens=4, **asked)
    assert first.usage is not None
    counted = client.responses.input_tokens.count(input="My dog is called Rex.", **asked)
    assert (counted.input_tokens, counted.object) == (first.usage.input_tokens, "response.input_tokens")
    asked["previous_response_id"] = first.id
    second = client.responses.create(input="And now?", max_output_tokens=1, **asked)
    assert second.usage is not None
    assert client.responses.input_tokens.count(input="And now?", **asked).input_tokens == second.usage.input_tokens
    with pytest.raises(openai.BadRequestError, match="no message to answer"):
        client.responses.input_tokens.count(model=MODEL)


def test_a_compacted_conversation(server: Running) -> None:
    """The user's messages and a summary, which a later request takes as its input."""
    client = server.openai()
    call = {"type": "function_call", "call_id": "c", "name": "w", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "sunny " * 50}
    turns: list[Any] = [{"role": "user", "content": "The weather?"}, call, result]
    compacted = client.responses.compact(model=MODEL, input=turns, service_tier="auto")
    assert compacted.object == "response.compaction" and compacted.usage.output_tokens > 0
    kept, summary = [item.model_dump(exclude_none=True, warnings=False) for item in compacted.output]
    assert (kept["role"], kept["content"][0]["text"]) == ("user", "The weather?")
    text = decode_reasoning(summary["encrypted_content"])
    assert summary["type"] == "compaction" and text

    further: list[Any] = [kept, summary, {"role": "user", "content": "And now?"}]
    answer = client.responses.create(input=further, **GREEDY)
    spelled = f"Summary of the conversation so far:\n\n{text}"
    plain: list[Any] = [{"role": "user", "content": one} for one in ("The weather?", spelled, "And now?")]
    assert answer.output_text == client.responses.create(input=plain, **GREEDY).output_text
    again = client.responses.compact(model=MODEL, input=further)
    assert [item.type for item in again.output] == ["message", "message", "compaction"]
    with pytest.raises(openai.BadRequestError, match="made by another server"):
        client.responses.create(input=[{**summary, "encrypted_content": "gAAAA"}], **GREEDY)
    assert decode_reasoning(encode_reasoning("a")) == "a"


def events(server: Running, response_id: str, **query: Any) -> list[dict[str, Any]]:
    with server.client() as client:
        lines = client.get(f"/v1/responses/{response_id}", params={"stream": "true", **query}).text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def test_events_of_a_stored_response(server: Running) -> None:
    client = server.openai()
    whole = client.responses.create(
        model=MODEL,
        input="The weather?",
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    )
    found = events(server, whole.id)
    assert checked_responses(found) == client.responses.retrieve(whole.id).model_dump(mode="json", exclude_unset=True)
    assert events(server, whole.id, starting_after=3) == found[4:]
    assert events(server, whole.id, starting_after=len(found)) == []
    with client.responses.stream(response_id=whole.id) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output[0].id == whole.output[0].id
    with server.client() as raw:
        assert raw.get("/v1/responses/resp_gone?stream=true").status_code == 404
        assert raw.get(f"/v1/responses/{whole.id}?stream=true&starting_after=x").status_code == 400


def test_events_of_a_background_response(server: Running) -> None:
    """The stream of a running response ends with it, complete, cancelled or deleted."""
    client = server.openai()
    begun = client.responses.create(input="Once", background=True, **GREEDY)
    assert checked_responses(events(server, begun.id))["status"] == "incomplete"
    form = {
        "type": "json_schema",
        "name": "n",
        "schema": {"type": "array", "items": {"type": "integer"}, "minItems": 999},
    }
    asked: dict[str, Any] = {"model": MODEL, "input": "Count.", "text": {"format": form}, "background": True}
    for end, last in ((client.responses.cancel, "response.failed"), (client.responses.delete, None)):
        begun = client.responses.create(**asked)
        stream = client.responses.retrieve(begun.id, stream=True)
        assert [next(stream).type, next(stream).type] == ["response.created", "response.in_progress"]
        end(begun.id)
        if last is None:
            with pytest.raises(openai.APIError, match="not found"):
                list(stream)
        else:
            assert [event.type for event in stream][-1] == last


def test_included_parts(server: Running) -> None:
    """Log probabilities have an effect; results of tools that are not here are named."""
    body = {"input": "Once upon a time", "temperature": 0, "max_output_tokens": 12}
    with server.client() as client:
        plain = client.post("/v1/responses", json=body)
        included = ["message.output_text.logprobs", "file_search_call.results", "a\r\nb: c"]
        answered = client.post("/v1/responses", json={**body, "top_logprobs": 2, "include": included})
        lines = client.post("/v1/responses", json={**body, "top_logprobs": 2, "stream": True}).text.splitlines()
    assert "lucebox-ignored" not in plain.headers
    assert answered.headers["lucebox-ignored"] == "include.a%0D%0Ab%3A%20c, include.file_search_call.results"
    (part,) = answered.json()["output"][0]["content"]
    (silent,) = plain.json()["output"][0]["content"]
    assert (silent["text"], silent["logprobs"]) == (part["text"], [])
    assert "".join(token["token"] for token in part["logprobs"]) == part["text"]
    assert all(len(token["top_logprobs"]) == 2 and token["logprob"] <= 0 for token in part["logprobs"])
    assert answered.json()["top_logprobs"] == 2
    streamed = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    checked_responses(streamed)
    by_delta = [token for event in streamed if event["type"].endswith("text.delta") for token in event["logprobs"]]
    (done,) = [event for event in streamed if event["type"] == "response.output_text.done"]
    assert by_delta == done["logprobs"] == part["logprobs"]
    alone = server.openai().responses.create(
        input="Once", model=MODEL, max_output_tokens=2, include=["message.output_text.logprobs"]
    )
    assert alone.output[0].content[0].logprobs[0].top_logprobs == []  # type: ignore[union-attr]
