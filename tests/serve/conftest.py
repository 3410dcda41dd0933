"""Servers for the tests: `lucebox serve` as a process of its own, on a free port of the loopback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from running import Running, started


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """A server with the tiny model."""
    with started("--slots", "2", "--alias", "claude-*") as running:
        yield running
