"""LiteLLM over chat completions, responses, messages and Ollama's API."""

from __future__ import annotations

import json
from typing import Any

import litellm
from report import DESCRIPTION, PARAMETERS, QUESTION, URL, report, report_versions, weather

FUNCTION = {"name": "get_weather", "description": DESCRIPTION, "parameters": PARAMETERS}
PROVIDERS = {
    "chat": ("openai/m", f"{URL}/v1"),
    "messages": ("anthropic/m", URL),
    "ollama": ("ollama_chat/m", URL),
}


def completed(protocol: str, messages: list[Any], *, stream: bool) -> Any:
    model, base = PROVIDERS[protocol]
    options: Any = {"model": model, "api_base": base, "api_key": "none", "messages": messages, "max_tokens": 2000}
    options["tools"] = [{"type": "function", "function": FUNCTION}]
    if not stream:
        return litellm.completion(**options).choices[0].message
    chunks = list(litellm.completion(**options, stream=True))
    return litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message


def loop(protocol: str, stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    first = completed(protocol, messages, stream=stream)
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in first.tool_calls]
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": weather(**arguments)}
        for call, (_, arguments) in zip(first.tool_calls, calls, strict=True)
    ]
    second = completed(protocol, [*messages, first, *results], stream=stream)
    thought = getattr(first, "reasoning_content", None)
    report(protocol, stream, calls, second.content, text=first.content, thought=thought)


def response(items: list[Any], *, stream: bool) -> Any:
    options: Any = {"model": "openai/m", "api_base": f"{URL}/v1", "api_key": "none", "input": items}
    options["tools"] = [{"type": "function", **FUNCTION}]
    if not stream:
        return litellm.responses(**options)
    events = litellm.responses(**options, stream=True)
    return next(event.response for event in events if event.type == "response.completed")


def loop_of_responses(stream: bool) -> None:
    asked: list[Any] = [{"role": "user", "content": QUESTION}]
    first = response(asked, stream=stream)
    output = [item if isinstance(item, dict) else item.model_dump() for item in first.output]
    found = [item for item in output if item["type"] == "function_call"]
    calls = [(item["name"], json.loads(item["arguments"])) for item in found]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": weather(**arguments)}
        for item, (_, arguments) in zip(found, calls, strict=True)
    ]
    second = response([*asked, *output, *results], stream=stream)
    thought = "".join(part["text"] for item in output if item["type"] == "reasoning" for part in item["content"])
    report("responses", stream, calls, second.output_text, text=first.output_text, thought=thought)


litellm.suppress_debug_info = True
report_versions("litellm")
for streams in (False, True):
    for name in PROVIDERS:
        loop(name, streams)
    loop_of_responses(streams)
