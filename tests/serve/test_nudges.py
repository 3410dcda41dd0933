"""Tool loops of a thinking model with nudges: instructions or user text between a tool's result and the next step, as
Claude Code and Codex send them. A nudge adds its own tokens to the prompt and changes nothing else."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from lucebox import LLM
from lucebox.chat import ChatTemplate
from lucebox.chat.conversation_to_request import ChatModel
from lucebox.serve.settings import ServeSettings
from running import in_process
from test_traffic import conversation_of
from text_data import DATA

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}
WORDS = ("the", "a", "file", "line", "test", "passes", "fails", "because", "then", "again", "first", "last", "value")


@dataclass(frozen=True)
class Nudge:
    text: str
    role: str
    """system or developer: an instruction; user: text of the turn that has the results."""
    after: int
    """The result that it follows; -1: it comes before the results of its turn."""


@dataclass(frozen=True)
class Step:
    """An answer with calls, their results, and the nudges between them and the next answer."""

    thought: str
    text: str
    paths: tuple[str, ...]
    results: tuple[str, ...]
    nudges: tuple[Nudge, ...]


@dataclass(frozen=True)
class Loop:
    system: str
    question: str
    steps: tuple[Step, ...]


def words(draw: random.Random, most: int) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(1, most)))


def drawn_step(draw: random.Random, name: str, roles: tuple[str, ...]) -> Step:
    n = draw.choice((1, 1, 1, 2, 3))

    def nudge(number: int) -> Nudge:
        role = draw.choice(roles)
        # Only messages of Anthropic's API have a place before the results: elsewhere it parts them from their calls.
        first = -1 if role == "user" else 0
        return Nudge(f"NUDGE-{name}-{number} {words(draw, 12)}.", role, draw.randint(first, n - 1))

    return Step(
        thought=f"THOUGHT-{name} {words(draw, 12)}",
        text=draw.choice(("", f"I look: {words(draw, 6)}.")),
        paths=tuple(f"{name}-{i}.py" for i in range(n)),
        results=tuple(draw.choice(("", "x = 1\n  y", words(draw, 20))) for _ in range(n)),
        nudges=tuple(map(nudge, range(draw.choice((0, 1, 1, 2))))),
    )


def drawn(draw: random.Random, name: str, roles: tuple[str, ...], most_steps: int) -> Loop:
    steps = tuple(drawn_step(draw, f"{name}.{i}", roles) for i in range(draw.randint(1, most_steps)))
    return Loop(draw.choice(("", f"Rules of {name}.")), f"Question {name}: {words(draw, 10)}?", steps)


def items_of(
    step: Step, result_of: Callable[[int], Any], nudge_of: Callable[[Nudge], Any], *, nudged: bool
) -> list[Any]:
    """The results of a step with its nudges among them."""
    items: list[Any] = []
    for i in range(-1, len(step.results)):
        items += [result_of(i)] if i >= 0 else []
        items += [nudge_of(nudge) for nudge in step.nudges if nudged and nudge.after == i]
    return items


def function(path: str) -> dict[str, str]:
    return {"name": "read", "arguments": f'{{"path": "{path}"}}'}


def chat(loop: Loop, *, nudged: bool) -> dict[str, Any]:
    messages: list[Any] = [{"role": "system", "content": loop.system}] if loop.system else []
    messages.append({"role": "user", "content": loop.question})
    for step in loop.steps:
        calls = [{"id": path, "type": "function", "function": function(path)} for path in step.paths]
        turn = {"role": "assistant", "content": step.text, "reasoning_content": step.thought, "tool_calls": calls}
        messages += [turn, *items_of(
            step,
            lambda i, step=step: {"role": "tool", "tool_call_id": step.paths[i], "content": step.results[i]},
            lambda nudge: {"role": nudge.role, "content": nudge.text},
            nudged=nudged,
        )]  # fmt: skip
    tool = {"type": "function", "function": {"name": "read", "parameters": PARAMETERS}}
    return {"messages": messages, "tools": [tool], "max_tokens": 1}


def responses(loop: Loop, *, nudged: bool) -> dict[str, Any]:
    items: list[Any] = [{"role": "user", "content": loop.question}]
    for step in loop.steps:
        items.append({"type": "reasoning", "content": [{"type": "reasoning_text", "text": step.thought}]})
        items += [{"role": "assistant", "content": step.text}] if step.text else []
        items += [{"type": "function_call", "call_id": path, **function(path)} for path in step.paths]
        items += items_of(
            step,
            lambda i, step=step: {
                "type": "function_call_output",
                "call_id": step.paths[i],
                "output": step.results[i],
            },
            lambda nudge: {"type": "message", "role": nudge.role, "content": nudge.text},
            nudged=nudged,
        )
    tool = {"type": "function", "name": "read", "parameters": PARAMETERS}
    body = {"input": items, "tools": [tool], "max_output_tokens": 1, "store": False}
    return body | ({"instructions": loop.system} if loop.system else {})


def messages(loop: Loop, *, nudged: bool) -> dict[str, Any]:
    turns: list[Any] = [{"role": "user", "content": loop.question}]
    for step in loop.steps:
        blocks: list[Any] = [{"type": "thinking", "thinking": step.thought, "signature": ""}]
        blocks += [{"type": "text", "text": step.text}] if step.text else []
        blocks += [{"type": "tool_use", "id": path, "name": "read", "input": {"path": path}} for path in step.paths]
        turns.append({"role": "assistant", "content": blocks})
        content = items_of(
            step,
            lambda i, step=step: {"type": "tool_result", "tool_use_id": step.paths[i], "content": step.results[i]},
            lambda nudge: nudge if nudge.role == "system" else {"type": "text", "text": nudge.text},
            nudged=nudged,
        )
        instructions = [item for item in content if isinstance(item, Nudge)]
        turns.append({"role": "user", "content": [item for item in content if not isinstance(item, Nudge)]})
        turns += [{"role": "system", "content": nudge.text} for nudge in instructions]
    tool = {"name": "read", "input_schema": PARAMETERS}
    body = {"messages": turns, "tools": [tool], "max_tokens": 1}
    return body | ({"system": loop.system} if loop.system else {})


@dataclass(frozen=True)
class Protocol:
    path: str
    body: Callable[..., dict[str, Any]]
    roles: tuple[str, ...]

    def counts(self, usage: dict[str, Any]) -> tuple[int, int]:
        """Tokens of the prompt, and the cached ones of these."""
        if self.path == "/v1/messages":
            cached = usage["cache_read_input_tokens"]
            return usage["input_tokens"] + cached, cached
        kind = "prompt" if self.path == "/v1/chat/completions" else "input"
        return usage[f"{kind}_tokens"], usage[f"{kind}_tokens_details"]["cached_tokens"]


PROTOCOLS = {
    "chat": Protocol("/v1/chat/completions", chat, ("system", "developer")),
    "responses": Protocol("/v1/responses", responses, ("system", "developer")),
    "messages": Protocol("/v1/messages", messages, ("system", "user", "user")),
}


@dataclass(frozen=True)
class Served:
    """A server of its own, so that only its own prompts are cached."""

    client: httpx.Client
    model: ChatModel

    def step(self, protocol: Protocol, body: dict[str, Any]) -> tuple[int, int]:
        answered = self.client.post(protocol.path, json=body)
        assert answered.status_code == 200, answered.text
        return protocol.counts(answered.json()["usage"])

    def prompt(self, protocol: Protocol, body: dict[str, Any]) -> str:
        return self.model.prompt(conversation_of(protocol.path, body)).text

    def n_tokens(self, text: str) -> int:
        return len(self.model.model.tokenizer.encode(text, add_bos=False))


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Served, Served]]:
    """Two servers of a thinking model: for conversations without nudges, and with them."""
    with ExitStack() as stack:

        def start() -> Served:
            llm = stack.enter_context(LLM("tiny-hybrid", draft="none", threads=1, context=4096))
            template = ChatTemplate.from_file(DATA / "templates" / "Qwen3.5-4B.jinja", llm.tokenizer)
            llm.model.assets = replace(llm.model.assets, template=template)
            url = stack.enter_context(in_process(llm, ServeSettings(slots=1, prefix_cache=64 << 20)))
            return Served(stack.enter_context(httpx.Client(base_url=url, timeout=60)), llm.chat_model(template))

        yield start(), start()


def check(loop: Loop, protocol: Protocol, servers: tuple[Served, Served]) -> None:
    """Sends a loop step by step, without and with its nudges."""
    bare, nudged = servers
    bodies: list[dict[str, Any]] = []
    sizes: list[int] = []
    for n in range(len(loop.steps) + 1):
        part = replace(loop, steps=loop.steps[:n])
        bodies = [protocol.body(part, nudged=nudges) for nudges in (False, True)]
        counts = [server.step(protocol, body) for server, body in zip(servers, bodies, strict=True)]
        if n == 0:
            assert counts[0] == counts[1]
        else:
            assert [cached for _, cached in counts] == sizes  # the whole prompt of the step before
        sizes = [tokens for tokens, _ in counts]
    plain, prompt = bare.prompt(protocol, bodies[0]), nudged.prompt(protocol, bodies[1])
    texts = [nudge.text for step in loop.steps for nudge in step.nudges]
    for text in texts:
        assert prompt.count(text) == 1
        prompt = re.sub(rf"((?<!<tool_response>)\n\n?)?{re.escape(text)}", "", prompt)
    assert prompt == plain and all(step.thought in prompt for step in loop.steps)
    assert sizes[1] - sizes[0] <= sum(nudged.n_tokens("\n\n" + text) + 1 for text in texts)


def check_drawn(name: str, seed: int, n: int, servers: tuple[Served, Served], most_steps: int) -> None:
    draw, protocol = random.Random(seed), PROTOCOLS[name]
    for i in range(n):
        check(drawn(draw, f"{name}{i}", protocol.roles, most_steps), protocol, servers)


@pytest.mark.first_case
@pytest.mark.parametrize("name", PROTOCOLS)
def test_nudges_keep_thoughts_and_prefixes(servers: tuple[Served, Served], name: str, seed: int) -> None:
    check_drawn(name, seed, 5, servers, most_steps=3)


@pytest.mark.slow  # 60 longer conversations take 30 s
@pytest.mark.parametrize("name", PROTOCOLS)
def test_nudges_in_long_loops(servers: tuple[Served, Served], name: str, seed: int) -> None:
    check_drawn(name, seed, 60, servers, most_steps=8)
