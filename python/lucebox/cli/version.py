"""`lucebox version`: the installed version, and the machine."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata

from lucebox import _engine
from lucebox.cli import console
from lucebox.cli.options import Subparsers
from lucebox.packs.machine import processor_name

JSON_HELP = "print one JSON object"


def add_parser(commands: Subparsers, about: str) -> argparse.ArgumentParser:
    return commands.add_parser("version", help=about, description=__doc__, allow_abbrev=False)


def execute(args: argparse.Namespace) -> int:
    try:
        installed = metadata.version("lucebox")
    except metadata.PackageNotFoundError:
        installed = "from a source tree, not installed"
    facts = {
        "lucebox": installed,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": processor_name(),
        "isa": _engine.best_isa(),
        "isas": _engine.available_isas(),
    }
    if args.json:
        console.print_json(facts)
        return 0
    console.write(f"lucebox {facts['lucebox']}\n")
    console.write(f"python {facts['python']} on {facts['platform']}\n")
    console.write(f"cpu {facts['device']}, kernels {facts['isa']} of {', '.join(_engine.available_isas())}\n")
    return 0
