"""Output of the commands: results to stdout, notes and progress to stderr, errors on one line, JSON without markup."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

__all__ = [
    "confirm",
    "counting",
    "error",
    "loading",
    "note",
    "print_json",
    "print_table",
    "quantity",
    "size",
    "status",
    "write",
]

PLAIN_WIDTH = 1000  # no wrapping when the output is not a terminal


def write(text: str) -> None:
    """Writes a piece of the result, unbuffered and without markup."""
    sys.stdout.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """Writes a line about the result."""
    print(text, file=sys.stderr, flush=True)


def confirm(question: str) -> bool:
    """Asks on stdout; the end of input is a no."""
    write(f"{question} [y/N] ")
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        write("\n")
    return answer.strip().lower() in ("y", "yes")


def error(text: str) -> None:
    note("lucebox: error: " + " ".join(text.split()))


def print_json(value: Any) -> None:
    """Writes one line, so that several objects stay separable."""
    write(json.dumps(_plain(value), ensure_ascii=False) + "\n")


def print_table(
    columns: Sequence[str | tuple[str, Literal["right"]]],
    rows: Sequence[Sequence[str]],
    title: str | None = None,
) -> None:
    """Writes a table; a column is its heading, or (heading, "right") for numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        if isinstance(column, str):
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column[0], justify=column[1], no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False, width=PLAIN_WIDTH)
    with console.capture() as capture:
        console.print(table)
    write("\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n")


@contextmanager
def loading() -> Iterator[Callable[[str, int, int], None] | None]:
    """A callback (description, bytes done, total bytes or 0) that draws progress bars; None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    tasks: dict[str, Any] = {}

    def show(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = progress.add_task(what, total=total or None)
        progress.update(tasks[what], completed=done, total=total or None)

    with progress:
        yield show


@contextmanager
def counting() -> Iterator[Callable[[int, int, str], None]]:
    """A callback (done, total, next item) that draws a progress bar; without a terminal, nothing."""
    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("")
        yield lambda done, total, what: progress.update(task, completed=done, total=total, description=what)


@contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """A callback that shows the current work on one line; without a terminal, nothing."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    with Console(stderr=True).status("") as spinner:
        yield lambda text: spinner.update(text)


def size(n_bytes: int) -> str:
    """Bytes with three digits and a unit: 12.1 MB."""
    return quantity(n_bytes) + "B" if n_bytes >= 1000 else f"{n_bytes} B"


def quantity(n: int) -> str:
    """A count with three digits and a unit: 752 M."""
    value = float(n)
    for unit in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.3g} {unit}" if unit else f"{n}"
        value /= 1000
    return f"{value:.3g} T"


def _plain(value: Any) -> Any:
    """A value of JSON types: dataclasses become objects; mappings and sequences are copied."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
