"""`lucebox targets`: the GPU families with a kernel pack."""

from __future__ import annotations

import argparse
import dataclasses

from lucebox import targets
from lucebox.cli import console, options

DESCRIPTION = """List the GPU families that lucebox has kernel packs for, and the chips each pack runs on.

Install a pack as an extra: pip install 'lucebox[sm86]'. `lucebox doctor` says which one this machine needs."""
JSON_HELP = "print one JSON object"


def add_parser(commands: options.Subparsers) -> argparse.ArgumentParser:
    return commands.add_parser(
        "targets",
        help="list the GPU families with a kernel pack",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def execute(args: argparse.Namespace) -> int:
    rows = [(t, [chip for chip in targets.NAMES if targets.serves(t.name, chip)]) for t in targets.TARGETS]
    if args.json:
        known = [{**dataclasses.asdict(t), "runs_on": chips, "install": t.install} for t, chips in rows]
        console.print_json({"targets": known})
        return 0
    console.print_table(
        ["target", "extra", "compiled for", "runs on", "driver", "boards"],
        [
            [t.name, t.slug, t.architecture, " ".join(chips), t.min_driver, ", ".join(b.name for b in t.boards)]
            for t, chips in rows
        ],
    )
    return 0
