"""The part of `lucebox bench` about speculation: `--draft` and `--suite`."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lucebox.api import LLM
from lucebox.assets import TextAssets
from lucebox.cli import console, options
from lucebox.options import EngineOptions
from lucebox.resolve import resolve
from lucebox.results import DraftCounts
from lucebox.speculation import WARM_UP_TOKENS, DraftReport, PromptRun, measure_drafts, save_runs
from lucebox.suites import BUILT_IN, SUITES, encode, load_prompts

__all__ = ["add_flags", "execute", "is_wanted"]

SUITE_TEMPERATURES = (0.0, 1.0)
SUITE_PROMPTS = 10
MAX_BAR = 40  # characters of the longest bar of the histogram


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("speculation", "with --draft or --suite, in place of the tests above")
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
    group.add_argument("--tokens", type=int, default=256, metavar="N", help="tokens per answer at most (default 256)")
    group.add_argument(
        "--temperature",
        type=parse_temperatures,
        metavar="X,X",
        help="sample at each of these temperatures; 0 is greedy (default 0, with --suite 0,1)",
    )
    group.add_argument("--csv", type=Path, metavar="FILE", help="also append a row per prompt to this CSV file")


def is_wanted(args: argparse.Namespace) -> bool:
    return args.suite is not None or getattr(args, "draft", "none") != "none"


def execute(args: argparse.Namespace) -> int:
    """Measures plain and speculative decoding; prints, saves and plots both. 1 where tokens differ without a tie."""
    if args.tokens < 1:
        args.parser.error("--tokens must be at least 1")
    suite = args.suite or BUILT_IN
    n_prompts = getattr(args, "prompts", SUITE_PROMPTS)
    flags = options.given(args, EngineOptions)
    draft = flags.pop("draft", "auto")
    with console.loading() as progress:
        path = resolve(args.model, offline=args.offline, progress=progress).path
        loaded = load_prompts(suite, n_prompts, offline=args.offline, progress=progress)
    assets = TextAssets.load(path)
    prompts = [(prompt.name, encode(prompt, assets.tokenizer, assets.template)) for prompt in loaded]
    # Enough for the prompts; the model's maximum would waste memory.
    flags.setdefault("context", max(2 * WARM_UP_TOKENS, max(len(ids) for _, ids in prompts) + args.tokens))
    reports = []
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
        reports.append(report)
        if args.csv:
            save_runs(args.csv, report)
        if not args.json:
            print_report(report)
    if args.json:
        console.print_json({"speculation": [as_json(report) for report in reports]})
    if args.plot:
        from lucebox.plots import save_drafts_plot

        save_drafts_plot(reports, args.plot)
    n_wrong = sum(len(report.mismatches) for report in reports)
    if n_wrong:
        console.error(f"{n_wrong} prompts gave other tokens with drafts than without, and not for a tie")
    return 1 if n_wrong else 0


def opener(args: argparse.Namespace, flags: Mapping[str, Any], show: Callable[[str], None]) -> Callable[[str], LLM]:
    """Opens the model with a drafter and the other engine flags, and shows the progress."""

    def progress(what: str, done: int, total: int) -> None:
        show(f"{what}: {done / total:.0%}" if total else what)

    fixed = {"offline": args.offline, "progress": progress, "prefix_cache": 0}  # every prompt runs once
    return lambda draft: LLM(args.model, **{**flags, **fixed, "draft": draft})


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
    derived = ("plain_tok_s", "speculative_tok_s", "ratio", "tokens_per_verify", "tokens_per_step", "by_length")
    return {**dataclasses.asdict(report), "runs": runs, **{name: getattr(report, name) for name in derived}}


def print_report(report: DraftReport) -> None:
    budget = "chosen per step" if report.draft_budget is None else f"{report.draft_budget} tokens"
    console.write(
        f"{report.model} on {report.device_name}: {report.device}, {report.kernels}\n"
        f"draft {report.draft}, budget {budget}; {report.suite} prompts, temperature {report.temperature:g}\n\n"
    )
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
    print_lengths(report)
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
    rows = [
        [str(n), str(count), f"{count / total:.1%}", "#" * round(MAX_BAR * count / most)]
        for n, count in enumerate(report.by_length)
    ]
    console.print_table([("accepted", "right"), ("verifies", "right"), ("share", "right"), ""], rows)


def print_difference(run: PromptRun) -> None:
    difference = run.difference
    if difference is not None:
        kind = "a tie" if difference.is_tie else "no tie"
        console.write(
            f"\n{run.name}: other tokens from token {difference.at} on, {kind}: plain {difference.plain}, "
            f"speculative {difference.speculative}, margin {difference.margin:.3g}\n"
        )
