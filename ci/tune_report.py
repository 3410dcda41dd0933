"""Imports the files that users send into benchmarks/results/<target>_models.csv: reports of `lucebox tune --report` and
sheets of `lucebox bench --sheet`.

    tune_report.py REPORT.json...

Appends the speeds before and after tuning, under the names of pack and variant, and prints the changed constants for
targets/<target>/target.toml; of a sheet, its speeds. A sheet whose self-test failed is refused. A report is untrusted
input: every value is checked before anything is written.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import sys
from pathlib import Path
from statistics import median
from typing import Any

import targets
from targets import ROOT

SCHEMA = 1
RESULTS = "benchmarks/results/{}_models.csv"
COLUMNS = [
    "date",
    "commit",
    "pack",
    "device",
    "model",
    "weights",
    "test",
    "runs",
    "tok_s",
    "tok_s_min",
    "tok_s_max",
    "ms",
    "of_one_row",
    "share",
    "tok_j",
    "command",
]
LABELS = {"prefill": "pp", "decode": "tg", "append": "b"}
PARALLEL = "parallel"  # tests of sheets only
PLAIN = re.compile(r"[A-Za-z0-9][\w .,:()/+\-]{0,99}", re.ASCII)  # no spreadsheet formulas, no control characters
MOST = 1 << 53


class ReportError(Exception):
    """The file is not a report, or has an impossible value."""


class Reader:
    """A JSON object in a report; each value is checked when it is read."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise ReportError(f"{where}: expected an object, got {value!r:.60}")
        self._value, self._where = value, where

    def text(self, key: str, *, may_be_empty: bool = False) -> str:
        value = self._value.get(key)
        if isinstance(value, str) and (PLAIN.fullmatch(value) or (may_be_empty and not value)):
            return value
        raise ReportError(f"{self._where}: {key}: expected plain text, got {value!r:.60}")

    def number(self, key: str, least: float = 0) -> float:
        return _number(self._value.get(key), f"{self._where}: {key}", least)

    def numbers(self, key: str) -> list[float]:
        value = self._value.get(key)
        if not isinstance(value, list) or not value:
            raise ReportError(f"{self._where}: {key}: expected a list of numbers, got {value!r:.60}")
        return [_number(one, f"{self._where}: {key}[{i}]", 1e-9) for i, one in enumerate(value)]

    def has(self, key: str) -> bool:
        return self._value.get(key) is not None

    def object(self, key: str) -> Reader:
        return Reader(self._value.get(key), f"{self._where}: {key}")

    def objects(self, key: str) -> list[Reader]:
        value = self._value.get(key)
        if not isinstance(value, list):
            raise ReportError(f"{self._where}: {key}: expected a list, got {value!r:.60}")
        return [Reader(one, f"{self._where}: {key}[{i}]") for i, one in enumerate(value)]


def _number(value: Any, where: str, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ReportError(f"{where}: expected a number, got {value!r:.60}")
    if not least <= value <= MOST:
        raise ReportError(f"{where}: expected {least:g} or more, got {value!r:.60}")
    return value


def read(file: Path, known: list[str]) -> tuple[str, list[dict[str, Any]], dict[str, int]]:
    """The target of a report, its rows, and the changed constants of `[tuning]`.

    Raises:
        ReportError: the file is not a report for a target in `known`, or has a value that no measurement gives.
    """
    try:
        report = Reader(json.loads(file.read_text(encoding="utf-8")), file.name)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{file.name}: not JSON: {error}") from error
    if report.number("schema") != SCHEMA:
        raise ReportError(f"{file.name}: schema: expected {SCHEMA}, got {report.number('schema'):g}")
    target = report.text("target")
    if target not in known:
        raise ReportError(f"{file.name}: target: there is no {target}; the targets are {', '.join(known)}")
    if report.has("kind"):
        return target, _sheet_rows(report, file.name), {}
    variant = report.text("variant", may_be_empty=True)
    changed = {
        constant.text("name"): int(constant.number("after"))
        for constant in report.objects("constants")
        if constant.text("name") in targets.TUNING and constant.number("before") != constant.number("after")
    }
    models = {model.text("name"): model for model in report.objects("models")}
    rows = []
    for pack, key in ((target, "before"), (variant, "after")):
        for sample in report.objects(key):
            name = sample.text("model")
            if name not in models:
                raise ReportError(f"{file.name}: {key}: {name} is not among the models")
            rows.append(_row(report, sample, models[name], pack))
    if not rows:
        raise ReportError(f"{file.name}: before: expected measurements, got none")
    return target, rows, changed


def _sheet_rows(report: Reader, file: str) -> list[dict[str, Any]]:
    if report.text("kind") != "sheet":
        raise ReportError(f"{file}: kind: expected sheet, got {report.text('kind')}")
    tested = report.object("selftest")
    ok, n_kernels = tested.number("ok"), tested.number("kernels", 1)
    if ok != n_kernels or tested.number("failed_cases"):
        raise ReportError(
            f"{file}: selftest: {ok:g} of {n_kernels:g} kernels are ok; speeds of wrong kernels do not count"
        )
    models = report.objects("models")
    if len(models) != 1:
        raise ReportError(f"{file}: models: expected one model, got {len(models)}")
    (model,) = models
    pack = report.text("pack")
    rows = [_row(report, row, model, pack, program="bench", more="--sheet") for row in report.objects("rows")]
    if not rows:
        raise ReportError(f"{file}: rows: expected measurements, got none")
    return rows


def _row(
    report: Reader, sample: Reader, model: Reader, pack: str, *, program: str = "tune", more: str = ""
) -> dict[str, Any]:
    test, n, depth = sample.text("test"), int(sample.number("n_tokens", 1)), int(sample.number("depth"))
    sequences = int(sample.number("sequences", 1)) if sample.has("sequences") else 1
    labels = {**LABELS, PARALLEL: f"{sequences} x tg"} if program == "bench" else LABELS
    if test not in labels:
        raise ReportError(f"test: expected {', '.join(labels)}, got {test!r}")
    seconds = sample.numbers("seconds")
    speeds = sorted(sequences * n / one for one in seconds)
    joules = sample.number("joules", 1e-9) if sample.has("joules") else None
    reads = model.number("bytes_per_token", 1) * (n if test in ("decode", PARALLEL) else 1)
    gb_s = reads / median(seconds) / 1e9
    bandwidth = report.number("bandwidth_gb_s", 1e-9)
    row = {
        "date": report.text("date"),
        "commit": report.text("commit", may_be_empty=True) or f"v{report.text('lucebox')}",
        "pack": pack,
        "device": report.text("device"),
        "model": model.text("name"),
        "weights": model.text("weights"),
        "test": f"{labels[test]}{n}" + (f" @{depth}" if depth else ""),
        "runs": len(seconds),
        "tok_s": round(sequences * n / median(seconds), 2),
        "tok_s_min": round(speeds[0], 2),
        "tok_s_max": round(speeds[-1], 2),
        "ms": round(1e3 * median(seconds), 4),
        "of_one_row": None,
        "share": None if test == "prefill" else round(gb_s / bandwidth, 4),
        "tok_j": None if joules is None else round(sequences * n * len(seconds) / joules, 4),
        "command": f"lucebox {program} {model.text('name')} {more}".rstrip(),
    }
    return row


def append(file: Path, rows: list[dict[str, Any]]) -> None:
    """Appends the rows that the file does not have yet."""
    is_new = not file.exists()
    known = set()
    if not is_new:
        with file.open(encoding="utf-8", newline="") as text:
            known = {tuple(row) for row in csv.reader(text)}
    with file.open("a", encoding="utf-8", newline="") as text:
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(row for row in rows if _cells(row) not in known)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple("" if row[column] is None else str(row[column]) for column in COLUMNS)


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        description="Add reports of `lucebox tune` and sheets of `lucebox bench` to benchmarks/results."
    )
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT")
    arguments = parser.parse_args(argv)
    try:
        found = [read(file, targets.names(root)) for file in arguments.reports]
    except (ReportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for target, rows, changed in found:
        append(root / RESULTS.format(target), rows)
        print(f"{RESULTS.format(target)}: {len(rows)} rows of {rows[0]['device']}")
        if changed:
            print(f"targets/{target}/target.toml, [tuning] on {rows[0]['device']}:")
            print(*(f"{name} = {value}" for name, value in changed.items()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
