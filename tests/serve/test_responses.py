"""/v1/responses and /v1/completions through OpenAI's SDK."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from lucebox import LLM
from lucebox.serve.errors import ApiError
from lucebox.serve.protocols.openai_responses import ResponsesRequest, conversation_of
from lucebox.serve.protocols.responses_items import messages_of, resolved
from lucebox.serve.responses_store import ResponseStore, StoredResponse
from running import ASK, MODEL, Running
from sdks import openai
from tolerances import check

GREEDY = {"model": MODEL, "temperature": 0, "max_output_tokens": 12}
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


def test_answer(server: Running) -> None:
    response = server.openai().responses.create(input="Once upon a time", **GREEDY)
    assert response.output_text
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None and response.usage.output_tokens == 12


def test_streamed_answer_equals_the_document(server: Running) -> None:
    client = server.openai()
    whole = client.responses.create(input="Once upon a time", **GREEDY)
    events = list(client.responses.create(input="Once upon a time", stream=True, **GREEDY))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text


def test_the_stream_through_the_sdk_helper(server: Running) -> None:
    with server.openai().responses.stream(
        model=MODEL, input="Once upon a time", temperature=0, max_output_tokens=60, tools=[TOOL], tool_choice="required"
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output[0].type == "function_call"
    assert json.loads(final.output[0].arguments)["city"] is not None


def test_a_conversation_with_a_call(server: Running) -> None:
    """Codex's way: the client sends all items back, with store off."""
    client = server.openai()
    options = {"model": MODEL, "temperature": 0, "max_output_tokens": 60, "store": False, "tools": [TOOL]}
    first = client.responses.create(input=ASK, tool_choice={"type": "function", "name": "get_weather"}, **options)
    call = first.output[0]
    assert call.type == "function_call"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "You are an agent."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "The weather?"}]},
        call.model_dump(exclude_none=True),
        result,
    ]
    second = client.responses.create(
        input=items,
        tool_choice="none",
        include=["reasoning.encrypted_content"],
        extra_body={"prompt_cache_key": "k", "client_metadata": {}},
        **options,
    )
    assert second.output_text
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)


def test_stored_responses(server: Running) -> None:
    client = server.openai()
    first = client.responses.create(input="My dog is called Rex.", **GREEDY)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(input="What is it called?", previous_response_id=first.id, **GREEDY)
    assert second.usage is not None and first.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens - 12
    assert client.responses.input_items.list(first.id).data[0].type == "message"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_references_to_stored_items(server: Running) -> None:
    """Vercel's AI SDK refers to every stored item in the next step of a tool loop."""
    client = server.openai()
    asked = {"model": MODEL, "temperature": 0, "max_output_tokens": 60, "tools": [TOOL], "parallel_tool_calls": False}
    first = client.responses.create(input="The weather?", tool_choice="required", **asked)
    (call,) = first.output
    (question,) = client.responses.input_items.list(first.id).data
    assert (question.type, question.content[0].text) == ("message", "The weather?")  # type: ignore[union-attr]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}  # type: ignore[union-attr]
    referred = [{"type": "item_reference", "id": question.id}, {"id": call.id}, result]
    carried = [{"role": "user", "content": "The weather?"}, call.model_dump(exclude_none=True), result]
    asked |= {"tool_choice": "none", "max_output_tokens": 4}
    by_id, whole = (client.responses.create(input=items, **asked) for items in (referred, carried))
    assert by_id.output_text == whole.output_text
    assert by_id.usage is not None and whole.usage is not None
    assert by_id.usage.input_tokens == whole.usage.input_tokens
    again = client.responses.input_items.list(by_id.id).data
    assert [item.id for item in again[:2]] == [question.id, call.id] and again[2].id.startswith("fco_")
    client.responses.delete(first.id)
    last = client.responses.create(input=referred, **asked)  # the second response has the items too
    for response in (by_id, whole, last):
        client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError, match=question.id):
        client.responses.create(input=referred, **asked)
    with pytest.raises(openai.NotFoundError, match="Item with id 'rs_gone' not found") as gone:
        client.responses.create(input=[{"role": "user", "content": "a"}, {"type": "item_reference", "id": "rs_gone"}],
                                **asked)  # fmt: skip
    assert (gone.value.param, gone.value.code) == ("input", None)


def test_the_newest_of_items_with_one_id() -> None:
    store = ResponseStore()

    def found(item_id: str) -> int:
        return (store.find_item(item_id, "key") or {})["n"]

    for n in range(3):
        item = {"type": "message", "id": "msg_1", "n": n}
        store.put(StoredResponse({"id": f"r{n}", "output": []}, [], [item], "key"))
    store.put(StoredResponse({"id": "other", "output": [{"id": "msg_1"}]}, [], [], "stranger"))
    assert found("msg_1") == 2
    store.delete("r2", "key")
    assert found("msg_1") == 1
    store.update(StoredResponse({"id": "r1", "output": [{"id": "msg_2"}]}, [], [], "key"))
    assert found("msg_1") == 0 and store.find_item("msg_2", "key")
    store.delete("r0", "key")
    assert store.find_item("msg_1", "key") is None and store.find_item("msg_1", "stranger")


def test_references_make_no_input_larger_than_a_body() -> None:
    """One stored item may be referred to thousands of times."""
    item = {"type": "message", "role": "user", "content": "x" * 1000, "id": "msg_1"}
    items = ResponsesRequest.model_validate({"input": [{"type": "item_reference", "id": "msg_1"}] * 9}).input
    assert not isinstance(items, str)
    assert len(resolved(items, lambda _: item, 20_000)) == 9
    with pytest.raises(ApiError, match="refers to have more than 8000 bytes") as refused:
        resolved(items, lambda _: item, 8000)
    assert refused.value.status == 413


REASONING: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": []}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (REASONING, "I think."),  # LangChain, after a stream
        (REASONING | {"content": []}, "I think."),
        (REASONING | {"content": [{"type": "reasoning_text", "text": "Mine."}]}, "Mine."),
        (REASONING | {"id": "rs_gone"}, None),
        (REASONING | {"id": "msg_1"}, None),
    ],
)
def test_reasoning_without_its_text(sent: dict[str, Any], expected: str | None) -> None:
    """The text is read from the stored response, if it is still there."""
    thought = REASONING | {"content": [{"type": "reasoning_text", "text": "I think."}]}
    stored = {"rs_1": thought, "msg_1": {"type": "message", "role": "user", "content": "a", "id": "msg_1"}}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    items = ResponsesRequest.model_validate({"input": [{"role": "user", "content": "a"}, sent, call]}).input
    assert not isinstance(items, str)
    turn = messages_of(resolved(items, stored.get, 10_000))[1]
    assert turn.get("reasoning_content") == expected and turn["tool_calls"]


def test_a_previous_response_that_is_gone(server: Running) -> None:
    """Clients that find this code send the whole conversation."""
    with pytest.raises(openai.BadRequestError, match="Previous response with id 'resp_gone' not found") as gone:
        server.openai().responses.create(input="And?", previous_response_id="resp_gone", **GREEDY)
    assert (gone.value.code, gone.value.param) == ("previous_response_not_found", "previous_response_id")


def test_cancel(patient: Running) -> None:
    client = patient.openai()
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 900}  # cannot end by itself
    schema = {"type": "object", "properties": {"n": numbers}, "required": ["n"], "additionalProperties": False}
    stream = client.responses.create(
        input="Once",
        model=MODEL,
        stream=True,
        max_output_tokens=1900,
        text={"format": {"type": "json_schema", "name": "numbers", "schema": schema, "strict": True}},
    )
    first = next(iter(stream))
    client.responses.cancel(first.response.id)
    last = list(stream)[-1]
    assert last.type == "response.failed" and last.response.status == "cancelled"
    patient.wait_until(running=0)


def ended(server: Running, response_id: str) -> Any:
    """Polls a response until it has ended."""
    statuses = []
    for _ in range(3000):
        response = server.openai().responses.retrieve(response_id)
        statuses.append(response.status)
        if response.status not in ("queued", "in_progress"):
            return response
        time.sleep(0.02)
    raise AssertionError(statuses)


def test_a_background_response(server: Running) -> None:
    client = server.openai()
    asked = {"model": MODEL, "input": "Where is the dog?", "temperature": 0, "max_output_tokens": 12}
    whole = client.responses.create(**asked)
    begun = client.responses.create(**asked, background=True)
    assert begun.status == "queued" and begun.background is True and begun.output == []
    response = ended(server, begun.id)
    assert (response.status, response.id, response.output_text) == (whole.status, begun.id, whole.output_text)
    assert response.usage is not None and response.usage.output_tokens == 12
    further = client.responses.create(**asked | {"input": "And now?", "previous_response_id": begun.id})
    assert further.usage is not None and further.usage.input_tokens > response.usage.total_tokens


def test_a_background_response_is_cancelled_or_deleted(patient: Running) -> None:
    client = patient.openai()
    form = {
        "type": "json_schema",
        "name": "n",
        "schema": {"type": "array", "items": {"type": "integer"}, "minItems": 999},
    }
    asked = {"model": MODEL, "input": "Count.", "max_output_tokens": 1500, "text": {"format": form}, "background": True}
    patient.wait_until(running=0, waiting=0)
    begun = client.responses.create(**asked)
    patient.wait_until(running=1)
    with pytest.raises(openai.BadRequestError, match="no answer to continue from"):
        client.responses.create(model=MODEL, input="And now?", previous_response_id=begun.id)
    assert client.responses.cancel(begun.id).status == "cancelled"
    assert client.responses.retrieve(begun.id).status == "cancelled"
    deleted = client.responses.create(**asked)
    client.responses.delete(deleted.id)
    patient.wait_until(running=0, waiting=0)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(deleted.id)
    for wrong in ({"stream": True}, {"store": False}):
        with pytest.raises(openai.BadRequestError, match="background"):
            client.responses.create(**asked, **wrong)


def test_context_overflow_is_a_stream_event(server: Running) -> None:
    """Codex reads the code from the stream; a client without streaming gets an HTTP status."""
    client = server.openai()
    *_, last = client.responses.create(input="word " * 3000, stream=True, **GREEDY)
    assert last.type == "response.failed"
    assert last.response.error.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(input="word " * 3000, **GREEDY)
    assert caught.value.code == "context_length_exceeded"


def test_tools_that_only_openai_runs_are_named(server: Running) -> None:
    body = {"input": "Hi", "max_output_tokens": 1, "tools": [{"type": "web_search"}, TOOL], "service_tier": "auto"}
    with server.client() as client:
        answered = client.post("/v1/responses", json=body)
    assert answered.status_code == 200
    assert answered.headers["lucebox-ignored"] == "service_tier, tools.web_search"


def test_a_codex_title_request(server: Running) -> None:
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string", "minLength": 1, "maxLength": 36}},
        "required": ["title"],
        "additionalProperties": False,
    }
    text = {"format": {"type": "json_schema", "name": "title", "schema": schema, "strict": True}}
    response = server.openai().responses.create(
        model=MODEL, input="A title", text=text, tools=[], max_output_tokens=100
    )
    assert 1 <= len(json.loads(response.output_text)["title"]) <= 36


# --- completions


def test_completion(server: Running) -> None:
    client = server.openai()
    done = client.completions.create(model=MODEL, prompt="The dog", temperature=0, logprobs=2)
    assert done.usage is not None and done.usage.completion_tokens == 16
    (choice,) = done.choices
    assert choice.logprobs is not None and len(choice.logprobs.token_logprobs or []) == 16
    assert "".join(choice.logprobs.tokens or []) == choice.text
    stream = client.completions.create(model=MODEL, prompt="The dog", temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == choice.text
    echoed = client.completions.create(model=MODEL, prompt="The dog", temperature=0, echo=True)
    assert echoed.choices[0].text == "The dog" + choice.text


def test_prompt_logprobs(server: Running) -> None:
    """For evaluation harnesses: every token after the first, with the likeliest alternatives."""
    client = server.openai()
    text = "Once upon a time there was a small dog. " * 9
    asked = {"model": MODEL, "prompt": text, "temperature": 0, "echo": True, "logprobs": 2}
    (choice,) = client.completions.create(**asked, max_tokens=0).choices
    assert (choice.text, choice.finish_reason) == (text, "length")
    with LLM(MODEL, context=512, threads=1) as llm:
        ids, rows = llm.ids(text), []
        with llm.locked_session() as session:
            for start in range(0, len(ids), 64):  # the server's append sizes, so that the logits are bit-identical
                rows.append(session.append(ids[start : start + 64])[0])
                session.commit(list(range(len(rows[-1]))))
    assert len(rows) > 1
    logits = np.concatenate(rows).astype(np.float64)
    expected = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    assert choice.logprobs is not None
    scores, tops = choice.logprobs.token_logprobs or [], choice.logprobs.top_logprobs or []
    assert "".join(choice.logprobs.tokens or []) == text
    assert scores[0] is None and tops[0] is None and len(scores) == len(tops) == len(ids)
    check("logprob", scores[1:], expected[np.arange(len(ids) - 1), ids[1:]])
    best = [max(top.values()) for top in tops[1:]]
    check("logprob", best, expected[:-1].max(axis=1))
    assert all(len(top) == 2 for top in tops[1:])

    (longer,) = client.completions.create(**asked, max_tokens=3).choices
    assert longer.logprobs is not None
    assert (longer.logprobs.token_logprobs or [])[: len(ids)] == scores
    plain = client.completions.create(model=MODEL, prompt=text, temperature=0, max_tokens=3, logprobs=2).choices[0]
    assert longer.text == text + plain.text and plain.logprobs is not None
    assert (longer.logprobs.tokens or [])[len(ids) :] == plain.logprobs.tokens
    chunks = list(client.completions.create(**asked, max_tokens=3, stream=True))
    streamed = [t for c in chunks if (found := c.choices[0].logprobs) for t in found.token_logprobs or []]
    assert streamed == longer.logprobs.token_logprobs
    assert "".join(chunk.choices[0].text for chunk in chunks) == longer.text
    with pytest.raises(openai.BadRequestError, match="without echo"):
        client.completions.create(model=MODEL, prompt=text, max_tokens=0)


def test_completions_of_several_prompts(server: Running) -> None:
    client = server.openai()
    ids = server.client().post("/v1/tokenize", json={"content": "The dog"}).json()["tokens"]
    done = client.completions.create(model=MODEL, prompt=["The dog", "A cat"], temperature=0, max_tokens=4)
    assert [choice.index for choice in done.choices] == [0, 1]
    by_ids = client.completions.create(model=MODEL, prompt=ids, temperature=0, max_tokens=4)
    assert by_ids.choices[0].text == done.choices[0].text


def search(namespace: str) -> dict[str, Any]:
    """A namespace with a function that others have too, and one of its own."""
    schema = {"type": "object", "properties": {"q": {"const": namespace}}, "required": ["q"]}
    functions = [{"type": "function", "name": name, "parameters": schema} for name in ("search", f"{namespace}_only")]
    return {"type": "namespace", "name": namespace, "tools": functions}


BOTH = [search("mail"), search("files"), {"type": "function", "name": "search"}]


def test_functions_of_two_namespaces_stay_apart() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "search", "arguments": "{}"}
    body = ResponsesRequest.model_validate({
        "input": [call, {**call, "namespace": "files"}, {**call, "namespace": "mail", "name": "mail_only"}],
        "tools": BOTH,
        "tool_choice": {"type": "function", "name": "search", "namespace": "mail"},
    })  # fmt: skip
    conversation = conversation_of(body, [])
    assert [tool.name for tool in conversation.tools] == [
        "mail__search", "mail_only", "files__search", "files_only", "search",
    ]  # fmt: skip
    assert [tool.parameters["properties"] for tool in conversation.tools][2] == {"q": {"const": "files"}}
    (turn,) = conversation.messages
    assert [c["function"]["name"] for c in turn["tool_calls"]] == ["search", "files__search", "mail_only"]
    assert conversation.tool_choice.names == ("mail__search",)

    for tools in ([search("mail"), search("mail")], [{"type": "function", "name": "a"}] * 2):
        with pytest.raises(ApiError, match="two tools have the name"):
            conversation_of(ResponsesRequest.model_validate({"input": "a", "tools": tools}), [])


@pytest.mark.parametrize("namespace", ["mail", "files"])
def test_a_call_carries_its_own_namespace(server: Running, namespace: str) -> None:
    choice = {"type": "function", "name": "search", "namespace": namespace}
    body = {"input": "Go.", "tools": BOTH, "tool_choice": choice, "parallel_tool_calls": False, "temperature": 0}
    with server.client() as client:
        answer = client.post("/v1/responses", json=body).json()
        call = answer["output"][-1]
        assert (call["name"], call["namespace"], call["status"]) == ("search", namespace, "completed")
        assert json.loads(call["arguments"]) == {"q": namespace}
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "none"}
        again = client.post("/v1/responses", json={**body, "input": [call, result], "max_output_tokens": 1})
        assert again.status_code == 200
