"""Bodies that are refused: one message with the JSON path and what is allowed; parts of tool results become text."""

from __future__ import annotations

from typing import Any

import pytest
from lucebox.serve.protocols import anthropic, openai_chat, openai_responses
from lucebox.serve.protocols.refusals import refusal
from pydantic import ValidationError
from running import Running

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
BODIES = {
    CHAT: openai_chat.ChatRequest,
    MESSAGES: anthropic.MessagesRequest,
    RESPONSES: openai_responses.ResponsesRequest,
}
ASK = [{"role": "user", "content": "Go."}]


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


FORM = "is not supported; allowed:"
TEXT, AUDIO = {"type": "text", "text": "a"}, {"type": "input_audio", "input_audio": {"data": ""}}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": user(TEXT, AUDIO)},
     f"messages.0.content.1.type: 'input_audio' {FORM} 'text' or 'image_url' or 'input_image'"),
    (CHAT, {"messages": [{"role": "usr", "content": "x"}]}, f"messages.0.role: 'usr' {FORM} 'system', "),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, f"messages.0.content: 5 {FORM} text or a list"),
    (CHAT, {"messages": ASK, "tools": [{"type": "custom", "custom": {"name": "x"}}]},
     f"tools.0.type: 'custom' {FORM} 'function'"),
    (CHAT, {"messages": ASK, "tools": [{"type": "function", "function": {}}]}, "tools.0.function.name: Field required"),
    (CHAT, {"messages": ASK, "tool_choice": "some"}, f"tool_choice: 'some' {FORM} 'none', 'auto' or"),
    (CHAT, {"messages": ASK, "foo": 1}, "Unrecognized request argument supplied: foo"),
    (CHAT, {"messages": ASK, "temperature": "hot"}, f"temperature: 'hot' {FORM} a number"),
    (CHAT, {"messages": ASK, "temperature": -1}, "temperature: Input should be greater than or equal to 0"),
    (MESSAGES, {"messages": user({"type": "image", "source": {}})},
     "messages.0.content.0.source.type: Field required"),
    (MESSAGES, {"messages": ASK, "tools": [{"type": "web_search_20250305", "name": "web_search"}]},
     f"tools.0.type: 'web_search_20250305' {FORM} 'custom'"),
    (MESSAGES, {"messages": user({"type": "tool_use", "id": "c", "name": "f", "input": [1]})},
     f"messages.0.content.0.input: a list {FORM} an object or text"),
    (RESPONSES, {"input": [{"type": "computer_call", "id": "x"}]},
     f"input.0.type: 'computer_call' {FORM} 'message' or 'function_call' or "),
    (RESPONSES, {"input": [{"role": "user"}]}, "input.0.content: Field required"),
    (RESPONSES, {"input": user({"type": "input_video", "image_url": "x"})},
     f"input.0.content.0.type: 'input_video' {FORM} 'input_text', "),
    (RESPONSES, {"input": "a", "tools": [{"type": "custom", "name": "x"}]},
     f"tools.0.type: 'custom' {FORM} 'function', "),
    (RESPONSES, {"input": [{"type": "function_call", "call_id": "c", "name": "f"}]},
     "input.0.arguments: Field required"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "message"), REFUSED)
def test_a_refusal_names_the_path_and_what_is_allowed(path: str, body: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as found:
        BODIES[path].model_validate({**body, **({"max_tokens": 1} if path == MESSAGES else {})})
    text = refusal(body, found.value.errors(include_url=False)).message
    assert text.startswith(message)
    assert not any(name in text for name in ("Block", "Part", "Item", "Message", "Tool", "union", "list["))


RESULT_PARTS = [
    {"type": "image", "source": {}},
    {"type": "tool_reference", "tool_name": "x"},
    {"type": "file", "id": 1},
]


@pytest.mark.parametrize("part", [*RESULT_PARTS, {"type": "image_url", "image_url": {"url": "x"}}])
def test_parts_of_tool_results_become_placeholders(server: Running, part: dict[str, Any]) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat = [*ASK, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": [part]}]
    used = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [part]}
    messages = [*ASK, {"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    items = [*ASK, item, {"type": "function_call_output", "call_id": "c", "output": [part]}]

    shown = f"[{part['type']}: not shown, the model reads only text]"
    body = openai_chat.ChatRequest.model_validate({"messages": chat})
    assert openai_chat.conversation_of(body).messages[-1]["content"] == shown
    with server.client() as client:
        for path, sent in (
            (CHAT, {"messages": chat, "max_tokens": 1}),
            (MESSAGES, {"messages": messages, "max_tokens": 1, "model": "claude-x"}),
            (RESPONSES, {"input": items, "max_output_tokens": 1}),
        ):
            assert client.post(path, json=sent).status_code == 200


def test_the_server_refuses_by_path(server: Running) -> None:
    with server.client() as client:
        for path, body, message in (REFUSED[0], REFUSED[9], REFUSED[12]):
            answer = client.post(path, json={**body, **({"max_tokens": 1} if path == MESSAGES else {})})
            assert answer.status_code == 400
            assert answer.json()["error"]["message"].startswith(message)
