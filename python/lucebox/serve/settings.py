"""How a server behaves. Field docstrings are the help of `lucebox serve`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from lucebox.errors import InvalidRequestError

__all__ = ["ServeSettings"]


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How a server behaves. Fixed for its life."""

    host: str = "127.0.0.1"
    """Address to listen on. Any but this machine's own needs an API key, or --no-auth."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    api_key: tuple[str, ...] = ()
    """A key that clients must send, as `Authorization: Bearer KEY` or `x-api-key: KEY`."""
    api_key_file: str | None = None
    """A file with one such key on each line. None: none."""
    no_auth: bool = False
    """Listen on a public address without any key."""
    cors_origin: tuple[str, ...] = ()
    """An origin whose pages may call this server, "*" for all."""
    allowed_host: tuple[str, ...] = ()
    """A further host name by which a server on the loopback address may be called; the others are refused, so that no
    web page reaches it by a name of its own."""
    model_name: str | None = None
    """The model's name in the APIs. None: the name it was loaded by."""
    alias: tuple[str, ...] = ()
    """A further model name that clients may ask for; a pattern such as "claude-*" is allowed, "*" takes every name."""
    profile: str | None = None
    """A JSON file with fields that replace those of the model's profile (docs/structured_output.md). None: none."""
    slots: int | None = None
    """Requests computed in turns, each with a context of its own. None: 4, or what fits in memory if that is less."""
    prefix_cache: int = 2 << 30
    """Bytes of main memory for what prompts have in common, so that it is computed once; 0: only what slots hold."""
    prefix_cache_dir: str | None = None
    """A folder that keeps the same over a restart. None: it is not kept."""
    prefix_cache_disk: int = 16 << 30
    """Most bytes in that folder."""
    max_queue: int = 64
    """Requests that may wait for a slot; more are refused with 503 (529 for Anthropic's API) and Retry-After."""
    request_timeout: float = 3600.0
    """Seconds a request may take, from its arrival to the end of its answer."""
    max_tokens: int | None = None
    """Most tokens of an answer, whatever a request asks for. None: what its context has room for."""
    max_body: int = 32 << 20
    """Most bytes of a request's body."""
    body_timeout: float = 30.0
    """Seconds in which a request's head, and then its body, must have arrived."""
    write_timeout: float = 60.0
    """Seconds after which a client that takes no more bytes is dropped."""
    heartbeat: float = 5.0
    """Seconds of silence after which a stream sends a comment, to show that it lives."""
    drain: float = 30.0
    """Seconds that answers in progress are given when the server stops."""
    ssl_certfile: str | None = None
    """Certificate chain for TLS (PEM). None: plain HTTP."""
    ssl_keyfile: str | None = None
    """Its private key, unless the certificate's file has it."""

    def __post_init__(self) -> None:
        for name in ("port", "max_queue", "prefix_cache", "prefix_cache_disk"):
            if getattr(self, name) < 0:
                raise InvalidRequestError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in (
            "slots",
            "max_tokens",
            "max_body",
            "request_timeout",
            "body_timeout",
            "write_timeout",
            "heartbeat",
        ):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidRequestError(f"{name} must be positive, got {value}")

    @property
    def is_loopback(self) -> bool:
        """Only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    def all_keys(self) -> tuple[str, ...]:
        """All API keys.

        Raises:
            OSError: the file cannot be read.
            InvalidRequestError: it has none, or a key is not printable ASCII.
        """
        keys = list(self.api_key)
        if self.api_key_file is not None:
            lines = [line.strip() for line in Path(self.api_key_file).read_text(encoding="utf-8").splitlines()]
            found = [line for line in lines if line and not line.startswith("#")]
            if not found:
                raise InvalidRequestError(f"{self.api_key_file} has no API key")
            keys += found
        for key in keys:
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise InvalidRequestError("an API key must be printable ASCII without spaces")
        return tuple(keys)

    def check_exposure(self) -> None:
        """Refuses to listen to the world without a key.

        Raises:
            InvalidRequestError: says what to do.
        """
        if not self.is_loopback and not self.all_keys() and not self.no_auth:
            raise InvalidRequestError(
                f"{self.host} is not a loopback address: give --api-key or --api-key-file, or --no-auth to let all in"
            )
