"""Prompts for `bench`: built-in, from a user's file, or from a data set on the hub (questions only)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lucebox.chat.quoting import Quoting
from lucebox.errors import FormatError, InvalidRequestError, UnsupportedError
from lucebox.models import hub
from lucebox.models.hub import Progress
from lucebox.names import same_name
from lucebox.text import Ids

if TYPE_CHECKING:
    from lucebox.chat.template import ChatTemplate
    from lucebox.text import Tokenizer

__all__ = ["BUILT_IN", "SUITES", "Prompt", "encode", "load_prompts"]

BUILT_IN = "built-in"
_BUILT_IN_FILE = Path(__file__).with_name("prompts.jsonl")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue, or a conversation to answer."""

    name: str
    text: str
    """The text; for a conversation, its last message."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """Empty: the raw text is continued."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """A test split on the hub."""

    repo: str
    file: str
    """Path in the repository, with wildcards."""


SUITES: Mapping[str, DataSet] = {
    "humaneval": DataSet("openai/openai_humaneval", "openai_humaneval/test-*.parquet"),
    "gsm8k": DataSet("openai/gsm8k", "main/test-*.parquet"),
    "math500": DataSet("HuggingFaceH4/MATH-500", "test.jsonl"),
}
# Fields with a question, which is sent as a user message; fields with the name of a row.
_QUESTIONS = ("question", "problem")
_NAMES = ("name", "task_id", "unique_id", "id")


def load_prompts(
    suite: str,
    n: int | None = None,
    *,
    offline: bool = False,
    progress: Progress | None = None,
    endpoint: str | None = None,
) -> list[Prompt]:
    """The first n prompts of a suite; None: all.

    suite: BUILT_IN, a name of SUITES, or a file: JSON lines (.jsonl, .jsonl.gz) or .parquet. A row has "messages" (a
    conversation), "prompt" (a text to continue), or "question" or "problem" (a user's message), as in those data sets.

    Raises:
        InvalidRequestError: no such suite or file.
        FormatError: a row has no prompt, or the file no rows.
        HubError, ModelNotFoundError: the data set cannot be downloaded.
        UnsupportedError: a .parquet file, and pyarrow is not installed.
    """
    if (known := same_name(suite, SUITES)) is not None:
        data_set = SUITES[known]
        file = hub.fetch_data(data_set.repo, data_set.file, offline=offline, progress=progress, endpoint=endpoint)
    else:
        file = _BUILT_IN_FILE if suite == BUILT_IN else Path(suite).expanduser()
        if not file.is_file():
            known = ", ".join(SUITES)
            raise InvalidRequestError(f"{suite!r} is not a suite ({known}) and not a file of prompts here")
    prompts: list[Prompt] = []
    for number, row in enumerate(_rows(file), 1):
        if n is not None and len(prompts) == n:
            break
        prompts.append(_prompt(row, number, file, asks=suite in SUITES))
    if not prompts:
        raise FormatError(f"{file} has no prompts")
    return prompts


def encode(prompt: Prompt, tokenizer: Tokenizer, template: ChatTemplate | None) -> Ids:
    """[n] token ids of a prompt. A conversation is rendered by the template, with thinking off; without a template, its
    last message is continued."""
    if not prompt.messages or template is None:
        return np.asarray(tokenizer.encode(prompt.text), np.int32)
    text = template.render(Quoting(tokenizer).messages(prompt.messages), enable_thinking=False)
    return np.asarray(tokenizer.encode_marked(text), np.int32)


def _rows(file: Path) -> Iterable[Any]:
    if file.suffix == ".parquet":
        return _parquet_rows(file)
    return _json_rows(file)


def _json_rows(file: Path) -> Iterator[Any]:
    try:
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
            yield from (_json(line, file, number) for number, line in enumerate(lines, 1) if line.strip())
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
        raise FormatError(f"{file} is damaged: {error}") from error


def _json(line: str, file: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{file}, line {number}: not JSON: {error}") from error


def _parquet_rows(file: Path) -> Iterable[Any]:
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise UnsupportedError(
            f"{file.name} needs pyarrow: pip install pyarrow, or give the prompts as a file of JSON lines"
        ) from error
    try:
        rows: list[Any] = parquet.read_table(file).to_pylist()
    except ArrowException as error:
        raise FormatError(f"{file} is not a parquet file: {error}") from error
    return rows


def _prompt(row: Any, number: int, file: Path, *, asks: bool) -> Prompt:
    """The prompt of a row. asks: also send a text to continue as a user message."""
    if not isinstance(row, Mapping):
        raise FormatError(f"{file}, row {number}: expected an object, found {type(row).__name__}")
    name = next((str(row[key]) for key in _NAMES if key in row), f"{number:02}")
    if isinstance(messages := row.get("messages"), list) and messages:
        if not all(isinstance(one, Mapping) and isinstance(one.get("content"), str) for one in messages):
            raise FormatError(f"{file}, row {number}: each of the messages needs a role and a content of text")
        return Prompt(name, messages[-1]["content"], tuple(messages))
    for key in ("prompt", *_QUESTIONS):
        if isinstance(text := row.get(key), str) and text:
            is_asked = asks or key in _QUESTIONS
            return Prompt(name, text, ({"role": "user", "content": text},) if is_asked else ())
    wanted = ", ".join(("messages", "prompt", *_QUESTIONS))
    raise FormatError(f"{file}, row {number}: expected one of {wanted}; found {', '.join(map(str, row)) or 'nothing'}")
