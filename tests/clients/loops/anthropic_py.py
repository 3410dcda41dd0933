"""anthropic-python: messages; its `stream()` helper accumulates, its tool runner makes the whole loop."""

from __future__ import annotations

from typing import Any

import anthropic
from report import DESCRIPTION, PARAMETERS, QUESTION, URL, check_same, report, report_versions, weather

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
TOOL = {"name": "get_weather", "description": DESCRIPTION, "input_schema": PARAMETERS}
ASKED = {"role": "user", "content": QUESTION}


def message(messages: list[Any], *, stream: bool) -> Any:
    options: Any = {"model": "m", "max_tokens": 2000, "messages": messages, "tools": [TOOL]}
    whole = client.messages.create(**options)
    if not stream:
        return whole
    with client.messages.stream(**options) as events:
        for _ in events:
            pass
        streamed = events.get_final_message()
    check_same(streamed.model_dump(exclude_none=True), whole.model_dump(exclude_none=True))
    return streamed


def of_type(answer: Any, kind: str) -> list[Any]:
    return [block for block in answer.content if block.type == kind]


def told(protocol: str, stream: bool, first: Any, second: Any) -> None:
    calls = [(block.name, block.input) for block in of_type(first, "tool_use")]
    text = "".join(block.text for block in of_type(first, "text"))
    thought = "".join(block.thinking for block in of_type(first, "thinking"))
    answer = "".join(block.text for block in of_type(second, "text"))
    report(protocol, stream, calls, answer, text=text, thought=thought)


def loop(stream: bool) -> None:
    first = message([ASKED], stream=stream)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": weather(**block.input)}
        for block in of_type(first, "tool_use")
    ]
    turns = [ASKED, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    told("messages", stream, first, message(turns, stream=stream))


@anthropic.beta_tool
def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    return weather(city)


def loop_of_runner(stream: bool) -> None:
    runner: Any = client.beta.messages.tool_runner(
        model="m", max_tokens=2000, messages=[ASKED], tools=[get_weather], stream=stream
    )
    first, second = (turn.get_final_message() if stream else turn for turn in runner)
    told("messages, tool runner", stream, first, second)


report_versions("anthropic")
for streams in (False, True):
    loop(streams)
    loop_of_runner(streams)
