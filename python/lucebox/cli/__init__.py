"""The `lucebox` command. Results go to stdout, notes about them to stderr; an error is one line.

One module per command. options.py derives flags from the option dataclasses; console.py owns both streams.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from lucebox.cli import (
    bench,
    chat,
    console,
    doctor,
    inspect,
    launch,
    models,
    probe,
    run,
    selftest,
    serve,
    targets,
    tune,
    version,
)
from lucebox.errors import CancelledError, LuceboxError

__all__ = ["build_parser", "main"]

COMMANDS = (run, chat, serve, inspect, bench, models, targets, doctor, selftest, tune, launch, probe, version)

EXIT_ERROR = 1  # argparse exits with 2 on wrong usage
EXIT_INTERRUPTED = 128 + 2  # as a shell reports SIGINT
EXIT_BROKEN_PIPE = 128 + 13  # and SIGPIPE


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lucebox",
        description="LLM inference compiled ahead of time for the one chip you own.",
        epilog="lucebox COMMAND --help shows its flags.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = command.add_parser(commands)
        sub.add_argument("--json", action="store_true", help=command.JSON_HELP)
        sub.add_argument("--debug", action="store_true", help="show a traceback where an error stops the command")
        sub.set_defaults(execute=command.execute, parser=sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; wrong usage raises SystemExit(2), as argparse does."""
    own, behind = launch.split(list(sys.argv[1:] if argv is None else argv))
    args, rest = build_parser().parse_known_args(own)
    args.behind = behind
    if rest and getattr(args, "prompt", "") is None and (rest[0] == "-" or not rest[0].startswith("-")):
        args.prompt = rest.pop(0)  # argparse before 3.12.8 does not take an optional positional after a flag
    if rest:
        args.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        code: int = args.execute(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone. Redirect stdout, or the interpreter's flush at exit fails.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except (KeyboardInterrupt, CancelledError):
        return EXIT_INTERRUPTED
    except (LuceboxError, OSError, UnicodeError) as error:
        if args.debug:
            raise
        console.error(str(error))
        return EXIT_ERROR
    return code
