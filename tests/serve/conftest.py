"""Servers for the tests: `lucebox serve` as a process of its own, on a free port of the loopback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from running import WHOLE_CONTEXT, Running, started


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """A server with the tiny model."""
    with started("--slots", "2", "--alias", "claude-*") as running:
        yield running


@pytest.fixture(scope="session")
def patient() -> Iterator[Running]:
    """A server with room for answers that are still in progress when a test has seen what it waits for."""
    with started("--slots", "2", context=WHOLE_CONTEXT) as running:
        yield running
