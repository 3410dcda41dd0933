"""Accuracy of answers about long documents: compressed prompts against full prompts. The CLI shows the results."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lucebox.compression.anchors import anchored
from lucebox.compression.compress import spans_to_keep
from lucebox.compression.pieces import TokenCounts
from lucebox.compression.selection import joined
from lucebox.errors import FormatError, InvalidRequestError
from lucebox.measure.needle import Document, EncodedDocument, EncodedQuestion, encode_text, text_of
from lucebox.measure.quality import Answer, RecallScore, answers_to, scores_by_kind

if TYPE_CHECKING:
    from lucebox.api import LLM
    from lucebox.models.assets import TextAssets

__all__ = ["CSV_COLUMNS", "FULL", "KeepReport", "PromptLength", "measure_compression", "save_keep_rows"]

FULL = 1.0  # keep ratio of full prompts
CSV_COLUMNS = (
    "date", "model", "scorer", "device", "kernels", "anchors", "keep", "length", "kind", "n", "right", "changed", "nll",
    "prompt_tokens", "kept_tokens", "score_s",
)  # fmt: skip

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PromptLength:
    """Means over the prompts of one nominal length."""

    length: int
    prompt_tokens: float
    kept_tokens: float
    score_s: float
    """Seconds spent in the scorer; shared by all keep ratios."""


@dataclass(frozen=True, slots=True)
class KeepReport:
    """All answers with one keep ratio."""

    model: str
    scorer: str
    device: str
    device_name: str
    kernels: str
    anchors: bool
    keep: float
    """FULL: nothing is cut."""
    recall: tuple[RecallScore, ...]
    """`changed` compares with the full prompts."""
    prompts: tuple[PromptLength, ...]


def measure_compression(
    llm: LLM,
    assets: TextAssets,
    documents: Sequence[Document],
    keeps: Sequence[float],
    on_step: OnStep = lambda text: None,
) -> list[KeepReport]:
    """Yields the report for full prompts, then one per keep ratio. Every question is scored once and compressed per
    ratio.

    Raises:
        InvalidRequestError: the LLM has no scorer, there are no documents, or a keep ratio is out of range.
    """
    if llm.compressor is None:
        raise InvalidRequestError("[compression] there is no scorer: load the model with prefill_drafter")
    if not documents:
        raise InvalidRequestError("[compression] there is no document to ask about")
    scorer, with_anchors = llm.compressor.scorer, llm.options.prefill_anchors
    ratios = (FULL, *keeps)
    answers: dict[float, list[Answer]] = {keep: [] for keep in ratios}
    encoded: dict[float, list[EncodedDocument]] = {keep: [] for keep in ratios}
    seconds: list[float] = []  # scorer time per question
    for i, document in enumerate(documents):
        where = f"document {i + 1} of {len(documents)}, {document.length} tokens"
        questions: dict[float, list[EncodedQuestion]] = {keep: [] for keep in ratios}
        for question in document.questions:
            on_step(f"{where}: scores for {question.text}")
            text = text_of(document, question)
            began = time.perf_counter()
            scored = scorer.score(text)
            seconds.append(time.perf_counter() - began)
            if with_anchors:
                scored = anchored(scored, *scorer.body_and_question(scored))
            count = TokenCounts(assets.tokenizer.encode_with_starts(text)[1])
            answer = np.asarray(assets.tokenizer.encode(question.answer, special=False, add_bos=False), np.int32)
            for keep in ratios:
                shorter = text if keep == FULL else joined(text, spans_to_keep(scored, count, keep))
                questions[keep].append(EncodedQuestion(question.kind, encode_text(shorter, assets), answer))
        for keep in ratios:
            on_step(f"{where}: answers with {'the full prompts' if keep == FULL else f'keep ratio {keep:g}'}")
            encoded[keep].append(EncodedDocument(document.length, tuple(questions[keep])))
            with llm.locked_session() as session:
                answers[keep] += answers_to(session, encoded[keep][-1], llm.end_ids)
    return [
        KeepReport(
            model=llm.info.name,
            scorer=scorer.name,
            device=llm.options.device,
            device_name=llm.device_name,
            kernels=llm.kernels,
            anchors=with_anchors,
            keep=keep,
            recall=scores_by_kind(encoded[keep], answers[keep], answers[FULL]),
            prompts=_by_length(encoded[FULL], encoded[keep], seconds),
        )
        for keep in ratios
    ]


def _by_length(
    full: Sequence[EncodedDocument], kept: Sequence[EncodedDocument], seconds: Sequence[float]
) -> tuple[PromptLength, ...]:
    """Means over the questions about documents of each length."""
    rows: dict[int, list[tuple[float, float, float]]] = {}
    spent = iter(seconds)
    for before, after in zip(full, kept, strict=True):
        for a, b in zip(before.questions, after.questions, strict=True):
            rows.setdefault(before.length, []).append((len(a.prompt), len(b.prompt), next(spent)))
    means = {length: np.mean(values, axis=0).tolist() for length, values in rows.items()}
    return tuple(PromptLength(length, *values) for length, values in means.items())


def save_keep_rows(file: Path, report: KeepReport) -> None:
    """Appends a row per length and kind to a CSV file, and creates the file if it is missing.

    Raises:
        FormatError: the file has other columns.
    """
    is_new = not file.exists()
    if not is_new and file.read_text().partition("\n")[0].split(",") != list(CSV_COLUMNS):
        raise FormatError(f"{file} has other columns than {', '.join(CSV_COLUMNS)}; name a new file")
    prompts = {one.length: one for one in report.prompts}
    with file.open("a", newline="") as out:
        writer = csv.DictWriter(out, CSV_COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        for cell in report.recall:
            prompt = prompts[cell.length]
            writer.writerow(
                {
                    "date": date.today().isoformat(),
                    "model": report.model,
                    "scorer": report.scorer,
                    "device": report.device_name,
                    "kernels": report.kernels,
                    "anchors": int(report.anchors),
                    "keep": f"{report.keep:g}",
                    "length": cell.length,
                    "kind": cell.kind,
                    "n": cell.asked,
                    "right": cell.right,
                    "changed": cell.changed,
                    "nll": f"{cell.answer_nll:.6g}",
                    "prompt_tokens": f"{prompt.prompt_tokens:.0f}",
                    "kept_tokens": f"{prompt.kept_tokens:.0f}",
                    "score_s": f"{prompt.score_s:.3g}",
                }
            )
