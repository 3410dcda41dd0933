"""Needle-in-a-haystack tests: documents with hidden facts, and questions about them; generated here or read from a
file. The sentences match the training data of the small recall models; other models understand them too.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from lucebox.errors import FormatError, InvalidRequestError
from lucebox.measure.prompts import Prompt, encode
from lucebox.text import Ids

if TYPE_CHECKING:
    from lucebox.models.assets import TextAssets

__all__ = [
    "BUILT_IN",
    "KINDS",
    "Document",
    "EncodedDocument",
    "EncodedQuestion",
    "Question",
    "encode_documents",
    "encode_text",
    "load_documents",
    "make_documents",
    "text_of",
]

BUILT_IN = "builtin"
KINDS = ("magic", "vault", "constant", "city", "hop")
FACTS_PER_KIND = 2
TAIL_TOKENS = 64  # reserved for a question, an answer and the chat template
MIN_FILLER = 256  # tokens
FILLER_BYTES = 2_000_000

_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "gl", "kr", "st", "tr")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ou")
_ENDS = ("n", "r", "s", "l", "m", "t", "k", "x")
_CITIES = ("Accra", "Bern", "Cairo", "Dakar", "Hanoi", "Kyoto", "Lagos", "Lima", "Oslo", "Perth", "Porto", "Quito",
           "Riga", "Turin")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    kind: str
    text: str
    answer: str


@dataclass(frozen=True, slots=True)
class Document:
    """A text, and questions that are asked one at a time, each after the bare text."""

    length: int
    """Nominal tokens, question and answer included; results are grouped by this length."""
    text: str
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class EncodedQuestion:
    """Token ids of a prompt, the document included, and of its answer without an end token."""

    kind: str
    prompt: Ids
    answer: Ids


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """The questions of a document as token ids."""

    length: int
    questions: tuple[EncodedQuestion, ...]

    @property
    def n_shared(self) -> int:
        """Leading tokens that all prompts share; at most all but the last token of the shortest one."""
        prompts = [question.prompt for question in self.questions]
        shortest = min(len(prompt) for prompt in prompts) - 1
        first = prompts[0][:shortest]
        differs = np.zeros(shortest, bool)
        for prompt in prompts[1:]:
            differs |= prompt[:shortest] != first
        return int(differs.argmax()) if differs.any() else shortest


def encode_documents(documents: Sequence[Document], assets: TextAssets) -> list[EncodedDocument]:
    """Renders each document and question through the chat template; without a template, the question is a line after
    the document."""
    return [
        EncodedDocument(
            document.length,
            tuple(
                EncodedQuestion(
                    question.kind,
                    encode_text(text_of(document, question), assets),
                    np.asarray(assets.tokenizer.encode(question.answer, special=False, add_bos=False), np.int32),
                )
                for question in document.questions
            ),
        )
        for document in documents
    ]


def text_of(document: Document, question: Question) -> str:
    """A document followed by a question."""
    return f"{document.text}\n\n{question.text}"


def encode_text(text: str, assets: TextAssets) -> Ids:
    """The prompt of a document with its question, possibly compressed."""
    if assets.template is None:
        return encode(Prompt("", text + "\n"), assets.tokenizer, None)
    return encode(Prompt("", text, ({"role": "user", "content": text},)), assets.tokenizer, assets.template)


# --- files


def load_documents(file: Path, n: int | None = None) -> list[Document]:
    """The first n documents of each length in a file of JSON lines; None: all. A row is {"document": "...",
    "length": 4096, "questions": [{"question": "...", "answer": "...", "kind": "city"}, ...]}.

    Raises:
        InvalidRequestError: there is no such file.
        FormatError: a row is malformed, or there is none.
    """
    if not file.is_file():
        raise InvalidRequestError(f"{file} is not a file of documents here, nor {BUILT_IN!r}")
    documents: list[Document] = []
    seen: dict[int, int] = {}
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            document = _document(line, f"{file}, line {number}")
            seen[document.length] = seen.get(document.length, 0) + 1
            if n is None or seen[document.length] <= n:
                documents.append(document)
    if not documents:
        raise FormatError(f"{file} has no documents")
    return documents


def _document(line: str, where: str) -> Document:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: not JSON: {error}") from error
    text, length = _field(row, "document", str, where), _field(row, "length", int, where)
    questions = tuple(
        Question(*(_field(one, name, str, where) for name in ("kind", "question", "answer")))
        for one in _field(row, "questions", list, where)
    )
    return Document(length, text, questions)


def _field(row: Any, name: str, kind: type, where: str) -> Any:
    value = row.get(name) if isinstance(row, Mapping) else None
    if not isinstance(value, kind) or not value:
        words = {str: "text", int: "a whole number", list: "a list of objects"}
        raise FormatError(f'{where}: expected "{name}", {words[kind]} that is not empty')
    return value


# --- the built-in ones


def make_documents(
    lengths: Sequence[int], n: int, assets: TextAssets, *, filler: str | None = None, seed: int = 0
) -> list[Document]:
    """n documents of each length: filler lines (None: Python's standard library) with two facts of each kind hidden
    between them, and a question about each fact. Deterministic in its arguments.

    Raises:
        InvalidRequestError: a length has no room for the facts, or the filler is too short.
    """
    lines = (_standard_library() if filler is None else filler).splitlines(keepends=True)
    documents = []
    for length in lengths:
        for number in range(n):
            rng = Random(f"{seed} {length} {number}")
            facts = [_fact(kind, rng) for kind in KINDS for _ in range(FACTS_PER_KIND)]
            hidden = [f"{sentence}\n" for sentences, _ in facts for sentence in sentences]
            n_filler = length - TAIL_TOKENS - sum(_n_tokens(line, assets) for line in hidden)
            if n_filler < MIN_FILLER:
                raise InvalidRequestError(f"a document of {length} tokens has no room for its facts; 1024 tokens have")
            text = _with_hidden(_window(lines, n_filler, assets, rng), hidden, rng)
            documents.append(Document(length, text, tuple(question for _, question in facts)))
    return documents


def _n_tokens(line: str, assets: TextAssets) -> int:
    return len(assets.tokenizer.encode(line, special=False, add_bos=False))


def _window(lines: Sequence[str], n_tokens: int, assets: TextAssets, rng: Random) -> Sequence[str]:
    """At most n_tokens of consecutive lines from a random start, with wrap-around."""
    begin = rng.randrange(max(1, len(lines)))
    window: list[str] = []
    for line in (*lines[begin:], *lines[:begin]):
        n_tokens -= _n_tokens(line, assets)
        if n_tokens < 0:
            return window
        window.append(line)
    raise InvalidRequestError(f"the filler has {n_tokens} tokens too few for a document: name a longer file")


def _with_hidden(lines: Sequence[str], hidden: list[str], rng: Random) -> str:
    """The hidden lines in random order, each before another line."""
    rng.shuffle(hidden)
    places = dict(zip(rng.sample(range(len(lines)), len(hidden)), hidden, strict=True))
    return "".join(places.get(i, "") + line for i, line in enumerate(lines)).rstrip("\n")


def _fact(kind: str, rng: Random) -> tuple[tuple[str, ...], Question]:
    """Sentences to hide, and the question about them."""
    word, number = _word(rng), f"{rng.randrange(10**6, 10**7)}"
    magic = f"What is the special magic {word} number?"
    if kind == "magic":
        return (f"The special magic {word} number is: {number}.",), Question(kind, magic, number)
    if kind == "vault":
        code = number[1:]
        return (f"Remember that the vault of {word} opens with {code}.",), Question(
            kind, f"Which code opens the {word} vault?", code
        )
    if kind == "constant":
        name, value = word.upper(), number[2:]
        return (f"{name} = {value}",), Question(kind, f"What value has the constant {name}?", value)
    if kind == "city":
        person, city = word.capitalize(), rng.choice(_CITIES)
        return (f"{person} has moved to {city}.",), Question(kind, f"Where does {person} live?", city)
    other = _word(rng)
    sentences = (
        f"The special magic {word} number is the same as that of {other}.",
        f"The special magic {other} number is: {number}.",
    )
    return sentences, Question(kind, magic, number)


def _word(rng: Random) -> str:
    """An invented word, which no model can know."""
    n_syllables = rng.choice((2, 2, 3))
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(n_syllables)) + rng.choice(_ENDS)


def _standard_library() -> str:
    """The sources in the top folder of this Python's standard library, sorted by name."""
    return "".join(_sources(Path(sysconfig.get_path("stdlib"))))


def _sources(folder: Path) -> Iterator[str]:
    n_bytes = 0
    for file in sorted(folder.glob("*.py")):
        if n_bytes >= FILLER_BYTES:
            return
        text = file.read_text(encoding="utf-8", errors="replace")
        n_bytes += len(text)
        yield text
