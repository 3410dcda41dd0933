"""Ops on rows on a device."""

from __future__ import annotations

from typing import Any

import pytest
from lucebox import _engine
from op_cases import *  # noqa: F403


@pytest.fixture
def on(pack: _engine.gpu.Pack) -> dict[str, Any]:
    return {"pack": pack}
