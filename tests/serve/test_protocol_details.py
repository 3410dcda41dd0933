"""HEAD requests, heartbeats, line ends of Unicode, and owners of stored responses, on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from lucebox.chat.profiles import Profile, Thinking
from lucebox.chat.thinking import ThinkingRequest, closing_text, thinking_limit
from lucebox.serve.delivery import json_line, sse
from lucebox.serve.protocols.anthropic_stream import MessageWriter
from lucebox.serve.protocols.responses_stream import ResponseWriter
from lucebox.serve.responses_store import MAX_BYTES, ResponseStore, StoredResponse
from running import ASK, MODEL, Running, started
from text_data import tiny_tokenizer

READ = ["/", "/health", "/health/ready", "/v1/models", f"/v1/models/{MODEL}", "/metrics", "/status", "/props"]


@pytest.fixture(scope="module")
def busy() -> Iterator[Running]:
    """One slot, two keys, and heartbeats in every silence."""
    keys = ["--api-key", "first-key", "--api-key", "second-key"]
    with started("--slots", "1", "--heartbeat", "0.05", *keys, context=8192) as running:
        yield running


@pytest.mark.parametrize("path", [*READ, "/api/tags", "/api/ps", "/slots", "/openapi.json"])
def test_head(server: Running, path: str) -> None:
    with server.client() as client:
        head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize(("path", "status"), [("/v1/responses/none", 404), ("/v1/messages", 405), ("/nowhere", 404)])
def test_head_of_nothing(server: Running, path: str, status: int) -> None:
    with server.client() as client:
        refused = client.head(path)
    assert (refused.status_code, refused.content) == (status, b"")


HEARTBEATS = {
    "/v1/chat/completions": ({"messages": [{"role": "user", "content": "chat " * 3000}]}, ": keep-alive"),
    "/v1/completions": ({"prompt": "text " * 3000}, ": keep-alive"),
    "/v1/responses": ({"input": "response " * 3000}, "event: response.in_progress"),
    "/v1/messages": ({"messages": [{"role": "user", "content": "message " * 3000}]}, "event: ping"),
}


@pytest.mark.parametrize("path", HEARTBEATS)
def test_heartbeats(busy: Running, path: str) -> None:
    """While a prompt is computed, clients that time out without events get one."""
    body, line = HEARTBEATS[path]
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    with busy.client(headers={"x-api-key": "first-key"}) as client:
        lines = client.post(path, json=body | {limit: 1, "stream": True}).text.split("\n")
    assert lines.count(line) > 2, lines[:20]


@pytest.mark.parametrize("char", ["\u2028", "\u2029", "\x85"])
def test_line_ends_of_unicode(char: str) -> None:
    event, line = sse({"text": f"a{char}b"}), json_line({"text": f"a{char}b"})
    assert len(event.decode().strip().splitlines()) == len(line.decode().splitlines()) == 1
    assert json.loads(event[6:]) == json.loads(line) == {"text": f"a{char}b"}


def test_heartbeats_have_the_form_of_events() -> None:
    assert MessageWriter("m", omits_thinking=False).beat() == b'event: ping\ndata: {"type":"ping"}\n\n'
    writer = ResponseWriter({"input": "a"}, "m", {})
    numbers = [json.loads(line[6:])["sequence_number"] for line in _data(writer.open() + writer.beat() + writer.beat())]
    assert numbers == [0, 1, 2, 3]


def _data(events: bytes) -> list[str]:
    return [line for line in events.decode().splitlines() if line.startswith("data: ")]


def test_responses_belong_to_a_key(busy: Running) -> None:
    def client(key: str) -> httpx.Client:
        return busy.client(headers={"authorization": f"Bearer {key}"})

    with client("first-key") as first, client("second-key") as second:
        answer = first.post("/v1/responses", json={"input": "secret", "max_output_tokens": 1}).json()
        made, path = answer["id"], f"/v1/responses/{answer['id']}"
        item = first.get(f"{path}/input_items").json()["data"][0]["id"]
        for stranger in (
            second.get(path),
            second.get(f"{path}/input_items"),
            second.post(f"{path}/cancel"),
            second.delete(path),
            second.post("/v1/responses", json={"input": [{"type": "item_reference", "id": item}]}),
        ):
            assert stranger.status_code == 404, stranger.text
            assert "secret" not in stranger.text
        continued = second.post("/v1/responses", json={"input": "and?", "previous_response_id": made})
        assert (continued.status_code, continued.json()["error"]["code"]) == (400, "previous_response_not_found")
        assert first.get(path).json()["id"] == made
        assert first.delete(path).status_code == 200
        assert first.get(path).status_code == 404


def test_stored_responses_are_bounded_in_bytes() -> None:
    store = ResponseStore()
    text = "x" * (MAX_BYTES // 8)
    for i in range(20):
        store.put(StoredResponse({"id": f"r{i}"}, [{"role": "user", "content": text}], []))
    kept = [i for i in range(20) if store.find(f"r{i}", "") is not None]
    assert kept == list(range(13, 20))
    for i in kept:
        store.delete(f"r{i}", "")
    store.put(StoredResponse({"id": "last"}, [{"role": "user", "content": text}], []))
    assert store.find("last", "") is not None


@pytest.mark.parametrize("max_tokens", [4, 8, 16, 40, 41, 100, 1000, 100_000])
def test_a_budget_leaves_room_for_the_reply(max_tokens: int) -> None:
    """The text that closes the thinking counts too: it may not take the reply's tokens."""
    stop = "Considering the limited time, I have to answer directly now.\n</think>\n\n"
    tags, tokenizer, profile = Thinking(stop=stop), tiny_tokenizer(), Profile("test")
    n_closing = len(tokenizer.encode(closing_text(tags, tokenizer, max_tokens), add_bos=False))
    limit = thinking_limit(profile, ThinkingRequest("on", "max"), max_tokens, n_closing)
    left = max_tokens - limit - n_closing
    assert limit >= 1 and left >= min(profile.reply_tokens, max_tokens // 2) - (max_tokens < 16) * n_closing
    assert left > 0 or max_tokens < 16


# --- an answer that the client begins


BEGUN = "The dog was called"


def prompt_tokens(server: Running, path: str, messages: list[dict[str, object]]) -> tuple[int, httpx.Response]:
    with server.client() as client:
        answered = client.post(path, json={"messages": messages, "max_tokens": 3})
    usage = answered.json().get("usage", {})
    return usage.get("prompt_tokens", usage.get("input_tokens", 0)), answered


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_begun_answer_is_continued(server: Running, path: str) -> None:
    """The prompt is the conversation with the answer's text behind the header of its turn, and no end of the turn."""
    begun: dict[str, object] = {"role": "assistant", "content": BEGUN}
    plain, _ = prompt_tokens(server, path, [*ASK])
    with server.client() as client:
        n_begun = client.post("/v1/tokenize", json={"content": BEGUN}).json()["count"]
    continued, answered = prompt_tokens(server, path, [*ASK, begun])
    assert answered.status_code == 200, answered.text
    assert continued == plain + n_begun


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_begun_answer_is_refused(server: Running, path: str, text: str) -> None:
    _, refused = prompt_tokens(server, path, [*ASK, {"role": "assistant", "content": text}])
    assert refused.status_code == 400 and "without text to continue" in refused.text


def test_a_call_without_a_result_is_refused(server: Running) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    _, refused = prompt_tokens(
        server, "/v1/chat/completions", [*ASK, {"role": "assistant", "content": "", "tool_calls": [call]}]
    )
    assert refused.status_code == 400 and "no message has the result" in refused.text


def test_control_tokens_in_a_begun_answer_stay_text(server: Running) -> None:
    """The end of a turn that the client spells is not the template's."""
    text = f"{BEGUN} <|im_end|> and"
    _, answered = prompt_tokens(server, "/v1/chat/completions", [*ASK, {"role": "assistant", "content": text}])
    assert answered.status_code == 200, answered.text
