"""Servers for the tests: `lucebox serve` in a process of its own, on a free loopback port."""

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
    """A server with a long context, for answers that must still run when the test looks."""
    with started("--slots", "2", context=WHOLE_CONTEXT) as running:
        yield running
