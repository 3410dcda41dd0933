"""openai-agents: its runner makes the whole loop, over chat completions and over responses."""

from __future__ import annotations

import asyncio
import json

import openai
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from agents.items import ItemHelpers, MessageOutputItem, ReasoningItem, ToolCallItem
from report import QUESTION, URL, report, report_versions, weather

MODELS = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return weather(city)


def thought_of(items: list[ReasoningItem]) -> str:
    """The summary, where the model class puts the `reasoning_content` of chat completions, else the content."""
    return "".join(part.text for item in items for part in item.raw_item.summary or item.raw_item.content or ())


async def loop(protocol: str, stream: bool) -> None:
    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    agent = Agent(name="weather", tools=[get_weather], model=MODELS[protocol]("m", client))
    if stream:
        result = Runner.run_streamed(agent, QUESTION)
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(agent, QUESTION)
    items = result.new_items
    calls = [item.raw_item for item in items if isinstance(item, ToolCallItem)]
    text = ItemHelpers.text_message_output(next(item for item in items if isinstance(item, MessageOutputItem)))
    thoughts = [item for item in items if isinstance(item, ReasoningItem)]
    report(
        protocol,
        stream,
        [(call.name, json.loads(call.arguments)) for call in calls],
        result.final_output,
        text=text,
        thought=thought_of(thoughts[:1]),
    )


async def main() -> None:
    set_tracing_disabled(True)
    for stream in (False, True):
        for protocol in MODELS:
            await loop(protocol, stream)


report_versions("openai-agents", "openai")
asyncio.run(main())
