"""Replays requests of real clients, recorded and shortened by tests/clients, on a real server."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from clients.fixtures import difference, whole
from lucebox.chat import ChatTemplate
from lucebox.chat.conversation import Conversation
from lucebox.chat.messages import checked_messages
from lucebox.chat.profiles import profile_for
from lucebox.chat.rendering import for_template
from lucebox.cli.clients import CLIENTS
from lucebox.serve.protocols import anthropic, openai_chat, openai_responses
from running import Running, started
from text_data import DATA, tiny_tokenizer

TRAFFIC = Path(__file__).parent / "traffic"
FILES = sorted(path.stem for path in TRAFFIC.glob("*.json"))
WITH_TOOLS = [name for name in FILES if name != "aider"]
RESULT = "lucebox-test-passed"  # the output of the last tool
BEGIN = "<|im_start|>assistant\n"
USER = "<|im_start|>user\n"
UNRECORDED = {"goose", "zed"}
"""Clients that are on neither PyPI nor npm."""
MOVING = ("openclaw",)
"""Clients that move a user message to the end of each prompt."""


def requests_of(name: str) -> list[dict[str, Any]]:
    requests: list[dict[str, Any]] = []
    body: dict[str, Any] = {}
    for request in json.loads((TRAFFIC / f"{name}.json").read_text())["requests"]:
        body = whole(request, body)
        requests.append({**request, "body": body})
    return requests


def conversation_of(path: str, body: dict[str, Any]) -> Conversation:
    match urlsplit(path).path:
        case "/v1/messages":
            return anthropic.conversation_of(anthropic.MessagesRequest.model_validate(body))
        case "/v1/responses":
            return openai_responses.conversation_of(openai_responses.ResponsesRequest.model_validate(body), [])
        case _:
            return openai_chat.conversation_of(openai_chat.ChatRequest.model_validate(body))


def rendered(request: dict[str, Any]) -> str:
    """The prompt as Qwen3.5's template renders it."""
    template = ChatTemplate.from_file(DATA / "templates" / "Qwen3.5-4B.jinja")
    profile = profile_for("qwen35", template, tiny_tokenizer(), generation_defaults={}, override=None)
    conversation = conversation_of(request["path"], request["body"])
    messages, tools = for_template(
        profile, checked_messages(conversation.messages), [tool.for_template() for tool in conversation.tools]
    )
    return template.render(messages, tools=tools, **conversation.template_vars)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with started("--slots", "2", "--alias", "*", "--max-tokens", "4", context=8192) as running:
        yield running


def test_all_clients_have_fixtures() -> None:
    assert sorted(CLIENTS.keys() - UNRECORDED) == FILES


def test_a_difference_makes_the_request_whole() -> None:
    bodies: list[dict[str, Any]] = [
        {},
        {"model": "a", "messages": [1, 2], "tools": [3], "stream": True},
        {"model": "a", "messages": [1, 4, 5], "tools": [3]},
        {"model": "b", "messages": [1], "tools": "none"},
        {"model": "b", "messages": [], "tools": [3]},
    ]
    for before, after in pairwise(bodies):
        assert whole(difference(after, before), before) == after
    assert difference(bodies[2], bodies[1]) == {
        "kept": {"model": 0, "messages": 1, "tools": 1},
        "body": {"messages": [4, 5], "tools": []},
    }


@pytest.mark.parametrize(
    "name",
    [name if name in ("claude", "codex", "opencode") else pytest.param(name, marks=pytest.mark.slow) for name in FILES],
)  # 1 s each; one of each protocol is answered every day
def test_every_request_is_answered(server: Running, name: str) -> None:
    with server.client() as client:
        for request in requests_of(name):
            answer = client.post(request["path"], json=request["body"], headers=request["headers"])
            assert answer.status_code == 200, answer.text
            if not request["body"].get("stream"):
                continue
            last = [line for line in answer.text.splitlines() if line.startswith("data: ")][-1].removeprefix("data: ")
            kind = "[DONE]" if last == "[DONE]" else json.loads(last)["type"]
            assert kind in ("[DONE]", "message_stop", "response.completed", "response.incomplete")


@functools.cache
def turns_of(name: str) -> list[str]:
    """The prompts of the task, without side requests such as for a title."""
    return [rendered(request) for request in requests_of(name) if request["body"].get("tools")]


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_the_results_of_tools_are_in_the_prompt(name: str) -> None:
    *_, last = turns_of(name)
    read, edited, tested = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", last, re.DOTALL)
    assert "return a - b" in read and edited and RESULT in tested


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_turn_extends_the_previous_prompt(name: str) -> None:
    """The condition for prefix reuse."""
    end = USER if name in MOVING else BEGIN
    for before, after in pairwise(turns_of(name)):
        assert after.startswith(before[: before.rindex(end)])
