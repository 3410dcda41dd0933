"""The part of `lucebox bench` about speculation: `--draft`, `--suite` and `--replay`."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lucebox.api import LLM
from lucebox.cli import console, options
from lucebox.measure.accepted_lengths import BUNDLED, load_lengths
from lucebox.measure.drafts import WARM_UP_TOKENS, DraftReport, PromptRun, measure_drafts, measure_replay, save_runs
from lucebox.measure.prompts import BUILT_IN, SUITES, encode, load_prompts
from lucebox.models.assets import TextAssets
from lucebox.models.resolve import resolve
from lucebox.options import EngineOptions
from lucebox.results import DraftCounts

__all__ = ["add_flags", "check_unused", "execute", "is_wanted"]

SUITE_TEMPERATURES = (0.0, 1.0)
SUITE_PROMPTS = 10
N_TOKENS = 256
REPLAY_PROMPT = 520  # tokens, as in benchmarks/README.md
DRAFT_ROOM = 64  # tokens: room for a draft beyond the text
MAX_BAR = 40  # characters of the longest bar of the histogram


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("speculation", "with --draft, --suite or --replay, in place of the tests above")
    group.add_argument(
        "--suite",
        metavar="NAME",
        help=f"prompts: {', '.join(SUITES)} (from the hub), or a file (.jsonl, .jsonl.gz, .parquet) whose rows have "
        '"prompt" or "messages". Not given: six built-in prompts. Without --draft, it means --draft auto',
    )
    group.add_argument(
        "--prompts",
        type=parse_count,
        default=argparse.SUPPRESS,
        metavar="N",
        help=f'use the first N prompts of the suite, or "all" (default {SUITE_PROMPTS})',
    )
    group.add_argument(
        "--tokens",
        type=int,
        default=argparse.SUPPRESS,
        metavar="N",
        help=f"tokens per answer at most (default {N_TOKENS})",
    )
    group.add_argument(
        "--temperature",
        type=parse_temperatures,
        metavar="X,X",
        help="sample at each of these temperatures; 0 is greedy (default 0, with --suite 0,1)",
    )
    group.add_argument(
        "--replay",
        type=Path,
        nargs="?",
        const=BUNDLED,
        metavar="FILE",
        help="draw the accepted tokens of each verify from the histograms of this JSON file, in place of prompts: for "
        "synthetic weights, which accept nothing. Without FILE, histograms made for the kind of drafter: 8.31, 7.04 "
        "and 6.14 tokens per verify for DFlash, 2.87 for MTP",
    )
    group.add_argument("--csv", type=Path, metavar="FILE", help="also append a row per prompt to this CSV file")


def is_wanted(args: argparse.Namespace) -> bool:
    return args.suite is not None or args.replay is not None or getattr(args, "draft", "none") != "none"


def check_unused(args: argparse.Namespace) -> None:
    """Refuses flags that only speculation has."""
    given = {
        "--csv": args.csv is not None,
        "--tokens": hasattr(args, "tokens"),
        "--prompts": hasattr(args, "prompts"),
        "--temperature": args.temperature is not None,
    }
    for flag, is_given in given.items():
        if is_given:
            args.parser.error(
                f"{flag} is for --draft, --suite or --replay, which compare decoding with and without drafts"
            )


def execute(args: argparse.Namespace) -> int:
    """Measures plain and speculative decoding; prints, saves and plots both. 1 where tokens differ without a tie."""
    args.tokens = getattr(args, "tokens", N_TOKENS)
    if args.tokens < 1:
        args.parser.error("--tokens must be at least 1")
    if args.replay and (args.suite or args.temperature):
        args.parser.error("--replay draws the acceptance: it has neither prompts nor a temperature")
    flags = options.given(args, EngineOptions)
    draft = flags.pop("draft", "auto")
    measured = replay(args, draft, flags) if args.replay else compare(args, draft, flags)
    reports = []
    for report in measured:
        reports.append(report)
        if args.csv:
            save_runs(args.csv, report)
        if not args.json:
            print_report(report)
    if args.json:
        console.print_json({"speculation": [as_json(report) for report in reports]})
    if args.plot:
        from lucebox.measure.plots import save_drafts_plot

        save_drafts_plot(reports, args.plot)
    n_wrong = sum(len(report.mismatches) for report in reports)
    if n_wrong:
        console.error(f"{n_wrong} prompts gave other tokens with drafts than without, and not for a tie")
    return 1 if n_wrong else 0


def compare(args: argparse.Namespace, draft: str, flags: dict[str, Any]) -> Iterator[DraftReport]:
    """A report per temperature."""
    suite = args.suite or BUILT_IN
    n_prompts = getattr(args, "prompts", SUITE_PROMPTS)
    with console.loading() as progress:
        path = resolve(args.model, offline=args.offline, progress=progress).path
        loaded = load_prompts(suite, n_prompts, offline=args.offline, progress=progress)
    assets = TextAssets.load(path)
    prompts = [(prompt.name, encode(prompt, assets.tokenizer, assets.template)) for prompt in loaded]
    # Enough for the prompts; the model's maximum would waste memory.
    n_tokens = max(2 * WARM_UP_TOKENS, max(len(ids) for _, ids in prompts) + args.tokens)
    flags.setdefault("context", n_tokens + DRAFT_ROOM)
    for temperature in args.temperature or (SUITE_TEMPERATURES if args.suite else (0.0,)):
        with console.status() as show:
            report = measure_drafts(
                opener(args, flags, show),
                draft,
                prompts,
                suite=suite,
                max_tokens=args.tokens,
                temperature=temperature,
                on_prompt=lambda name, done, total: show(f"{name}: prompt {done + 1} of {total}"),
            )
        yield report


def replay(args: argparse.Namespace, draft: str, flags: dict[str, Any]) -> Iterator[DraftReport]:
    """One report, a run per histogram."""
    histograms = load_lengths(args.replay)
    flags.setdefault("context", REPLAY_PROMPT + args.tokens + DRAFT_ROOM)
    with console.status() as show:
        report = measure_replay(
            opener(args, flags, show),
            draft,
            np.arange(REPLAY_PROMPT, dtype=np.int32),
            histograms,
            max_tokens=args.tokens,
            on_prompt=lambda name, done, total: show(f"{name}: {done + 1} of {total}"),
        )
    yield report


def opener(args: argparse.Namespace, flags: Mapping[str, Any], show: Callable[[str], None]) -> Callable[[str], LLM]:
    """Opens the model with a drafter and the other engine flags, and shows the progress."""

    def progress(what: str, done: int, total: int) -> None:
        show(f"{what}: {done / total:.0%}" if total else what)

    fixed = {"offline": args.offline, "progress": progress, "prefix_cache": 0, "sessions": 1}  # every prompt runs once
    noted: set[str] = set()

    def open_with(draft: str) -> LLM:
        llm = LLM(args.model, **{**flags, **fixed, "draft": draft})
        for text in llm.unused_gpus:
            if text not in noted:
                noted.add(text)
                console.note(f"note: {text}")
        return llm

    return open_with


def parse_count(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'expected a number or "all", got {text!r}')
    return int(text)


def parse_temperatures(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(item) for item in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers with commas between them, got {text!r}") from None
    if not min(values) >= 0:
        raise argparse.ArgumentTypeError(f"a temperature cannot be negative, got {text!r}")
    return values


def as_json(report: DraftReport) -> dict[str, Any]:
    runs = [
        {
            **dataclasses.asdict(run),
            "ratio": run.ratio,
            "tokens_per_verify": run.drafts.tokens_per_verify,
        }
        for run in report.runs
    ]
    replayed = [{**dataclasses.asdict(one), "tokens_per_verify": one.tokens_per_verify} for one in report.replayed]
    derived = ("plain_tok_s", "speculative_tok_s", "ratio", "tokens_per_verify", "tokens_per_step", "by_length")
    facts = {**dataclasses.asdict(report), "runs": runs, "replayed": replayed}
    return facts | {name: getattr(report, name) for name in derived}


def print_report(report: DraftReport) -> None:
    budget = "chosen per step" if report.draft_budget is None else f"{report.draft_budget} tokens"
    console.write(
        f"{report.model} on {report.device_name}: {report.device}, {report.kernels}\n"
        f"draft {report.draft}, budget {budget}; "
    )
    if report.replayed:
        console.write("accepted lengths replayed, so the texts mean nothing\n\n")
    else:
        console.write(f"{report.suite} prompts, temperature {report.temperature:g}\n\n")
    headings = [
        "prompt", "prompt tokens", "tokens", "plain tok/s", "speculative tok/s", "ratio", "tokens/verify",
        "tokens/step", "accepted",
    ]  # fmt: skip
    rows = [
        [
            run.name, str(run.prompt_tokens), str(run.tokens), f"{run.plain_tok_s:,.1f}",
            f"{run.speculative_tok_s:,.1f}", f"{run.ratio:.2f}", f"{run.drafts.tokens_per_verify:.2f}",
            f"{run.tokens_per_step:.2f}", accepted_share(run.drafts),
        ]
        for run in report.runs
    ]  # fmt: skip
    rows.append(
        [
            "mean", "", "", f"{report.plain_tok_s:,.1f}", f"{report.speculative_tok_s:,.1f}", f"{report.ratio:.2f}",
            f"{report.tokens_per_verify:.2f}", f"{report.tokens_per_step:.2f}", "",
        ]
    )  # fmt: skip
    console.print_table([headings[0], *((heading, "right") for heading in headings[1:])], rows)
    print_replayed(report)
    print_lengths(report)
    print_parts(report)
    for run in report.runs:
        print_difference(run)
    console.write("\n")


def accepted_share(drafts: DraftCounts) -> str:
    return f"{drafts.accepted_tokens / drafts.drafted_tokens:.0%}" if drafts.drafted_tokens else "-"


def print_lengths(report: DraftReport) -> None:
    """Writes the histogram of accepted lengths."""
    total = sum(report.by_length)
    if not total:
        console.write("\nno draft was verified\n")
        return
    console.write("\naccepted tokens per verify\n")
    most = max(report.by_length)
    last = max(n for n, count in enumerate(report.by_length) if count)
    rows = [
        [str(n), str(count), f"{count / total:.1%}", "#" * round(MAX_BAR * count / most)]
        for n, count in enumerate(report.by_length[: last + 1])
    ]
    console.print_table([("accepted", "right"), ("verifies", "right"), ("share", "right"), ""], rows)


def print_replayed(report: DraftReport) -> None:
    """Writes where the histograms come from. A draft may be too short for their longest lengths."""
    if not report.replayed:
        return
    console.write("\n")
    for one, run in zip(report.replayed, report.runs, strict=True):
        kind = "synthetic" if one.is_synthetic else "recorded"
        console.write(
            f"{one.name}: {kind}, {one.tokens_per_verify:.2f} tokens/verify, reached "
            f"{run.drafts.tokens_per_verify:.2f}; {one.source}\n"
        )


def print_parts(report: DraftReport) -> None:
    """Writes the time of each part of a step."""
    parts = report.parts
    if parts is None:
        return
    console.write(
        f"\nparts of a step, mean of {parts.steps} steps that verify {parts.rows:.1f} rows, each part waited for\n"
    )
    whole = sum(parts.by_name.values())
    rows = [[name, f"{ms:.3f}", f"{ms / whole:.1%}"] for name, ms in parts.by_name.items()]
    console.print_table(["part", ("ms", "right"), ("share", "right")], rows)


def print_difference(run: PromptRun) -> None:
    difference = run.difference
    if difference is not None:
        kind = "a tie" if difference.is_tie else "no tie"
        console.write(
            f"\n{run.name}: other tokens from token {difference.at} on, {kind}: plain {difference.plain}, "
            f"speculative {difference.speculative}, margin {difference.margin:.3g}\n"
        )
