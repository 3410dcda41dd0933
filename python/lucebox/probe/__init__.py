"""Whether an HTTP server speaks the protocols that clients count on: `probe(url)` asks and judges. Any server, little
text; each protocol's checks are a file."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from dataclasses import dataclass

from lucebox.errors import InvalidRequestError
from lucebox.probe import chat, completions, messages, responses, server
from lucebox.probe.asking import Asked, Missing

__all__ = ["CHECKS", "Check", "probe", "server_models"]

CHECKS = [
    *(("server", *check) for check in server.CHECKS),
    *(("chat completions", *check) for check in chat.CHECKS),
    *(("messages", *check) for check in messages.CHECKS),
    *(("responses", *check) for check in responses.CHECKS),
    *(("completions", *check) for check in completions.CHECKS),
    *(("server", *check) for check in server.LEAVING),
]
"""Protocol, name and function of each. The first of them learn what the others ask with."""


@dataclass(frozen=True, slots=True)
class Check:
    """One question to a server and its answer."""

    protocol: str
    name: str
    ok: bool
    detail: str
    """What was seen, or what was missing."""
    seconds: float


def server_models(url: str, *, api_key: str = "", model: str = "", timeout_s: float = 30.0) -> tuple[str, int]:
    """The model to ask and its context length, as the server tells.

    Raises:
        InvalidRequestError: `url` is none, or the answer there is not one of such a server.
        OSError: nobody listens there.
    """
    asked = Asked(url, api_key, model, timeout_s)
    try:
        server.models(asked)
    except (Missing, KeyError, IndexError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"{url} does not tell its models and their context: {error}") from error
    return asked.model, asked.context


def probe(url: str, *, api_key: str = "", model: str = "", timeout_s: float = 120.0) -> Iterator[Check]:
    """Asks a server everything, one check after another; `model` "": the first that it names.

    Raises:
        InvalidRequestError: `url` is none.
        OSError: nobody listens there.
    """
    asked = Asked(url, api_key, model, timeout_s)
    asked.ask("/health")
    for protocol, name, check in CHECKS:
        start = time.perf_counter()
        try:
            ok, detail = True, check(asked)
        except Missing as missing:
            ok, detail = False, str(missing)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, StopIteration) as error:
            ok, detail = False, f"the answer lacks something: {type(error).__name__} {error}"
        except (OSError, http.client.HTTPException) as error:
            ok, detail = False, f"no answer: {error}"
        yield Check(protocol, name, ok, detail, time.perf_counter() - start)
