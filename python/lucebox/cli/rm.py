"""`lucebox rm`: deletes a fetched model."""

from __future__ import annotations

import argparse

from lucebox.cli import console, options
from lucebox.errors import InvalidRequestError
from lucebox.models import catalog, hub
from lucebox.models.hub_name import parse_hub_name
from lucebox.sizes import show_size

DESCRIPTION = """Delete a model that was fetched: a catalog name, or a hub id (org/name) with all its files.

Files that you gave by their path are never deleted."""
JSON_HELP = "print one JSON object with name and freed_bytes"


def add_parser(commands: options.Subparsers, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "rm",
        usage="lucebox rm MODEL [flags]",
        help=about,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="a catalog name or a hub id, as `lucebox models` lists them")
    return parser


def execute(args: argparse.Namespace) -> int:
    found = parse_hub_name(args.model, is_link=hub.is_link)
    if catalog.find(args.model) is not None:
        freed = catalog.remove(args.model)
    elif found is not None and (found.want is not None or found.revision is not None):
        raise InvalidRequestError(f"name the whole repository, {found.repo}; rm deletes all its files")
    else:
        freed = hub.remove(args.model if found is None else found.repo)
    if args.json:
        console.print_json({"name": args.model, "freed_bytes": freed})
    else:
        console.write(f"deleted {args.model}: {show_size(freed)} free\n")
    return 0
