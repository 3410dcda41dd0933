"""`lucebox tune`: measures the tuning constants of a GPU pack on this machine's chip and makes a variant of the pack
with the best ones."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lucebox.cli import console
from lucebox.cli.options import Subparsers
from lucebox.errors import InvalidRequestError
from lucebox.measure import synthetic
from lucebox.models.resolve import resolve
from lucebox.packs import Selection, installer
from lucebox.packs.manifest import VARIANT
from lucebox.tune import (
    Constant,
    Kernels,
    Report,
    Result,
    Sample,
    select_device,
    tune,
    variant_manifest,
    write_folder,
    write_wheel,
)
from lucebox.tune.kernels import COMPILED
from lucebox.tune.search import compare, percent

DESCRIPTION = """Measure the tuning constants of the GPU pack on this chip, within five minutes, and make a variant of
the pack with the best ones: sm_86_tuned beside sm_86. The host prefers an installed variant.

Without MODEL, the model is synthetic weights in the shape of a 0.8B. The limits of the megakernel depend on the size
of the model, so name the models that you run."""
JSON_HELP = "print one JSON object"
SYNTHETIC = {"sim": ("qwen35-tiny", "Q4_K_M")}
DEFAULT_SYNTHETIC = ("qwen35-0.8b", "Q4_K_M")


def add_parser(commands: Subparsers, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "tune",
        help=about,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="a file, a folder, a hub id or a catalog name")
    parser.add_argument("--offline", action="store_true", help="use what is on this machine; download nothing")
    parser.add_argument(
        "--device",
        default="auto",
        metavar="DEVICE",
        help="cuda:N, hip:N, sim, or auto: the first GPU with a usable pack (default auto)",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="also measure constants that are compiled into kernels; needs lucebox-kernels and a compiler",
    )
    parser.add_argument("--budget", type=float, default=300, metavar="SECONDS", help="time to measure (default 300)")
    parser.add_argument("--name", default="tuned", metavar="WORD", help="the variant is TARGET_WORD (default tuned)")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="FOLDER", help="where the variant's folder is made (default here)"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write all measurements as JSON, to send upstream")
    parser.add_argument("--yes", action="store_true", help="install the variant without asking")
    return parser


def execute(args: argparse.Namespace) -> int:
    if not VARIANT.fullmatch(args.name):
        raise InvalidRequestError(f"[tune] --name: expected small letters and digits, got {args.name!r}")
    if args.budget <= 0:
        raise InvalidRequestError(f"[tune] --budget: expected seconds above 0, got {args.budget:g}")
    selection = select_device(args.device)
    assert selection.choice is not None
    kernels = Kernels.find() if args.compile else None
    with _models(args, selection) as models, _progress() as show:
        result = tune(models, selection, word=args.name, budget_s=args.budget, kernels=kernels, progress=show)
    report = result.report
    if args.report:
        args.report.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    wheel = _variant(result, selection, args) if report.variant else None
    if not args.json:
        print_report(report)
    installed, code = offer(wheel, args)
    if args.json:
        paths = {"wheel": wheel and str(wheel), "installed": installed}
        console.print_json({**report.as_json(), **paths})
    return code


@contextmanager
def _models(args: argparse.Namespace, selection: Selection) -> Iterator[list[tuple[str, Path]]]:
    """Names and paths of the models; synthetic ones are there for the time of the measurement."""
    if args.models:
        with console.loading() as show:
            found = [resolve(model, offline=args.offline, progress=show) for model in args.models]
        yield [(one.name, one.path) for one in found]
        return
    assert selection.info is not None
    shape, preset = SYNTHETIC.get(selection.info.vendor, DEFAULT_SYNTHETIC)
    with tempfile.TemporaryDirectory(prefix="lucebox-tune-") as folder:
        path = Path(folder) / f"{shape}.{preset}.gguf"
        console.note(f"writing synthetic weights in the shape of {shape}, {preset}")
        synthetic.write(path, synthetic.SHAPES[shape], shape, preset, seed=1)
        yield [(f"synthetic {path.stem}", path)]


@contextmanager
def _progress() -> Iterator[Any]:
    """Shows what is measured and the time left: on one line of a terminal, else a line each."""

    def text(what: str, seconds: float) -> str:
        minutes, rest = divmod(round(seconds), 60)
        return f"{what} (at most {minutes}:{rest:02} left)"

    if sys.stderr.isatty():
        with console.status() as show:
            yield lambda what, seconds: show(text(what, seconds))
    else:
        yield lambda what, seconds: console.note(text(what, seconds))


def _variant(result: Result, selection: Selection, args: argparse.Namespace) -> Path:
    """Writes the folder and the wheel of the variant; returns the wheel."""
    assert selection.choice is not None
    pack, report, choice = selection.choice.pack, result.report, result.choice
    folder = args.out / report.variant
    about = f"Measured by lucebox tune {report.lucebox} on {report.device}, {report.date}."
    write_folder(folder, pack.target, args.name, choice, about)
    own, files = json.loads(pack.manifest_json), {}
    if result.compiled:
        own, files = result.compiled.manifest, dict(result.compiled.files)
    return write_wheel(pack, variant_manifest(own, args.name, choice), files, folder)


def offer(wheel: Path | None, args: argparse.Namespace) -> tuple[bool, int]:
    """Installs the wheel where the user agrees: (whether it is installed, the exit code)."""
    if wheel is None:
        return False, 0
    words = ("install", "--no-deps", "--force-reinstall", str(wheel))
    if not args.yes:
        if args.json:
            return False, 0
        command = shlex.join(installer.command_line(words))
        console.write(f"\nTo install it:\n\n    {command}\n")
        if not console.confirm("\nRun this now?"):
            return False, 0
    ran = installer.run(words, quiet_stdout=args.json)
    if ran.exit_code:
        console.error(f"exit code {ran.exit_code}: {shlex.join(ran.command)}")
    return ran.exit_code == 0, 1 if ran.exit_code else 0


def print_report(report: Report) -> None:
    console.write(f"{report.device}, pack {report.target} by {report.compiler}\n\n")
    console.print_table(
        ["constant", ("before", "right"), ("after", "right"), "measured"],
        [constant_row(one) for one in report.constants],
    )
    console.write("\n")
    if report.after:
        console.print_table(
            ["model", "test", ("before", "right"), ("after", "right"), ("change", "right")],
            [speed_row(*pair) for pair in compare(report.before, report.after)],
        )
    else:
        console.print_table(
            ["model", "test", ("tok/s", "right")], [[one.model, one.label, f"{one.tok_s:.1f}"] for one in report.before]
        )
    for reason in report.skipped:
        console.note(f"not measured: {reason}")
    verdict = f"The constants of pack {report.target} are the best that were measured: no variant is made."
    if report.variant:
        is_compiled = any(one.has_changed for one in report.constants if one.name in COMPILED)
        verdict = (
            f"Variant {report.variant} has kernels that were compiled here."
            if is_compiled
            else (f"Variant {report.variant} has the code of pack {report.target}: its constants are read at load.")
        )
    console.write(f"\n{verdict} {report.seconds:.0f} s.\n")


def constant_row(one: Constant) -> list[str]:
    return [one.name, str(one.before), str(one.after) if one.has_changed else "", one.reason]


def speed_row(before: Sample, after: Sample) -> list[str]:
    ratio = after.tok_s / before.tok_s
    return [before.model, before.label, f"{before.tok_s:.1f}", f"{after.tok_s:.1f}", percent(ratio)]
