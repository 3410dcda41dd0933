"""Plain and speculative decoding compared: counts, histogram, equal tokens, ties, table and files. An oracle drafts."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lucebox import LLM, OutOfMemoryError, Sampling
from lucebox._engine import uniform_draw
from lucebox.cli.bench_drafts import as_json, parse_count, parse_temperatures, print_report
from lucebox.errors import FormatError, InvalidRequestError
from lucebox.measure.drafts import CSV_COLUMNS, TIE_NAT, TIE_PROBABILITY, Difference, measure_drafts, save_runs
from lucebox.measure.plots import save_drafts_plot
from lucebox.text import Ids
from oracle import OracleSession, plain_text

MODEL, TOKENS, N_RIGHT = "tiny-hybrid", 24, 3
OPTIONS: dict[str, Any] = {"context": 256, "threads": 1, "activations": "f32", "kv": "f32"}
TEXTS = {"function": "def fibonacci(n):\n", "import": "import os\n"}


@pytest.fixture(scope="module")
def prompts() -> list[tuple[str, Ids]]:
    with LLM(MODEL, context=64) as llm:
        return [(name, llm.ids(text)) for name, text in TEXTS.items()]


@pytest.fixture(scope="module")
def answers(prompts: list[tuple[str, Ids]]) -> list[list[int]]:
    return [plain_text(MODEL, ids.tolist(), TOKENS + N_RIGHT + 1, **OPTIONS) for _, ids in prompts]


class Opener:
    """Opens LLMs, the drafting ones with an oracle; at most n at a time."""

    def __init__(
        self, answers: list[list[int]], at_most: int = 2, session: type[OracleSession] = OracleSession
    ) -> None:
        self.answers, self.at_most, self.session = answers, at_most, session
        self.opened: list[str] = []
        self.n_open = 0

    def __call__(self, draft: str) -> Any:
        if self.n_open == self.at_most:
            raise OutOfMemoryError("no room")
        self.n_open += 1
        self.opened.append(draft)
        return self._open(draft)

    @contextmanager
    def _open(self, draft: str) -> Iterator[LLM]:
        with LLM(MODEL, draft=draft, **OPTIONS) as llm:
            if draft != "none":
                llm.pool.free[0] = self.session(llm.engine, self.answers, N_RIGHT)
            yield llm
        self.n_open -= 1


@pytest.mark.first_case
@pytest.mark.parametrize("at_most", [1, 2], ids=["in turn", "side by side"])
def test_both_ways_write_the_same(prompts: list[tuple[str, Ids]], answers: list[list[int]], at_most: int) -> None:
    opener, heard = Opener(answers, at_most), []
    report = measure_drafts(
        opener,
        "suffix",
        prompts,
        suite="mine",
        max_tokens=TOKENS,
        on_prompt=lambda name, done, total: heard.append((name, done, total)),
    )
    assert opener.opened == ["suffix", "none"]
    assert heard == [("function", 0, 2), ("import", 1, 2)] * (3 - at_most)
    assert (report.draft, report.draft_budget, report.suite, report.temperature) == ("suffix", None, "mine", 0)
    assert [run.difference for run in report.runs] == [None, None] and not report.mismatches
    for run, (name, ids) in zip(report.runs, prompts, strict=True):
        assert (run.name, run.prompt_tokens) == (name, len(ids))
        assert run.plain_tok_s > 0 and run.ratio == run.speculative_tok_s / run.plain_tok_s
        assert run.drafts.accepted_tokens > run.tokens / 2
        assert run.tokens_per_step == run.tokens / (run.tokens - run.drafts.accepted_tokens)
    assert sum(report.by_length) == sum(run.drafts.verifies for run in report.runs)
    assert sum(n * verifies for n, verifies in enumerate(report.by_length)) == sum(
        run.drafts.accepted_tokens for run in report.runs
    )
    assert report.ratio == pytest.approx(report.speculative_tok_s / report.plain_tok_s)
    assert report.plain_tok_s == pytest.approx(sum(run.plain_tok_s for run in report.runs) / 2)


@pytest.mark.slow  # 1 s
def test_sampled_texts_are_the_same_too(prompts: list[tuple[str, Ids]], answers: list[list[int]]) -> None:
    report = measure_drafts(Opener(answers), "suffix", prompts, suite="mine", max_tokens=TOKENS, temperature=0.7)
    assert [run.difference for run in report.runs] == [None, None]
    assert report.temperature == 0.7


class Lying(OracleSession):
    """Says another token at one place."""

    n = 0

    def sample(self, sampler: Any) -> int:
        token = int(super().sample(sampler))
        self.n += 1
        return token if self.n != 16 + 1 + 10 else 5  # the warm-up has 16


@pytest.mark.first_case
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_other_tokens_are_found_and_judged(
    prompts: list[tuple[str, Ids]], answers: list[list[int]], temperature: float
) -> None:
    report = measure_drafts(
        Opener(answers, session=Lying), "suffix", prompts, suite="mine", max_tokens=TOKENS, temperature=temperature
    )
    difference = report.runs[0].difference
    assert difference is not None and (difference.at, difference.speculative) == (10, 5)
    with LLM(MODEL, **OPTIONS) as llm:
        answer = llm.generate(prompts[0][1], Sampling(max_tokens=TOKENS, temperature=temperature, seed=42))
        assert answer.ids[10] == difference.plain
        logits = llm.logits([*prompts[0][1], *answer.ids[:10]])[-1].astype(np.float64)
    if temperature == 0:
        assert difference.margin == pytest.approx(logits[difference.plain] - logits[5], abs=1e-3)
    else:
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        draw = uniform_draw(42, 10)
        assert shares[: difference.plain].sum() <= draw <= shares[: difference.plain + 1].sum()
        away = max(shares[:5].sum() - draw, draw - shares[:6].sum())
        assert difference.margin == pytest.approx(away, abs=1e-4) and away > 0
    assert difference.is_tie == (difference.margin < (TIE_PROBABILITY if temperature else TIE_NAT))
    assert (report.runs[0] in report.mismatches) == (not difference.is_tie)


def test_reports_are_shown_and_saved(
    prompts: list[tuple[str, Ids]], answers: list[list[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = measure_drafts(Opener(answers), "suffix", prompts, suite="mine", max_tokens=TOKENS)
    other = replace(report.runs[0], difference=Difference(4, 7, None, 0.01, is_tie=True))
    report = replace(report, runs=(other, report.runs[1]), draft_budget=8)
    print_report(report)
    shown = capsys.readouterr().out
    assert "draft suffix, budget 8 tokens; mine prompts, temperature 0" in shown
    assert "function: other tokens from token 4 on, a tie: plain 7, speculative None, margin 0.01" in shown
    assert f"{report.ratio:.2f}" in shown and "####" in shown
    histogram = shown.partition("accepted tokens per verify\n")[2].partition("\n\n")[0].splitlines()[1:]
    counts = [int(line.split()[1]) for line in histogram]
    assert counts[-1] > 0 and counts == list(report.by_length[: len(counts)]) and sum(counts) == sum(report.by_length)
    assert report.parts is not None and report.parts.verify_ms > report.parts.tree_ms > 0
    assert f"verify {report.parts.verify_ms:.3f} " in " ".join(shown.split())
    facts = as_json(report)
    assert facts["parts"]["verify_ms"] == report.parts.verify_ms and facts["replayed"] == []
    assert facts["runs"][0]["difference"]["is_tie"] is True and facts["runs"][1]["difference"] is None
    assert facts["by_length"] == report.by_length and facts["tokens_per_verify"] == report.tokens_per_verify

    file = tmp_path / "runs.csv"
    for _ in range(2):
        save_runs(file, report)
    with file.open(newline="") as rows:
        saved = list(csv.DictReader(rows))
    assert tuple(saved[0]) == CSV_COLUMNS and len(saved) == 4
    assert [(row["prompt"], row["same_tokens"], row["budget"]) for row in saved[2:]] == [
        ("function", "False", "8"),
        ("import", "True", "8"),
    ]
    assert int(saved[0]["accepted"]) == report.runs[0].drafts.accepted_tokens
    file.write_text("date,model\n")
    with pytest.raises(FormatError, match=r"runs.csv has other columns"):
        save_runs(file, report)

    picture = tmp_path / "drafts.svg"
    save_drafts_plot([report, replace(report, temperature=1.0)], picture)
    assert "<svg" in picture.read_text()


def test_nothing_to_compare(prompts: list[tuple[str, Ids]]) -> None:
    for draft, some in (("none", prompts), ("suffix", [])):
        with pytest.raises(InvalidRequestError, match="a drafter and a prompt"):
            measure_drafts(Opener([]), draft, some, suite="mine", max_tokens=4)


def test_flags() -> None:
    assert (parse_count("all"), parse_count("3"), parse_temperatures("0,0.5")) == (None, 3, (0.0, 0.5))
    for parse, text in (
        (parse_count, "0"),
        (parse_count, "few"),
        (parse_temperatures, "-1"),
        (parse_temperatures, "a"),
    ):
        with pytest.raises(Exception, match=r"expected|negative"):
            parse(text)
