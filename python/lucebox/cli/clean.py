"""`lucebox clean`: deletes what lucebox makes again by itself."""

from __future__ import annotations

import argparse

from lucebox.cli import console, options
from lucebox.models import catalog
from lucebox.sizes import show_size

DESCRIPTION = """Delete what lucebox makes again by itself: measured step costs, records of verified files, and what
interrupted fetches left.

Models stay (`lucebox rm` deletes one), and so does the history of `lucebox chat`."""
JSON_HELP = "print one JSON object with the deleted paths and freed_bytes"


def add_parser(commands: options.Subparsers, about: str) -> argparse.ArgumentParser:
    return commands.add_parser(
        "clean",
        help=about,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def execute(args: argparse.Namespace) -> int:
    deleted = catalog.clean()
    freed = sum(deleted.values())
    if args.json:
        console.print_json({"deleted": [str(path) for path in deleted], "freed_bytes": freed})
        return 0
    for path, n_bytes in deleted.items():
        console.write(f"{path}: {show_size(n_bytes)}\n")
    console.write(f"{show_size(freed)} freed\n" if deleted else "nothing to delete\n")
    return 0
