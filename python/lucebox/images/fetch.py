"""Fetches an image by https from a public address. Each name, also of a redirect, is resolved once, and the connection
goes to the address that was checked."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from urllib.parse import SplitResult, urljoin, urlsplit

from lucebox.errors import InvalidRequestError
from lucebox.images.source import MAX_BYTES

__all__ = ["FETCHER", "Fetcher", "is_public"]

_REDIRECTS = (301, 302, 303, 307, 308)
_CHUNK = 1 << 16
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # NAT64: IPv4 addresses inside


def is_public(address: str) -> bool:
    """Whether an IP address, and any IPv4 address that it contains, is of the public internet."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if not ip.is_global or ip.is_multicast or ip.is_reserved:
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return True
    if ip.is_site_local:  # fec0::/10, which Python counts as global
        return False
    inner = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
    return ip not in _TRANSLATED and all(one is None or is_public(str(one)) for one in inner)


@dataclass(frozen=True)
class Fetcher:
    seconds: float = 10.0
    """Time for an image, redirects included."""
    max_bytes: int = MAX_BYTES
    max_redirects: int = 3
    is_allowed: Callable[[str], bool] = is_public
    """Which addresses are connected to."""
    tls: ssl.SSLContext = field(default_factory=ssl.create_default_context)

    def fetch(self, url: str, where: str) -> bytes:
        """The bytes at an https URL.

        Raises:
            InvalidRequestError: another kind of URL, an address that is not allowed, no answer in time, an answer other
                than 200, or a file that is too large.
        """
        end, link = time.monotonic() + self.seconds, url
        try:
            for _ in range(self.max_redirects + 1):
                target = self._get(_checked(link), end)
                if isinstance(target, bytes):
                    return target
                link = urljoin(link, target)
            reason = f"more than {self.max_redirects} redirects"
        except _Refused as error:
            reason = str(error)
        except TimeoutError:
            reason = f"no complete answer within {self.seconds:g} s"
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = str(error)[:200] or type(error).__name__
        raise InvalidRequestError(f"{where}: the image at {url[:80]!r} was not fetched: {reason}") from None

    def _get(self, link: SplitResult, end: float) -> bytes | str:
        """The body of an answer, or where it redirects to."""
        host, port = str(link.hostname), link.port or 443
        connection = _Connection(host, port, self._address(host, port, end), self.tls, end)
        # A server that sends a byte now and then ends no single wait.
        watch = threading.Timer(max(0.0, end - time.monotonic()), connection.abort)
        watch.daemon = True
        watch.start()
        try:
            path = (link.path or "/") + (f"?{link.query}" if link.query else "")
            connection.request("GET", path, headers={"User-Agent": "lucebox", "Accept": "image/*"})
            answer = connection.getresponse()
            if answer.status in _REDIRECTS and (target := answer.headers.get("Location")):
                return target
            if answer.status != 200:
                raise _Refused(f"the server answered {answer.status}")
            return self._body(answer, connection)
        except (OSError, http.client.HTTPException):
            connection.check_time()
            raise
        finally:
            watch.cancel()
            connection.close()

    def _address(self, host: str, port: int, end: float) -> str:
        found = _addresses(host, port, end - time.monotonic())
        if refused := [one for one in found if not self.is_allowed(one)]:
            raise _Refused(f"{host} is {refused[0]}, which is not a public address")
        return found[0]

    def _body(self, answer: http.client.HTTPResponse, connection: _Connection) -> bytes:
        body = bytearray()
        while chunk := answer.read1(_CHUNK):
            body += chunk
            if len(body) > self.max_bytes:
                raise _Refused(f"the file has more than {self.max_bytes} bytes")
            connection.check_time()
        connection.check_time()  # the watch may have cut the body
        return bytes(body)


def _addresses(host: str, port: int, seconds: float) -> list[str]:
    """The addresses of a host.

    Raises:
        TimeoutError: the name server has not answered within `seconds`; the resolver itself may wait for minutes.
        OSError: no such host.
    """
    answer: SimpleQueue[list[str] | OSError] = SimpleQueue()

    def resolve() -> None:
        try:
            answer.put([str(one[4][0]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)])
        except OSError as error:
            answer.put(error)
        except UnicodeError as error:  # a name that no server knows
            answer.put(OSError(str(error)))

    threading.Thread(target=resolve, name="lucebox-resolve", daemon=True).start()
    try:
        found = answer.get(timeout=max(0.0, seconds))
    except Empty:
        raise TimeoutError from None
    if isinstance(found, OSError):
        raise found
    return found


FETCHER: ContextVar[Fetcher | None] = ContextVar("fetcher", default=None)
"""Fetches images by URL for the request in progress. None: that is not allowed."""


class _Refused(Exception):
    pass


def _checked(url: str) -> SplitResult:
    if any(char <= " " or char == "\x7f" for char in url):
        raise _Refused("the URL has spaces or control characters")
    link = urlsplit(url)
    if link.scheme != "https" or not link.hostname or link.username is not None or link.password is not None:
        raise _Refused("only https://host/... is fetched, without a user name")
    return link


class _Connection(http.client.HTTPSConnection):
    """A connection to a given address whose every wait ends at a given time."""

    def __init__(self, host: str, port: int, address: str, tls: ssl.SSLContext, end: float) -> None:
        super().__init__(host, port, context=tls)
        self._address, self._tls, self._end = address, tls, end

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self.port), self._rest())
        plain.settimeout(self._rest())
        try:
            self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise
        self.check_time()

    def check_time(self) -> None:
        """Limits the next wait to the time that is left.

        Raises:
            TimeoutError: none is left.
        """
        rest = self._rest()
        if self.sock is not None:
            self.sock.settimeout(rest)

    def abort(self) -> None:
        """Ends the wait of another thread."""
        if (sock := self.sock) is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _rest(self) -> float:
        rest = self._end - time.monotonic()
        if rest <= 0:
            raise TimeoutError
        return rest
