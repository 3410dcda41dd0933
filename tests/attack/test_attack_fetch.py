"""Servers that a fetch of an image may meet: private addresses, redirects to them, endless answers."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from lucebox.errors import InvalidRequestError
from lucebox.images.fetch import Fetcher, is_public
from running import started

IMAGE = bytes(range(256)) * 20


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),  # the metadata service of clouds
        ("100.64.0.1", False),
        ("192.0.0.170", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
        ("2001:0:4136:e378:8000:63bf:80ff:fffe", False),  # Teredo
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public


class Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = self.path
        if path.startswith("/to/"):
            self.answer(302, b"", Location=path.removeprefix("/to/"))
        elif path == "/loop":
            self.answer(302, b"", Location="/loop")
        elif path == "/missing":
            self.answer(404, b"")
        elif path == "/image":
            self.answer(200, IMAGE)
        elif path == "/large":
            self.answer(200, b"x" * 50_000)
        else:  # a byte now and then, of the head or of the body
            with suppress(OSError):
                self.wfile.write(b"HTTP/1.1 200 OK\r\n" + (b"X: " if path == "/head" else b"\r\n"))
                for _ in range(100):
                    self.wfile.write(b"a")
                    time.sleep(0.1)

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.path != "/large":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args: object) -> None:
        """A client that ends its connection is no error here."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ssl.SSLContext]]:
    """The address of a server with a certificate of its own, and a context that trusts it."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("no openssl on PATH")
    folder = tmp_path_factory.mktemp("site")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(certificate, key)
    with Server(("127.0.0.1", 0), Site) as http:
        http.socket = own.wrap_socket(http.socket, server_side=True)
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"https://localhost:{http.server_port}", ssl.create_default_context(cafile=str(certificate))
        http.shutdown()


def only_here(address: str) -> bool:
    return address in ("127.0.0.1", "::1")


def fetch(site: tuple[str, ssl.SSLContext], path: str, *, seconds: float = 10, max_bytes: int = 1 << 20) -> bytes:
    fetcher = Fetcher(seconds, max_bytes, is_allowed=only_here, tls=site[1])
    return fetcher.fetch(path if path.startswith("https:") else site[0] + path, "messages.0")


def test_an_image_and_redirects_to_it(site: tuple[str, ssl.SSLContext]) -> None:
    assert fetch(site, "/image") == IMAGE
    assert fetch(site, "/to//image") == IMAGE
    assert fetch(site, f"/to/{site[0]}/to//image") == IMAGE


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/loop", "more than 3 redirects"),
        ("/missing", "the server answered 404"),
        ("/large", "the file has more than 20000 bytes"),
        ("/to/http://localhost/image", "only https://host/... is fetched"),
        ("/to/file:///etc/passwd", "only https://host/... is fetched"),
        ("/to/https://10.0.0.1/image", "10.0.0.1 is 10.0.0.1, which is not a public address"),
        ("https://user:word@localhost/image", "without a user name"),
        ("https://localhost/a b", "spaces or control characters"),
        ("https://[::1", "was not fetched"),
        ("https:///image", "only https://host/... is fetched"),
        ("https://localhost:99999/image", "was not fetched"),
    ],
)
def test_answers_that_are_refused(site: tuple[str, ssl.SSLContext], path: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"messages\.0: the image at") as caught:
        fetch(site, path, max_bytes=20_000)
    assert message in str(caught.value)


@pytest.mark.parametrize("path", ["/head", "/body"])
def test_slow_servers(site: tuple[str, ssl.SSLContext], path: str) -> None:
    start = time.monotonic()
    with pytest.raises(InvalidRequestError, match=r"no complete answer within 0\.7 s"):
        fetch(site, path, seconds=0.7)
    assert time.monotonic() - start < 5


def test_a_server_that_never_answers(site: tuple[str, ssl.SSLContext]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://localhost:{silent.getsockname()[1]}/image"
        with pytest.raises(InvalidRequestError, match=r"no complete answer within 0\.5 s"):
            fetch(site, url, seconds=0.5)


def test_a_name_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def wait(*_: object, **__: object) -> list[object]:
        answers.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    start = time.monotonic()
    with pytest.raises(InvalidRequestError, match=r"no complete answer within 0\.3 s"):
        Fetcher(seconds=0.3).fetch("https://slow.example/image", "messages[0]")
    assert time.monotonic() - start < 5
    answers.set()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".example"])
def test_a_host_that_does_not_exist(host: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"the image at 'https://.*' was not fetched: "):
        Fetcher(seconds=20).fetch(f"https://{host}/image", "messages[0]")


def test_certificates_are_checked(site: tuple[str, ssl.SSLContext]) -> None:
    with pytest.raises(InvalidRequestError, match="CERTIFICATE_VERIFY_FAILED"):
        Fetcher(is_allowed=only_here).fetch(f"{site[0]}/image", "messages.0")


@pytest.mark.slow  # 3 s
def test_a_server_with_allow_fetch_reads_no_private_address(site: tuple[str, ssl.SSLContext], data: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": f"{site[0]}/image"}}
    block = {"type": "image", "source": {"type": "url", "url": f"{site[0]}/image"}}
    with started("--allow-fetch") as running, running.client() as client:
        for path, part in (("chat/completions", image), ("messages", block)):
            body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
            reply = client.post(f"/v1/{path}", json=body)
            assert reply.status_code == 400 and "which is not a public address" in reply.json()["error"]["message"]
