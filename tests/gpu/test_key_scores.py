"""KeyScores on a device, also against the CPU."""

from __future__ import annotations

from typing import Any

import pytest
from key_score_cases import *  # noqa: F403
from key_score_cases import test_against_the_reference
from lucebox import _engine


@pytest.fixture
def on(pack: _engine.gpu.Pack) -> dict[str, Any]:
    return {"pack": pack}


def test_a_hybrid_of_27b(on: dict[str, Any], seed: int) -> None:
    test_against_the_reference(on, 24, 4, 256, 190, 3, 8, seed)
