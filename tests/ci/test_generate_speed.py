"""The speed table of README.md: it is what is checked in, and each figure is the row that it should be."""

from __future__ import annotations

import generate_speed
import pytest
from generate_speed import Entry
from project import ROOT

ENTRY = Entry("Qwen3-0.6B BF16", ("new.BF16", "old.BF16"), "BF16")


def result(commit: str, test: str, tok_s: float, **changed: str) -> dict[str, str]:
    device = {"device": generate_speed.DEVICE, "pack": generate_speed.PACK}
    line = {"date": "2026-11-26", "commit": commit, **device, "model": "new.BF16"}
    return {**line, "test": test, "tok_s": str(tok_s), "share": "0.587", "command": "lucebox bench", **changed}


def peer(tok_s: float, **changed: str) -> dict[str, str]:
    line = {"device": generate_speed.DEVICE, "peer": "llama.cpp", "model": "Qwen3-0.6B", "weights": "BF16"}
    return {**line, "test": "tg128", "tok_s": str(tok_s), **changed}


def test_the_page_is_what_is_checked_in() -> None:
    for name, text in generate_speed.files().items():
        assert (ROOT / name).read_text() == text, f"{name}: run make generate"


def test_every_model_has_a_measured_decode() -> None:
    table = generate_speed.table(
        generate_speed.read(ROOT / generate_speed.MODELS_CSV), generate_speed.read(ROOT / generate_speed.PEERS_CSV)
    )
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) == 7
    assert all(float(cells[1].replace(",", "")) > 0 and cells[4].endswith("%") for cells in rows)


def test_a_row_has_speed_ratio_share_and_prefill() -> None:
    lines = [result("b", "tg128 @520", 1506.7), result("b", "pp2048", 191543.28)]
    assert generate_speed.row(lines, [peer(671)], ENTRY) == "| Qwen3-0.6B BF16 | 1,507 | 671 | 2.25 | 59% | 191,543 |"


@pytest.mark.parametrize(
    "other",
    [
        result("b", "tg128 @520", 2, command="lucebox bench --path graph"),  # not what the engine chooses
        result("b", "tg128 @4096", 2),
        result("b", "tg128 @520", 2, device="NVIDIA H200"),
        result("b", "tg128 @520", 2, pack="sm_90 nvrtc"),  # the code of one compiler alone
        result("b", "tg128 @520", 2, model="new.Q8_0"),
        result("b", "tg128 @520", 2),  # a repeat
        result("a", "tg128 @520", 2, date="2026-11-25", model="old.BF16"),
    ],
)
def test_other_rows_are_not_taken(other: dict[str, str]) -> None:
    taken = generate_speed.newest([result("b", "tg128 @520", 1), other], ENTRY, "tg128 @520")
    assert taken is not None and taken["tok_s"] == "1"


def test_a_later_commit_wins_and_an_older_name_counts() -> None:
    lines = [result("a", "tg128 @520", 1, model="old.BF16"), result("b", "tg128 @520", 2)]
    taken = generate_speed.newest(lines, ENTRY, "tg128 @520")
    assert taken is not None and taken["commit"] == "b"
    taken = generate_speed.newest(lines[:1], ENTRY, "tg128 @520")
    assert taken is not None and taken["commit"] == "a"


def test_what_was_not_measured_is_a_dash() -> None:
    assert generate_speed.row([], [peer(1, test="pp2048")], ENTRY) == "| Qwen3-0.6B BF16 | - | - | - | - | - |"


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the lines"):
        generate_speed.with_table("no markers", "table")
