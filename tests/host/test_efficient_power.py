"""The choice of the power limit with the most tokens per joule, and holding it, with a stand-in for NVML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lucebox import LLM
from lucebox.errors import UnsupportedError
from lucebox.measure import efficient_power, power_sweep
from lucebox.measure.efficient_power import best_point, choose_power
from lucebox.measure.energy import find_meter
from lucebox.measure.power_limit import find_power_limit
from lucebox.measure.power_sweep import PowerPoint
from lucebox.serve.power_limits import PowerLimits
from standin_nvml import GPU, HIGHEST_W, StandinNvml

POINT = PowerPoint("2026-01-02", "m", "d", "tg64", 400.0, 360.0, 100.0, 0.3)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny-hybrid", device="cpu", context=4096, threads=1) as opened:
        yield opened


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandinNvml:
    """The model's device is the stand-in, on which decoding slows down below 250 W."""
    nvml = StandinNvml(tmp_path, monkeypatch)
    monkeypatch.setattr(efficient_power, "find_power_limit", lambda device: find_power_limit(GPU))
    monkeypatch.setattr(efficient_power, "find_meter", lambda device: find_meter(GPU))
    monkeypatch.setattr(power_sweep, "find_power_limit", lambda device: find_power_limit(GPU))

    def measured(llm: LLM, **options: Any) -> Any:
        tok_s = 1000.0 if nvml.limit_w >= 250 else 4 * nvml.limit_w
        watts = 0.9 * nvml.limit_w
        test = SimpleNamespace(
            joules=watts, tok_j=tok_s / watts, seconds=(1.0,), label="tg", tok_s=SimpleNamespace(median=tok_s)
        )
        return SimpleNamespace(measurements=(test,), model="m", device_name="d")

    monkeypatch.setattr(power_sweep, "measure", measured)
    monkeypatch.setattr(efficient_power, "measure", measured)
    return nvml


def test_the_best_point() -> None:
    slower = replace(POINT, limit_w=300.0, tok_s=97.0, tok_j=0.4)
    slow = replace(POINT, limit_w=200.0, tok_s=96.9, tok_j=0.5)
    assert best_point([POINT, slower, slow]) == slower
    assert best_point([POINT, slow]) == POINT
    assert best_point([POINT, replace(slower, tok_j=0.2)]) == POINT


def test_the_limit_is_chosen_held_and_restored(nvml: StandinNvml, llm: LLM) -> None:
    notes: list[str] = []
    limits = PowerLimits(notes.append)
    limits.hold(llm)
    assert nvml.limit_w == 280  # 0.7 of 400 W; at 240 W decoding is 4 % slower
    limits.hold(llm)  # another model on this device
    assert nvml.limit_w == 280
    assert notes == ["power limit 280 W in place of 400 W: 3.97 tok/J in place of 2.78 (+43 %), decoding 0.0 % slower"]
    limits.close()
    assert nvml.limit_w == HIGHEST_W


def test_without_the_right(nvml: StandinNvml, llm: LLM) -> None:
    nvml.deny()
    with pytest.raises(UnsupportedError, match="this user may not set the power limit of cpu: run as root, or leave"):
        choose_power(llm)
    assert nvml.limit_w == HIGHEST_W


def test_a_context_too_short_to_measure(nvml: StandinNvml) -> None:
    with (
        LLM("tiny-hybrid", device="cpu", context=512, threads=1) as short,
        pytest.raises(UnsupportedError, match="800 tokens are needed to measure energy: use a --context of at least 8"),
    ):
        choose_power(short)
    assert nvml.limit_w == HIGHEST_W


def test_a_device_without_a_limit(llm: LLM) -> None:
    with pytest.raises(UnsupportedError, match="the power limit and the energy of cpu cannot be read"):
        choose_power(llm)
