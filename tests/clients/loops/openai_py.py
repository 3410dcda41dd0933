"""openai-python: chat completions and responses; its `stream()` helpers accumulate."""

from __future__ import annotations

import json
from typing import Any

import openai
from report import DESCRIPTION, PARAMETERS, QUESTION, URL, check_same, report, report_versions, weather

FUNCTION = {"name": "get_weather", "description": DESCRIPTION, "parameters": PARAMETERS}
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


def chat(messages: list[Any], *, stream: bool) -> Any:
    options: Any = {"model": "m", "messages": messages, "tools": [{"type": "function", "function": FUNCTION}]}
    whole = client.chat.completions.create(**options).choices[0]
    if not stream:
        return whole.message
    with client.chat.completions.stream(**options) as events:
        for _ in events:
            pass
        choice = events.get_final_completion().choices[0]
    streamed = choice.model_dump(exclude_none=True)
    for call in streamed["message"].get("tool_calls", ()):
        del call["index"]  # the delta's; clients send it back
        call["function"].pop("parsed_arguments", None)
    check_same(streamed, whole.model_dump(exclude_none=True))
    return choice.message


def loop_of_chat(stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    first = chat(messages, stream=stream)
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in first.tool_calls]
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": weather(**arguments)}
        for call, (_, arguments) in zip(first.tool_calls, calls, strict=True)
    ]
    second = chat([*messages, first, *results], stream=stream)
    report("chat", stream, calls, second.content, text=first.content, thought=first.reasoning_content)


def response(stream: bool, **options: Any) -> Any:
    options |= {"model": "m", "tools": [{"type": "function", **FUNCTION}]}
    whole = client.responses.create(**options)
    if not stream:
        return whole
    with client.responses.stream(**options) as events:
        for _ in events:
            pass
        streamed = events.get_final_response()
    found = streamed.model_dump(exclude_none=True)
    for item in found["output"]:
        item.pop("parsed_arguments", None)
        for part in item.get("content", ()):
            part.pop("parsed", None)
    check_same(found, whole.model_dump(exclude_none=True))
    return streamed


def loop_of_responses(stream: bool, *, stored: bool) -> None:
    """stored: the second request names the first response instead of sending its items back."""
    asked: list[Any] = [{"role": "user", "content": QUESTION}]
    first = response(stream, input=asked)
    found = [item for item in first.output if item.type == "function_call"]
    calls = [(call.name, json.loads(call.arguments)) for call in found]
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": weather(**arguments)}
        for call, (_, arguments) in zip(found, calls, strict=True)
    ]
    if stored:
        second = response(stream, input=results, previous_response_id=first.id)
    else:
        second = response(stream, input=[*asked, *first.output, *results])
    thought = "".join(part.text for item in first.output if item.type == "reasoning" for part in item.content)
    protocol = "responses, stored" if stored else "responses"
    report(protocol, stream, calls, second.output_text, text=first.output_text, thought=thought)


report_versions("openai")
for streams in (False, True):
    loop_of_chat(streams)
    loop_of_responses(streams, stored=False)
    loop_of_responses(streams, stored=True)
