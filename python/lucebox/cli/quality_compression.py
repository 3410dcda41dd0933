"""`lucebox quality --prefill-drafter`: right answers about long documents with compressed prompts."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from lucebox.api import LLM
from lucebox.cli import console, options
from lucebox.compression.keep_ratio import KeepRatio
from lucebox.generation.prefix_cache.plan import PAGE
from lucebox.measure.compression import FULL, KeepReport, measure_compression, save_keep_rows
from lucebox.measure.needle import Document, encode_text, text_of
from lucebox.models.assets import TextAssets
from lucebox.models.resolve import resolve
from lucebox.options import EngineOptions

DEFAULT_KEEP = "0.05,0.1,0.2"

ReadDocuments = Callable[[argparse.Namespace, TextAssets], list[Document]]


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep",
        type=parse_keeps,
        default=DEFAULT_KEEP,
        metavar="SHARE,SHARE",
        help=f"with --prefill-drafter, the keep ratios to measure (default {DEFAULT_KEEP})",
    )


def parse_keeps(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(item) for item in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected shares with commas between them, got {text!r}") from None
    for share in shares:
        KeepRatio.parse(share)
    return shares


def execute(args: argparse.Namespace, read_documents: ReadDocuments) -> int:
    flags = options.given(args, EngineOptions)
    with console.loading() as progress:
        path = resolve(args.model, offline=args.offline, progress=progress).path
    assets = TextAssets.load(path)
    documents = read_documents(args, assets)
    longest = max(
        len(encode_text(text_of(document, one) + one.answer, assets))
        for document in documents
        for one in document.questions
    )
    flags.setdefault("context", (longest // PAGE + 2) * PAGE)
    with console.status() as show, LLM(path, **flags, draft="none", prefix_cache=0, sessions=1) as llm:
        reports = measure_compression(llm, assets, documents, args.keep, show)
    for report in reports:
        if args.csv:
            save_keep_rows(args.csv, report)
    if args.json:
        console.print_json({"keep_ratios": [dataclasses.asdict(report) for report in reports]})
    else:
        print_reports(reports)
    return 0


def print_reports(reports: Sequence[KeepReport]) -> None:
    first = reports[0]
    console.write(f"{first.model} on {first.device_name}: {first.device}, {first.kernels}; scorer {first.scorer}\n")
    for length in dict.fromkeys(cell.length for cell in first.recall):
        kinds = [cell.kind for cell in first.recall if cell.length == length]
        asked = sum(cell.asked for cell in first.recall if cell.length == length)
        console.write(f"\nright answers about documents of {length} tokens, {asked} questions\n")
        headings = [*kinds, "all", "changed from full", "answer NLL", "prompt tokens", "scorer s"]
        columns: list[Any] = ["keep", *((heading, "right") for heading in headings)]
        console.print_table(columns, [row(report, length) for report in reports])


def row(report: KeepReport, length: int) -> list[str]:
    cells = [cell for cell in report.recall if cell.length == length]
    prompt = next(one for one in report.prompts if one.length == length)
    asked = sum(cell.asked for cell in cells)
    return [
        "full" if report.keep == FULL else f"{report.keep:g}",
        *(f"{cell.share:.1%}" for cell in cells),
        f"{sum(cell.right for cell in cells) / asked:.1%}",
        str(sum(cell.changed for cell in cells)),
        f"{sum(cell.answer_nll * cell.asked for cell in cells) / asked:.4f}",
        f"{prompt.kept_tokens:.0f}",
        "" if report.keep == FULL else f"{prompt.score_s:.2f}",
    ]
