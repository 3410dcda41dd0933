"""`lucebox targets`: the GPU families with a kernel pack."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from lucebox import packs
from lucebox.cli import console, options
from lucebox.packs import targets

DESCRIPTION = """List the GPU families that lucebox has kernel packs for, and the chips each pack runs on.

Install a pack as an extra: pip install 'lucebox[sm86]'. `lucebox doctor` says which one this machine needs. Installed
packs of other targets come last; they have no extra."""
JSON_HELP = "print one JSON object"


def add_parser(commands: options.Subparsers, about: str) -> argparse.ArgumentParser:
    return commands.add_parser(
        "targets",
        help=about,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def execute(args: argparse.Namespace) -> int:
    rows = [*map(known_row, targets.TARGETS), *map(installed_row, unknown_manifests())]
    if args.json:
        console.print_json({"targets": rows})
        return 0
    console.print_table(
        ["target", "extra", "compiled for", "runs on", "driver", "boards"],
        [
            [
                row["name"],
                row["slug"] if row["install"] else "",
                row["architecture"],
                " ".join(row["runs_on"]),
                row["min_driver"],
                ", ".join(board["name"] for board in row["boards"]),
            ]
            for row in rows
        ],
    )
    return 0


def known_row(target: targets.Target) -> dict[str, Any]:
    return {**dataclasses.asdict(target), "runs_on": chips(target.architecture), "install": target.install}


def unknown_manifests() -> list[packs.Manifest]:
    """The manifests of installed packs whose targets this lucebox does not know."""
    return [pack.manifest for pack in packs.find().usable if targets.find(pack.target) is None]


def installed_row(manifest: packs.Manifest) -> dict[str, Any]:
    """Only the pack knows of its target."""
    keys = ("vendor", "architecture", "min_driver", "capabilities")
    return {
        "name": manifest.target,
        "slug": packs.extra(manifest.target),
        **{key: getattr(manifest, key) for key in keys},
        "boards": [dataclasses.asdict(board) for board in manifest.boards],
        "runs_on": chips(manifest.architecture) or [manifest.target],
        "install": None,
    }


def chips(architecture: str) -> list[str]:
    """The known chips that code for an architecture runs on."""
    return [chip for chip in targets.NAMES if targets.fits(architecture, chip)]
