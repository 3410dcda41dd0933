"""Access control: host names, origins, API keys, and limits on a body. ASGI middleware inside CORS."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lucebox.generation.request import SENDER
from lucebox.images.fetch import FETCHER, Fetcher
from lucebox.serve.delivery import compact_json
from lucebox.serve.engine_errors import RETRY_BUSY_S
from lucebox.serve.errors import ApiError, body_of, overloaded
from lucebox.serve.settings import ServeSettings
from lucebox.serve.web_ui import is_page

__all__ = ["Guard", "error_response", "key_owners"]

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready"})  # no key needed: for process monitors
MAX_HELD = 4
"""Bodies of the maximum size that the requests of one sender may hold; all senders together hold twice as many."""
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(slots=True)
class _Held:
    """What a request holds until it ends."""

    sender: str = ""
    n_bytes: int = 0


class Guard:
    """Middleware that rejects requests before they reach a route."""

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self._app = app
        self._digests = [_digest(key) for key in settings.all_keys()]
        self._max_body = settings.max_body
        self._body_timeout_s = settings.body_timeout
        self._fetcher = Fetcher() if settings.allow_fetch else None
        self._held: Counter[str] = Counter()  # bytes of the bodies of requests in progress, by sender
        # Guards against DNS rebinding: without a key, only the Host header distinguishes a local user from a web page
        # whose domain resolves to this machine.
        checks_hosts = settings.is_loopback and not self._digests
        names = {name.lower() for name in settings.allowed_host}
        self._hosts = LOOPBACK_NAMES | names if checks_hosts else None
        self._origins = frozenset(settings.cors_origin)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # like GET, without the body
            scope, send = {**scope, "method": "GET"}, _headless(send)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        held = _Held()
        try:
            await self._guarded(scope, receive, send, headers, held)
        finally:
            self._held[held.sender] -= held.n_bytes

    async def _guarded(
        self, scope: Scope, receive: Receive, send: Send, headers: Mapping[str, str], held: _Held
    ) -> None:
        try:
            self._check_host(headers)
            self._check_origin(headers)
            if scope["path"] not in OPEN_PATHS and not is_page(scope["path"]):
                owner = self._check_key(headers)
                SENDER.set(owner)
                FETCHER.set(self._fetcher)
                scope["lucebox.owner"] = held.sender = owner
            body = await self._body(headers, receive, held)
            if body:
                if scope["path"].startswith("/api/") and "origin" not in headers:
                    scope = _as_json(scope)
                else:
                    _check_type(headers)
        except ApiError as error:
            await error_response(scope["path"], error, send)
            return
        if body is not None:
            await self._app(scope, _replay(body, receive), send)

    def _check_host(self, headers: Mapping[str, str]) -> None:
        host = headers.get("host", "")
        if not self._is_own(host):
            raise ApiError("forbidden", f"this server is not called {host!r}; see --allowed-host")

    def _is_own(self, host: str) -> bool:
        """Whether a host name, with or without a port, is this server's; always true if names are not checked."""
        name = host.lower()
        return self._hosts is None or name.rpartition(":")[0] in self._hosts or name in self._hosts

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        """Without API keys, refuses web pages of other sites. Non-HTTP origins are programs with an embedded page:
        editors, desktop apps."""
        origin = headers.get("origin")
        if origin is None or "*" in self._origins or origin in self._origins:
            return
        scheme, _, host = origin.partition("://")
        if origin == "null" or scheme in ("http", "https"):
            if self._hosts is None or (origin != "null" and self._is_own(host)):
                return
            raise ApiError("forbidden", f"pages of {origin!r} may not use this server; see --cors-origin")

    def _check_key(self, headers: Mapping[str, str]) -> str:
        """The digest of the request's key; empty if the server has no keys."""
        if not self._digests:
            return ""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = [headers.get("x-api-key", ""), token.strip() if scheme.lower() == "bearer" else ""]
        # Compares every key with every candidate, so that the time reveals nothing.
        matches = [hmac.compare_digest(_digest(one), known) for one in given for known in self._digests]
        if not any(matches):
            problem = "Incorrect API key provided" if any(given) else "No API key provided"
            raise ApiError("unauthorized", f"{problem}: send it as Authorization: Bearer KEY or as x-api-key: KEY")
        return self._digests[matches.index(True) % len(self._digests)].hex()

    async def _body(self, headers: Mapping[str, str], receive: Receive, held: _Held) -> bytes | None:
        """The complete body; None if the client disconnects first."""
        if headers.get("content-encoding", "identity") != "identity":
            raise ApiError("media_type", f"content-encoding {headers['content-encoding']!r} is not supported")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._max_body:
            raise self._too_large()
        try:
            return await asyncio.wait_for(self._read(receive, held), self._body_timeout_s)
        except asyncio.TimeoutError:
            raise ApiError("timeout", f"the body did not arrive within {self._body_timeout_s:g} s") from None

    async def _read(self, receive: Receive, held: _Held) -> bytes | None:
        parts: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            held.n_bytes += len(parts[-1])
            self._held[held.sender] += len(parts[-1])
            if held.n_bytes > self._max_body:
                raise self._too_large()
            limit = MAX_HELD * self._max_body
            if self._held[held.sender] > limit or sum(self._held.values()) > 2 * limit:
                raise overloaded("the requests in progress have too many bytes", RETRY_BUSY_S)
            if not message.get("more_body", False):
                return b"".join(parts)

    def _too_large(self) -> ApiError:
        return ApiError("too_large", f"the body has more than {self._max_body} bytes")


def _headless(send: Send) -> Send:
    async def send_head(message: Message) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return send_head


def _check_type(headers: Mapping[str, str]) -> None:
    """Accepts only JSON: web pages may send other types cross-origin without a preflight."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise ApiError("media_type", f"content-type is {kind!r}, expected application/json")


def _as_json(scope: Scope) -> Scope:
    """The scope with JSON's content type. Ollama ignores the content type, so its clients send other types or none. Web
    pages cannot exploit this: browsers add Origin to every POST."""
    others = [field for field in scope["headers"] if field[0] != b"content-type"]
    return {**scope, "headers": [*others, (b"content-type", b"application/json")]}


def key_owners(keys: Sequence[str]) -> tuple[str, ...]:
    """The digests of API keys, which tag requests and stored data by owner."""
    return tuple(_digest(key).hex() for key in keys)


def _digest(text: str) -> bytes:
    """A digest, because compare_digest takes constant time only for equal lengths."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _replay(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


async def error_response(path: str, error: ApiError, send: Send, headers: Sequence[tuple[str, str]] = ()) -> None:
    """Sends an error in the protocol of the path."""
    status, body = body_of(path, error)
    data = compact_json(body)
    fields = [("content-type", "application/json"), ("content-length", str(len(data))), *headers]
    if error.retry_after is not None:
        fields.append(("retry-after", str(error.retry_after)))
    if error.kind == "unauthorized":
        fields.append(("www-authenticate", "Bearer"))
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": data})
