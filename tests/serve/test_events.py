"""Events of streams refer only to what earlier events made, by the rules of the SDKs that read them.

The streams are read by the Python SDKs' own helpers, over a transport that answers with prepared bytes. openai-node's
helper throws where the rule `checked_responses` fails.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import httpx2
import pytest
from lucebox.generation.answer import Answer
from lucebox.generation.events import ReasoningDelta, TextDelta, ToolArguments, ToolEnd, ToolStart, Warning
from lucebox.generation.request import Finished, Item, Started
from lucebox.results import Timings, Usage
from lucebox.serve.delivery import Writer
from lucebox.serve.errors import ApiError
from lucebox.serve.protocols.anthropic import MessagesRequest, conversation_of
from lucebox.serve.protocols.anthropic_stream import MessageWriter
from lucebox.serve.protocols.chat_stream import ChatWriter, chat_completion
from lucebox.serve.protocols.ollama_stream import OllamaWriter
from lucebox.serve.protocols.openai_responses import ResponsesRequest
from lucebox.serve.protocols.openai_responses import conversation_of as responses_conversation_of
from lucebox.serve.protocols.responses_items import messages_of
from lucebox.serve.protocols.responses_replay import events_of, numbered, opening_events
from lucebox.serve.protocols.responses_stream import ResponseWriter
from sdks import anthropic, ollama, openai

END = Finished("stop", None, Usage(10, 20, 4), 3, Timings(0.1, 0.2, 6, 20), 0.01)


def call(index: int, arguments: str = '{"city": "Oslo"}', *, is_broken: bool = False) -> list[Item]:
    start = ToolStart(index, f"call_{index}", "get_weather")
    return [start, ToolArguments(index, arguments[:5]), ToolArguments(index, arguments[5:]), ToolEnd(index, is_broken)]


THOUGHT: list[Item] = [ReasoningDelta("I "), ReasoningDelta("think.")]
TEXT: list[Item] = [TextDelta("Hel"), TextDelta("lo.")]
ANSWERS: dict[str, list[Item]] = {
    "text": TEXT,
    "thought": [*THOUGHT, *TEXT],
    "only a thought": THOUGHT,
    "calls": [*THOUGHT, *TEXT, *call(0), *call(1)],
    "around a call": [*THOUGHT, *TEXT, *call(0), *THOUGHT, *TEXT],
    "a broken call": [*TEXT, *call(0, '{"city": "Os', is_broken=True), Warning("broken"), *TEXT],
    "nothing": [],
}
SUMMARY = {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]}


def stream_of(writer: Writer, name: str) -> bytes:
    """The stream of an answer, with a heartbeat after every item."""
    items: list[Item] = [Started(10, 4), *ANSWERS[name], END]
    return writer.open() + b"".join(writer.write(0, item) + writer.beat() for item in items) + writer.close()


def data_of(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in stream.decode().splitlines() if line.startswith("data: {")]


def whole(name: str) -> Answer:
    answer = Answer()
    for item in [*ANSWERS[name], END]:
        answer.take(item)
    return answer


def transport(stream: bytes) -> httpx2.Client:
    fields = {"content-type": "text/event-stream"}
    return httpx2.Client(
        transport=httpx2.MockTransport(lambda request: httpx2.Response(200, headers=fields, content=stream))
    )


PARTS = {"output_text": "content", "reasoning_text": "content", "summary_text": "summary"}


def checked_responses(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The final response. Every item is added before its parts, every part before its text, and each ends once."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    events = copy.deepcopy(events)  # what they add is added to
    output: list[dict[str, Any]] = []
    open_item, open_part = False, ""
    for event in events[2:-1]:
        noun, _, change = event["type"].removeprefix("response.").rpartition(".")
        if event["type"] == "response.in_progress":
            continue
        if noun == "output_item":
            assert event["output_index"] == len(output) - (change == "done")
            assert open_item is (change == "done") and not open_part
            if change == "added":
                assert not any(event["item"].get(key) for key in ("content", "summary", "arguments"))
                output.append(event["item"])
            else:
                assert event["item"] == output[-1] | {"status": event["item"]["status"]} | (
                    {"encrypted_content": event["item"]["encrypted_content"]}
                    if "encrypted_content" in output[-1]
                    else {}
                )
            open_item = change == "added"
            continue
        item = output[event["output_index"]]
        assert open_item and item is output[-1] and event["item_id"] == item["id"]
        if noun == "function_call_arguments":
            item["arguments"] += event.get("delta", "")
            assert change == "delta" or event["arguments"] == item["arguments"]
            continue
        index = event["summary_index" if "summary" in noun else "content_index"]
        if noun.endswith("part") and change == "added":
            assert not open_part and event["part"]["text"] == ""
            open_part = event["part"]["type"]
            parts = item.setdefault(PARTS[open_part], [])
            assert index == len(parts)
            parts.append(event["part"])
            continue
        part = item[PARTS[open_part]][index]  # "missing content" of openai-node
        part |= {"logprobs": event["part"]["logprobs"]} if "logprobs" in event.get("part", {}) else {}
        assert noun.startswith("reasoning_summary") is (open_part == "summary_text")
        if noun.endswith("part"):
            assert event["part"] == part
            open_part = ""
        elif change == "delta":
            part["text"] += event["delta"]
        else:
            assert event["text"] == part["text"]
    assert not open_item and not open_part
    final = events[-1]["response"]
    assert [item["id"] for item in final["output"]] == [item["id"] for item in output]
    return dict(final)


@pytest.mark.parametrize("sent", [{}, SUMMARY], ids=["reasoning", "summary"])
@pytest.mark.parametrize("name", ANSWERS)
def test_stored_responses(name: str, sent: dict[str, Any]) -> None:
    """Events that are made from a document follow the same rules, and make the same document."""
    document = ResponseWriter(sent, "m", {}).document([whole(name)])
    events = [*opening_events(document), *events_of(document)]
    found = data_of(numbered(events, 0, -1))
    assert checked_responses(found) == document
    assert data_of(numbered(events, 0, 4)) == found[5:]
    assert found[0]["response"]["status"] == "in_progress" and "completed_at" not in found[0]["response"]


@pytest.mark.parametrize("sent", [{}, SUMMARY], ids=["reasoning", "summary"])
@pytest.mark.parametrize("name", ANSWERS)
def test_responses(name: str, sent: dict[str, Any]) -> None:
    stream = stream_of(ResponseWriter(sent, "m", {}), name)
    final = checked_responses(data_of(stream))
    document = ResponseWriter(sent, "m", {}).document([whole(name)])

    def without_ids(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**item, "id": None} for item in output]

    assert without_ids(final["output"]) == without_ids(document["output"])
    client = openai.OpenAI(base_url="http://test", api_key="none", http_client=transport(stream))
    with client.responses.stream(model="m", input="a") as events:
        for _ in events:
            pass
        read = events.get_final_response()
    assert [item.id for item in read.output] == [item["id"] for item in final["output"]]


def test_a_failed_response() -> None:
    writer = ResponseWriter({}, "m", {})
    stream = writer.open() + b"".join(writer.write(0, item) for item in [*THOUGHT, *TEXT])
    events = data_of(stream + writer.fail(ApiError("internal", "a fault")))
    assert events[-1]["type"] == "response.failed"
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning"]


@pytest.mark.parametrize("omits_thinking", [False, True])
@pytest.mark.parametrize("name", ANSWERS)
def test_messages(name: str, omits_thinking: bool) -> None:
    stream = stream_of(MessageWriter("m", omits_thinking=omits_thinking), name)
    open_block, n_blocks = "", 0
    kinds = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "thinking"}
    for event in data_of(stream):
        match event["type"]:
            case "content_block_start":
                assert not open_block and event["index"] == n_blocks
                open_block, n_blocks = event["content_block"]["type"], n_blocks + 1
            case "content_block_delta":
                assert event["index"] == n_blocks - 1
                assert open_block == kinds.get(event["delta"]["type"], "tool_use")
            case "content_block_stop":
                assert open_block and event["index"] == n_blocks - 1
                open_block = ""
            case "message_delta":
                assert not open_block
    client = anthropic.Anthropic(base_url="http://test", api_key="none", http_client=transport(stream))
    with client.messages.stream(model="m", max_tokens=1, messages=[{"role": "user", "content": "a"}]) as events:
        read = json.loads(events.get_final_message().model_dump_json(exclude_none=True))
    document = MessageWriter("m", omits_thinking=omits_thinking).document([whole(name)])
    assert [{key: block[key] for key in expected} for block, expected in zip(read["content"], document["content"],
            strict=True)] == document["content"]  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_chat(name: str) -> None:
    stream = stream_of(ChatWriter("m", n=1, with_usage=True, logprobs=None), name)
    n_calls = 0
    for chunk in data_of(stream):
        for delta in [d for choice in chunk["choices"] for d in choice["delta"].get("tool_calls", [])]:
            begins = "name" in delta["function"]
            assert delta["index"] == (n_calls if begins else n_calls - 1) and begins is ("id" in delta)
            n_calls += begins
    client = openai.OpenAI(base_url="http://test", api_key="none", http_client=transport(stream))
    with client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "a"}]) as events:
        for _ in events:
            pass
        message = events.get_final_completion().choices[0].message
    assert len(message.tool_calls or []) == n_calls == len(whole(name).calls)


AROUND = "Hello.\n\nHello.", "I think.\n\nI think."


def test_texts_around_a_call_keep_white_space() -> None:
    """In protocols whose message has one text, streamed and not."""
    answer = whole("around a call")
    message = chat_completion("m", [answer], None)["choices"][0]["message"]
    chunks = data_of(stream_of(ChatWriter("m", n=1, with_usage=False, logprobs=None), "around a call"))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    lines = stream_of(OllamaWriter("chat", "m", None), "around a call").splitlines()
    parts = [json.loads(line)["message"] for line in lines]
    document = OllamaWriter("chat", "m", None).document([answer])["message"]
    assert (message["content"], message["reasoning_content"]) == AROUND
    assert tuple("".join(d.get(k) or "" for d in deltas) for k in ("content", "reasoning_content")) == AROUND
    assert tuple("".join(part.get(key, "") for part in parts) for key in ("content", "thinking")) == AROUND
    assert (document["content"], document["thinking"]) == AROUND
    broken = chat_completion("m", [whole("a broken call")], None)["choices"][0]["message"]
    assert broken["content"] == AROUND[0]
    lines = stream_of(OllamaWriter("chat", "m", None), "a broken call").splitlines()
    document = OllamaWriter("chat", "m", None).document([whole("a broken call")])["message"]
    assert "".join(json.loads(line)["message"]["content"] for line in lines) == document["content"]
    assert document["content"] == 'Hello.\n\nget_weather: {"city": "Os\n\nHello.'


def test_a_stored_response_keeps_its_order() -> None:
    """What was written after a call stands after it in the next prompt, stored or carried back."""
    kept: list[Any] = []
    writer = ResponseWriter({}, "m", {})
    writer.store = lambda _, turns: kept.extend(turns)
    output = writer.document([whole("around a call")])["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "reasoning", "message"]
    first, second = kept
    assert (first["reasoning_content"], first["content"], len(first["tool_calls"])) == ("I think.", "Hello.", 1)
    assert second == {"role": "assistant", "content": "Hello.", "reasoning_content": "I think."}
    assert read_responses(output) == kept
    result = {"type": "function_call_output", "call_id": "call_0", "output": "r"}
    assert [m["role"] for m in read_responses([*output, result])] == ["assistant", "assistant", "tool"]
    with pytest.raises(ApiError, match="a call that has no result"):
        responses_conversation_of(ResponsesRequest.model_validate({"input": output}), [])

    blocks = MessageWriter("m", omits_thinking=False).document([whole("around a call")])["content"]
    body = {"messages": [{"role": "assistant", "content": blocks}], "max_tokens": 1}
    (turn,) = conversation_of(MessagesRequest.model_validate(body)).messages
    assert (turn["content"], turn["reasoning_content"]) == AROUND


def read_responses(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = ResponsesRequest.model_validate({"input": items}).input
    assert not isinstance(found, str)
    return messages_of(found)


def test_ollama_calls_have_indices() -> None:
    """The calls of a stream are numbered through its lines."""
    lines = [json.loads(line) for line in stream_of(OllamaWriter("chat", "m", None), "calls").splitlines()]
    found = [c for line in lines for c in ollama.ChatResponse(**line).message.model_dump().get("tool_calls") or []]
    sent = [c["function"] for line in lines for c in line["message"].get("tool_calls", [])]
    assert len(found) == 2 and [function["index"] for function in sent] == [0, 1]
    assert [c["index"] for line in lines for c in line["message"].get("tool_calls", [])] == [0, 1]  # LiteLLM's place
    document = OllamaWriter("chat", "m", None).document([whole("calls")])
    assert [c["function"] for c in document["message"]["tool_calls"]] == sent


def test_a_call_is_announced_while_others_are_still_written() -> None:
    def chunks(name: str, *, announces: bool = True) -> list[dict[str, Any]]:
        writer = ChatWriter("m", n=1, with_usage=False, logprobs=None, announces_calls=announces)
        return data_of(stream_of(writer, name))

    found = chunks("calls")
    at = [i for i, chunk in enumerate(found) if "lucebox.tool_ready" in chunk]
    assert [found[i]["lucebox.tool_ready"] for i in at] == [
        {"index": i, "id": f"call_{i}", "name": "get_weather", "arguments": '{"city": "Oslo"}'} for i in range(2)
    ]
    assert [found[i]["choices"][0]["delta"] for i in at] == [{}, {}]
    second = next(
        i
        for i, chunk in enumerate(found)
        for one in chunk["choices"][0]["delta"].get("tool_calls", [])
        if one["index"] == 1
    )
    assert at[0] < second < at[1]
    assert [chunk for i, chunk in enumerate(found) if i not in at] == [
        chunk | {"id": found[0]["id"], "created": found[0]["created"]} for chunk in chunks("calls", announces=False)
    ]
    assert not [chunk for chunk in chunks("a broken call") if "lucebox.tool_ready" in chunk]
