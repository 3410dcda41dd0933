"""The server over an engine on a device: turns that reuse what is there have the bits of cold ones, and forms hold."""

from __future__ import annotations

import dataclasses
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lucebox import LLM, _engine
from lucebox.options import EngineOptions
from reference.gguf_files import zero_ffn

testclient = pytest.importorskip("starlette.testclient", reason="the server's libraries are not installed")
serve = pytest.importorskip("lucebox.serve.app", reason="the server's libraries are not installed")

from lucebox.serve import weight_keeper  # noqa: E402
from lucebox.serve.model_entry import ModelEntry  # noqa: E402
from lucebox.serve.model_set import ModelSet  # noqa: E402
from lucebox.serve.model_spec import ModelSpec  # noqa: E402
from lucebox.serve.settings import ServeSettings  # noqa: E402
from lucebox.serve.telemetry import Telemetry  # noqa: E402
from text_data import DATA, TINY_HYBRID  # noqa: E402

ASK = {"temperature": 0, "max_tokens": 3, "logprobs": True, "top_logprobs": 5}
QUESTIONS = (f"{'The small dog sat by the sea. ' * 5}Where is it?", "And the cat?")  # the first: over a page


def asked(client: Any, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post("/v1/chat/completions", json=ASK | body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.slow  # 10 s: a real model on the simulator
def test_turns_and_forms_on_a_device(on_pack: str) -> None:
    with LLM(str(TINY_HYBRID), device=on_pack, context=256, prefill_chunk=64, draft="none") as llm:

        def client() -> Any:
            return testclient.TestClient(serve.create_app(llm, ServeSettings(slots=1)), base_url="http://localhost")

        messages: list[dict[str, Any]] = []
        cached = []
        with client() as warm:
            assert warm.get("/status").json()["device"] == on_pack
            for question in QUESTIONS:
                messages.append({"role": "user", "content": question})
                last = asked(warm, {"messages": messages})
                cached.append(last["usage"]["prompt_tokens_details"]["cached_tokens"])
                messages.append(last["choices"][0]["message"])
            form = {"type": "regex", "regex": "[0-9]{2}"}
            chosen = asked(warm, {"messages": messages[:1], "response_format": form, "max_tokens": 8})
            assert re.fullmatch("[0-9]{2}", chosen["choices"][0]["message"]["content"])
            streamed = {"messages": messages[:1], "max_tokens": 1, "stream": True}
            assert "event: message_stop" in warm.post("/v1/messages", json=streamed).text
            assert warm.get("/status").json()["running"] == 0
        assert cached == [0, 64]
        llm.reset()
        with client() as cold:
            alone = asked(cold, {"messages": messages[:-1]})
        assert alone["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert alone["choices"] == last["choices"]  # with the log probabilities of the likeliest, every digit


@pytest.mark.slow  # 20 s: real models on the simulator
def test_models_take_turns_on_a_device(on_pack: str, pack: _engine.gpu.Pack) -> None:
    """Two models share a device, then there is memory for one: the answers of one alone, and all memory comes back."""
    device = _engine.gpu.Device(pack.device.vendor, pack.device.index)
    options: dict[str, Any] = {"device": on_pack, "context": 256, "prefill_chunk": 64, "draft": "none", "threads": 1}
    prompts = [f"Once upon a time there were {n} dogs." for n in (2, 3)]
    with LLM(str(TINY_HYBRID), **options) as llm:
        alone = [llm.generate(prompt, max_tokens=3, temperature=0).text for prompt in prompts]
    before = device.memory()[0]

    specs = [
        ModelSpec(str(TINY_HYBRID), EngineOptions(**options), ServeSettings(slots=1, model_name=name), offline=True)
        for name in "ab"
    ]
    models = ModelSet([ModelEntry(spec, None) for spec in specs], Telemetry())
    models.load_first()

    def asked(client: Any, name: str) -> list[str]:
        bodies = [{"model": name, "prompt": prompt, "max_tokens": 3, "temperature": 0} for prompt in prompts]
        return [client.post("/v1/completions", json=body).json()["choices"][0]["text"] for body in bodies]

    try:
        with testclient.TestClient(serve.create_app(models), base_url="http://localhost") as client:
            with ThreadPoolExecutor(2) as threads:
                assert list(threads.map(lambda name: asked(client, name), "ab")) == [alone, alone]
            both = before - device.memory()[0]
            for entry in models.entries:  # from now on there is memory for one
                entry.planned = dataclasses.replace(entry.facts, available_bytes=entry.facts.n_bytes)
            assert client.post("/v1/models/b/unload").json()["status"]["value"] == "unloaded"
            assert before - device.memory()[0] < 0.6 * both
            for name in "bab":
                assert asked(client, name) == alone
                states = client.get("/status").json()["models"]
                assert {one: states[one]["value"] == "loaded" for one in "ab"} == {one: one == name for one in "ab"}
    finally:
        models.free()
    assert device.memory()[0] == before and _engine.promised_bytes(on_pack) == 0


@pytest.mark.slow  # 5 s: loads on the simulator
def test_weights_are_copied_when_idle_and_loaded_from_the_copy(
    on_pack: str, pack: _engine.gpu.Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two models and memory for one. Copies appear while no request runs; later loads read them in place of the file,
    until it changes."""
    monkeypatch.setattr(weight_keeper, "POLL_S", 0.001)
    monkeypatch.setattr(weight_keeper, "SLICE_BYTES", 500_001)
    files = {name: Path(shutil.copy(DATA / "tiny" / "llama_a.gguf", tmp_path / f"{name}.gguf")) for name in "ab"}
    options: dict[str, Any] = {"device": on_pack, "context": 64, "prefill_chunk": 64, "draft": "none", "threads": 1}
    specs = [
        ModelSpec(str(file), EngineOptions(**options), ServeSettings(slots=1, model_name=name), offline=True)
        for name, file in files.items()
    ]
    device = _engine.gpu.Device(pack.device.vendor, pack.device.index)
    before = device.memory()[0]
    models = ModelSet([ModelEntry(spec, None) for spec in specs], Telemetry())
    models.load_first()
    a, b = models.entries
    for entry in models.entries:
        entry.planned = dataclasses.replace(entry.facts, available_bytes=entry.facts.n_bytes)
    assert b.running is not None
    b.running.close()
    b.running = None
    b.n_users += 1

    def asked(client: Any, name: str) -> Any:
        body = {"model": name, "prompt": "Once", "max_tokens": 1, "temperature": 0, "logprobs": 5}
        return client.post("/v1/completions", json=body).json()["choices"]

    def copied(entry: ModelEntry) -> _engine.KeptWeights:
        for _ in range(2000):
            if entry.kept is not None and entry.kept.is_complete:
                return entry.kept
            time.sleep(0.005)
        raise AssertionError(f"{entry.name} has no copy")

    try:
        with testclient.TestClient(serve.create_app(models), base_url="http://localhost") as client:
            want = asked(client, "a")
            assert a.kept is not None and a.kept_bytes == 0  # b has a request
            assert client.post("/v1/models/a/unload").json()["status"]["value"] == "unloaded"
            assert device.memory()[0] == before  # although the copy had begun
            b.n_users -= 1
            assert asked(client, "a") == want
            first = copied(a)
            assert b.kept is None and asked(client, "b") == want and a.running is None
            copied(b)
            zero_ffn(files["a"])
            assert asked(client, "a") == want and copied(a) is first
            assert asked(client, "b") == want
            files["a"].touch()
            assert asked(client, "a") != want and a.kept is not first  # the copy is of other files
            assert copied(a).n_bytes == copied(b).n_bytes > 8 * 500_001
            assert client.post("/v1/models/b/unload").json()["status"]["kept_bytes"] == 0 and b.kept is None
    finally:
        models.free()
