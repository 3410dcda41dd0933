"""`lucebox inspect`: a model's metadata and tensors, and the memory plan to run it. Weights are mapped, not read."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lucebox import _engine
from lucebox.assets import TensorInfo
from lucebox.cli import console, options
from lucebox.cli.session import open_model
from lucebox.errors import LuceboxError
from lucebox.memory import MemoryPlan
from lucebox.resolve import resolve

DESCRIPTION = """Show a model's metadata, the types of its tensors and the memory it needs.

Long values are truncated, with their full length; --full shows them whole. The memory plan is that of `run` with the
same engine flags."""
JSON_HELP = "print one JSON object"

MAX_CHARACTERS = 80
MAX_ITEMS = 8


def add_parser(commands: options.Subparsers) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "inspect",
        usage="lucebox inspect MODEL [flags]",
        help="show a model's metadata and the memory it needs",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_model(parser)
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--full", action="store_true", help="do not truncate long values")
    options.add_engine(parser)
    return parser


def execute(args: argparse.Namespace) -> int:
    with console.loading() as progress:
        path = resolve(args.model, offline=args.offline, progress=progress).path
    model = _engine.open_model_file(str(path))
    metadata = model.metadata if isinstance(model, _engine.GgufFile) else flatten(cast(Mapping[str, Any], model.config))
    tensors = [TensorInfo(*row) for row in model.tensors]
    fit = fit_of(args)
    if args.json:
        print_json(path, metadata, tensors, fit, args)
    else:
        print_tables(path, metadata, tensors, fit, args)
    return 0


@dataclass(frozen=True, slots=True)
class TypeShare:
    """Totals over the tensors of one type."""

    dtype: str
    tensors: int
    values: int
    bytes: int


def quant_mix(tensors: Sequence[TensorInfo]) -> list[TypeShare]:
    """The tensor types of a file, largest total first."""
    by_type: dict[str, list[TensorInfo]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.dtype, []).append(tensor)
    shares = [
        TypeShare(dtype, len(group), sum(t.n_values for t in group), sum(t.bytes for t in group))
        for dtype, group in by_type.items()
    ]
    return sorted(shares, key=lambda share: -share.bytes)


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether the engine can run a model with the flags given."""

    plan: MemoryPlan | None
    """None: it cannot."""
    draft: str
    """The drafter."""
    kernels: str = ""
    """The device and its kernels."""
    obstacle: str = ""


def fit_of(args: argparse.Namespace) -> Fit:
    """Opens the model with the engine flags."""
    try:
        with open_model(args) as llm:
            return Fit(llm.memory_plan, llm.draft_label, f"{llm.options.device}, {llm.kernels}")
    except LuceboxError as error:
        return Fit(None, getattr(args, "draft", "none"), obstacle=str(error))


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def print_json(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[TensorInfo],
    fit: Fit,
    args: argparse.Namespace,
) -> None:
    shown = metadata if args.full else {key: shorten(value) for key, value in metadata.items()}
    report: dict[str, Any] = {
        "path": str(path),
        "metadata": shown,
        "quant_mix": quant_mix(tensors),
        "draft": fit.draft,
        "memory_plan": fit.plan,
    }
    if fit.plan is None:
        report["memory_plan_error"] = fit.obstacle
    else:
        report["kernels"] = fit.kernels
    if args.tensors:
        report["tensors"] = tensors
    console.print_json(report)


def shorten(value: Any) -> Any:
    """A JSON value, in which long lists and strings are replaced by their length and beginning."""
    if isinstance(value, (list, str)):
        limit = MAX_CHARACTERS if isinstance(value, str) else MAX_ITEMS
        if len(value) > limit:
            return {"length": len(value), "beginning": value[:limit]}
    return value


def print_tables(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[TensorInfo],
    fit: Fit,
    args: argparse.Namespace,
) -> None:
    console.write(f"{path}\n\n")
    rows = [[key, str(value) if args.full else cut(value)] for key, value in metadata.items()]
    console.print_table(["key", "value"], rows)

    mix = quant_mix(tensors)
    console.write("\n")
    total = TypeShare("all", len(tensors), sum(s.values for s in mix), sum(s.bytes for s in mix))
    console.print_table(
        ["type", ("tensors", "right"), ("values", "right"), ("size", "right"), ("bits per value", "right")],
        [
            [
                s.dtype,
                str(s.tensors),
                console.quantity(s.values),
                console.size(s.bytes),
                f"{8 * s.bytes / s.values:.2f}",
            ]
            for s in [*mix, total]
            if s.values
        ],
    )
    if args.tensors:
        console.write("\n")
        console.print_table(
            ["tensor", "type", "shape", ("bytes", "right"), ("offset", "right"), "file"],
            [
                [t.name, t.dtype, shape_text(t.shape), f"{t.bytes:,}", f"{t.offset:,}", Path(t.file).name]
                for t in tensors
            ],
        )
    if fit.plan is None:
        console.write(f"\nthis engine cannot run it: {fit.obstacle}\n")
        return
    console.write(f"\n{fit.kernels}\n{fit.plan}\n")
    if fit.draft != "none":
        console.write(f"draft: {fit.draft}\n")


def cut(value: Any) -> str:
    """One line of at most MAX_CHARACTERS, with a note on the omitted rest."""
    if isinstance(value, list):
        if len(value) <= MAX_ITEMS:
            return str(value)
        beginning = ", ".join(repr(item) for item in value[:MAX_ITEMS])
        return f"[{clip(beginning)}, ...] ({len(value):,} items)"
    if isinstance(value, str):
        text = value.replace("\n", "\\n")
        return clip(text) + (f"... ({len(value):,} characters)" if len(text) > MAX_CHARACTERS else "")
    return str(value)


def clip(text: str) -> str:
    return text[:MAX_CHARACTERS]


def shape_text(shape: Sequence[int]) -> str:
    return " x ".join(str(dim) for dim in shape) or "scalar"
