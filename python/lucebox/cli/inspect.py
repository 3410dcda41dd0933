"""`lucebox inspect`: a model's metadata and tensors, and the memory plan to run it. Loads no weights."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lucebox import _engine
from lucebox.cli import console, options
from lucebox.cli.terminal_text import escaped
from lucebox.errors import LuceboxError
from lucebox.models.assets import TensorInfo, list_tensors
from lucebox.models.planning import Plan, ScorerPlan, plan_memory
from lucebox.models.resolve import resolve
from lucebox.models.split_modes import Mode, plan_modes
from lucebox.models.vision import TowerInfo, find_tower, tower_info
from lucebox.options import EngineOptions
from lucebox.packs.targets import find_board
from lucebox.sizes import show_size

DESCRIPTION = """Show a model's metadata, the types of its tensors and the memory it needs.

Long values are truncated, with their full length; --full shows them whole. The memory plan is that of `run` with the
same engine flags, without loading the weights. --board plans for a card that is not here ("RTX 3090,RTX 3090": for
two), and --memory-limit for a device with that much free memory. For several GPUs, it predicts the speed of each way to
use them. The table of KV types has, for each, the bytes of a token and the longest context that fits. --prefill-drafter
adds the scorer of prompts: beside the target where both fit, else swapped with it."""
JSON_HELP = "print one JSON object"

LINKS_GB_S = {"PCIe 4.0 x16": 25.0, "PCIe 5.0 x16": 50.0}
MAX_CHARACTERS = 80
MAX_ITEMS = 8


def add_parser(commands: options.Subparsers, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "inspect",
        usage="lucebox inspect MODEL [flags]",
        help=about,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_model(parser)
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--full", action="store_true", help="do not truncate long values")
    parser.add_argument(
        "--board", metavar="NAME,...", help='plan for these cards of `lucebox targets`, as "RTX 3090,RTX 3090"'
    )
    options.add_engine(parser)
    return parser


def execute(args: argparse.Namespace) -> int:
    if args.board is not None:
        for name in args.board.split(","):
            find_board(name)  # a wrong board name ends the command; problems of the model are part of the report
    with console.loading() as progress:
        path = resolve(args.model, offline=args.offline, progress=progress).path
    model = _engine.open_model_file(str(path))
    metadata = model.metadata if isinstance(model, _engine.GgufFile) else flatten(cast(Mapping[str, Any], model.config))
    tensors = list_tensors(model)
    plan = plan_of(args)
    modes = plan_modes(args.model, options.given(args, EngineOptions), board=args.board)
    found = find_tower(getattr(args, "mmproj", None), path)
    tower = None if found is None else tower_info(found)
    if args.json:
        print_json(path, metadata, tensors, plan, modes, tower, args)
    else:
        print_tables(path, metadata, tensors, plan, modes, tower, args)
    return 0


@dataclass(frozen=True, slots=True)
class TypeShare:
    """Totals over the tensors of one type."""

    dtype: str
    tensors: int
    values: int
    bytes: int
    device_dtype: str
    """The type in which a GPU holds them: BF16 where there are no kernels for the file's type."""


def quant_mix(tensors: Sequence[TensorInfo]) -> list[TypeShare]:
    """The tensor types of a file, largest total first."""
    by_type: dict[str, list[TensorInfo]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.dtype, []).append(tensor)
    shares = [
        TypeShare(
            dtype,
            len(group),
            sum(t.n_values for t in group),
            sum(t.bytes for t in group),
            _engine.device_type(dtype),
        )
        for dtype, group in by_type.items()
    ]
    return sorted(shares, key=lambda share: -share.bytes)


def plan_of(args: argparse.Namespace) -> Plan | str:
    """The memory plan with the engine flags, or why there is none."""
    given = options.given(args, EngineOptions)
    try:
        return plan_memory(args.model, board=args.board, offline=args.offline, sessions=1, **given)
    except LuceboxError as error:
        return str(error)


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
    plan: Plan | str,
    modes: Sequence[Mode],
    tower: TowerInfo | None,
    args: argparse.Namespace,
) -> None:
    shown = metadata if args.full else {key: shorten(value) for key, value in metadata.items()}
    report: dict[str, Any] = {
        "path": str(path),
        "metadata": shown,
        "quant_mix": quant_mix(tensors),
        "draft": getattr(args, "draft", EngineOptions().draft),
        "memory_plan": None,
        "modes": modes,
        "vision_tower": tower,
    }
    if isinstance(plan, str):
        report["memory_plan_error"] = plan
    else:
        report |= {"draft": plan.draft, "memory_plan": plan.memory, "kernels": plan.kernels}
        report["max_tokens_s"] = plan.max_tokens_s
        if plan.scorer is not None:
            report |= {"scorer_plan": plan.scorer.memory, "scorer_is_swapped": plan.scorer.is_swapped}
            report |= {"parked_bytes": plan.scorer.parked_bytes, "scorer_host_bytes": plan.scorer.host_bytes}
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
    plan: Plan | str,
    modes: Sequence[Mode],
    tower: TowerInfo | None,
    args: argparse.Namespace,
) -> None:
    console.write(f"{path}\n\n")
    rows = [[line(key), line(str(value) if args.full else cut(value))] for key, value in metadata.items()]
    console.print_table(["key", "value"], rows)

    mix = quant_mix(tensors)
    console.write("\n")
    total = TypeShare("all", len(tensors), sum(s.values for s in mix), sum(s.bytes for s in mix), "all")
    console.print_table(
        ["type", ("tensors", "right"), ("values", "right"), ("size", "right"), ("bits per value", "right")],
        [
            [
                s.dtype,
                str(s.tensors),
                console.quantity(s.values),
                show_size(s.bytes),
                f"{8 * s.bytes / s.values:.2f}",
            ]
            for s in [*mix, total]
            if s.values
        ],
    )
    expanded = [share.dtype for share in mix if share.device_dtype != share.dtype]
    if expanded:
        console.write(f"no kernels of a GPU for {', '.join(expanded)}: it holds these weights as BF16\n")
    if args.tensors:
        console.write("\n")
        console.print_table(
            ["tensor", "type", "shape", ("bytes", "right"), ("offset", "right"), "file"],
            [
                [line(t.name), t.dtype, shape_text(t.shape), f"{t.bytes:,}", f"{t.offset:,}", Path(t.file).name]
                for t in tensors
            ],
        )
    if tower is not None:
        size = show_size(tower.bytes)
        console.write(f"\nvision tower: {tower.path}, {tower.n_layers} layers of {tower.width}, {size}, on the CPU\n")
    if isinstance(plan, str):
        console.write(f"\nno memory plan: {plan}\n")
        print_modes(modes)
        return
    memory = plan.memory
    console.write(f"\n{plan.kernels}\n{memory}\n")
    rows = [[fit.kv, f"{fit.token_bytes / 1024:,.2f}", f"{fit.largest_context:,}"] for fit in memory.kv_fits]
    console.write("\n")
    console.print_table(["kv", ("KiB a token", "right"), ("largest context", "right")], rows)
    most = " (the model's maximum)" if memory.largest_context == memory.max_context else ""
    console.write(f"context: {memory.context:,} tokens; up to {memory.largest_context:,} fit{most}\n")
    speed = "" if plan.max_tokens_s is None else f": at most {plan.max_tokens_s:,.0f} tok/s without drafts"
    console.write(f"a token reads {show_size(memory.bytes_per_token)} of weights{speed}\n")
    for link, gb_s in LINKS_GB_S.items():
        if (tokens_s := plan.tokens_s_over(gb_s)) is not None:
            console.write(f"with the expected copies over {link} ({gb_s:g} GB/s): at most {tokens_s:,.0f} tok/s\n")
    if plan.draft != "none":
        console.write(f"draft: {plan.draft}\n")
    print_modes(modes)
    if plan.scorer is not None:
        console.write(f"\nscorer {args.prefill_drafter}, {place_of(plan.scorer)}\n{plan.scorer.memory}\n")


def print_modes(modes: Sequence[Mode]) -> None:
    if not modes:
        return
    names = {"one": "the first GPU alone", "layer": "--split layer", "tensor": "--split tensor"}
    names["replicas"] = "--replicas, of all sequences"
    console.write("\npredicted speed without drafts, by a graph, after a short context:\n")
    console.print_table(
        ["mode", "link", ("tok/s", "right"), ("largest context", "right"), ""],
        [
            [
                names[mode.mode],
                mode.link or "",
                "-" if mode.tokens_s is None else f"{mode.tokens_s:,.0f}",
                "-" if mode.largest_context is None else f"{mode.largest_context:,}",
                mode.error or "",
            ]
            for mode in modes
        ],
    )


def place_of(scorer: ScorerPlan) -> str:
    if not scorer.is_swapped:
        return "beside the target, which has the memory that it leaves"
    borrowed, pinned = show_size(scorer.parked_bytes), show_size(scorer.host_bytes)
    return (
        f"swapped with the target: while it scores, it borrows {borrowed} of the target's weights.\n"
        f"Pinned host memory: {pinned}, for these weights and the scorer's own"
    )


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


def line(text: str) -> str:
    """Text of the file on one line, so that a row of a table stays one."""
    return escaped(text.replace("\n", "\\n"), keep="")


def shape_text(shape: Sequence[int]) -> str:
    return " x ".join(str(dim) for dim in shape) or "scalar"
