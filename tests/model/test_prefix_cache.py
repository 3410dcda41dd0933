"""Prefix reuse with real weights: many turns, a restart in the middle, the bits of cold runs, and memory that stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lucebox import HubError
from lucebox.models import catalog

SCRIPT = Path(__file__).parents[1] / "host" / "replay_turns.py"
GROWTH = 0.01
CHUNK = 128  # of the script


@pytest.mark.slow  # 5 s
@pytest.mark.parametrize(
    ("model", "turns", "options"),
    [
        ("tiny-hybrid", 40, ["--cold-every", "7"]),
        pytest.param("tiny-hybrid", 100, ["--cold-every", "7"], marks=pytest.mark.slow),  # 6 s
        pytest.param("smollm2-135m", 30, ["--cold-every", "10", "--context", "640"], marks=pytest.mark.slow),  # 9 s
    ],
)
def test_turns(model: str, turns: int, options: list[str]) -> None:
    try:
        path = catalog.fetch(model)
    except HubError as error:
        pytest.skip(f"the weights cannot be fetched here: {error}")
    command = [sys.executable, str(SCRIPT), str(path), "--turns", str(turns), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    first, second = report["reused"][: turns // 2], report["reused"][turns // 2 :]
    assert report["turns"] == turns and report["damaged"] == 0
    assert second[0] > first[-1] - CHUNK > 0  # the restart lost what the session held beyond the newest append end
    assert first == sorted(first) and second == sorted(second) and second[-1] > report["tokens"] * 0.75
    for settled, largest in zip(report["settled_bytes"], report["largest_bytes"], strict=True):
        # In one run of five the heap has no hole for a state where one has just gone, and grows by that, once.
        assert largest <= settled * (1 + GROWTH) + report["state_bytes"]
