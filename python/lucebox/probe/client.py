"""The HTTP client of the checks, and the requests they share.

Uses no vendor's SDK. Sampling is greedy, so repeated requests are comparable.
"""

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
    "PLACE_SCHEMA",
    "QUESTION",
    "TOOL_RESULT",
    "CheckFailed",
    "CheckFunction",
    "Client",
    "Reply",
    "first",
    "require",
    "result_in_prompt",
]

QUESTION = "Name the capital of France."
MAX_TOKENS = 24
CALL_TOKENS = 200
# So few choices that even a tiny model completes the object.
PLACE_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
ARGUMENTS = '{"city": "Paris"}'
TOOL_RESULT = "Sunny and 25 degrees, a light wind from the west, no clouds before the evening."
TOOL_RESULT_TOKENS = 12  # lower bound for TOOL_RESULT in any vocabulary


class CheckFailed(Exception):
    """The response breaks the protocol."""


def require(condition: object, failure: str) -> None:
    if not condition:
        raise CheckFailed(failure)


def first(found: Iterable[dict[str, Any]], failure: str) -> dict[str, Any]:
    for one in found:
        return one
    raise CheckFailed(failure)


def result_in_prompt(without: int, with_result: int) -> str:
    """Checks that a tool's result reached the prompt, by comparing prompt token counts without and with the result."""
    require(
        with_result - without >= TOOL_RESULT_TOKENS,
        f"the result is not in the prompt: {without} and {with_result} tokens",
    )
    return f"{with_result - without} tokens of the result"


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    text: str

    def json(self, status: int = 200) -> dict[str, Any]:
        require(self.status == status, f"status {self.status} instead of {status}: {self.text[:120]}")
        value = json.loads(self.text)
        require(isinstance(value, dict), "not a JSON object")
        return dict(value)

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """(name, data) of the server-sent events; the closing [DONE] has neither."""
        require(self.status == 200, f"status {self.status}: {self.text[:120]}")
        found = []
        for block in self.text.replace("\r\n", "\n").split("\n\n"):
            lines = [line for line in block.split("\n") if line and not line.startswith(":")]
            data = "\n".join(line[5:].strip() for line in lines if line.startswith("data:"))
            name = next((line[6:].strip() for line in lines if line.startswith("event:")), "")
            if data:
                found.append((name, {} if data == "[DONE]" else json.loads(data)))
        return found


class Client:
    """Sends requests for one model to one server."""

    def __init__(self, url: str, api_key: str, model: str, timeout_s: float) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequestError(f"not an HTTP URL: {url}")
        self._parts = parts
        self._root = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
        if api_key:
            self._headers |= {"authorization": f"Bearer {api_key}", "x-api-key": api_key}
        self._timeout_s = timeout_s
        self.model = model
        self.context = 0

    def request(self, path: str, body: Mapping[str, Any] | str | None = None) -> Reply:
        """Sends a request on a new connection and reads the reply."""
        with closing(self.send(path, body)) as connection:
            response = connection.getresponse()
            return Reply(response.status, response.read().decode())

    def send(self, path: str, body: Mapping[str, Any] | str | None = None) -> http.client.HTTPConnection:
        """Sends a request; the caller reads the reply from the connection and closes it."""
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout_s)
        text = body if isinstance(body, str) or body is None else json.dumps(body)
        try:
            connection.request("GET" if text is None else "POST", self._root + path, text, self._headers)
        except OSError as error:
            connection.close()
            raise OSError(
                error.errno, error.strerror or str(error), self._parts.geturl()
            ) from error  # names the server
        except BaseException:
            connection.close()
            raise
        return connection

    def chat(self, text: str = QUESTION, **more: Any) -> Reply:
        return self.request("/v1/chat/completions", self.chat_body(text, **more))

    def messages(self, text: str = QUESTION, **more: Any) -> Reply:
        return self.request("/v1/messages", self.chat_body(text, **more))

    def responses(self, text: str = QUESTION, **more: Any) -> Reply:
        body = {"model": self.model, "input": text, "temperature": 0, "max_output_tokens": MAX_TOKENS, "store": False}
        return self.request("/v1/responses", {**body, **more})

    def chat_body(self, text: str = QUESTION, **more: Any) -> dict[str, Any]:
        """A body that both chat completions and messages accept."""
        messages = [{"role": "user", "content": text}]
        return {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS, **more}

    @property
    def too_long(self) -> str:
        """A text longer than the context."""
        require(self.context, "the context length is unknown")
        return "word " * (self.context + 64)


# Returns what the server did; raises CheckFailed.
CheckFunction: TypeAlias = Callable[[Client], str]
