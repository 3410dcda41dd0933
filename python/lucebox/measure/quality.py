"""Measures the quality of KV types: the negative log-likelihood (NLL) of a text and its KL divergence from f16, and the
accuracy of answers about long documents. The CLI and plots.py show the results.

Logits come from appends of up to 64 rows, as in draft verification. Rows read stored (rounded) keys and values, even of
their own append, so the split into appends changes nothing.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lucebox.errors import FormatError, InvalidRequestError
from lucebox.generation.log_softmax import log_softmax
from lucebox.generation.prefix_cache.plan import PAGE
from lucebox.measure.bench import MAX_APPEND
from lucebox.measure.needle import EncodedDocument, EncodedQuestion
from lucebox.text import Ids

if TYPE_CHECKING:
    from lucebox import _engine
    from lucebox.api import LLM

__all__ = [
    "CSV_COLUMNS",
    "REFERENCE",
    "Answer",
    "RecallScore",
    "TextScore",
    "TypeReport",
    "answers_to",
    "measure_quality",
    "save_rows",
    "score_rows",
    "scores_by_kind",
    "text_windows",
]

REFERENCE = "f16"
CSV_COLUMNS = (
    "date", "model", "device", "kernels", "kv", "token_bytes", "length", "kind", "n", "nll", "kl", "kl_p99", "same_top",
    "right", "changed",
)  # fmt: skip

# Opens the model with this KV type, or with another setting that differs from the reference.
OpenLLM = Callable[[str], "LLM"]
OnStep = Callable[[str], None]  # the current measurement
Rows = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TextScore:
    """Scores of the predictions of a text's tokens, except the first token of each window."""

    n_tokens: int
    nll: float
    """Mean negative log-likelihood, in nat."""
    kl: float
    """Mean KL(f16 || type), in nat."""
    kl_p99: float
    """99th percentile of the KL divergence."""
    same_top: float
    """Share of positions at which f16 and the type have the same argmax."""


@dataclass(frozen=True, slots=True)
class RecallScore:
    """Questions of one kind about documents of one length."""

    length: int
    kind: str
    asked: int
    right: int
    """Answers whose tokens, and the end token after them, are all the argmax."""
    changed: int
    """Answers that are right with f16 and wrong with the type, or vice versa."""
    answer_nll: float
    """Mean negative log-likelihood of the answers' tokens, in nat."""

    @property
    def share(self) -> float:
        return self.right / self.asked


@dataclass(frozen=True, slots=True)
class TypeReport:
    """All measurements of one KV type."""

    model: str
    device: str
    device_name: str
    kernels: str
    kv: str
    """The KV type, or another setting that differs from the reference."""
    token_bytes: float
    """KV bytes per token, over all layers."""
    text: TextScore | None
    recall: tuple[RecallScore, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    is_right: bool
    nll: float  # sum over the tokens
    n_tokens: int


def text_windows(ids: Ids, window: int) -> list[Ids]:
    """Splits into windows of `window` tokens and a shorter last one. A last window of one token is dropped: it predicts
    nothing."""
    windows = [ids[at : at + window] for at in range(0, len(ids), window)]
    return [one for one in windows if len(one) > 1]


def measure_quality(
    open_llm: OpenLLM,
    kv_types: Sequence[str],
    windows: Sequence[Ids],
    documents: Sequence[EncodedDocument],
    on_step: OnStep = lambda text: None,
) -> Iterator[TypeReport]:
    """Yields a report per type as soon as it is measured. f16 always comes first, even if not requested.

    The f16 log-probabilities of the text are kept in a temporary file: 4 bytes per token and vocabulary entry.

    Raises:
        InvalidRequestError: there is nothing to measure, or an answer is longer than an append.
    """
    if not windows and not documents:
        raise InvalidRequestError("[quality] there is neither a text nor a document to measure with")
    n_rows = sum(len(one) - 1 for one in windows)
    baseline: list[Answer] = []
    with tempfile.TemporaryFile() as file:
        reference: NDArray[np.float32] | None = None
        for kv in dict.fromkeys((REFERENCE, *kv_types)):
            with open_llm(kv) as llm, llm.locked_session() as session:
                text = None
                if windows:
                    if reference is None:
                        reference = np.memmap(file, np.float32, "w+", shape=(n_rows, llm.info.vocab))
                    on_step(f"{kv}: {n_rows} tokens of text")
                    text = _score_text(session, windows, reference, kv == REFERENCE)
                answers = []
                for i, document in enumerate(documents):
                    on_step(f"{kv}: document {i + 1} of {len(documents)}, {document.length} tokens")
                    answers += answers_to(session, document, llm.end_ids)
                baseline = baseline or answers
                yield TypeReport(
                    model=llm.info.name,
                    device=llm.options.device,
                    device_name=llm.device_name,
                    kernels=llm.kernels,
                    kv=kv,
                    token_bytes=session.page_bytes / PAGE,
                    text=text,
                    recall=scores_by_kind(documents, answers, baseline),
                )


# --- text


def score_rows(logits: NDArray[np.float32], ids: Ids, reference: NDArray[np.float32] | None) -> tuple[Rows, Rows]:
    """Returns ([n, 3], log-probabilities). Per row: the NLL of the id, the KL divergence of the logits [n, vocab] from
    the reference's log-probabilities, and whether the argmaxes are equal. reference None: the logits' own
    log-probabilities.
    """
    own = log_softmax(logits.astype(np.float64))
    nll = -own[np.arange(len(ids)), ids]
    if reference is None:
        return np.stack([nll, np.zeros_like(nll), np.ones_like(nll)], axis=1), own
    wanted = reference.astype(np.float64)
    kl = (np.exp(wanted) * (wanted - own)).sum(axis=1)
    return np.stack([nll, kl, wanted.argmax(axis=1) == own.argmax(axis=1)], axis=1), own


def _score_text(
    session: _engine.Session, windows: Sequence[Ids], reference: NDArray[np.float32], is_reference: bool
) -> TextScore:
    """Scores the windows. For the reference it writes the log-probabilities to the file; for other types it reads
    them."""
    scores, done = [], 0
    for ids in windows:
        session.reset()
        for at in range(0, len(ids) - 1, MAX_APPEND):
            chunk = ids[at : min(at + MAX_APPEND, len(ids) - 1)]
            logits, _ = session.append(chunk)
            session.commit(list(range(len(chunk))))
            rows = slice(done, done + len(chunk))
            following = ids[at + 1 : at + 1 + len(chunk)]
            score, own = score_rows(logits, following, None if is_reference else reference[rows])
            if is_reference:
                reference[rows] = own
            scores.append(score)
            done += len(chunk)
    table = np.concatenate(scores)
    nll, kl, same_top = table.mean(axis=0).tolist()
    return TextScore(len(table), nll, kl, float(np.percentile(table[:, 1], 99)), same_top)


# --- recall


def answers_to(session: _engine.Session, document: EncodedDocument, end_ids: Sequence[int]) -> list[Answer]:
    """The answers to a document's questions: one prefill of the shared prefix, then an append per question."""
    shared, held = document.n_shared, -1
    answers = []
    for question in document.questions:
        whole = np.concatenate([question.prompt, question.answer])
        if len(question.answer) >= MAX_APPEND:
            raise InvalidRequestError(f"[quality] an answer has {len(question.answer)} tokens; {MAX_APPEND - 1} fit")
        begin = shared if len(whole) - shared <= MAX_APPEND else len(question.prompt) - 1
        if begin != held or begin > shared:
            session.sync(whole[:begin])
            held = begin
        logits, _ = session.append(whole[begin:])
        answers.append(_answer(logits[len(question.prompt) - 1 - begin :], question, end_ids))
    return answers


def _answer(logits: NDArray[np.float32], question: EncodedQuestion, end_ids: Sequence[int]) -> Answer:
    """logits: [len(answer) + 1, vocab], before each token of the answer and before its end."""
    n = len(question.answer)
    likeliest = logits.argmax(axis=1)
    is_right = bool((likeliest[:n] == question.answer).all()) and int(likeliest[n]) in end_ids
    nll = -log_softmax(logits[:n].astype(np.float64))[np.arange(n), question.answer]
    return Answer(is_right, float(nll.sum()), n)


def scores_by_kind(
    documents: Sequence[EncodedDocument], answers: Sequence[Answer], baseline: Sequence[Answer]
) -> tuple[RecallScore, ...]:
    """A score per length and kind, in the order of their first questions; `changed` counts against the baseline."""
    cells: dict[tuple[int, str], list[tuple[Answer, Answer]]] = {}
    keys = [(document.length, question.kind) for document in documents for question in document.questions]
    for key, own, other in zip(keys, answers, baseline, strict=True):
        cells.setdefault(key, []).append((own, other))
    return tuple(
        RecallScore(
            length,
            kind,
            asked=len(pairs),
            right=sum(own.is_right for own, _ in pairs),
            changed=sum(own.is_right != other.is_right for own, other in pairs),
            answer_nll=sum(own.nll for own, _ in pairs) / sum(own.n_tokens for own, _ in pairs),
        )
        for (length, kind), pairs in cells.items()
    )


# --- files


def save_rows(file: Path, report: TypeReport) -> None:
    """Appends a row for the text, and one per length and kind of document, to a CSV file, and creates the file if it is
    missing. `n` counts tokens of the text (kind "text") or questions.

    Raises:
        FormatError: the file has other columns.
    """
    is_new = not file.exists()
    if not is_new and file.read_text().partition("\n")[0].split(",") != list(CSV_COLUMNS):
        raise FormatError(f"{file} has other columns than {', '.join(CSV_COLUMNS)}; name a new file")
    common = {
        "date": date.today().isoformat(),
        "model": report.model,
        "device": report.device_name,
        "kernels": report.kernels,
        "kv": report.kv,
        "token_bytes": f"{report.token_bytes:g}",
    }
    with file.open("a", newline="") as out:
        writer = csv.DictWriter(out, CSV_COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        if (text := report.text) is not None:
            numbers = {name: f"{getattr(text, name):.6g}" for name in ("nll", "kl", "kl_p99", "same_top")}
            writer.writerow({**common, "kind": "text", "n": text.n_tokens, **numbers})
        for cell in report.recall:
            where = {"length": cell.length, "kind": cell.kind, "n": cell.asked}
            numbers = {"nll": f"{cell.answer_nll:.6g}", "right": f"{cell.right}", "changed": f"{cell.changed}"}
            writer.writerow({**common, **where, **numbers})
