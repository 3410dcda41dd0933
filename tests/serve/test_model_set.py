"""Several models in one server: which one a request means, loads and unloads by use, age and memory, and leaks."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from lucebox import LLM
from lucebox.options import EngineOptions
from lucebox.serve.model_plans import plan_models
from lucebox.serve.model_spec import ModelSpec
from lucebox.serve.settings import ServeSettings
from running import Running, started

DATA = Path(__file__).parents[1] / "data"
MODELS = {
    "llama": str(DATA / "tiny" / "llama_a.gguf"),
    "qwen": str(DATA / "tiny" / "qwen3_a.gguf"),
    "hybrid": "tiny-hybrid",
}
NAMED = [f"{name}={path}" for name, path in MODELS.items()]
CONTEXT = 256
OPTIONS: dict[str, Any] = {"context": CONTEXT, "prefill_chunk": 64, "threads": 1, "draft": "none"}
MIB = 1 << 20
PROMPTS = ["Once upon a time", "def add(a, b):", "import os\n", "x = 1\n" * 8]
COMPLETIONS = "/v1/completions"
LONG = 2048
SLOW = {"model": "llama", "prompt": "a", "max_tokens": 1500, "temperature": 0, "ignore_eos": True, "stream": True}


def ask(name: str | None, prompt: str = PROMPTS[0]) -> dict[str, Any]:
    return {"model": name, "prompt": prompt, "max_tokens": 6, "temperature": 0}


def sizes(context: int = CONTEXT) -> dict[str, int]:
    """The planned bytes of each model with two slots."""
    options = EngineOptions(**{**OPTIONS, "context": context}, sessions=2, prefix_cache=0)
    settings = ServeSettings(slots=2)
    planned = plan_models([ModelSpec(path, options, settings, offline=True) for path in MODELS.values()])
    return {name: plan.n_bytes for name, plan in zip(MODELS, planned, strict=True)}


def room_for_two() -> str:
    """Memory for any two of the models, and not for all."""
    found = sorted(sizes().values())
    return str(sum(found) - found[0] // 2)


def of_two(log: Path, *flags: str) -> Any:
    return started(
        "--slots", "2", "--draft", "none", "--memory-limit", room_for_two(), *flags,
        model=NAMED, context=CONTEXT, log=log,
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, str], str]:
    """The answer of each model to each prompt, by a process that has only this model."""
    answers = {}
    for name, path in MODELS.items():
        with LLM(path, **OPTIONS) as llm:
            for prompt in PROMPTS:
                answers[name, prompt] = llm.generate(prompt, max_tokens=6, temperature=0).text
    return answers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with memory for two of its three models."""
    with of_two(tmp_path_factory.mktemp("set") / "log") as running:
        yield running


def state(client: httpx.Client, name: str) -> dict[str, Any]:
    return dict(client.get(f"/v1/models/{name}").json()["status"])


def wait_for(found: Callable[[], bool]) -> None:
    for _ in range(3000):
        if found():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen")


@pytest.mark.parametrize("n_requests", [40, pytest.param(300, marks=pytest.mark.slow)])  # 300 take a minute
def test_memory_for_two_of_three(tmp_path: Path, alone: dict[tuple[str, str], str], n_requests: int) -> None:
    draw = random.Random(1)
    requests = [(draw.choice(list(MODELS)), draw.choice(PROMPTS)) for _ in range(n_requests)]
    loaded: list[int] = []
    with of_two(tmp_path / "log") as running, running.client() as client, ThreadPoolExecutor(6) as threads:

        def one(request: tuple[str, str]) -> str:
            answer = client.post(COMPLETIONS, json=ask(*request))
            assert answer.status_code == 200, answer.text
            return str(answer.json()["choices"][0]["text"])

        texts = threads.map(one, requests)
        for _ in range(20):
            models = client.get("/status").json()["models"].values()
            loaded.append(sum(one["memory_bytes"] for one in models if one["value"] in ("loaded", "unloading")))
            time.sleep(0.02)
        assert list(texts) == [alone[request] for request in requests]
        states = {name: state(client, name) for name in MODELS}
    assert max(loaded) <= int(room_for_two())
    assert all(one["loads"] >= 1 and one["error"] is None for one in states.values())
    assert sum(one["loads"] for one in states.values()) > len(MODELS)
    assert all(one["load_s"] > 0 for one in states.values())
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line for line in lines if line.startswith("loaded hybrid in ") and " MiB of " in line]
    assert [line for line in lines if line.startswith("unloaded ") and " s, for " in line]


def test_each_protocol_names_the_models(server: Running) -> None:
    with server.client() as client:
        found = client.get("/v1/models").json()
        assert [one["id"] for one in found["data"]] == list(MODELS) and found["first_id"] == "llama"
        assert [one["name"] for one in client.get("/api/tags").json()["models"]] == list(MODELS)
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
            ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
            ("/v1/responses", {"input": "a"}),
            (COMPLETIONS, {"prompt": "a"}),
            ("/completion", {"prompt": "a"}),
            ("/v1/embeddings", {"input": "a"}),
            ("/api/chat", {"messages": [{"role": "user", "content": "a"}]}),
        ):
            refused = client.post(path, json={**body, "model": "gpt-9"})
            assert refused.status_code == 404
            assert "'gpt-9' does not exist; this server has 'llama', 'qwen', 'hybrid'" in refused.text
        assert client.post("/v1/models/gpt-9/load").status_code == 404


def test_no_name_means_the_first_model(server: Running, alone: dict[tuple[str, str], str]) -> None:
    with server.client() as client:
        answer = client.post(COMPLETIONS, json={key: value for key, value in ask(None).items() if key != "model"})
    assert answer.json()["model"] == "llama"
    assert answer.json()["choices"][0]["text"] == alone["llama", PROMPTS[0]]


def test_an_embedder_beside_a_model_that_writes(server: Running) -> None:
    with LLM(MODELS["qwen"], **OPTIONS) as llm:
        want = llm.embed(["x = 1"], pooling="mean")[0].tolist()
    with server.client() as client:
        found = client.post("/v1/embeddings", json={"model": "qwen", "input": "x = 1", "pooling": "mean"}).json()
        assert client.post(COMPLETIONS, json=ask("llama")).status_code == 200
        assert {state(client, name)["value"] for name in ("llama", "qwen")} == {"loaded"}
    assert found["data"][0]["embedding"] == pytest.approx(want, abs=1e-6)


def test_loads_and_unloads_by_request(server: Running) -> None:
    with server.client() as client:
        for name in ("llama", "qwen"):
            assert client.post(f"/v1/models/{name}/load").json()["status"]["value"] == "loaded"
        assert client.post("/v1/models/hybrid/unload").json()["status"]["value"] == "unloaded"
        leaving = state(client, "hybrid")["would_unload"]
        assert leaving and set(leaving) <= {"llama", "qwen"}
        shown = client.post("/v1/models/hybrid/load").json()
        assert shown["id"] == "hybrid" and shown["status"]["value"] == "loaded"
        assert all(state(client, name)["value"] == "unloaded" for name in leaving)
        left = client.post("/v1/models/hybrid/unload").json()["status"]
        assert left["value"] == "unloaded" and left["unload_s"] > 0
        metrics = client.get("/metrics").text
        assert 'lucebox_model_loaded{model="hybrid"} 0' in metrics
        assert 'lucebox_requests_running{model="hybrid"}' not in metrics
        assert client.get("/props", params={"model": "hybrid"}).json()["status"] == {"value": "unloaded"}
        assert client.get("/slots", params={"model": "hybrid"}).json() == []


@pytest.mark.slow  # 3 s
def test_a_busy_model_stays_and_a_waiting_request_may_leave() -> None:
    """Both other models must leave for the third one: one of them is busy."""
    big = max(sizes(LONG).values())
    flags = ("--slots", "2", "--draft", "none", "--memory-limit", str(big + MIB))
    with started(*flags, model=NAMED, context=LONG) as running, running.client() as client:
        with client.stream("POST", COMPLETIONS, json=SLOW) as stream:
            lines = stream.iter_lines()
            next(lines)
            refused = client.post("/v1/models/llama/unload")
            assert (refused.status_code, state(client, "llama")["value"]) == (409, "loaded")

            async def leave() -> None:
                async with httpx.AsyncClient(base_url=running.url) as other:
                    waiting = asyncio.create_task(other.post(COMPLETIONS, json=ask("hybrid")))
                    await asyncio.to_thread(wait_for, lambda: state(client, "hybrid")["waiting"] == 1)
                    waiting.cancel()

            asyncio.run(leave())
            wait_for(lambda: state(client, "hybrid")["waiting"] == 0)
            *events, done = [line[6:] for line in lines if line.startswith("data: ")]
        assert done == "[DONE]" and json.loads(events[-1])["choices"][0]["finish_reason"] == "length"
        assert client.post(COMPLETIONS, json=ask("hybrid")).status_code == 200
        assert state(client, "llama")["value"] == "unloaded"


@pytest.mark.slow  # 3 s
def test_few_requests_wait_for_a_model() -> None:
    big = max(sizes(LONG).values())
    flags = ("--slots", "2", "--draft", "none", "--memory-limit", str(big + MIB), "--max-queue", "1")
    with (
        started(*flags, model=NAMED, context=LONG) as running,
        running.client() as client,
        ThreadPoolExecutor(1) as pool,
    ):
        with client.stream("POST", COMPLETIONS, json=SLOW) as stream:
            lines = stream.iter_lines()
            next(lines)
            waiting = pool.submit(client.post, COMPLETIONS, json=ask("hybrid"))
            wait_for(lambda: state(client, "hybrid")["waiting"] == 1)
            refused = client.post(COMPLETIONS, json=ask("hybrid"))
            assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
            assert "wait until 'hybrid' is loaded" in refused.text
        assert waiting.result().status_code == 200  # the stream's client has left


@pytest.mark.slow  # 3 s
def test_idle_models_leave_by_age(tmp_path: Path) -> None:
    flags = ("--slots", "1", "--keep-loaded", "0.4s", "--load", "use")
    with started(*flags, model=NAMED[:2], context=CONTEXT, log=tmp_path / "log") as running, running.client() as client:
        assert {state(client, name)["value"] for name in ("llama", "qwen")} == {"unloaded"}
        for _ in range(2):
            assert client.post(COMPLETIONS, json=ask("llama")).status_code == 200
            assert state(client, "llama")["value"] == "loaded"
            wait_for(lambda: state(client, "llama")["value"] == "unloaded")
        assert state(client, "llama")["loads"] == 2
    log = (tmp_path / "log").read_text()
    assert log.count("loaded llama in") == 4 and log.count("idle for 0.4 s") == 2


@pytest.mark.slow  # 3 s
def test_a_model_alone_leaves_and_returns() -> None:
    with started("--slots", "1", "--keep-loaded", "0.3", context=CONTEXT) as running, running.client() as client:
        wait_for(lambda: client.get("/status").json()["state"] == "unloaded")
        assert client.get("/status").json()["memory"] is None
        assert client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1}).status_code == 200


def test_a_load_that_fails(tmp_path: Path) -> None:
    """The file is damaged after the plan; the server goes on, and the next request tries again."""
    file = tmp_path / "llama.gguf"
    whole = Path(MODELS["llama"]).read_bytes()
    file.write_bytes(whole)
    with started("--load", "use", model=[str(file), NAMED[1]], context=CONTEXT) as running, running.client() as client:
        file.write_bytes(whole[:1000])
        refused = client.post(COMPLETIONS, json=ask("llama"))
        assert (
            refused.status_code == 503 and "the model 'llama' cannot be loaded: " in refused.json()["error"]["message"]
        )
        assert state(client, "llama")["value"] == "failed" and state(client, "llama")["error"]
        assert client.post(COMPLETIONS, json=ask("qwen")).status_code == 200
        file.write_bytes(whole)
        assert client.post(COMPLETIONS, json=ask("llama")).status_code == 200
        assert state(client, "llama")["error"] is None


@pytest.mark.slow  # 10 s
def test_a_hundred_loads_leak_nothing() -> None:
    def used(pid: int) -> tuple[int, int, int]:
        """Resident KiB, open files and threads."""
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        resident = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
        files, threads = (len(list(Path(f"/proc/{pid}/{name}").iterdir())) for name in ("fd", "task"))
        return resident, files, threads

    with started("--slots", "2", model=NAMED, context=CONTEXT) as running, running.client() as client:

        def cycle() -> None:
            for name in MODELS:
                assert client.post(COMPLETIONS, json=ask(name)).status_code == 200
                assert client.post(f"/v1/models/{name}/unload").status_code == 200

        for _ in range(10):  # the allocator and the thread pools grow to their size
            cycle()
        resident, files, threads = used(running.process.pid)
        for _ in range(24):
            cycle()
        grown, files_after, threads_after = used(running.process.pid)
    assert files_after <= files and threads_after <= threads, (files, files_after, threads, threads_after)
    assert grown - resident < 3072, (resident, grown)
