"""pydantic-ai: its agent makes the whole loop, over all three protocols."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic_ai import Agent, AgentRunResultEvent
from pydantic_ai.messages import TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from report import QUESTION, URL, report, report_versions, weather


def model(protocol: str) -> Any:
    if protocol == "messages":
        return AnthropicModel("m", provider=AnthropicProvider(api_key="none", base_url=URL))
    kind = OpenAIChatModel if protocol == "chat" else OpenAIResponsesModel
    return kind("m", provider=OpenAIProvider(api_key="none", base_url=f"{URL}/v1"))


async def run(agent: Agent, stream: bool) -> Any:
    if not stream:
        return await agent.run(QUESTION)
    async with agent.run_stream_events(QUESTION) as events:
        async for event in events:
            if isinstance(event, AgentRunResultEvent):
                return event.result
    raise AssertionError("the stream of events ended without a result")


def loop(protocol: str, stream: bool) -> None:
    agent = Agent(model(protocol), retries=0)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return weather(city)

    result = asyncio.run(run(agent, stream))
    first = result.all_messages()[1]
    calls = [(part.tool_name, part.args_as_dict()) for part in first.parts if isinstance(part, ToolCallPart)]
    text = "".join(part.content for part in first.parts if isinstance(part, TextPart))
    thought = "".join(part.content for part in first.parts if isinstance(part, ThinkingPart))
    report(protocol, stream, calls, result.output, text=text, thought=thought or None)


report_versions("pydantic-ai-slim", "openai", "anthropic")
for streams in (False, True):
    for name in ("chat", "responses", "messages"):
        loop(name, streams)
