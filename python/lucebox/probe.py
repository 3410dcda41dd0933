"""Whether an HTTP server speaks the protocols that clients count on: `probe(url)` asks and judges. Any server, little
text, no vendor's library; greedy sampling, so that two runs ask for the same."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from lucebox.errors import InvalidRequestError

__all__ = ["Check", "probe", "server_models"]

QUESTION = "Name the capital of France."
PREFIX = "The weather in the harbour was calm, and the boats lay still. " * 60  # several pages of KV
# So few choices that a model of any size comes to an end.
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
MAX_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Check:
    """One question to a server and its answer."""

    protocol: str
    name: str
    ok: bool
    detail: str
    """What was seen, or what was missing."""
    seconds: float


class Missing(Exception):
    """The answer is not what the protocol promises."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    text: str

    def json(self, status: int = 200) -> dict[str, Any]:
        need(self.status == status, f"status {self.status} instead of {status}: {self.text[:120]}")
        value = json.loads(self.text)
        need(isinstance(value, dict), "not a JSON object")
        return dict(value)

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Server-sent events with their names; the closing [DONE] has none and no data."""
        need(self.status == 200, f"status {self.status}: {self.text[:120]}")
        found = []
        for block in self.text.replace("\r\n", "\n").split("\n\n"):
            lines = [line for line in block.split("\n") if line and not line.startswith(":")]
            data = "\n".join(line[5:].strip() for line in lines if line.startswith("data:"))
            name = next((line[6:].strip() for line in lines if line.startswith("event:")), "")
            if data:
                found.append((name, {} if data == "[DONE]" else json.loads(data)))
        return found


def need(truth: object, what: str) -> None:
    if not truth:
        raise Missing(what)


class Probe:
    """A server, and the model that is asked."""

    def __init__(self, url: str, api_key: str, model: str, timeout_s: float) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequestError(f"not the address of a server: {url}")
        self._parts = parts
        self._root = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
        if api_key:
            self._headers |= {"authorization": f"Bearer {api_key}", "x-api-key": api_key}
        self._timeout_s = timeout_s
        self.model = model
        self.context = 0

    def ask(self, path: str, body: dict[str, Any] | str | None = None) -> Reply:
        """A request with its own connection, as a stranger makes it."""
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout_s)
        try:
            text = body if isinstance(body, str) or body is None else json.dumps(body)
            connection.request("GET" if text is None else "POST", self._root + path, text, self._headers)
            response = connection.getresponse()
            return Reply(response.status, response.read().decode())
        finally:
            connection.close()

    def chat(self, text: str = QUESTION, **more: Any) -> Reply:
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], "temperature": 0}
        return self.ask("/v1/chat/completions", {**body, "max_tokens": MAX_TOKENS, **more})

    def messages(self, text: str = QUESTION, **more: Any) -> Reply:
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], "temperature": 0}
        return self.ask("/v1/messages", {**body, "max_tokens": MAX_TOKENS, **more})

    def responses(self, text: str = QUESTION, **more: Any) -> Reply:
        body = {"model": self.model, "input": text, "temperature": 0, "max_output_tokens": MAX_TOKENS, "store": False}
        return self.ask("/v1/responses", {**body, **more})

    @property
    def too_long(self) -> str:
        need(self.context, "the context length is not known")
        return "word " * (self.context + 64)


# --- what servers say of themselves


def health(server: Probe) -> str:
    status = server.ask("/health").status
    need(status == 200, f"status {status}")
    return "status 200"


def models(server: Probe) -> str:
    found = server.ask("/v1/models").json()["data"]
    need(found and found[0]["id"], "no model")
    entry = next((one for one in found if one["id"] == server.model), found[0])
    server.model = server.model or entry["id"]
    server.context = int(entry.get("context_length") or entry.get("max_model_len") or 0)
    need(server.context, "no context_length: clients guess when to compact")
    return f"{entry['id']}, context {server.context}"


# --- chat completions


def chat_answer(server: Probe) -> str:
    answer = server.chat().json()
    choice, usage = answer["choices"][0], answer["usage"]
    need(choice["message"]["role"] == "assistant", "no role")
    need(choice["finish_reason"] in ("stop", "length"), f"finish_reason {choice['finish_reason']}")
    need(usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"], f"usage {usage}")
    return f"{usage['prompt_tokens']} + {usage['completion_tokens']} tokens"


def chat_length(server: Probe) -> str:
    answer = server.chat(max_tokens=1).json()
    need(answer["choices"][0]["finish_reason"] == "length", "a cut answer does not say so")
    need(answer["usage"]["completion_tokens"] == 1, f"usage {answer['usage']}")
    return "finish_reason length"


def chat_stream(server: Probe) -> str:
    events = [event for _, event in server.chat(stream=True, stream_options={"include_usage": True}).events()]
    need(events[-1] == {}, "no [DONE] at the end")
    chunks = [event["choices"][0] for event in events if event.get("choices")]
    need(chunks[0]["delta"].get("role") == "assistant", "the first chunk has no role")
    need(chunks[-1]["finish_reason"] in ("stop", "length"), "the last chunk has no finish_reason")
    need(any(event.get("usage") for event in events), "no usage, though it was asked for")
    plain = server.chat().json()["choices"][0]["message"]
    text = "".join(chunk["delta"].get("content") or "" for chunk in chunks)
    need(text == (plain["content"] or ""), "the stream's text differs from the plain answer's")
    return f"{len(chunks)} chunks"


def chat_cached(server: Probe) -> str:
    for _ in range(2):
        usage = server.chat(PREFIX + QUESTION).json()["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    need(cached, "the second time no token was cached")
    return f"{cached} of {usage['prompt_tokens']} tokens"


def chat_tool(server: Probe) -> str:
    tool = {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": PLACE}}
    # One call: a small model would go on calling.
    answer = server.chat(tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=200).json()
    choice = answer["choices"][0]
    need(choice["finish_reason"] == "tool_calls", f"finish_reason {choice['finish_reason']}")
    call = choice["message"]["tool_calls"][0]
    need(call["id"] and call["function"]["name"] == "weather", "no id, or another tool")
    need("city" in json.loads(call["function"]["arguments"]), "arguments without the required member")
    return str(call["function"]["arguments"])[:60]


def chat_schema(server: Probe) -> str:
    form = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": PLACE}}
    answer = server.chat(response_format=form, max_tokens=200).json()["choices"][0]["message"]["content"]
    need("city" in json.loads(answer), f"not as the schema says: {answer[:60]}")
    return str(answer)[:60]


def chat_too_long(server: Probe) -> str:
    error = server.chat(server.too_long).json(400)["error"]
    need(error.get("code") == "context_length_exceeded", f"code {error.get('code')}")
    return str(error["message"])[:60]


def chat_malformed(server: Probe) -> str:
    error = server.ask("/v1/chat/completions", "{").json(400)["error"]
    need(error["message"], "no message")
    return str(error["message"])[:60]


# --- messages


def messages_answer(server: Probe) -> str:
    answer = server.messages().json()
    need(answer["type"] == "message" and answer["role"] == "assistant", "not a message")
    need(answer["stop_reason"] in ("end_turn", "max_tokens"), f"stop_reason {answer['stop_reason']}")
    need(all(block["type"] in ("text", "thinking") for block in answer["content"]), "content of another type")
    return f"{answer['usage']['input_tokens']} + {answer['usage']['output_tokens']} tokens"


def messages_stream(server: Probe) -> str:
    events = server.messages(stream=True).events()
    names = [name for name, _ in events if name != "ping"]
    need(all(name == event["type"] for name, event in events), "an event whose name is not its type")
    need(names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"], f"order {names[:2]}")
    need(names.count("content_block_start") == names.count("content_block_stop"), "a block that stays open")
    end = next(event for name, event in events if name == "message_delta")
    need(end["delta"]["stop_reason"] and end["usage"]["output_tokens"], "no stop_reason or usage at the end")
    return f"{names.count('content_block_delta')} deltas"


def messages_count(server: Probe) -> str:
    body = {"model": server.model, "messages": [{"role": "user", "content": QUESTION}]}
    counted = server.ask("/v1/messages/count_tokens", body).json()["input_tokens"]
    usage = server.messages().json()["usage"]
    used = usage["input_tokens"] + (usage.get("cache_read_input_tokens") or 0)
    used += usage.get("cache_creation_input_tokens") or 0
    need(counted == used, f"counts {counted}, uses {used}")
    return f"{counted} tokens"


def messages_tool(server: Probe) -> str:
    tool = {"name": "weather", "description": "Of a city.", "input_schema": PLACE}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    answer = server.messages(tools=[tool], tool_choice=choice, max_tokens=200).json()
    need(answer["stop_reason"] == "tool_use", f"stop_reason {answer['stop_reason']}")
    call = next(block for block in answer["content"] if block["type"] == "tool_use")
    need(call["name"] == "weather" and "city" in call["input"], "another tool, or no required member")
    return str(call["input"])[:60]


def messages_too_long(server: Probe) -> str:
    answer = server.messages(server.too_long).json(400)
    need(answer["type"] == "error", "not Anthropic's envelope")
    need("prompt is too long" in answer["error"]["message"], "Claude Code compacts on 'prompt is too long'")
    return str(answer["error"]["message"])[:60]


# --- responses


def responses_answer(server: Probe) -> str:
    answer = server.responses().json()
    need(answer["object"] == "response", "not a response")
    need(answer["status"] in ("completed", "incomplete"), f"status {answer['status']}")
    need(any(item["type"] in ("message", "reasoning") for item in answer["output"]), "no item")
    return f"{answer['usage']['input_tokens']} + {answer['usage']['output_tokens']} tokens"


def responses_stream(server: Probe) -> str:
    events = [event for _, event in server.responses(stream=True).events() if event]
    names = [event["type"] for event in events]
    need(names[0] == "response.created", f"starts with {names[0]}")
    need(names[-1] in ("response.completed", "response.incomplete"), f"ends with {names[-1]}")
    need("response.output_item.done" in names, "no response.output_item.done, on which Codex acts")
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    need(numbers == sorted(set(numbers)), "sequence numbers do not ascend")
    return f"{len(events)} events"


def responses_too_long(server: Probe) -> str:
    reply = server.responses(server.too_long, stream=True)
    if reply.status == 400:
        error = reply.json(400)["error"]
    else:
        error = next(event for _, event in reply.events() if event.get("type") == "response.failed")["response"][
            "error"
        ]
    need(error["code"] == "context_length_exceeded", f"code {error['code']}")
    return f"status {reply.status}, {error['code']}"


def completions_answer(server: Probe) -> str:
    body = {"model": server.model, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    answer = server.ask("/v1/completions", body).json()
    need(isinstance(answer["choices"][0]["text"], str), "no text")
    return repr(answer["choices"][0]["text"])


CHECKS: tuple[tuple[str, str, Callable[[Probe], str]], ...] = (
    ("server", "health", health),
    ("server", "models", models),
    ("chat completions", "answer", chat_answer),
    ("chat completions", "length", chat_length),
    ("chat completions", "stream", chat_stream),
    ("chat completions", "cached tokens", chat_cached),
    ("chat completions", "forced tool", chat_tool),
    ("chat completions", "json schema", chat_schema),
    ("chat completions", "too long", chat_too_long),
    ("chat completions", "malformed", chat_malformed),
    ("messages", "answer", messages_answer),
    ("messages", "stream", messages_stream),
    ("messages", "count tokens", messages_count),
    ("messages", "forced tool", messages_tool),
    ("messages", "too long", messages_too_long),
    ("responses", "answer", responses_answer),
    ("responses", "stream", responses_stream),
    ("responses", "too long", responses_too_long),
    ("completions", "answer", completions_answer),
)


def server_models(url: str, *, api_key: str = "", model: str = "", timeout_s: float = 30.0) -> tuple[str, int]:
    """The model to ask and its context length, as the server tells.

    Raises:
        InvalidRequestError: `url` is none, or the answer there is not one of such a server.
        OSError: nobody listens there.
    """
    server = Probe(url, api_key, model, timeout_s)
    try:
        models(server)
    except (Missing, KeyError, IndexError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"{url} does not tell its models and their context: {error}") from error
    return server.model, server.context


def probe(url: str, *, api_key: str = "", model: str = "", timeout_s: float = 120.0) -> Iterator[Check]:
    """Asks a server everything, one check after another; `model` "": the first that it names.

    Raises:
        InvalidRequestError: `url` is none.
        OSError: nobody listens there.
    """
    server = Probe(url, api_key, model, timeout_s)
    server.ask("/health")
    for protocol, name, check in CHECKS:
        start = time.perf_counter()
        try:
            ok, detail = True, check(server)
        except Missing as missing:
            ok, detail = False, str(missing)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, StopIteration) as error:
            ok, detail = False, f"the answer lacks something: {type(error).__name__} {error}"
        except (OSError, http.client.HTTPException) as error:
            ok, detail = False, f"no answer: {error}"
        yield Check(protocol, name, ok, detail, time.perf_counter() - start)
