"""The measured costs of a step, kept from one start to the next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lucebox import LLM
from lucebox.cache import step_costs_folder
from lucebox.models import catalog

OPTIONS: dict[str, Any] = {"context": 128, "threads": 1}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    model = catalog.fetch("tiny-hybrid")
    monkeypatch.setenv("LUCEBOX_CACHE", str(tmp_path))
    OPTIONS["model"] = model
    return tmp_path


def opened(draft: str = "suffix", **options: Any) -> tuple[Path | None, dict[str, Any] | None]:
    """The file and the costs of a start."""
    with LLM(draft=draft, **(OPTIONS | options)) as llm:
        file = llm.step_costs_file
        return None if file is None else file.path, llm.engine.step_costs


def test_a_later_start_reads_the_costs(cache: Path) -> None:
    file, costs = opened()
    assert file is not None and file.parent == step_costs_folder() == cache / "step_costs"
    assert opened() == (file, costs), "measured again, the times would differ"
    assert json.loads(file.read_text())["key"]["threads"] == 1


def test_other_options_have_other_files() -> None:
    files = {opened(**options)[0] for options in ({}, {"draft": "mtp"}, {"activations": "f32"}, {"draft_budget": 3})}
    assert len(files) == 4
    assert opened(draft="none") == (None, None)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: b"",
        lambda text: b"\xff{",
        lambda text: text.replace(b'"format": 2', b'"format": 1'),
        lambda text: text.replace(b'"plain_ms": ', b'"plain_ms": -'),
        lambda text: text.replace(b'"append"', b'"appends"'),
        lambda text: text.replace(b'"is_fixed": false', b'"is_fixed": true'),
        lambda text: b"[]",
    ],
)
def test_a_damaged_file_is_written_anew(damage: Any) -> None:
    file, _ = opened()
    assert file is not None
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert file.read_bytes() != whole
    _, costs = opened()
    assert json.loads(file.read_bytes())["costs"] == json.loads(json.dumps(costs))


def test_a_folder_that_cannot_be_written(cache: Path) -> None:
    (cache / "step_costs").write_text("a file")
    assert opened()[1] is not None
