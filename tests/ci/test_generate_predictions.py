"""What ci/generate_predictions.py makes: it is what is checked in, and counts what the engine counts."""

from __future__ import annotations

import generate_predictions
import pytest

import targets
from targets import ROOT


def test_the_page_is_what_is_checked_in() -> None:
    for name, text in generate_predictions.files().items():
        assert (ROOT / name).read_text() == text, f"{name}: run make generate"


def test_bytes_and_phases() -> None:
    """As `lucebox inspect` and `Session.decode_path` told of these files on an H100."""
    costs = generate_predictions.costs()
    n_bytes, phases, held = costs["qwen35-0.8b BF16"]
    assert n_bytes == held
    assert n_bytes == pytest.approx(1504e6, rel=2e-3) and phases == 129
    assert costs["qwen35-27b Q4_K_M"][1] == 48 * 5 + 16 * 6 + 3
    n_bytes, phases, held = costs["qwen35moe-35b-a3b Q4_K_M"]
    assert n_bytes == pytest.approx(1.98e9, rel=5e-3) and phases == 30 * 6 + 10 * 7 + 3
    assert held == pytest.approx(20.9e9, rel=0.05)


def test_barriers_cost_less_the_longer_reads_take() -> None:
    boards = [board for target in targets.load_all(ROOT) for board in target.boards if board.name == "H100 SXM"]
    (ceiling, predicted), (large_ceiling, large) = (
        generate_predictions.tokens_s(boards[0], *generate_predictions.costs()[name]) or (0, 0)
        for name in ("qwen35-0.8b BF16", "qwen35-27b Q4_K_M")
    )
    assert ceiling == pytest.approx(2072, rel=5e-3)  # issue 5
    assert 0 < predicted / ceiling < large / large_ceiling < 1
