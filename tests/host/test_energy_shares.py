"""Requests that run together share the energy of that time."""

from __future__ import annotations

import pytest
from lucebox.generation.energy_shares import EnergyShares


class Device:
    """A clock, and a counter that follows it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.joules = 1000.0
        self.is_lost = False

    def run(self, seconds: float, watts: float) -> None:
        self.seconds += seconds
        self.joules += seconds * watts

    def read(self) -> float:
        if self.is_lost:
            raise OSError
        return self.joules


def test_equal_shares_add_up() -> None:
    device = Device()
    shares = EnergyShares(device.read, lambda: device.seconds)
    device.run(10, 50)  # idle: nobody's
    shares.begin("a")
    device.run(1, 100)
    shares.begin("b")
    device.run(2, 300)
    assert shares.end("a") == pytest.approx(100 + 300)
    device.run(1, 200)
    shares.begin("c")
    assert shares.end("b") == pytest.approx(300 + 200)
    device.run(1, 80)
    assert shares.end("c") == pytest.approx(80)
    assert shares.end("c") is None


def test_what_cannot_be_measured() -> None:
    device = Device()
    shares = EnergyShares(device.read, lambda: device.seconds)
    shares.begin("short")
    device.run(0.4, 100)
    assert shares.end("short") is None
    shares.begin("still")
    device.run(2, 0)
    assert shares.end("still") is None
    shares.begin("lost")
    device.run(2, 100)
    device.is_lost = True
    assert shares.end("lost") is None
    shares.begin("later")
    device.run(2, 100)
    assert shares.end("later") is None
    without = EnergyShares()
    without.begin("a")
    assert without.end("a") is None


def test_a_counter_that_fails_when_a_request_begins() -> None:
    device = Device()
    shares = EnergyShares(device.read, lambda: device.seconds)
    shares.begin("before")
    device.is_lost = True
    shares.begin("at")
    device.run(2, 100)
    assert shares.end("at") is None and shares.end("before") is None
