"""Output of the commands: results to stdout, notes and progress to stderr, errors on one line, JSON without markup."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from lucebox.cli.terminal_text import escaped, for_stream
from lucebox.errors import InvalidRequestError
from lucebox.local_files import decoded

if TYPE_CHECKING:
    from lucebox.results import Chunk

__all__ = [
    "confirm",
    "counting",
    "error",
    "loading",
    "note",
    "print_json",
    "print_table",
    "quantity",
    "read_line",
    "read_stdin",
    "status",
    "stdin_is_terminal",
    "tolerate_narrow_encodings",
    "write",
    "write_chunk",
]

PLAIN_WIDTH = 1000  # no wrapping when the output is not a terminal
MIN_TEXT_WIDTH = 12


def write(text: str) -> None:
    """Writes a piece of the result, unbuffered and without markup; escaped where stdout is a terminal."""
    _write_raw(for_stream(text, sys.stdout))


def _write_raw(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "stdout") from None


def write_chunk(chunk: Chunk, was_reasoning: bool) -> bool:
    """Writes a chunk of an answer: its text to stdout, its reasoning to stderr, dim in a terminal. Returns whether the
    reasoning was written last, for the next call."""
    if chunk.reasoning and sys.stderr is not None:
        dim, plain = ("\x1b[2m", "\x1b[0m") if sys.stderr.isatty() else ("", "")
        print(f"{dim}{for_stream(chunk.reasoning, sys.stderr)}{plain}", end="", file=sys.stderr, flush=True)
        was_reasoning = True
    if chunk.text:
        if was_reasoning:
            note("\n")
        was_reasoning = False
        write(chunk.text)
    return was_reasoning


def note(text: str) -> None:
    """Writes a line about the result, escaped where stderr is a terminal; nowhere where stderr is closed."""
    if sys.stderr is not None:
        print(for_stream(text, sys.stderr), file=sys.stderr, flush=True)


def confirm(question: str) -> bool:
    """Asks on stdout; the end of input is a no."""
    write(f"{question} [y/N] ")
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        write("\n")
    return answer.strip().lower() in ("y", "yes")


def error(text: str, *, keeps_lines: bool = False) -> None:
    lines = text.splitlines() if keeps_lines else [text]
    note("lucebox: error: " + "\n".join(" ".join(line.split()) for line in lines))


def tolerate_narrow_encodings() -> None:
    """Characters that a terminal or a pipe cannot encode (LC_ALL=C, Latin-1) come out escaped, not as an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def stdin_is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def read_stdin() -> str:
    """All of stdin, which must be UTF-8.

    Raises:
        InvalidRequestError: stdin is closed, or its bytes are not UTF-8.
    """
    if sys.stdin is None:
        raise InvalidRequestError("stdin is closed: give the text as an argument")
    stream = getattr(sys.stdin, "buffer", None)
    return sys.stdin.read() if stream is None else decoded(stream.read(), "stdin")


def read_line() -> str | None:
    """The next line of stdin with its line end, as read_stdin(); None at the end."""
    if sys.stdin is None:
        raise InvalidRequestError("stdin is closed: pipe the messages into it")
    stream = getattr(sys.stdin, "buffer", None)
    line = sys.stdin.readline() if stream is None else decoded(stream.readline(), "stdin")
    return line or None


def print_json(value: Any) -> None:
    """Writes one line, so that several objects stay separable."""
    write(json.dumps(_plain(value), ensure_ascii=False) + "\n")


def print_table(
    columns: Sequence[str | tuple[str, Literal["right"]]],
    rows: Sequence[Sequence[str]],
    title: str | None = None,
) -> None:
    """Writes a table; a column is its heading, or (heading, "right") for numbers. A terminal too narrow for the numbers
    and some of the text gets a line per cell instead."""
    from rich.console import Console
    from rich.table import Table

    rows = [[for_stream(cell, sys.stdout) for cell in row] for row in rows]
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
    elif console.width < least_width(columns, rows):
        print_cells([column if isinstance(column, str) else column[0] for column in columns], rows)
        return
    with console.capture() as capture:
        console.print(table)
    _write_raw("\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n")


def least_width(columns: Sequence[str | tuple[str, Literal["right"]]], rows: Sequence[Sequence[str]]) -> int:
    """Terminal columns below which a table cannot be read: numbers whole, text at least MIN_TEXT_WIDTH wide."""
    width = 2 * (len(columns) - 1)
    for i, column in enumerate(columns):
        heading = column if isinstance(column, str) else column[0]
        widest = max(len(text) for text in (heading, *(row[i] for row in rows)))
        width += min(widest, MIN_TEXT_WIDTH) if isinstance(column, str) else widest
    return width


def print_cells(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Writes a line per cell that is not empty, and a blank line between rows."""
    blocks = [
        "".join(f"{heading}: {cell}\n" for heading, cell in zip(headings, row, strict=True) if cell) for row in rows
    ]
    write("\n".join(blocks))


@contextmanager
def loading() -> Iterator[Callable[[str, int, int], None] | None]:
    """A callback (description, bytes done, total bytes or 0) that draws progress bars; None without a terminal."""
    if not is_terminal():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    tasks: dict[str, Any] = {}

    def show(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = progress.add_task(escaped(what), total=total or None)
        progress.update(tasks[what], completed=done, total=total or None)

    with progress:
        yield show


@contextmanager
def counting() -> Iterator[Callable[[int, int, str], None]]:
    """A callback (done, total, next item) that draws a progress bar; without a terminal, nothing."""
    if not is_terminal():
        yield lambda done, total, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("")
        yield lambda done, total, what: progress.update(task, completed=done, total=total, description=escaped(what))


@contextmanager
def reading() -> Iterator[Callable[[int, int], None]]:
    """A callback (tokens done, total) that draws a progress bar while a prompt is computed, and takes it away at the
    end of the prompt, before the answer begins; without a terminal, nothing."""
    if not is_terminal():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("reading the prompt"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task("")

    def show(done: int, total: int) -> None:
        if done < total:
            progress.start()
            progress.update(task, completed=done, total=total)
        else:
            progress.stop()

    try:
        yield show
    finally:
        progress.stop()


@contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """A callback that shows the current work on one line; without a terminal, nothing."""
    if not is_terminal():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.markup import escape as markup_escape

    with Console(stderr=True).status("") as spinner:
        yield lambda text: spinner.update(markup_escape(escaped(text)))


def is_terminal() -> bool:
    """Whether stderr can draw progress."""
    return sys.stderr is not None and sys.stderr.isatty()


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
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value  # JSON has no NaN
