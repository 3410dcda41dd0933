"""`lucebox bench`: prefill and decode speed, and the share of this machine's read bandwidth that decoding reaches."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from lucebox.bench import Report, Summary, measure
from lucebox.cli import console, options
from lucebox.cli.session import open_model

DESCRIPTION = """Measure how fast a model runs here.

pp N is a prefill of N tokens from an empty context, tg N the decoding of N tokens one by one after --depth tokens;
both without text or sampling. Every test runs once unmeasured, then --runs times. GB/s counts the weights read per
decoded token; its share is of the read bandwidth of the target, measured in the same process."""
JSON_HELP = "print one JSON object with every run"


def add_parser(commands: options.Subparsers) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "bench",
        usage="lucebox bench MODEL [flags]",
        help="measure prefill and decode speed",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_model(parser)
    sizes: dict[str, Any] = {"type": parse_sizes, "metavar": "N,N"}
    parser.add_argument("-p", "--prefill", default=(128, 512), help="prefill sizes; 0: none (default 128,512)", **sizes)
    parser.add_argument("-n", "--decode", default=(64,), help="decode sizes; 0: none (default 64)", **sizes)
    parser.add_argument("-d", "--depth", type=int, default=0, metavar="N", help="tokens before the first decoded one")
    parser.add_argument("-r", "--runs", type=int, default=5, metavar="N", help="measured runs per test (default 5)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw the table; the ending chooses the format")
    options.add_engine(parser)
    return parser


def execute(args: argparse.Namespace) -> int:
    if not args.prefill and not args.decode:
        args.parser.error("nothing to measure: --prefill and --decode are both 0")
    if not hasattr(args, "context"):  # enough for the tests; a model's own maximum would only reserve memory
        args.context = max([*args.prefill, *(args.depth + n for n in args.decode)])
    with open_model(args) as llm, console.status() as show:
        report = measure(
            llm,
            prefill=args.prefill,
            decode=args.decode,
            depth=args.depth,
            runs=args.runs,
            on_run=lambda label, run: show(f"{label}: " + (f"run {run} of {args.runs}" if run else "warming up")),
        )
    if args.plot:
        from lucebox.plots import save_bench_plot

        save_bench_plot(report, args.plot)
    if args.json:
        console.print_json(as_json(report))
    else:
        print_report(report)
    return 0


def parse_sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(item) for item in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers with commas between them, got {text!r}") from None
    if min(sizes) < 0:
        raise argparse.ArgumentTypeError(f"sizes cannot be negative, got {text!r}")
    return tuple(size for size in sizes if size)


def as_json(report: Report) -> dict[str, Any]:
    measurements = [
        {
            **dataclasses.asdict(m),
            "label": m.label,
            "tok_s": m.tok_s,
            "gb_s": m.gb_s,
            "bandwidth_share": report.share(m),
        }
        for m in report.measurements
    ]
    return {**dataclasses.asdict(report), "measurements": measurements}


def print_report(report: Report) -> None:
    console.write(
        f"{report.model} ({report.architecture}, {console.size(report.file_bytes)}) on {report.device}: "
        f"{report.target}, {report.kernels}, {report.activations} activations\n"
        f"it reads {report.bandwidth_gb_s:.1f} GB/s\n\n"
    )
    rows = []
    for measurement in report.measurements:
        share = report.share(measurement)
        rows.append(
            [
                measurement.label,
                f"{measurement.tok_s.median:,.1f}",
                spread(measurement.tok_s),
                "" if measurement.gb_s is None else f"{measurement.gb_s:.1f}",
                "" if share is None else f"{share:.0%}",
                str(len(measurement.seconds)),
            ]
        )
    console.print_table(
        [
            "test",
            ("tok/s", "right"),
            ("min..max", "right"),
            ("GB/s", "right"),
            ("of bandwidth", "right"),
            ("runs", "right"),
        ],
        rows,
    )


def spread(speeds: Summary) -> str:
    return f"{speeds.min:,.1f}..{speeds.max:,.1f}"
