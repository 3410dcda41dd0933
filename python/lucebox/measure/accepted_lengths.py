"""Histograms of accepted draft lengths, recorded from real runs. `bench --replay` samples from them, because synthetic
weights accept no drafts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lucebox.errors import FormatError, InvalidRequestError
from lucebox.local_files import parsed_json, read_text

__all__ = ["BUNDLED", "MAX_LENGTH", "AcceptedLengths", "load_lengths"]

BUNDLED = Path(__file__).with_name("accepted_lengths.json")
MAX_LENGTH = 63  # tokens of a draft
MAX_COUNT = 1 << 40


@dataclass(frozen=True, slots=True)
class AcceptedLengths:
    """A histogram of accepted lengths."""

    name: str
    by_length: tuple[int, ...]
    """[n] verifies that accepted n tokens."""
    source: str
    is_synthetic: bool
    """Constructed for a given mean, not recorded."""
    drafter: str | None = None
    """The kind of draft model it represents: "dflash", "mtp" or "assistant". None: any."""

    @property
    def tokens_per_verify(self) -> float:
        """Mean tokens per verify: the accepted tokens plus the one sampled after them."""
        return 1 + sum(n * verifies for n, verifies in enumerate(self.by_length)) / sum(self.by_length)


def load_lengths(file: Path) -> list[AcceptedLengths]:
    """Reads histograms from a file: a JSON array of objects with `name` and `by_length` (`source`, `synthetic` and
    `drafter` are optional), or the output of `bench --draft --json`.

    Raises:
        FormatError: the file cannot be read or has no histogram, or a histogram has no verifies, a length above 63, or
            bad counts.
    """
    try:
        found: Any = parsed_json(read_text(file), str(file))
    except InvalidRequestError as error:
        raise FormatError(str(error)) from None
    if isinstance(found, dict) and isinstance(reports := found.get("speculation"), list):
        return [_recorded(report, file) for report in reports]
    if not isinstance(found, list) or not found:
        raise FormatError(f"{file}: expected an array of histograms, or the JSON of bench --draft")
    return [_histogram(one, file) for one in found]


def _recorded(report: Any, file: Path) -> AcceptedLengths:
    is_report = isinstance(report, dict) and {"suite", "temperature", "model", "draft"} <= report.keys()
    if not is_report or not isinstance(report["temperature"], int | float):
        raise FormatError(f"{file}: not the JSON of bench --draft")
    name = f"{report['suite']} at temperature {report['temperature']:g}"
    source = f"{report['model']} with draft {report['draft']}"
    return _histogram({**report, "name": name, "source": source}, file)


def _histogram(one: Any, file: Path) -> AcceptedLengths:
    if not isinstance(one, dict) or not isinstance(one.get("name"), str) or not isinstance(one.get("by_length"), list):
        raise FormatError(f"{file}: a histogram needs a name and by_length, the counts of 0, 1, 2, ... accepted tokens")
    name, counts = one["name"], one["by_length"]
    if not all(type(count) is int and 0 <= count <= MAX_COUNT for count in counts) or not any(counts):
        raise FormatError(f"{file}: by_length of {name!r} must be counts of 0 to {MAX_COUNT}, not all of them 0")
    if len(counts) > MAX_LENGTH + 1:
        raise FormatError(f"{file}: by_length of {name!r} goes to {len(counts) - 1} tokens; a draft has {MAX_LENGTH}")
    source, is_synthetic = str(one.get("source", file)), one.get("synthetic") is True
    return AcceptedLengths(name, tuple(counts), source, is_synthetic, one.get("drafter"))
