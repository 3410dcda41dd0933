"""Conformance checks for any HTTP server that implements the OpenAI and Anthropic APIs: `probe(url)` runs them.

One file per protocol. The requests are short, and sampling is greedy.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from dataclasses import dataclass

from lucebox.errors import InvalidRequestError
from lucebox.probe import chat, completions, messages, responses, server
from lucebox.probe.client import CheckFailed, Client

__all__ = ["CHECKS", "Check", "probe", "server_models"]

# Protocol, name and function of each check. The first ones find out the model and its context length.
CHECKS = [
    *(("server", *check) for check in server.CHECKS),
    *(("chat completions", *check) for check in chat.CHECKS),
    *(("messages", *check) for check in messages.CHECKS),
    *(("responses", *check) for check in responses.CHECKS),
    *(("completions", *check) for check in completions.CHECKS),
    *(("server", *check) for check in server.DISCONNECTS),
]


@dataclass(frozen=True, slots=True)
class Check:
    protocol: str
    name: str
    ok: bool
    detail: str
    """What the server returned, or why the check failed."""
    seconds: float


def server_models(url: str, *, api_key: str = "", model: str = "", timeout_s: float = 30.0) -> tuple[str, int]:
    """The name and context length of a model, from the server's /v1/models.

    Raises:
        InvalidRequestError: `url` is not a URL, or the response lists no model with a context length.
        OSError: the connection failed.
    """
    client = Client(url, api_key, model, timeout_s)
    try:
        server.models(client)
    except (CheckFailed, KeyError, IndexError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"{url} does not list its models and their context length: {error}") from error
    return client.model, client.context


def probe(url: str, *, api_key: str = "", model: str = "", timeout_s: float = 120.0) -> Iterator[Check]:
    """Runs all checks, one after another; an empty `model` means the first one the server lists.

    Raises:
        InvalidRequestError: `url` is not a URL.
        OSError: the connection failed.
    """
    client = Client(url, api_key, model, timeout_s)
    client.request("/health")
    for protocol, name, check in CHECKS:
        start = time.perf_counter()
        try:
            ok, detail = True, check(client)
        except CheckFailed as failure:
            ok, detail = False, str(failure)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, StopIteration) as error:
            ok, detail = False, f"the response is incomplete: {type(error).__name__} {error}"
        except (OSError, http.client.HTTPException) as error:
            ok, detail = False, f"no response: {error}"
        yield Check(protocol, name, ok, detail, time.perf_counter() - start)
