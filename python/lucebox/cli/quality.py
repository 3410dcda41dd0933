"""`lucebox quality`: what the types of the KV cache cost, or block-sparse attention of prompts: NLL and KL divergence
of a text, right answers about long documents."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lucebox.api import LLM
from lucebox.cli import console, options, quality_compression
from lucebox.cli.session import check_files
from lucebox.errors import InvalidRequestError
from lucebox.generation.prefix_cache.plan import PAGE
from lucebox.local_files import read_text
from lucebox.measure.needle import BUILT_IN, Document, EncodedDocument, encode_documents, load_documents, make_documents
from lucebox.measure.quality import REFERENCE, TypeReport, measure_quality, save_rows, text_windows
from lucebox.models.assets import TextAssets
from lucebox.models.resolve import resolve
from lucebox.options import EngineOptions
from lucebox.text import Ids

DESCRIPTION = """Measure what each type of the KV cache costs in quality, compared with f16.

--text: mean negative log-likelihood (NLL) of a text, and the KL divergence of the predictions from those with f16.
--recall: the share of right answers to questions about facts in long documents. An answer is right if each of its
tokens, and then an end token, is the most likely one. "builtin" hides facts between lines of Python source; FILE has a
JSON object a line: {"document": "...", "length": 4096, "questions": [{"question": "...", "answer": "...", "kind":
"city"}]}.
--sparse-prefill: with --recall, block-sparse attention of prompts in place of types of the KV cache, all in f16.
--prefill-drafter: with --recall, the share of right answers to compressed prompts in place of types of the KV cache,
compared with full prompts."""
JSON_HELP = "print one JSON object with every number"
DEFAULT_KV = "f16,q8_0,q4_0,wht4,tq3_0,wht3"


def add_parser(commands: options.Subparsers, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "quality",
        usage="lucebox quality MODEL [flags]",
        help=about,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_model(parser)
    parser.add_argument(
        "--kv",
        dest="kv_types",
        type=lambda text: tuple(text.split(",")),
        default=DEFAULT_KV,
        metavar="TYPE,K/V",
        help=f"types to measure; f16 is always measured too (default {DEFAULT_KV})",
    )
    parser.add_argument(
        "--sparse-prefill",
        dest="sparse_shares",
        type=parse_shares,
        default=(),
        metavar="A,A",
        help="shares of the largest block's weight that a block must have: 0.5,0.9",
    )
    parser.add_argument("--text", metavar="FILE", help="the text whose tokens are predicted")
    parser.add_argument(
        "--window", type=int, default=2048, metavar="N", help="cut the text into windows of N tokens (default 2048)"
    )
    parser.add_argument(
        "--tokens", type=int, default=8192, metavar="N", help="tokens of the text at most (default 8192)"
    )
    parser.add_argument("--recall", metavar="FILE", help=f'documents with questions: a file, or "{BUILT_IN}"')
    parser.add_argument(
        "--lengths", type=parse_lengths, default="4096", metavar="N,N",
        help="tokens of the builtin documents (default 4096)",
    )  # fmt: skip
    parser.add_argument(
        "--limit", type=int, default=4, metavar="N",
        help="documents per length; a builtin document has ten questions, two of each kind (default 4)",
    )  # fmt: skip
    parser.add_argument(
        "--filler", metavar="FILE", help="the text between the builtin facts. Not given: Python's standard library"
    )
    quality_compression.add_flags(parser)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also append a row per number to this CSV file")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="also plot the results; the file ending chooses the format"
    )
    options.add_engine(
        parser,
        hidden={
            "kv",
            "sparse_prefill",
            "draft",
            "draft_budget",
            "prefill_compression",
            "prefill_threshold",
            "prefill_keep_ratio",
        },
    )
    return parser


def execute(args: argparse.Namespace) -> int:
    check(args)
    if hasattr(args, "prefill_drafter"):
        return quality_compression.execute(args, raw_documents)
    flags = options.given(args, EngineOptions)
    with console.loading() as progress:
        path = resolve(args.model, offline=args.offline, progress=progress).path
    assets = TextAssets.load(path)
    windows = read_windows(args, assets)
    documents = read_documents(args, assets)
    prompts = [len(one.prompt) + len(one.answer) for document in documents for one in document.questions]
    longest = max([len(one) for one in windows] + prompts)
    flags.setdefault("context", -(-longest // PAGE) * PAGE)
    reports: list[TypeReport] = []
    with console.status() as show:
        variants = variants_of(args)
        measured = measure_quality(
            lambda name: LLM(path, **flags, **variants[name], prefix_cache=0, sessions=1, draft="none"),
            list(variants),
            windows,
            documents,
            show,
        )
        for report in measured:
            reports.append(report)
            if args.csv:
                save_rows(args.csv, report)
    if args.json:
        console.print_json({"types": [dataclasses.asdict(report) for report in reports]})
    else:
        print_reports(reports)
    if args.plot:
        from lucebox.measure.plots import save_quality_plot

        save_quality_plot(reports, args.plot)
    return 0


def variants_of(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Options of the model by what the table calls them, the reference among them."""
    if not args.sparse_shares:
        return {kv: {"kv": kv} for kv in (REFERENCE, *args.kv_types)}
    shares = {f"{REFERENCE} sparse {share:g}": share for share in args.sparse_shares}
    return {name: {"kv": "f16", "sparse_prefill": share} for name, share in ({REFERENCE: 0.0} | shares).items()}


def parse_shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(item) for item in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers with commas between them, got {text!r}") from None


def check(args: argparse.Namespace) -> None:
    """Checks the flags before minutes of measuring."""
    if args.text is None and args.recall is None:
        args.parser.error("nothing to measure: give --text or --recall")
    if args.sparse_shares and (args.recall is None or args.text or hasattr(args, "prefill_drafter")):
        args.parser.error("--sparse-prefill needs --recall, without --text and --prefill-drafter")
    if hasattr(args, "prefill_drafter") and (args.recall is None or args.text or args.plot):
        args.parser.error("--prefill-drafter needs --recall, without --text and --plot")
    if min(args.window, args.tokens) < 2 or args.limit < 1:
        args.parser.error("--window and --tokens must be at least 2, --limit at least 1")
    for options_of in variants_of(args).values():
        EngineOptions(**options_of)
    check_files(args.text, args.filler, None if args.recall == BUILT_IN else args.recall)
    if args.plot:
        from lucebox.figures import check_plot

        check_plot(args.plot)
    if args.csv and not args.csv.parent.is_dir():
        raise InvalidRequestError(f"cannot write {args.csv}: there is no folder {args.csv.parent}")


def read_windows(args: argparse.Namespace, assets: TextAssets) -> list[Ids]:
    if args.text is None:
        return []
    ids = assets.tokenizer.encode(read_text(args.text), special=False)
    windows = text_windows(np.asarray(ids[: args.tokens], np.int32), args.window)
    if not windows:
        raise InvalidRequestError(f"{args.text} has fewer than two tokens")
    return windows


def read_documents(args: argparse.Namespace, assets: TextAssets) -> list[EncodedDocument]:
    return [] if args.recall is None else encode_documents(raw_documents(args, assets), assets)


def raw_documents(args: argparse.Namespace, assets: TextAssets) -> list[Document]:
    """The documents of --recall."""
    if args.recall != BUILT_IN:
        return load_documents(Path(args.recall), args.limit)
    filler = None if args.filler is None else read_text(args.filler)
    return make_documents(args.lengths, args.limit, assets, filler=filler)


def parse_lengths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(item) for item in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers with commas between them, got {text!r}") from None


def print_reports(reports: Sequence[TypeReport]) -> None:
    first = reports[0]
    console.write(f"{first.model} on {first.device_name}: {first.device}, {first.kernels}\n")
    if first.text is not None:
        console.write(f"\npredictions of {first.text.n_tokens} tokens, compared with {REFERENCE}\n")
        headings = ["bytes/token", "NLL", "KL", "KL 99 %", "same top"]
        print_numbers("type", headings, [text_row(report) for report in reports])
    for length in dict.fromkeys(cell.length for cell in first.recall):
        kinds = [cell for cell in first.recall if cell.length == length]
        counts = {cell.asked for cell in kinds}
        asked = f"{counts.pop()} questions" if len(counts) == 1 else "questions"
        console.write(f"\nright answers about documents of {length} tokens, {asked} of each kind\n")
        headings = [*(cell.kind for cell in kinds), "all", f"changed from {REFERENCE}", "answer NLL"]
        print_numbers("type", headings, [recall_row(report, length) for report in reports])


def text_row(report: TypeReport) -> list[str]:
    text = report.text
    assert text is not None
    kl, kl_p99 = ("-", "-") if report.kv == REFERENCE else (f"{text.kl:.2e}", f"{text.kl_p99:.2e}")
    return [report.kv, f"{report.token_bytes:g}", f"{text.nll:.4f}", kl, kl_p99, f"{text.same_top:.2%}"]


def recall_row(report: TypeReport, length: int) -> list[str]:
    cells = [cell for cell in report.recall if cell.length == length]
    asked = sum(cell.asked for cell in cells)
    nll = sum(cell.answer_nll * cell.asked for cell in cells) / asked
    return [
        report.kv, *(f"{cell.share:.1%}" for cell in cells), f"{sum(cell.right for cell in cells) / asked:.1%}",
        str(sum(cell.changed for cell in cells)), f"{nll:.4f}",
    ]  # fmt: skip


def print_numbers(first: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    columns: list[Any] = [first, *((heading, "right") for heading in headings)]
    console.print_table(columns, rows)
