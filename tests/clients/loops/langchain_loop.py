"""LangChain's chat models over all three protocols; chunks are added up, as LangChain's agents do."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, message_chunk_to_message
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from report import QUESTION, URL, report, report_versions, weather


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return weather(city)


def model(protocol: str) -> Any:
    if protocol == "messages":
        return ChatAnthropic(model="m", base_url=URL, api_key="none", max_retries=0, max_tokens=2000)
    with_responses = protocol == "responses"
    return ChatOpenAI(model="m", base_url=f"{URL}/v1", api_key="none", max_retries=0, use_responses_api=with_responses)


def loop(protocol: str, stream: bool) -> None:
    bound = model(protocol).bind_tools([get_weather])

    def ask(turns: list[Any]) -> Any:
        return message_chunk_to_message(reduce(add, bound.stream(turns))) if stream else bound.invoke(turns)

    turns: list[Any] = [HumanMessage(QUESTION)]
    first = ask(turns)
    results = [get_weather.invoke(call) for call in first.tool_calls]
    second = ask([*turns, first, *results])
    calls = [(call["name"], call["args"]) for call in first.tool_calls]
    blocks = [block for block in first.content_blocks if block["type"] == "reasoning"]
    thought = "".join(block.get("reasoning", "") for block in blocks)
    report(protocol, stream, calls, second.text, text=first.text, thought=thought or None)


report_versions("langchain", "langchain-openai", "langchain-anthropic")
for streams in (False, True):
    for name in ("chat", "responses", "messages"):
        loop(name, streams)
