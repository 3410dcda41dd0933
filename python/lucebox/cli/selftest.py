"""`lucebox selftest`: every kernel of a device's pack, compared with the CPU."""

from __future__ import annotations

import argparse
import dataclasses
import secrets
from typing import Any

from lucebox.cli import console
from lucebox.cli.options import Subparsers
from lucebox.selftest import KernelResult, Report, open_device, run

DESCRIPTION = """Run every kernel of a GPU pack on random inputs of odd sizes and compare with the same op on the CPU.

Exit code 1: a kernel is wrong, or no case runs it."""
JSON_HELP = "print one JSON object"
SHOWN_ERRORS = 5  # a lost device fails every later case


def add_parser(commands: Subparsers, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "selftest",
        help=about,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--device",
        default="auto",
        metavar="DEVICE",
        help="cuda:N, hip:N, sim, or auto: the first GPU with a usable pack (default auto)",
    )
    parser.add_argument("--pack", metavar="NAME", help="the pack: sm_86, or a variant, sm_86_laptop (default the best)")
    parser.add_argument("--seed", type=int, metavar="N", help="repeat the inputs of an earlier run")
    return parser


def execute(args: argparse.Namespace) -> int:
    device = open_device(args.device, console.note, args.pack)
    seed = secrets.randbits(32) if args.seed is None else args.seed
    with console.counting() as show:
        report = run(device, seed, show)
    if args.json:
        console.print_json(as_json(report))
    else:
        print_report(report)
    return 0 if report.ok else 1


def as_json(report: Report) -> dict[str, Any]:
    kernels = [{**dataclasses.asdict(kernel), "verdict": kernel.verdict} for kernel in report.kernels]
    return {**dataclasses.asdict(report), "kernels": kernels, "ok": report.ok}


def print_report(report: Report) -> None:
    console.print_table(
        ["kernel", ("cases", "right"), ("worst", "right"), ("limit", "right"), ("time", "right"), "result"],
        [kernel_row(kernel) for kernel in report.kernels],
    )
    for error in report.errors[:SHOWN_ERRORS]:
        console.write(f"{error}\n")
    n_ok = sum(kernel.verdict == "ok" for kernel in report.kernels)
    console.write(
        f"\n{n_ok} of {len(report.kernels)} kernels of pack {report.pack} ok on {report.device}, seed {report.seed}"
        f"{f', {len(report.errors)} cases could not run' if report.errors else ''}\n"
    )


def kernel_row(kernel: KernelResult) -> list[str]:
    if not kernel.n_cases:
        return [kernel.kernel, "0", "", "", "", kernel.verdict]
    return [
        kernel.kernel,
        str(kernel.n_cases),
        f"{kernel.worst:.1e}",
        f"{kernel.limit:.0e}",
        f"{kernel.seconds * 1e3:.1f} ms",
        kernel.verdict if kernel.problem is None else f"{kernel.verdict}: {kernel.problem}",
    ]
