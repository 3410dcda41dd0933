"""Each protocol's stream of one scripted answer (reasoning, text, two calls, a warning), as the SDKs assemble it.

Tiny models reason and call only when forced, so the events are scripted; writers and SDKs are real.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from lucebox.generation.answer import Answer
from lucebox.generation.events import ReasoningDelta, TextDelta, ToolArguments, ToolEnd, ToolStart, Warning
from lucebox.generation.request import Finished, Item, Started
from lucebox.results import Timings, Usage
from lucebox.serve.errors import ApiError, too_long
from lucebox.serve.protocols.anthropic import MessagesRequest, conversation_of
from lucebox.serve.protocols.anthropic_stream import MessageWriter
from lucebox.serve.protocols.chat_stream import ChatWriter, chat_completion
from lucebox.serve.protocols.openai_responses import ResponsesRequest
from lucebox.serve.protocols.responses_items import messages_of
from lucebox.serve.protocols.responses_stream import ResponseWriter
from sdks import anthropic, openai

ANSWER: list[Item] = [
    Started(10, 4),
    ReasoningDelta("I should "),
    ReasoningDelta("look."),
    TextDelta("Let me "),
    TextDelta("see: 🙂"),
    ToolStart(0, "call_1", "read"),
    ToolArguments(0, '{"path": '),
    ToolArguments(0, '"a"}'),
    ToolEnd(0),
    Warning("a call was malformed"),
    ToolStart(1, "call_2", "list"),
    ToolArguments(1, "{}"),
    ToolEnd(1),
    Finished("stop", None, Usage(10, 20, 4), 3, Timings(0.1, 0.2, 6, 20), 0.01),
]
CALLS = [("call_1", "read", {"path": "a"}), ("call_2", "list", {})]


def streamed(writer: Any, items: list[Item]) -> bytes:
    return writer.open() + b"".join(writer.write(0, item) for item in items) + writer.close()


def taken(items: list[Item]) -> Answer:
    answer = Answer()
    for item in items:
        answer.take(item)
    return answer


@pytest.fixture
def replying() -> Iterator[Callable[[bytes], str]]:
    """Starts servers that answer every request with given bytes."""
    servers = []

    def reply(body: bytes) -> str:
        class Reply(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Reply))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield reply
    for server in servers:
        server.shutdown()
        server.server_close()


def openai_client(url: str) -> openai.OpenAI:
    return openai.OpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0)


def anthropic_client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(api_key="none", base_url=url, max_retries=0)


def chat_writer() -> ChatWriter:
    return ChatWriter("m", n=1, with_usage=True, logprobs=None)


def test_chat(replying: Callable[[bytes], str]) -> None:
    with openai_client(replying(streamed(chat_writer(), ANSWER))).chat.completions.stream(
        model="m", messages=[]
    ) as stream:
        reasoning = "".join(
            event.chunk.choices[0].delta.model_extra.get("reasoning_content", "")  # type: ignore[union-attr]
            for event in stream
            if event.type == "chunk" and event.chunk.choices
        )
        final = stream.get_final_completion()
    message = final.choices[0].message
    assert reasoning == "I should look."
    assert message.content == "Let me see: 🙂"
    calls = [(call.id, call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]
    assert calls == CALLS
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.usage is not None
    assert final.usage.prompt_tokens_details is not None and final.usage.completion_tokens_details is not None
    assert final.usage.prompt_tokens_details.cached_tokens == 4
    assert final.usage.completion_tokens_details.reasoning_tokens == 3


def test_chat_document() -> None:
    document = chat_completion("m", [taken(ANSWER)], None)
    message = document["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Let me see: 🙂", "I should look.")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["read", "list"]
    assert document["warnings"] == ["a call was malformed"]


@pytest.mark.parametrize("omits", [False, True])
def test_messages(replying: Callable[[bytes], str], omits: bool) -> None:
    """The stream, the document and the next turn's request have the same blocks."""
    writer = MessageWriter("m", omits_thinking=omits)
    with anthropic_client(replying(streamed(writer, ANSWER))).messages.stream(
        model="m", max_tokens=9, messages=[]
    ) as stream:
        final = stream.get_final_message()
    whole = MessageWriter("m", omits_thinking=omits).document([taken(ANSWER)])
    blocks = [block.model_dump(exclude_none=True) for block in final.content]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "tool_use"]
    assert blocks[0]["thinking"] == ("" if omits else "I should look.") == whole["content"][0]["thinking"]
    assert blocks[0]["signature"] == whole["content"][0]["signature"]
    assert blocks[1]["text"] == "Let me see: 🙂"
    assert [(block["id"], block["name"], block["input"]) for block in blocks[2:]] == CALLS
    assert final.stop_reason == whole["stop_reason"] == "tool_use"
    assert final.usage.input_tokens == 6
    assert final.usage.cache_read_input_tokens == 4
    assert final.usage.output_tokens == 20

    sent = {"messages": [{"role": "assistant", "content": blocks}], "max_tokens": 1}
    (turn,) = conversation_of(MessagesRequest.model_validate(sent)).messages
    assert turn["reasoning_content"] == "I should look."
    assert turn["content"] == "Let me see: 🙂"
    assert [call["function"]["name"] for call in turn["tool_calls"]] == ["read", "list"]


@pytest.mark.parametrize("summary", [None, "auto"])
def test_responses(replying: Callable[[bytes], str], summary: str | None) -> None:
    sent = {"reasoning": {"summary": summary}, "include": ["reasoning.encrypted_content"]}
    kept: list[Any] = []
    writer = ResponseWriter(sent, "m", {"list": ("files", "list")})
    writer.store = lambda document, turns: kept.append((document, turns))
    body = streamed(writer, ANSWER)
    with openai_client(replying(body)).responses.stream(model="m", input="a") as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    reasoning, message, *calls = final.output
    assert reasoning.type == "reasoning"
    parts = reasoning.summary if summary else reasoning.content
    assert [part.text for part in parts or []] == ["I should look."]
    assert message.type == "message" and final.output_text == "Let me see: 🙂"
    assert [(c.call_id, c.name, json.loads(c.arguments)) for c in calls if c.type == "function_call"] == CALLS
    assert calls[1].namespace == "files"  # type: ignore[union-attr]
    assert final.status == "completed"
    assert final.usage is not None and final.usage.input_tokens_details.cached_tokens == 4

    ((document, turns),) = kept
    whole = ResponseWriter(sent, "m", {"list": ("files", "list")}).document([taken(ANSWER)])
    assert [{**item, "id": ""} for item in whole["output"]] == [{**item, "id": ""} for item in document["output"]]
    items = ResponsesRequest.model_validate({"input": document["output"]}).input
    assert not isinstance(items, str)
    assert messages_of(items) == turns and len(turns) == 1


TOO_LONG = too_long(5000, 4096)
FAULT = ApiError("internal", "it broke")


def test_errors_in_the_middle_of_a_stream(replying: Callable[[bytes], str]) -> None:
    items = ANSWER[:4]

    def cut(writer: Any, error: ApiError) -> bytes:
        return writer.open() + b"".join(writer.write(0, item) for item in items) + writer.fail(error)

    with pytest.raises(openai.APIError, match="it broke"):
        list(
            openai_client(replying(cut(chat_writer(), FAULT))).chat.completions.create(
                model="m", messages=[], stream=True
            )
        )
    client = anthropic_client(replying(cut(MessageWriter("m", omits_thinking=False), TOO_LONG)))
    with (
        pytest.raises(anthropic.APIStatusError, match="prompt is too long: 5000 tokens > 4096 maximum"),
        client.messages.stream(model="m", max_tokens=9, messages=[]) as stream,
    ):
        stream.get_final_message()
    body = cut(ResponseWriter({}, "m", {}), TOO_LONG)
    *_, last = openai_client(replying(body)).responses.create(model="m", input="a", stream=True)
    assert last.type == "response.failed"
    assert last.response.error.code == "context_length_exceeded"
