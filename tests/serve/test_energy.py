"""Energy in usage and in /metrics, with a stand-in for NVML."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from lucebox import LLM
from lucebox.generation import energy_shares
from lucebox.measure.energy import find_meter
from lucebox.serve import running_model
from running import ASK, MODEL, in_process
from standin_nvml import GPU, StandinNvml

N_TOKENS = 12


@pytest.fixture
def is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StandinNvml(tmp_path, monkeypatch)
    monkeypatch.setattr(running_model, "find_meter", lambda device: find_meter(GPU))
    monkeypatch.setattr(energy_shares, "MIN_SECONDS", 0.0)


def value(text: str, name: str) -> float:
    (line,) = (line for line in text.splitlines() if line.startswith(f"{name} "))
    return float(line.split()[1])


@pytest.mark.usefixtures("is_measured")
def test_energy_of_a_request() -> None:
    with LLM(MODEL, device="cpu", context=512, threads=1) as llm, in_process(llm) as url:
        chat = {"model": MODEL, "messages": ASK, "max_tokens": N_TOKENS, "temperature": 0}
        response = {"model": MODEL, "input": "Once", "max_output_tokens": N_TOKENS}
        answers = [
            httpx.post(f"{url}/v1/chat/completions", json=chat, timeout=60).json(),
            httpx.post(f"{url}/v1/messages", json=chat, timeout=60).json(),
            httpx.post(f"{url}/v1/responses", json=response, timeout=60).json(),
        ]
        metrics = httpx.get(f"{url}/metrics").text
        records = httpx.get(f"{url}/status").json()["requests"]
    joules = 0.0
    for answer in answers:
        usage = answer["usage"]
        n_tokens = usage.get("completion_tokens", usage.get("output_tokens"))
        assert usage["energy_joules"] > 0
        assert usage["tokens_per_joule"] == pytest.approx(n_tokens / usage["energy_joules"], rel=0.01)
        joules += usage["energy_joules"]
    assert value(metrics, "lucebox_energy_joules_total") == pytest.approx(joules, rel=0.01)
    assert value(metrics, "lucebox_energy_tokens_total") == sum(record["generated_tokens"] for record in records)
    assert sum(record["joules"] for record in records) == pytest.approx(joules, rel=0.01)


def test_a_device_without_a_counter() -> None:
    with LLM(MODEL, device="cpu", context=512, threads=1) as llm, in_process(llm) as url:
        chat = {"model": MODEL, "messages": ASK, "max_tokens": N_TOKENS}
        answer = httpx.post(f"{url}/v1/chat/completions", json=chat, timeout=60).json()
        metrics = httpx.get(f"{url}/metrics").text
    assert not {"energy_joules", "tokens_per_joule"} & set(answer["usage"])
    assert "lucebox_energy" not in metrics
