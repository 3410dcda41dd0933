"""Fixtures every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from lucebox import _engine

settings.register_profile(
    "lucebox", deadline=None, derandomize=True
)  # the same inputs in every run and on every machine
settings.load_profile("lucebox")


@pytest.fixture(scope="session")
def data() -> Path:
    """The small files the tests read."""
    return Path(__file__).parent / "data"


@pytest.fixture(params=_engine.available_isas())
def isa(request: pytest.FixtureRequest) -> str:
    """Each instruction set that this machine runs the CPU kernels of."""
    return str(request.param)
