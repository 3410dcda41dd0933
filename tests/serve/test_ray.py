"""Two replicas of the tiny model under Ray Serve: prefixes, stored responses, lost replicas, updates."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from lucebox.serve.protocols.response_ids import TAG_DIGITS
from ray_cluster import FILE, cluster_address, failed_start, ray_environment, replica_pids, started_cluster
from running import Running, started
from sdks import openai

pytest.importorskip("ray", reason="pip install 'lucebox[ray]'")
pytestmark = [
    pytest.mark.slow,  # Ray starts ten processes; ci/ray_serve.py installs it
    pytest.mark.timeout(600),
]

CHAT = "/v1/chat/completions"
N_CONVERSATIONS = 200
N_TURNS = 4
THREADS = 4
LONG = {"max_tokens": 1500, "ignore_eos": True, "stream": True}
RETRY = "send the request again"


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Running, str]]:
    with started_cluster() as running:
        yield running


@pytest.fixture(scope="module")
def url(cluster: tuple[Running, str]) -> str:
    """The URL of a cluster with two replicas."""
    return cluster[0].url


def wait_for_replicas(url: str, n: int = 2, without: frozenset[str] = frozenset()) -> list[str]:
    """The tags of the replicas that answer, when there are n."""
    deadline = time.monotonic() + 120
    while True:
        found = {httpx.get(f"{url}/health", timeout=60).headers.get("lucebox-replica", "") for _ in range(20)}
        if len(found - without - {""}) == n:
            return sorted(found - without)
        assert time.monotonic() < deadline, found
        time.sleep(0.5)


def turn(client: httpx.Client, messages: list[dict[str, Any]]) -> tuple[str, int, int, str]:
    """The text of an answer, its prompt's cached and all tokens, and the replica's tag."""
    answer = client.post(CHAT, json={"model": "tiny", "messages": messages, "max_tokens": 4, "temperature": 0})
    document = answer.raise_for_status().json()
    usage = document["usage"]
    text = document["choices"][0]["message"]["content"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return text, cached, usage["prompt_tokens"], answer.headers.get("lucebox-replica", "")


def question(i: int, n: int) -> dict[str, str]:
    first = f"Topic {i}: " + f"the number {i} and its friend {i * 7 + 1}. " * 8
    return {"role": "user", "content": first if n == 0 else f"And what of {i + n}?"}


def conversation(client: httpx.Client, i: int) -> list[tuple[str, int, int, str]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Answer in a few words, as a friend would."}]
    turns = []
    for n in range(N_TURNS):
        messages.append(question(i, n))
        turns.append(turn(client, messages))
        messages.append({"role": "assistant", "content": turns[-1][0]})
    return turns


@pytest.fixture(scope="module")
def alone() -> list[list[tuple[str, int, int, str]]]:
    """The conversations on one server."""
    flags = ("--slots", "2", "--draft", "none", "--model-name", "tiny")
    with started(*flags) as one, one.client() as client, ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(lambda i: conversation(client, i), range(N_CONVERSATIONS)))


def test_conversations_stay_with_their_prefix(url: str, alone: list[list[tuple[str, int, int, str]]]) -> None:
    wait_for_replicas(url)
    with httpx.Client(base_url=url, timeout=60) as client, ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(lambda i: conversation(client, i), range(N_CONVERSATIONS)))
    assert [[turn[0] for turn in turns] for turns in found] == [[turn[0] for turn in turns] for turns in alone]
    cached, cached_alone = (sum(turn[1] for turns in all for turn in turns) for all in (found, alone))
    tags = Counter(turn[3] for turns in found for turn in turns)
    print(f"cached: {cached} of {cached_alone} of one server; requests by replica: {dict(tags)}")
    assert cached >= 0.95 * cached_alone
    assert len(tags) == 2 and min(tags.values()) >= 0.2 * N_CONVERSATIONS * N_TURNS, tags


def test_replicas_run_at_the_niceness_of_the_server(cluster: tuple[Running, str]) -> None:
    """Ray's own is 15: beside other work, a cluster then takes minutes to start."""
    running, _ = cluster
    pids = replica_pids(running)
    found = {os.getpriority(os.PRIO_PROCESS, pid) for pid in pids}
    assert len(pids) == 2 and found == {os.getpriority(os.PRIO_PROCESS, running.process.pid)}


def test_responses_continue_where_they_are_stored(url: str) -> None:
    tags = wait_for_replicas(url)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    by_tag: dict[str, str] = {}
    for i in range(40):
        made = client.responses.create(model="tiny", input=f"I am number {i}.", max_output_tokens=4)
        by_tag[made.id[5 : 5 + TAG_DIGITS]] = made.id
    assert sorted(by_tag) == tags
    for tag, first in by_tag.items():
        for _ in range(4):
            raw = client.responses.with_raw_response.create(
                model="tiny", input="And I?", previous_response_id=first, max_output_tokens=4
            )
            assert raw.headers["lucebox-replica"] == tag
            first = raw.parse().id
            assert client.responses.retrieve(first).id == first
        items = [{"type": "item_reference", "id": client.responses.retrieve(first).output[0].id}]
        asked = [*items, {"role": "user", "content": "Go on."}]
        client.responses.create(model="tiny", input=asked, max_output_tokens=4)
        client.responses.delete(first)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(first)


def test_kept_streams_are_found(url: str) -> None:
    wait_for_replicas(url)
    for i in range(8):
        name = f"kept-stream-number-{i}"
        body = {"messages": [{"role": "user", "content": f"Say {i}."}], "max_tokens": 4, "stream": True}
        first = httpx.post(f"{url}{CHAT}", json=body, headers={"lucebox-stream": name}, timeout=60)
        again = httpx.get(f"{url}/v1/streams/{name}", timeout=60)
        assert first.status_code == again.status_code == 200 and first.text == again.text


def test_errors_are_those_of_the_server(url: str) -> None:
    bad = httpx.post(f"{url}/v1/messages", json={"model": "tiny", "messages": []}, timeout=60)
    assert bad.status_code == 400 and bad.json()["type"] == "error"
    assert httpx.post(f"{url}{CHAT}", content=b"{", headers={"content-type": "application/json"}).status_code == 400
    assert httpx.get(f"{url}/nothing").status_code == 404
    page = httpx.get(f"{url}/", headers={"host": "evil.example"})
    assert page.status_code == 403 and "--allowed-host" in page.text
    unknown = httpx.post(f"{url}{CHAT}", json={"model": "other", "messages": [{"role": "user", "content": "a"}]})
    assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "model_not_found"


def n_running(url: str) -> int:
    """Requests at all replicas, waiting or running."""
    seen: dict[str, int] = {}
    for _ in range(20):
        answer = httpx.get(f"{url}/status", timeout=60)
        status = answer.json()
        seen[answer.headers["lucebox-replica"]] = status["running"] + status["waiting"]
    return sum(seen.values())


def test_a_client_that_leaves_ends_its_answer(url: str) -> None:
    wait_for_replicas(url)
    body = {"messages": [{"role": "user", "content": "Tell all."}], **LONG}
    for document in (False, True):
        with httpx.Client(base_url=url, timeout=60) as client:
            if document:
                with pytest.raises(httpx.ReadTimeout):
                    client.post(CHAT, json=body | {"stream": False}, timeout=0.3)
            else:
                with client.stream("POST", CHAT, json=body) as stream:
                    next(stream.iter_lines())
        deadline = time.monotonic() + 10
        while n_running(url):
            assert time.monotonic() < deadline
            time.sleep(0.1)


NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 900}  # cannot end by itself
OBJECT = {"type": "object", "properties": {"n": NUMBERS}, "required": ["n"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "name": "n", "schema": OBJECT, "strict": True}
TOOL = {"tools": [{"name": "f", "input_schema": OBJECT}], "tool_choice": {"type": "tool", "name": "f"}}


def asked(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


# The texts differ, so that the streams spread over the replicas.
STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {**asked("Tell all."), **LONG}),
    "messages": ("/v1/messages", {**asked("Say it."), **TOOL, "max_tokens": 1500, "stream": True}),
    "responses": (
        "/v1/responses",
        {"input": "Count.", "text": {"format": FORMAT}, "max_output_tokens": 1500, "stream": True},
    ),
    "completions": ("/v1/completions", {"prompt": "Once", **LONG}),
    "ollama": ("/api/chat", {**asked("List them."), "format": OBJECT, "options": {"num_predict": 1500}}),
}


def last_of(name: str, text: str) -> Any:
    """The last event of a stream, or its last line."""
    line = text.strip().splitlines()[-1]
    return line if name != "ollama" and line == "data: [DONE]" else json.loads(line.removeprefix("data: "))


def error_of(name: str, text: str) -> str | None:
    """The message of the error that ends a stream; None for a whole one."""
    last = last_of(name, text)
    if name == "ollama":
        return None if last.get("done") else last["error"]
    if last == "data: [DONE]":
        return None
    if name == "messages":
        return last["error"]["message"] if last["type"] == "error" else None
    if name == "responses":
        assert last["sequence_number"] == text.count("\ndata: ") - 1, text[-2000:]
        return last["message"] if last["type"] == "error" else None
    return last["error"]["message"]


def test_a_lost_stream_ends_with_an_error_in_each_protocol(cluster: tuple[Running, str]) -> None:
    """Streams on the other replica go on. The cluster then starts a new replica."""
    running, _ = cluster
    url = running.url
    wait_for_replicas(url)
    begun = threading.Barrier(len(STREAMS) + 1)

    def read(name: str) -> tuple[str, str, str]:
        path, body = STREAMS[name]
        with httpx.stream("POST", f"{url}{path}", json={"model": "tiny", **body}, timeout=120) as answer:
            parts = answer.iter_text()
            text = next(parts, "")
            begun.wait(60)
            text += "".join(parts)
        return name, answer.headers["lucebox-replica"], text

    with ThreadPoolExecutor(len(STREAMS)) as threads:
        reading = [threads.submit(read, name) for name in STREAMS]
        begun.wait(60)
        os.kill(replica_pids(running)[0], signal.SIGKILL)
        read_all = [one.result() for one in reading]
    errors = {name: (tag, error_of(name, text)) for name, tag, text in read_all}
    print(errors)
    lost = {tag for tag, error in errors.values() if error is not None}
    assert len(lost) == 1, errors
    assert all((error is not None) == (tag in lost) for tag, error in errors.values()), errors
    assert all(RETRY in error for _, error in errors.values() if error is not None)
    wait_for_replicas(url, without=frozenset(lost))


def test_a_replica_killed_in_the_middle_gives_no_wrong_answer(
    cluster: tuple[Running, str], alone: list[list[tuple[str, int, int, str]]]
) -> None:
    """Conversations that lose a stream send the request again, as the error says."""
    running, _ = cluster
    url = running.url
    before = wait_for_replicas(url)
    lost: list[str] = []
    done = threading.Semaphore(0)

    def streamed(client: httpx.Client, messages: list[dict[str, Any]]) -> str:
        body = {"model": "tiny", "messages": messages, "max_tokens": 4, "temperature": 0, "stream": True}
        for _ in range(3):
            text = client.post(CHAT, json=body).raise_for_status().text
            if (error := error_of("chat", text)) is None:
                events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
                return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
            assert RETRY in error
            lost.append(error)
        raise AssertionError("lost three times")

    def talk(client: httpx.Client, i: int) -> list[str]:
        messages: list[dict[str, Any]] = [{"role": "system", "content": "Answer in a few words, as a friend would."}]
        texts = []
        for n in range(N_TURNS):
            messages.append(question(i, n))
            texts.append(streamed(client, messages))
            messages.append({"role": "assistant", "content": texts[-1]})
            done.release()
        return texts

    with httpx.Client(base_url=url, timeout=60) as client, ThreadPoolExecutor(THREADS) as threads:
        talking = [threads.submit(talk, client, i) for i in range(N_CONVERSATIONS)]
        for _ in range(N_CONVERSATIONS * N_TURNS // 3):
            assert done.acquire(timeout=60)
        os.kill(replica_pids(running)[0], signal.SIGKILL)
        found = [one.result() for one in talking]
    print(f"{len(lost)} streams were lost")
    assert found == [[turn[0] for turn in turns] for turns in alone]
    assert len(lost) <= THREADS
    after = wait_for_replicas(url)
    assert len(set(before) & set(after)) == 1


UPDATE = """
import sys

import ray
from ray import serve
import lucebox.ray
ray.init(address=sys.argv[1], log_to_driver=False)
table = {"model": "tiny-hybrid", "device": "cpu", "context": 1024, "prefill_chunk": 64, "draft": "none", "slots": 2}
serve.run(lucebox.ray.app({"models": {"tiny": table}, "ray": {"min_replicas": 2}}), name="lucebox")
"""


def test_an_update_loses_no_request(cluster: tuple[Running, str]) -> None:
    """Answers that take seconds are in progress all the time while both replicas are replaced."""
    running, folder = cluster
    before = wait_for_replicas(running.url)
    over = threading.Event()

    def ask(i: int) -> list[tuple[int, str]]:
        answers = []
        while not over.is_set():
            body = {"messages": [{"role": "user", "content": f"Count to {i}."}], "max_tokens": 300, "ignore_eos": True}
            answer = httpx.post(f"{running.url}{CHAT}", json={"model": "tiny", **body}, timeout=120)
            answers.append((answer.status_code, answer.text[:200] if answer.status_code != 200 else ""))
        return answers

    with ThreadPoolExecutor(THREADS) as threads:
        asking = [threads.submit(ask, i) for i in range(THREADS)]
        try:
            updated = subprocess.run(
                [sys.executable, "-c", UPDATE, cluster_address(running)],
                env=ray_environment(folder),
                capture_output=True,
                text=True,
                timeout=240,
            )
        finally:
            over.set()
        answers = [one for asked in asking for one in asked.result()]
    assert updated.returncode == 0, updated.stderr
    print(f"{len(answers)} answers during the update")
    assert {status for status, _ in answers} == {200}, answers
    after = wait_for_replicas(running.url)
    assert not set(before) & set(after)
    models = httpx.get(f"{running.url}/v1/models").json()["data"]
    assert models[0]["context_length"] == 1024


SLOW_START = """
import subprocess

import ray
from lucebox.ray.run import _start_cluster
from ray._private import services

get_node, calls = services.get_node, []

def slow_once(*arguments, **options):
    calls.append(arguments)
    if len(calls) == 1:
        raise Exception("the node is slow")
    return get_node(*arguments, **options)

services.get_node = slow_once
_start_cluster({"log_to_driver": False})
found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
folder = ray._private.worker._global_node.get_temp_dir_path()
print(sum("gcs_server" in line and folder in line for line in found.splitlines()))
"""


def test_a_cluster_that_starts_slowly() -> None:
    """The second attempt starts it, and the first one leaves no process."""
    with tempfile.TemporaryDirectory(prefix="lb", ignore_cleanup_errors=True) as folder:
        done = subprocess.run(
            [sys.executable, "-c", SLOW_START], env=ray_environment(folder), capture_output=True, text=True, timeout=240
        )
    assert done.stdout.strip() == "1", done.stderr


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (FILE.replace('"cpu"', '"auto"'), "the replicas need 2 GPUs, and this machine has 0: set device"),
        (FILE.replace("min_replicas = 2", "cpus = 1000"), "the replicas need 1000 CPUs, and this machine has"),
        (FILE.replace('"tiny-hybrid"', '"nothing.gguf"'), "nothing.gguf"),
        (FILE + 'address = "127.0.0.1:1"\n', "ray: no cluster at the address '127.0.0.1:1'"),
    ],
    ids=["no GPU", "few CPUs", "no model", "no cluster"],
)
def test_a_start_that_fails_says_why(file: str, said: str) -> None:
    last = failed_start(file)
    assert last.startswith("lucebox: error: ") and said in last


TWO_MODELS = (
    FILE.replace("min_replicas = 2", "")
    + """
[models.other]
model = "tiny-hybrid"
device = "cpu"
context = 1024
draft = "none"
alias = ["claude-*"]
"""
)


def test_two_models_have_replicas_of_their_own() -> None:
    with started_cluster(file=TWO_MODELS.replace("[ray]\n", "")) as (running, _):
        listed = {one["id"]: one["context_length"] for one in httpx.get(f"{running.url}/v1/models").json()["data"]}
        assert listed == {"tiny": 2048, "other": 1024}
        tags = httpx.get(f"{running.url}/api/tags").json()["models"]
        assert {one["name"].partition(":")[0] for one in tags} == {"tiny", "other"}

        def replica(**fields: Any) -> str:
            body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, **fields}
            answer = httpx.post(f"{running.url}{CHAT}", json=body, timeout=60).raise_for_status()
            return answer.headers["lucebox-replica"]

        first, other = replica(model="tiny"), replica(model="other")
        assert first != other
        assert (replica(), replica(model="claude-x")) == (first, other)
        ollama = {"model": "other:latest", "messages": [{"role": "user", "content": "a"}], "stream": False}
        assert httpx.post(f"{running.url}/api/chat", json=ollama, timeout=60).headers["lucebox-replica"] == other
        body = {"model": "other", "input": "a", "max_output_tokens": 1}
        made = httpx.post(f"{running.url}/v1/responses", json=body, timeout=60).json()
        stored = httpx.get(f"{running.url}/v1/responses/{made['id']}")
        assert stored.json()["id"] == made["id"] and stored.headers["lucebox-replica"] == other
        name = {"lucebox-stream": "kept-stream-of-other"}
        streamed = {**ollama, "model": "other", "stream": True, "max_tokens": 1}
        kept = httpx.post(f"{running.url}{CHAT}", json=streamed, headers=name, timeout=60)
        again = httpx.get(f"{running.url}/v1/streams/kept-stream-of-other")
        assert again.status_code == 200 and again.text == kept.text
        described = httpx.get(f"{running.url}/v1/models/other")
        assert described.json()["id"] == "other" and described.headers["lucebox-replica"] == other
        unknown = httpx.post(f"{running.url}{CHAT}", json={"model": "x", "messages": []})
        assert unknown.status_code == 404 and "this cluster has 'tiny', 'other'" in unknown.text
        assert httpx.get(f"{running.url}/v1/models/x").status_code == 404
