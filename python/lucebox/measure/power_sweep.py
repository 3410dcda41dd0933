"""Measures decoding at several power limits: tok/s, watts and tok/J. Rows accumulate in a CSV file, so a sweep can also
be made by hand: set a limit, measure, set the next."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from lucebox.errors import FormatError, UnsupportedError
from lucebox.measure.bench import measure
from lucebox.measure.power_limit import find_power_limit

if TYPE_CHECKING:
    from lucebox.api import LLM

__all__ = ["PowerPoint", "load_points", "measure_points", "save_points"]


@dataclass(frozen=True, slots=True)
class PowerPoint:
    """One test at one power limit."""

    date: str
    model: str
    device: str
    test: str
    limit_w: float
    watts: float
    """Mean power over the runs."""
    tok_s: float
    """Median of the runs."""
    tok_j: float


def measure_points(
    llm: LLM,
    limits: Sequence[float] = (),
    *,
    n_tokens: int,
    depth: int,
    runs: int,
    on_run: Callable[[str, int], None] = lambda label, run: None,
) -> list[PowerPoint]:
    """Measures a point at each of `limits`, and restores the original limit; without `limits`, one point at the current
    limit.

    Raises:
        UnsupportedError: the device has no power limit or no energy to read, or this user may not set it.
        InvalidRequestError: the limit is out of the device's range.
    """
    limit = find_power_limit(llm.device_info)
    if limit is None:
        raise UnsupportedError(f"no power limit can be read on {llm.options.device}")
    points = []
    for watts in limits or (None,):
        with nullcontext() if watts is None else limit.held_at(watts):
            in_force = limit.read()
            report = measure(llm, prefill=(), decode=(n_tokens,), depth=depth, runs=runs, on_run=on_run)
        (test,) = report.measurements
        if test.joules is None or test.tok_j is None:
            raise UnsupportedError(
                "no energy could be read, or the runs were too short: use a larger --decode or --runs"
            )
        points.append(
            PowerPoint(
                date=date.today().isoformat(),
                model=report.model,
                device=report.device_name,
                test=test.label,
                limit_w=in_force,
                watts=test.joules / sum(test.seconds),
                tok_s=test.tok_s.median,
                tok_j=test.tok_j,
            )
        )
    return points


def save_points(file: Path, points: Sequence[PowerPoint]) -> None:
    """Appends the points to a CSV file, and creates the file if it is missing."""
    is_new = not file.exists()
    with file.open("a", newline="") as out:
        writer = csv.DictWriter(out, [field.name for field in fields(PowerPoint)])
        if is_new:
            writer.writeheader()
        writer.writerows(asdict(point) for point in points)


def load_points(file: Path) -> list[PowerPoint]:
    """The points of a file, sorted by limit.

    Raises:
        FormatError: save_points did not write the file.
    """
    points = []
    with file.open(newline="") as rows:
        for number, row in enumerate(csv.DictReader(rows), 2):
            try:
                texts = {field.name: row[field.name] for field in fields(PowerPoint)}
                numbers = {name: float(texts[name]) for name in ("limit_w", "watts", "tok_s", "tok_j")}
            except (KeyError, TypeError, ValueError):
                raise FormatError(f"{file}, line {number}: not a row of a power sweep") from None
            points.append(PowerPoint(**{**texts, **numbers}))  # type: ignore[arg-type]  # the texts by name
    return sorted(points, key=lambda point: point.limit_w)
