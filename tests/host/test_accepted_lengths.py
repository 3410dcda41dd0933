"""Histograms of accepted lengths: the bundled ones, files of one's own, and runs that draw from them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from lucebox import LLM, InvalidRequestError
from lucebox.errors import FormatError
from lucebox.measure.accepted_lengths import BUNDLED, AcceptedLengths, load_lengths
from lucebox.measure.drafts import measure_replay


def test_the_bundled_histograms() -> None:
    *found, mtp = load_lengths(BUNDLED)
    assert all(one.is_synthetic for one in (*found, mtp))
    assert mtp.drafter == "mtp" and round(mtp.tokens_per_verify, 2) == 2.87
    assert [sum(mtp.by_length[n:]) / sum(mtp.by_length) for n in (1, 2, 3)] == [0.82, 0.6, 0.45]
    assert [round(one.tokens_per_verify, 2) for one in found] == [8.31, 7.04, 6.14]
    for one in found:
        assert one.drafter == "dflash" and len(one.by_length) == 16  # truncated geometric
        ratios = [after / before for before, after in zip(one.by_length, one.by_length[1:], strict=False)]
        np.testing.assert_allclose(ratios, ratios[0], rtol=1e-3)


def test_a_report_of_bench_is_a_recording(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    report = {"suite": "gsm8k", "temperature": 1.0, "model": "m", "draft": "mtp", "by_length": [3, 0, 1], "runs": []}
    file.write_text(json.dumps({"speculation": [report]}))
    (one,) = load_lengths(file)
    assert one == AcceptedLengths("gsm8k at temperature 1", (3, 0, 1), "m with draft mtp", False)
    assert one.tokens_per_verify == 1.5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "expected an array of histograms"),
        ('{"speculation": [{}]}', "not the JSON of bench --draft"),
        ('[{"name": "a"}]', "a histogram needs a name and by_length"),
        ('[{"name": "a", "by_length": [0, 0]}]', "by_length of 'a' must be counts"),
        ('[{"name": "a", "by_length": [1.5]}]', "by_length of 'a' must be counts"),
        ('[{"name": "a", "by_length": [-1, 2]}]', "by_length of 'a' must be counts"),
        (json.dumps([{"name": "a", "by_length": [1] * 65}]), "goes to 64 tokens; a draft has 63"),
    ],
)
def test_bad_files_are_refused(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "lengths.json"
    file.write_text(content)
    with pytest.raises(FormatError, match=rf"lengths\.json.*{message}"):
        load_lengths(file)


def test_a_replay_accepts_what_the_histogram_says() -> None:
    def open_llm(draft: str) -> LLM:
        return LLM("tiny-hybrid", draft=draft, draft_budget=4, context=512, threads=1)

    histograms = [
        AcceptedLengths("few", (1, 1), "", True),
        AcceptedLengths("more", (0, 0, 1, 1, 1), "", True, "mtp"),
        AcceptedLengths("other", (1,), "", True, "dflash"),
    ]
    ids, n = np.arange(40, dtype=np.int32), 100
    report = measure_replay(open_llm, "mtp", ids, histograms, max_tokens=n)
    assert [run.name for run in report.runs] == ["few", "more"] and report.suite == "replay"
    assert list(report.replayed) == histograms[:2]
    for run, histogram in zip(report.runs, report.replayed, strict=True):
        assert run.tokens == n and run.difference is None and run.plain_tok_s > 0
        assert run.drafts.tokens_per_verify == pytest.approx(histogram.tokens_per_verify, rel=0.05)
        assert len(run.drafts.by_length) <= len(histogram.by_length)
    assert report.parts is not None and report.parts.rows == 5
    assert min(report.parts.by_name.values()) > 0
    with pytest.raises(InvalidRequestError, match="needs a drafter"):
        measure_replay(open_llm, "none", ids, histograms, max_tokens=n)
