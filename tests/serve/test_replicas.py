"""Replicas of a model in one server: a prompt returns to the replica that has its prefix, others go to the less busy
one, and the model counts as one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from lucebox.cli import main
from lucebox.cli.serve import open_models
from lucebox.errors import InvalidRequestError
from lucebox.options import EngineOptions
from lucebox.serve.model_spec import ModelSpec
from lucebox.serve.prefix_table import PrefixTable
from lucebox.serve.server import Server
from lucebox.serve.settings import ServeSettings
from lucebox.serve.status import status_document
from running import MODEL, Running, started

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
GREEDY = {"temperature": 0, "max_tokens": 3}
SUBJECTS = ("a small dog by the sea", "an old man and his cat", "a ship in the ice")  # more than replicas


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """Two replicas on one CPU."""
    with started(
        "--isa",
        "portable",
        "--draft",
        "none",
        "--device",
        "cpu,cpu",
        "--replicas",
        "2",
        "--slots",
        "2",
        model=f"two={MODEL}",
        context=8192,
    ) as running:
        yield running


def replicas(client: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/v1/models/two").json()["status"]["replicas"]
    return found


def running_on(client: httpx.Client) -> list[int]:
    return [one["running"] for one in replicas(client)]


def wait_for(client: httpx.Client, running: list[int]) -> None:
    """Waits until the replicas compute this many answers, in ascending order."""
    for _ in range(600):
        if (found := sorted(running_on(client))) == running:
            return
        time.sleep(0.05)
    raise AssertionError(f"expected {running}, found {found}")


def test_the_holder_of_the_longest_prefix_unless_it_is_busier() -> None:
    table: PrefixTable[str] = PrefixTable()
    table.add([b"1", b"2"], "a")
    table.add([b"1"], "b")
    assert table.holder([b"1", b"2", b"3"], {"a": 1, "b": 0}, 2) == "a"
    assert table.holder([b"1", b"2", b"3"], {"a": 2, "b": 0}, 2) is None
    assert table.holder([b"1"], {"a": 1, "b": 0}, 2) == "b"
    assert table.holder([b"1", b"2"], {"b": 0}, 2) == "b"  # a is gone
    assert table.holder([b"9"], {"a": 0, "b": 0}, 2) is None
    assert table.holder([], {"a": 0, "b": 0}, 2) is None


def test_conversations_stay_with_their_replica(server: Running) -> None:
    with server.client() as client:
        turns: list[list[dict[str, Any]]] = [[] for _ in SUBJECTS]
        answers = []
        for turn in range(3):
            for subject, messages in zip(SUBJECTS, turns, strict=True):
                messages.append({"role": "user", "content": f"Tell me about {subject}, part {turn}. " * 9})
                body = client.post(CHAT, json={"model": "two", "messages": messages, **GREEDY}).json()
                cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert cached > 64 * turn or turn == 0, (turn, cached)
                messages.append(body["choices"][0]["message"])
                answers.append(body["model"])
        assert set(answers) == {"two"}


def test_other_prompts_go_to_the_less_busy_replica(server: Running) -> None:
    slow = {"prompt": "a", "max_tokens": 8000, "ignore_eos": True, "temperature": 0, "stream": True}
    with server.client() as client, server.client() as first, server.client() as second:
        with first.stream("POST", COMPLETIONS, json=slow) as one:
            events = one.iter_text()  # kept: its end would close the connection
            next(events)
            wait_for(client, [0, 1])
            with second.stream("POST", COMPLETIONS, json=slow | {"prompt": "b"}) as two:
                more = two.iter_text()
                next(more)
                wait_for(client, [1, 1])
                status = client.get("/v1/models/two").json()["status"]
                assert status["running"] == 2 and status["slots"] == 4
                assert client.post("/v1/models/two/unload").status_code == 409
        server.wait_until(running=0)


def test_the_model_counts_as_one(server: Running) -> None:
    with server.client() as client:
        models = client.get("/v1/models").json()["data"]
        assert [one["id"] for one in models] == ["two"] == server.facts["models"]
        assert [one["name"] for one in client.get("/api/tags").json()["models"]] == ["two"]
        assert len(client.get("/slots").json()) == 4
        each, whole = replicas(client), models[0]["status"]
        assert whole["memory_bytes"] == sum(one["memory_bytes"] for one in each)
        assert whole["device"] == "cpu,cpu" and [one["device"] for one in each] == ["cpu", "cpu"]
        series = Counter(
            line.rpartition(" ")[0] for line in client.get("/metrics").text.splitlines() if not line.startswith("#")
        )
        assert max(series.values()) == 1
        for i in range(2):
            assert series[f'lucebox_slots{{model="two",replica="{i}"}}'] == 1
            assert series[f'vllm:num_requests_running{{engine="{i}",model_name="two"}}'] == 1
        unknown = client.post(COMPLETIONS, json={"model": "three", "prompt": "a", **GREEDY})
        assert unknown.status_code == 404 and "this server has 'two'" in unknown.text


def test_all_replicas_are_unloaded_and_loaded(server: Running) -> None:
    with server.client() as client:
        server.wait_until(running=0)
        for _ in range(100):
            if (answer := client.post("/v1/models/two/unload")).status_code == 200:
                break
            time.sleep(0.05)
        assert [one["value"] for one in answer.json()["status"]["replicas"]] == ["unloaded"] * 2
        asked = client.post(COMPLETIONS, json={"prompt": "a", **GREEDY})  # one replica answers
        assert asked.status_code == 200
        assert sorted(one["value"] for one in replicas(client)) == ["loaded", "unloaded"]
        assert client.get("/v1/models/two").json()["status"]["value"] == "loaded"
        answer = client.post("/v1/models/two/load")
        assert [one["value"] for one in answer.json()["status"]["replicas"]] == ["loaded"] * 2
        assert [one["loads"] for one in replicas(client)] == [2, 2]


def test_the_first_replica_is_unloaded() -> None:
    """The other one makes the model loaded, and gives its facts."""
    models = open_models(spec("cpu,cpu", replicas=2, slots=1).replicated(), ServeSettings(load="use", keep_loaded=60))
    try:
        first, second = models.entries
        server = Server(models, ServeSettings(), "")
        assert models.expires_at(first) is None and status_document(server, first)["kv_pages"] is None
        second.take(second.open(models.telemetry))
        status, expires_at = status_document(server, first), models.expires_at(first)
        assert status["state"] == "loaded" and status["kv_pages"]["total"] > 0
        assert expires_at is not None and 0 < expires_at - time.time() <= 60
    finally:
        models.free()


def spec(device: str, **settings: Any) -> ModelSpec:
    return ModelSpec(MODEL, EngineOptions(device=device), ServeSettings(**settings))


def test_the_devices_of_each_replica() -> None:
    four = spec("cuda:0,cuda:1,cuda:2,cuda:3", replicas=2).replicated()
    assert [one.options.device for one in four] == ["cuda:0,cuda:1", "cuda:2,cuda:3"]
    assert [one.replica for one in four] == [0, 1]
    alone = spec("cuda:0,cuda:1")
    assert alone.replicated() == [alone]


def test_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    for device in ("auto", "cuda:0,cuda:1,cuda:2"):
        with pytest.raises(InvalidRequestError, match=r"2 replicas of tiny-hybrid need devices of their own: name 2"):
            spec(device, replicas=2).replicated()
    with pytest.raises(InvalidRequestError, match="--kv-events is for models with one replica"):
        spec("cpu,cpu", replicas=2, kv_events="tcp://*:0").replicated()
    with pytest.raises(InvalidRequestError, match="2 replicas of tiny-hybrid draft on their own devices"):
        spec("cuda:0,cuda:1", replicas=2).with_options(draft_device="cuda:2").replicated()
    with pytest.raises(InvalidRequestError, match="replicas must be positive"):
        ServeSettings(replicas=0)
    assert main(["serve", MODEL, "--replicas", "2", "--json"]) == 1
    assert "need devices of their own" in capsys.readouterr().err
    assert main(["serve", MODEL, "--replicas", "2", "--ray", "--json"]) == 1
    assert "--replicas is for one server; with --ray, use min_replicas" in capsys.readouterr().err
