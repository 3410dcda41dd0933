"""`lucebox models`: the catalog's models, and the hub models on this machine."""

from __future__ import annotations

import argparse

from lucebox.cli import console, options
from lucebox.models import catalog, hub
from lucebox.sizes import show_size

DESCRIPTION = """List the models that MODEL can name without a path: the catalog, and hub models in the cache.

A model is fetched when it is first used, or by `lucebox pull`; `lucebox rm` deletes it."""
JSON_HELP = "print one JSON object"


def add_parser(commands: options.Subparsers, about: str) -> argparse.ArgumentParser:
    return commands.add_parser(
        "models",
        help=about,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def execute(args: argparse.Namespace) -> int:
    here, fetched = catalog.cached(), hub.cached()
    if args.json:
        known = [
            {
                "name": entry.name,
                "about": entry.about,
                "licence": entry.licence,
                "bytes": entry.model.bytes,
                "path": str(here[entry.name]) if entry.name in here else None,
            }
            for entry in catalog.entries()
        ]
        cached = [{"name": name, "path": str(path)} for name, path in fetched.items()]
        console.print_json({"catalog": known, "hub": cached})
        return 0
    rows = [
        [entry.name, show_size(entry.model.bytes), str(here.get(entry.name, "not fetched yet")), entry.about]
        for entry in catalog.entries()
    ]
    rows += [[name, "", str(path), "from the hub"] for name, path in fetched.items()]
    console.print_table(["name", ("size", "right"), "path", "about"], rows)
    return 0
