"""Settings of the server. Field docstrings are the help of `lucebox serve`."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lucebox.errors import InvalidRequestError
from lucebox.local_files import json_object, read_text

__all__ = ["ServeSettings"]

MAX_PORT = 65535
MAX_KEY_FILE = 1 << 20
SIZE = {"size": True}  # the command line takes 2GB or 512MiB
DURATION = {"duration": True}  # the command line takes 90s or 10m


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings of a server, fixed while it runs."""

    host: str = "127.0.0.1"
    """Address to listen on. Any address but loopback needs an API key, or --no-auth."""
    port: int = 8000
    """Port to listen on; 0 picks a free one."""
    api_key: tuple[str, ...] = ()
    """A key that clients must send, as `Authorization: Bearer KEY` or `x-api-key: KEY`."""
    api_key_file: str | None = None
    """A file with one such key per line. None: no file."""
    no_auth: bool = False
    """Listen on a public address without any key."""
    cors_origin: tuple[str, ...] = ()
    """An origin whose pages may call this server, "*" for all."""
    allowed_host: tuple[str, ...] = ()
    """A further host name that clients of a loopback server may use. Other names are refused, which stops DNS
    rebinding by web pages."""
    model_name: str | None = None
    """The model's name in the APIs. None: the name it was loaded by."""
    alias: tuple[str, ...] = ()
    """A further model name that clients may request; a pattern such as "claude-*" is allowed, "*" takes every name."""
    profile: str | None = None
    """A JSON file that overrides fields of the model's profile (docs/structured_output.md). None: no file."""
    chat_template_kwargs: str | None = None
    """Variables of the chat template for every conversation, as a JSON object: '{"preserve_thinking": true}'. A
    request's own come before them. None: no variables."""
    slots: int | None = None
    """Requests that run concurrently, in turns, each with its own context. None: 4, or fewer if memory is short."""
    replicas: int = 1
    """Copies of the model, each with an equal part of the devices of --device. A request goes to the copy that has its
    prefix, else to the less busy one."""
    prefix_cache: int | None = field(default=None, metadata=SIZE)
    """Main memory for the prefix caches of all models, so that common prefixes of prompts are computed once. 0: a
    prompt reuses only what its slot has. None: 2GiB, or more
    for four recurrent states of each slot, up to a quarter of the available memory."""
    prefix_cache_dir: str | None = None
    """A folder that keeps the prefix cache across restarts. None: memory only."""
    prefix_cache_disk: int = field(default=16 << 30, metadata=SIZE)
    """Maximum size of that folder."""
    allow_fetch: bool = False
    """Fetch images of https URLs in users' messages, from public addresses only, within 10 s each."""
    max_queue: int = 64
    """Requests that may wait for a slot; more are refused with 503 (529 for Anthropic's API) and Retry-After."""
    request_timeout: float = 3600.0
    """Maximum seconds from a request's arrival to the end of its answer."""
    max_tokens: int | None = None
    """Maximum tokens of an answer, whatever the request says. None: the room in the context."""
    max_body: int = field(default=32 << 20, metadata=SIZE)
    """Maximum size of a request's body."""
    body_timeout: float = 30.0
    """Seconds for a request's head to arrive, and again for its body."""
    write_timeout: float = 60.0
    """Seconds after which a client that stops reading is dropped."""
    heartbeat: float = 5.0
    """Seconds of silence after which a stream sends a heartbeat."""
    drain: float = 30.0
    """Seconds for running answers to finish when the server stops."""
    load: Literal["start", "use"] = "start"
    """When models load: "start" loads those that fit in memory together before the server listens, and the others when
    a request first names them; "use" loads each when a request first names it."""
    keep_loaded: float | None = field(default=None, metadata=DURATION)
    """Time without requests after which a model is unloaded, as 90s, 10m or 2h. None: it stays until another one needs
    its memory."""
    power: Literal["default", "efficient"] = "default"
    """Power limit of the GPU: "efficient" decodes at several limits when the first model loads, holds the one with the
    most tokens per joule that decodes at most 3 % slower, and restores the old limit at the end. Prompts may become
    slower. Needs the right to set the limit. "default" leaves it."""
    kv_events: str | None = None
    """Publish which prefixes the cache holds, in vLLM's format, at a ZeroMQ endpoint: "tcp://*:5557" binds it,
    "tcp://host:5557" connects to it. Subscribers see the tokens of all prompts. None: no events."""
    kv_topic: str = "kv-events"
    """Topic of these events; {model} is the model's name."""
    ssl_certfile: str | None = None
    """Certificate chain for TLS (PEM). None: plain HTTP."""
    ssl_keyfile: str | None = None
    """Private key of the certificate, unless its file contains the key."""
    access_log: bool = False
    """Write a line per request to stderr: time, client, method, path, status, bytes, seconds; no query and no body."""

    def __post_init__(self) -> None:
        for name in ("port", "max_queue", "prefix_cache", "prefix_cache_disk"):
            if (getattr(self, name) or 0) < 0:
                raise InvalidRequestError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.port > MAX_PORT:
            raise InvalidRequestError(f"port must be at most {MAX_PORT}, got {self.port}")
        for name in (
            "slots",
            "max_tokens",
            "replicas",
            "max_body",
            "request_timeout",
            "body_timeout",
            "write_timeout",
            "heartbeat",
            "keep_loaded",
        ):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidRequestError(f"{name} must be positive, got {value}")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    def all_keys(self) -> tuple[str, ...]:
        """The keys of --api-key and --api-key-file.

        Raises:
            InvalidRequestError: the file cannot be read or has no key, or a key is not printable ASCII.
        """
        keys = list(self.api_key)
        if self.api_key_file is not None:
            try:
                lines = [line.strip() for line in read_text(self.api_key_file, MAX_KEY_FILE).splitlines()]
            except InvalidRequestError as error:
                raise InvalidRequestError(f"--api-key-file {error}") from None
            found = [line for line in lines if line and not line.startswith("#")]
            if not found:
                raise InvalidRequestError(f"{self.api_key_file} has no API key")
            keys += found
        for key in keys:
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise InvalidRequestError("an API key must be printable ASCII without spaces")
        return tuple(keys)

    def template_vars(self) -> dict[str, Any]:
        """The variables of --chat-template-kwargs.

        Raises:
            InvalidRequestError: the text is not a JSON object.
        """
        return json_object(self.chat_template_kwargs or "{}", "--chat-template-kwargs")

    def check(self) -> None:
        """Checks what would otherwise fail after the model has loaded: keys, exposure, template variables and the files
        of TLS.

        Raises:
            InvalidRequestError: one of these cannot be used; the message says why.
        """
        self.all_keys()
        self.check_exposure()
        self.template_vars()
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise InvalidRequestError("--ssl-keyfile needs --ssl-certfile")
        if self.ssl_certfile is None:
            return
        for file in filter(None, (self.ssl_certfile, self.ssl_keyfile)):
            if not Path(file).is_file():
                raise InvalidRequestError(f"TLS: there is no file {file}")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.ssl_certfile, self.ssl_keyfile)
        except OSError as error:  # SSLError is one
            files = " and ".join(filter(None, (self.ssl_certfile, self.ssl_keyfile)))
            raise InvalidRequestError(f"TLS: {files} are not a certificate and its key: {error}") from error

    def check_exposure(self) -> None:
        """Checks that a server on a public address has a key.

        Raises:
            InvalidRequestError: the address is public and there is no key.
        """
        if not self.is_loopback and not self.all_keys() and not self.no_auth:
            raise InvalidRequestError(
                f"{self.host} is not a loopback address: use --api-key or --api-key-file, or --no-auth for open access"
            )
