"""A proxy between a client and the server that records the requests. It forwards them unchanged, unless it is to make
the first prompt longer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

RECORDED_HEADERS = ("anthropic-beta", "anthropic-version", "content-type")
HOP_HEADERS = frozenset({"connection", "transfer-encoding", "content-length", "host", "accept-encoding", "date"})


@dataclass
class Exchange:
    """A request as the client sent it, and its response."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any] | None
    status: int = 0
    answer: bytes = b""


@dataclass
class Recorder:
    """The proxy's state."""

    upstream: str
    extra_words: int = 0
    """Words appended to the first prompt."""
    url: str = ""
    exchanges: list[Exchange] = field(default_factory=list)

    def changed(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The request that is forwarded to the server."""
        if not body.get("tools"):
            return body  # a side request, such as for a title
        words, self.extra_words = self.extra_words, 0
        return lengthened(path, body, words) if words else body


def results_in(body: dict[str, Any]) -> list[str]:
    """The texts of tool results in a request of any protocol."""
    found: list[str] = []
    for item in [*(body.get("messages") or []), *(body["input"] if isinstance(body.get("input"), list) else [])]:
        content = item.get("content")
        if item.get("role") == "tool":
            found.append(text_of(content))
        elif item.get("type") == "function_call_output":
            found.append(text_of(item["output"]))
        elif isinstance(content, list):
            found += [text_of(block.get("content")) for block in content if block.get("type") == "tool_result"]
    return found


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content or [])


def lengthened(path: str, body: dict[str, Any], n_words: int) -> dict[str, Any]:
    """Appends words to the prompt."""
    field = "input" if path == "/v1/responses" else "messages"
    return {**body, field: [*body[field], {"role": "user", "content": "word " * n_words}]}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    recorder: Recorder

    def do_GET(self) -> None:
        self.forward()

    do_POST = do_HEAD = do_GET

    def forward(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        body = json.loads(raw) if raw else None
        path = urlsplit(self.path).path
        recorded = {name: self.headers[name] for name in RECORDED_HEADERS if name in self.headers}
        exchange = Exchange(self.path, recorded, body)
        self.recorder.exchanges.append(exchange)
        if body is not None:
            raw = json.dumps(self.recorder.changed(path, body)).encode()
        upstream = HTTPConnection(urlsplit(self.recorder.upstream).netloc, timeout=600)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_HEADERS}
        upstream.request(self.command, self.path, raw or None, headers)
        answer = upstream.getresponse()
        exchange.status = answer.status
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_HEADERS:
                self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while piece := answer.read1(65536):
                exchange.answer += piece
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True  # the client has disconnected
        upstream.close()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def recording(upstream: str, extra_words: int = 0) -> Iterator[Recorder]:
    recorder = Recorder(upstream, extra_words)
    handler = type("RecordingHandler", (Handler,), {"recorder": recorder})
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    recorder.url = f"http://127.0.0.1:{proxy.server_port}"
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield recorder
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
