"""Reports of `lucebox tune` become rows of benchmarks/results."""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tune_report
from lucebox.cli.tune import offer, print_report
from lucebox.tune import Constant, Model, Report, Sample, Trial
from project import ROOT

MODEL = Model("q08.Q4_K_M", "Q4_K", 500_000_000, 12288, 256, 4096)
AUTO = Trial(path="auto")
BEFORE = (
    Sample(MODEL.name, AUTO, "decode", 100, 128, (0.11, 0.10, 0.12)),
    Sample(MODEL.name, AUTO, "prefill", 4096, 0, (0.4,)),
    Sample(MODEL.name, AUTO, "append", 16, 0, (0.002,)),
)
AFTER = tuple(replace(one, seconds=tuple(s / 2 for s in one.seconds)) for one in BEFORE)
REPORT = Report(
    schema=1,
    lucebox="0.1.0",
    commit="",
    date="2026-11-26",
    target="sm_86",
    device="NVIDIA GeForce RTX 3090",
    architecture="sm_86",
    n_sms=82,
    memory_bytes=24 << 30,
    driver="560.35.03",
    compiler="nvrtc 12.4.127",
    bandwidth_gb_s=900.0,
    models=(MODEL,),
    constants=(
        Constant("matvec_threads_per_sm", 512, 512, "best other value: 256, -9.0 %"),
        Constant("prefill_chunk", 512, 2048, "+20.0 % faster than 512"),
        Constant("gemm_skinny_256", "in the pack", "left out", "+5.0 % without it"),
    ),
    variant="sm_86_tuned",
    before=BEFORE,
    after=AFTER,
    samples=(),
    skipped=(),
    seconds=200.0,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "targets", tmp_path / "targets")
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    return tmp_path


def written(root: Path, report: Report | dict[str, Any] = REPORT) -> Path:
    file = root / "report.json"
    file.write_text(json.dumps(report.as_json() if isinstance(report, Report) else report))
    return file


def rows(root: Path) -> list[dict[str, str]]:
    with (root / "benchmarks/results/sm_86_models.csv").open(newline="") as text:
        return list(csv.DictReader(text))


def test_a_report_becomes_rows(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune_report.main([str(written(root))], root) == 0
    first, *others = rows(root)
    assert first == {
        "date": "2026-11-26",
        "commit": "v0.1.0",
        "pack": "sm_86",
        "device": "NVIDIA GeForce RTX 3090",
        "model": "q08.Q4_K_M",
        "weights": "Q4_K",
        "test": "tg100 @128",
        "runs": "3",
        "tok_s": "909.09",
        "tok_s_min": "833.33",
        "tok_s_max": "1000.0",
        "ms": "110.0",
        "of_one_row": "",
        "share": "0.5051",  # 100 tokens read 50 GB in 0.11 s
        "tok_j": "",
        "command": "lucebox tune q08.Q4_K_M",
    }
    assert [(one["pack"], one["test"]) for one in others] == [
        ("sm_86", "pp4096"),
        ("sm_86", "b16"),
        ("sm_86_tuned", "tg100 @128"),
        ("sm_86_tuned", "pp4096"),
        ("sm_86_tuned", "b16"),
    ]
    said = capsys.readouterr().out
    assert "sm_86_models.csv: 6 rows of NVIDIA GeForce RTX 3090" in said
    assert said.rstrip().endswith("prefill_chunk = 2048")
    assert tune_report.main([str(written(root))], root) == 0
    assert len(rows(root)) == 6  # the same report again adds nothing


def test_what_the_command_shows(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(REPORT)
    said = capsys.readouterr()
    assert "NVIDIA GeForce RTX 3090, pack sm_86 by nvrtc 12.4.127" in said.out
    assert re.search(r"prefill_chunk +512 +2048 +\+20\.0 % faster than 512", said.out)
    assert re.search(r"matvec_threads_per_sm +512 +best other value: 256, -9\.0 %", said.out)
    assert re.search(r"q08\.Q4_K_M +tg100 @128 +909\.1 +1818\.2 +\+100\.0 %", said.out)
    assert "Variant sm_86_tuned has the code of pack sm_86" in said.out
    print_report(replace(REPORT, variant="", after=(), skipped=("q08, without x: no time left",)))
    said = capsys.readouterr()
    assert "The constants of pack sm_86 are the best that were measured: no variant is made." in said.out
    assert "not measured: q08, without x: no time left" in said.err


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_nothing_is_installed_without_a_yes(
    answer: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    asked = argparse.Namespace(yes=False, json=False)
    assert offer(Path("a.whl"), asked) == (False, 0)
    said = capsys.readouterr().out
    assert "install --no-deps --force-reinstall a.whl\n" in said and said.rstrip().endswith("Run this now? [y/N]")
    assert offer(Path("a.whl"), argparse.Namespace(yes=False, json=True)) == (False, 0)
    assert offer(None, asked) == (False, 0)
    assert capsys.readouterr().out == ""


def test_the_columns_are_those_of_the_other_rows() -> None:
    header = (ROOT / "benchmarks/results/sm_90_models.csv").read_text().splitlines()[0]
    assert header == ",".join(tune_report.COLUMNS)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"schema": 2}, "schema: expected 1, got 2"),
        ({"target": "sm_1"}, "target: there is no sm_1; the targets are sm_70"),
        ({"target": "../x"}, "target: expected plain text, got '../x'"),
        ({"device": "=1+1"}, "device: expected plain text, got '=1+1'"),
        ({"device": "a\nb"}, "device: expected plain text"),
        ({"bandwidth_gb_s": 0}, "bandwidth_gb_s: expected 1e-09 or more, got 0"),
        ({"models": []}, "q08.Q4_K_M is not among the models"),
        ({"before": [], "after": []}, "before: expected measurements, got none"),
        ({"before": 3}, "before: expected a list, got 3"),
        ({"before": [3]}, "before[0]: expected an object, got 3"),
    ],
)
def test_a_report_that_says_what_cannot_be(
    root: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], message: str
) -> None:
    assert tune_report.main([str(written(root, REPORT.as_json() | change))], root) == 1
    assert message in capsys.readouterr().err
    assert not list((root / "benchmarks/results").iterdir())


def test_times_must_be_times(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seconds in ([], [0], [True], ["1"], [float("nan")]):
        report = REPORT.as_json()
        report["before"][0]["seconds"] = seconds
        assert tune_report.main([str(written(root, report))], root) == 1
        assert "seconds" in capsys.readouterr().err


def test_a_file_that_is_no_report(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = root / "report.json"
    for text in ("", "[]", "{" * 100_000):
        file.write_text(text)
        assert tune_report.main([str(file)], root) == 1
        assert "report.json" in capsys.readouterr().err
