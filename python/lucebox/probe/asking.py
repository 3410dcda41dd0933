"""A server that is asked, and its replies: `Asked`. No vendor's library, and greedy sampling, so that two runs ask for
the same."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from lucebox.errors import InvalidRequestError

__all__ = [
    "ARGUMENTS",
    "CALL_TOKENS",
    "PLACE",
    "QUESTION",
    "RESULT",
    "Asked",
    "CheckFunction",
    "Missing",
    "Reply",
    "first",
    "grown",
    "need",
]

QUESTION = "Name the capital of France."
MAX_TOKENS = 24
CALL_TOKENS = 200
# So few choices that a model of any size comes to an end.
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
ARGUMENTS = '{"city": "Paris"}'
RESULT = "Sunny and 25 degrees, a light wind from the west, no clouds before the evening."
RESULT_TOKENS = 12  # no vocabulary writes it with fewer


class Missing(Exception):
    """The answer is not what the protocol promises."""


def need(truth: object, what: str) -> None:
    if not truth:
        raise Missing(what)


def first(found: Iterable[dict[str, Any]], otherwise: str) -> dict[str, Any]:
    for one in found:
        return one
    raise Missing(otherwise)


def grown(without: int, with_result: int) -> str:
    """Whether a tool's result came into the prompt."""
    need(with_result - without >= RESULT_TOKENS, f"the result is not in the prompt: {without} and {with_result} tokens")
    return f"{with_result - without} tokens of the result"


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


class Asked:
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

    def ask(self, path: str, body: Mapping[str, Any] | str | None = None) -> Reply:
        """A request with its own connection, as a stranger makes it."""
        with closing(self.send(path, body)) as connection:
            response = connection.getresponse()
            return Reply(response.status, response.read().decode())

    def send(self, path: str, body: Mapping[str, Any] | str | None = None) -> http.client.HTTPConnection:
        """The same, the reply not yet read."""
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout_s)
        text = body if isinstance(body, str) or body is None else json.dumps(body)
        try:
            connection.request("GET" if text is None else "POST", self._root + path, text, self._headers)
        except BaseException:
            connection.close()
            raise
        return connection

    def chat(self, text: str = QUESTION, **more: Any) -> Reply:
        return self.ask("/v1/chat/completions", self.asking(text, **more))

    def messages(self, text: str = QUESTION, **more: Any) -> Reply:
        return self.ask("/v1/messages", self.asking(text, **more))

    def responses(self, text: str = QUESTION, **more: Any) -> Reply:
        body = {"model": self.model, "input": text, "temperature": 0, "max_output_tokens": MAX_TOKENS, "store": False}
        return self.ask("/v1/responses", {**body, **more})

    def asking(self, text: str = QUESTION, **more: Any) -> dict[str, Any]:
        """What chat completions and messages have in common."""
        messages = [{"role": "user", "content": text}]
        return {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS, **more}

    @property
    def too_long(self) -> str:
        need(self.context, "the context length is not known")
        return "word " * (self.context + 64)


CheckFunction: TypeAlias = Callable[[Asked], str]
"""What was seen; raises Missing."""
