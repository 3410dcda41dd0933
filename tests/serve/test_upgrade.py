"""Offers to upgrade a connection are ignored, and the requests that make them answered (RFC 9110, 7.8)."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Sequence

import httpx
import pytest
from running import Running

H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA"
OFFERS = {
    "h2c": H2C,  # the JDK's HttpClient, curl --http2
    "websocket": "Connection: Upgrade\r\nUpgrade: websocket",
    "TLS": "Connection: Upgrade\r\nUpgrade: TLS/1.2",
    "several": "Upgrade: h2c\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket",
}
BODY = json.dumps({"content": "Once upon a time"}).encode()


def request(offer: str, *, chunked: bool = False) -> bytes:
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(BODY)}"
    lines = ["POST /v1/tokenize HTTP/1.1", "Host: localhost", "Content-Type: application/json", framing, offer, "", ""]
    body = b"5\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (BODY[:5], len(BODY) - 5, BODY[5:]) if chunked else BODY
    return "\r\n".join(lines).encode() + body


def exchange(server: Running, pieces: Sequence[bytes], n: int = 1) -> list[bytes]:
    """Sends pieces of bytes, each in a packet of its own; the bodies of n answers, all with status 200."""
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port or 80), timeout=60) as client:
        for piece in pieces:
            client.sendall(piece)
            time.sleep(0.005)
        found = []
        with client.makefile("rb") as answers:
            for _ in range(n):
                assert answers.readline().startswith(b"HTTP/1.1 200 ")
                fields = dict(line.strip().lower().split(b": ", 1) for line in iter(answers.readline, b"\r\n"))
                found.append(answers.read(int(fields[b"content-length"])))
        return found


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_an_offer_leaves_the_request_whole(server: Running, offer: str, chunked: bool) -> None:
    whole = request(OFFERS[offer], chunked=chunked)
    (plain,) = exchange(server, [request("X: y")])
    assert json.loads(plain)["count"] > 0
    head = whole.index(b"\r\n\r\n") + 4
    for cuts in ([], [head], [head - 2, head + 1], [20, head - 30, head + 7], [head + 3, len(whole) - 1]):
        edges = [0, *cuts, len(whole)]
        assert exchange(server, [whole[a:b] for a, b in itertools.pairwise(edges)]) == [plain]
    assert exchange(server, [whole * 2 + request("X: y")], 3) == [plain] * 3


def test_an_offer_without_a_body(server: Running) -> None:
    whole = f"GET /health HTTP/1.1\r\nHost: localhost\r\n{OFFERS['websocket']}\r\n\r\n".encode()
    assert exchange(server, [whole, whole], 2) == [b'{"status":"ok"}'] * 2
    assert exchange(server, [whole * 1000], 1000) == [b'{"status":"ok"}'] * 1000


def test_a_tunnel_is_refused(server: Running) -> None:
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port or 80), timeout=60) as client:
        client.sendall(b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 4")
