"""`lucebox pull`: fetches a model, or continues an interrupted fetch."""

from __future__ import annotations

import argparse
from pathlib import Path

from lucebox.cli import console, options
from lucebox.errors import InvalidRequestError
from lucebox.models.resolve import resolve
from lucebox.models.vision import fetch_tower
from lucebox.sizes import show_size

DESCRIPTION = """Fetch a model of the catalog or of the hub, so that later commands run without the network.

Files that are here already are not fetched again; an interrupted download continues."""
JSON_HELP = "print one JSON object with name, source, path and bytes"


def add_parser(commands: options.Subparsers, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "pull",
        usage="lucebox pull MODEL [flags]",
        help=about,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_model(parser)
    return parser


def execute(args: argparse.Namespace) -> int:
    with console.loading() as progress:
        model = resolve(args.model, offline=args.offline, progress=progress)
        if model.source == "hub":
            fetch_tower(None, model, progress=progress)
    if model.source == "path":
        raise InvalidRequestError(f"{args.model} is a path on this machine; there is nothing to fetch")
    size = size_of(model.path)
    if args.json:
        console.print_json({"name": model.name, "source": model.source, "path": str(model.path), "bytes": size})
    else:
        console.write(f"{model.name}: {show_size(size)} at {model.path}\n")
    return 0


def size_of(path: Path) -> int:
    """Bytes of a file, or of the files of a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)
