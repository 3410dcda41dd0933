"""`lucebox bench`: speed of prefill, decoding and small appends, share of the read bandwidth, energy, time per kernel,
and numerics compared with the CPU."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lucebox.api import LLM
from lucebox.cli import bench_drafts, bench_sheet, console, options
from lucebox.cli.session import open_model
from lucebox.errors import InvalidRequestError, LuceboxError
from lucebox.measure.bench import MAX_APPEND, Measurement, Profile, Report, Summary, context_for, measure, profile
from lucebox.measure.numerics import N_IDS, Comparison, compare
from lucebox.measure.power_sweep import PowerPoint, load_points, measure_points, save_points
from lucebox.measure.timeline import CONTEXT, Timeline, as_numbers, measure_timeline, save_timeline_page, table
from lucebox.sizes import show_size

DESCRIPTION = """Measure the speed of a model on this machine.

pp N: prefill of N tokens from an empty context. tg N: greedy decoding of N tokens, one at a time, after --depth tokens.
N x tg (--parallel): N sequences decoded at the same time, tok/s of all; also relative to one.
b N (--batch): one append of N rows with the logits of each, as in verifying N drafted tokens; also relative to one row.
Every test has one warm-up run and --runs measured runs. GB/s counts the weights read per decoded token or append, and
its share is of the device's read bandwidth, measured in the same process. tok/J counts the energy of the device alone,
where its driver reports it.

With --draft or --suite, plain and speculative decoding of the same prompts instead: speed, acceptance, and whether both
wrote the same tokens."""
JSON_HELP = "print one JSON object with every run"
ABSENT = "-"


def add_parser(commands: options.Subparsers, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "bench",
        usage="lucebox bench MODEL [flags]",
        help=about,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_model(parser)
    sizes: dict[str, Any] = {"type": parse_sizes, "metavar": "N,N"}
    parser.add_argument("-p", "--prefill", default=(128, 512), help="prefill sizes; 0: none (default 128,512)", **sizes)
    parser.add_argument("-n", "--decode", default=(64,), help="decode sizes; 0: none (default 64)", **sizes)
    parser.add_argument(
        "-b", "--batch", default=(), help=f"rows of appends, at most {MAX_APPEND}: 1,8,16,22,32,64", **sizes
    )
    parser.add_argument("--parallel", default=(), help="sequences decoded at the same time: 1,2,4,8,16,32", **sizes)
    parser.add_argument(
        "-d", "--depth", type=int, default=0, metavar="N", help="tokens in the context before decoding or appends"
    )
    parser.add_argument("-r", "--runs", type=int, default=5, metavar="N", help="measured runs per test (default 5)")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="also time every kernel separately, in the first prefill and the first decode test (GPUs only)",
    )
    parser.add_argument(
        "--timeline",
        type=Path,
        metavar="FILE",
        help="also draw when each block of the megakernel waited and worked during a token: a page (.html) or a "
        "picture (.png, .svg); needs a pack built with LUCEBOX_TIMELINE",
    )
    parser.add_argument(
        "--compare",
        choices=["cpu"],
        help=f"also compare the logits of {N_IDS} random tokens with the CPU in f32, on the same file",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="also plot the results; the file ending chooses the format"
    )
    parser.add_argument(
        "--sheet",
        type=Path,
        metavar="FILE",
        help="also run the self-test, and write all results with the facts of the GPU to a JSON file to send upstream; "
        "it has no paths and no names of users (GPUs only)",
    )
    parser.add_argument(
        "--power-sweep",
        type=Path,
        metavar="FILE",
        help="only decode, and append tok/s, watts and tok/J at the current power limit to this CSV file; shows all "
        "its rows, and --plot draws them",
    )
    parser.add_argument(
        "--set-power-limit",
        type=parse_sizes,
        default=(),
        metavar="W,W",
        help="measure --power-sweep at each of these power limits, then restore the old one (needs rights)",
    )
    bench_drafts.add_flags(parser)
    options.add_engine(parser, hidden=options.COMPRESSION_FLAGS)
    return parser


def execute(args: argparse.Namespace) -> int:
    if args.set_power_limit and not args.power_sweep:
        args.parser.error("--set-power-limit is for --power-sweep")
    check_outputs(args)
    if args.sheet and (args.power_sweep or bench_drafts.is_wanted(args)):
        args.parser.error("--sheet is for the plain tests, without --power-sweep, --draft and --suite")
    if bench_drafts.is_wanted(args) and not args.power_sweep:
        return bench_drafts.execute(args)
    bench_drafts.check_unused(args)
    args.draft = "none"  # the tests are of single appends
    if args.power_sweep:
        return sweep_power(args)
    if not (args.prefill or args.decode or args.batch or args.parallel or args.compare):
        args.parser.error("nothing to measure: --prefill, --decode, --batch and --parallel are all 0")
    if args.timeline and getattr(args, "decode_path", "") == "graph":
        args.parser.error("--timeline shows the megakernel, not --path graph")
    if args.profile and not (args.prefill or args.decode or args.parallel):
        args.parser.error("nothing to profile: --prefill, --decode and --parallel are all 0")
    if not hasattr(args, "context"):  # context for the tests; the model's maximum would waste memory
        args.context = context_for(args.prefill, args.decode, args.batch, args.depth, args.runs, args.parallel)
        if args.compare:
            args.context = max(args.context, N_IDS)
        if args.timeline:
            args.context = max(args.context, args.depth + CONTEXT)
    profiles: tuple[Profile, ...] = ()
    comparison = timeline = None
    with open_model(args, sessions=max(args.parallel, default=1)) as llm, console.status() as show:
        if args.sheet:
            bench_sheet.check_device(llm)
        if args.profile:  # first, because it fails on the CPU
            show("profile")
            profiles = profile(
                llm,
                prefill=next(iter(args.prefill), 0),
                decode=next(iter(args.decode), 0),
                depth=args.depth,
                parallel=args.parallel,
            )
        if args.timeline:  # likewise: it fails without the megakernel
            show("timeline")
            timeline = measure_timeline(llm, args.depth)
        report = measure(
            llm,
            prefill=args.prefill,
            decode=args.decode,
            batch=args.batch,
            parallel=args.parallel,
            depth=args.depth,
            runs=args.runs,
            on_run=lambda label, run: show(f"{label}: " + (f"run {run} of {args.runs}" if run else "warming up")),
        )
        if args.sheet:
            show("self-test")
            bench_sheet.save_sheet(llm, report, args.sheet)
        failure: LuceboxError | None = None
        if args.compare:
            show("comparing with the CPU")
            try:
                comparison = compare_with_cpu(llm)
            except LuceboxError as error:  # reported after the table
                failure = error
    if args.json:
        console.print_json(as_json(report, profiles, comparison, timeline))
    else:
        print_report(report)
        for one in profiles:
            print_profile(one)
        if timeline is not None:
            print_timeline(timeline)
        if comparison is not None:
            print_comparison(comparison)
    if args.plot:
        from lucebox.measure.plots import save_bench_plot

        save_bench_plot(report, args.plot, profiles)
    if timeline is not None:
        save_timeline(timeline, f"{report.model} on {report.device_name}", args.timeline)
    if failure is not None:
        raise failure
    return 0


def check_outputs(args: argparse.Namespace) -> None:
    """Checks the files that the command will write, and the library for plots, before it measures."""
    pictures = [path for path in (args.plot, args.timeline) if path is not None and path.suffix != ".html"]
    if pictures:
        from lucebox.figures import check_plot

        for path in pictures:
            check_plot(path)
    for path in (args.timeline, args.power_sweep, args.csv, args.sheet):
        if path is not None and not path.parent.is_dir():
            raise InvalidRequestError(f"cannot write {path}: there is no folder {path.parent}")


def sweep_power(args: argparse.Namespace) -> int:
    n_tokens = next(iter(args.decode), 0)
    if not n_tokens:
        args.parser.error("nothing to measure: --decode is 0")
    if not hasattr(args, "context"):
        args.context = context_for((), (n_tokens,), (), args.depth, args.runs)
    with open_model(args) as llm, console.status() as show:
        measured = measure_points(
            llm,
            args.set_power_limit,
            n_tokens=n_tokens,
            depth=args.depth,
            runs=args.runs,
            on_run=lambda label, run: show(f"{label}: " + (f"run {run} of {args.runs}" if run else "warming up")),
        )
    save_points(args.power_sweep, measured)
    points = load_points(args.power_sweep)
    show_points(args, measured, points)
    if args.plot:
        from lucebox.measure.plots import save_power_plot

        save_power_plot(points, args.plot)
    return 0


def show_points(args: argparse.Namespace, measured: Sequence[PowerPoint], points: Sequence[PowerPoint]) -> None:
    """Prints the points of all runs, or with --json the measured ones."""
    if args.json:
        console.print_json({"measured": [dataclasses.asdict(point) for point in measured]})
        return
    rows = [
        [p.model, p.device, p.test, f"{p.limit_w:.0f}", f"{p.watts:.0f}", f"{p.tok_s:,.1f}", f"{p.tok_j:.3g}", p.date]
        for p in points
    ]
    console.print_table(
        [
            "model",
            "device",
            "test",
            *((heading, "right") for heading in ("limit W", "watts", "tok/s", "tok/J")),
            "date",
        ],
        rows,
    )


def compare_with_cpu(llm: LLM) -> Comparison:
    """Compares with the same file on the CPU in fp32."""
    with LLM(
        llm.info.path, device="cpu", context=N_IDS, activations="f32", kv="f32", draft="none", sessions=1
    ) as reference:
        return compare(llm, reference)


def parse_sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(item) for item in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers with commas between them, got {text!r}") from None
    if min(sizes) < 0:
        raise argparse.ArgumentTypeError(f"sizes cannot be negative, got {text!r}")
    return tuple(size for size in sizes if size)


def as_json(
    report: Report,
    profiles: Sequence[Profile] = (),
    comparison: Comparison | None = None,
    timeline: Timeline | None = None,
) -> dict[str, Any]:
    measurements = [
        {
            **dataclasses.asdict(m),
            "label": m.label,
            "tok_s": m.tok_s,
            "gb_s": m.gb_s,
            "bandwidth_share": report.share(m),
            "tok_j": m.tok_j,
            "link_bytes": m.link_bytes,
            "of_one_row": report.of_one_row(m),
            "of_one_sequence": report.of_one_sequence(m),
        }
        for m in report.measurements
    ]
    return {
        **dataclasses.asdict(report),
        "measurements": measurements,
        "profiles": [dataclasses.asdict(one) for one in profiles],
        "comparison": comparison,
        "timeline": None if timeline is None else as_numbers(timeline),
    }


def print_report(report: Report) -> None:
    console.write(
        f"{report.model} ({report.architecture}, {show_size(report.file_bytes)}) on {report.device_name}: "
        f"{report.device}, {report.kernels}, {report.activations} activations\n"
        f"read bandwidth {report.bandwidth_gb_s:.1f} GB/s; energy: {report.energy_source or 'not readable'}\n"
    )
    if report.decode_path:
        console.write(f"decoding: {report.decode_path}\n")
    tests = [m for m in report.measurements if m.test in ("prefill", "decode")]
    parallel = [m for m in report.measurements if m.test == "parallel"]
    appends = [m for m in report.measurements if m.test == "append"]
    if tests:
        speeds = [[f"{m.tok_s.median:,.1f}", spread(m.tok_s)] for m in tests]
        _print_measurements(report, tests, ["tok/s", "min..max"], speeds)
    if appends:
        times = [[f"{m.ms.median:.3f}", spread(m.ms, 3), f"{report.of_one_row(m):.2f}"] for m in appends]
        _print_measurements(report, appends, ["ms", "min..max", "x one row"], times)
    if parallel:
        speeds = [[f"{m.tok_s.median:,.1f}", spread(m.tok_s), f"{report.of_one_sequence(m):.2f}"] for m in parallel]
        _print_measurements(report, parallel, ["tok/s", "min..max", "x one"], speeds)
    _print_experts(report)


def _print_experts(report: Report) -> None:
    """A row per test with experts in host memory. The counts include the tokens before a test at a depth."""
    rows = [
        [m.label, f"{m.experts.hit_rate:.1%}", f"{(m.link_bytes or 0) / 1e6:,.1f}"]
        for m in report.measurements
        if m.experts is not None
    ]
    if rows:
        console.write("\n")
        _print_numbers("experts", ["found on the device", "MB copied per token"], rows)


def _print_measurements(
    report: Report, measurements: Sequence[Measurement], headings: Sequence[str], columns: Sequence[Sequence[str]]
) -> None:
    """Prints a row per test: label, columns of these tests, columns of all tests."""
    rows = []
    for m, special in zip(measurements, columns, strict=True):
        share = report.share(m)
        rows.append(
            [
                m.label,
                *special,
                ABSENT if m.gb_s is None else f"{m.gb_s:.1f}",
                ABSENT if share is None else f"{share:.0%}",
                ABSENT if m.tok_j is None else f"{m.tok_j:.3g}",
                str(len(m.seconds)),
            ]
        )
    console.write("\n")
    _print_numbers("test", [*headings, "GB/s", "of bandwidth", "tok/J", "runs"], rows)


def print_profile(one: Profile) -> None:
    console.write(f"\n{one.label} by kernel, each alone: {1e3 * one.seconds:.3f} ms\n")
    rows = [
        [t.kernel, str(t.launches), f"{1e3 * t.seconds:.3f}", f"{1e6 * t.seconds / t.launches:.2f}",
         f"{t.seconds / one.seconds:.1%}"]
        for t in one.times
    ]  # fmt: skip
    _print_numbers("kernel", ["launches", "ms", "us each", "share"], rows)


def save_timeline(timeline: Timeline, title: str, path: Path) -> None:
    if path.suffix == ".html":
        save_timeline_page(timeline, title, path)
        return
    from lucebox.measure.plots import save_timeline_plot

    save_timeline_plot(timeline, title, path)


def print_timeline(timeline: Timeline) -> None:
    console.write(
        f"\n{timeline.label} in the megakernel, {timeline.n_blocks} blocks: {timeline.us:,.1f} us; a phase in us: "
        "until the first and the last block have their inputs, longest work\n"
    )
    headings = ["number", "us in all", "us each", "first", "last", "work", "working"]
    _print_numbers("phases", headings, table(timeline.kinds))


def print_comparison(comparison: Comparison) -> None:
    console.write(f"\nlogits of {comparison.n_tokens} random tokens compared with {comparison.reference}\n")
    rows = [
        ["largest difference", f"{comparison.max_difference:.3g}"],
        ["mean KL, nat", f"{comparison.mean_kl:.3g}"],
        ["greedy agreement", f"{comparison.greedy_agreement:.1%}"],
    ]
    _print_numbers("what", ["value"], rows)


def _print_numbers(first: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    console.print_table([first, *((heading, "right") for heading in headings)], rows)


def spread(values: Summary, digits: int = 1) -> str:
    return f"{values.min:,.{digits}f}..{values.max:,.{digits}f}"
