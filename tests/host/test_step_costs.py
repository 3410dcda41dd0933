"""The measured costs of a step and what drafts showed, kept from one start to the next."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from lucebox import LLM, InvalidRequestError
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


@pytest.mark.first_case
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: b"",
        lambda text: b"\xff{",
        lambda text: text.replace(b'"format": 3', b'"format": 2'),
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


REPEATS = [5, 6, 7, 8] * 12


def test_what_drafts_showed_is_kept() -> None:
    """By kind of sampling, of a model that was closed or only forgotten."""
    options = OPTIONS | {"draft": "suffix", "draft_budget": 4}
    with LLM(**options) as llm:
        assert llm.engine.draft_experience == {}
        assert llm.generate(REPEATS, max_tokens=30, ignore_eos=True).usage.drafts.verifies
        greedy = llm.engine.draft_experience
        assert list(greedy) == ["greedy"]
    llm = LLM(**options)
    assert llm.engine.draft_experience == greedy
    llm.generate(REPEATS, max_tokens=40, ignore_eos=True, temperature=0.8, seed=3)
    both = llm.engine.draft_experience
    assert list(both) == ["greedy", "sampled"] and both["greedy"] == greedy["greedy"]
    del llm
    gc.collect()
    with LLM(**options) as llm:
        assert llm.engine.draft_experience == both


@pytest.mark.first_case
@pytest.mark.parametrize("wrong", [{"greedy": [1.0, 2.0]}, {"greedy": "x"}, {"sampled": None}, [], None, "x"])
def test_a_damaged_experience_is_left_out(wrong: Any) -> None:
    file, costs = opened()
    assert file is not None
    file.write_text(json.dumps(json.loads(file.read_text()) | {"experience": wrong}))
    with LLM(draft="suffix", **OPTIONS) as llm:
        assert llm.engine.draft_experience == {} and llm.engine.step_costs == costs


def test_an_experience_must_be_possible() -> None:
    with LLM(draft="suffix", draft_budget=4, **OPTIONS) as llm:
        llm.generate(REPEATS, max_tokens=30, ignore_eos=True)
        numbers = llm.engine.draft_experience["greedy"]
        for at, value in ((0, -1.0), (3, float("nan")), (7, float("inf")), (-2, 1e6), (-30, 1e6)):
            wrong = [*numbers]
            wrong[at] = value
            with pytest.raises(InvalidRequestError, match="the experience of drafts"):
                llm.engine.draft_experience = {"greedy": wrong}
        with pytest.raises(InvalidRequestError, match=f"has 3 numbers, expected {len(numbers)}"):
            llm.engine.draft_experience = {"greedy": [0.0] * 3}


def test_a_kind_that_is_not_given_is_forgotten() -> None:
    with LLM(draft="suffix", draft_budget=4, **OPTIONS) as llm:
        llm.generate(REPEATS, max_tokens=30, ignore_eos=True)
        known = llm.engine.draft_experience
        llm.engine.draft_experience = {"sampled": known["greedy"]}
        assert list(llm.engine.draft_experience) == ["sampled"]
        llm.engine.draft_experience = {}
        llm.engine.outputs.clear()  # they include the first answer
        llm.reset()
        llm.generate(REPEATS, max_tokens=30, ignore_eos=True)
        assert llm.engine.draft_experience == known, "learned from the prior again"


def test_a_folder_that_cannot_be_written(cache: Path) -> None:
    (cache / "step_costs").write_text("a file")
    assert opened()[1] is not None
