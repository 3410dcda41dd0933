"""`lucebox probe`: checks that a server speaks the protocols of its clients."""

from __future__ import annotations

import argparse

from lucebox.cli import console
from lucebox.cli.options import Subparsers
from lucebox.probe import probe

DESCRIPTION = """Check an HTTP server of models for the features that clients rely on: answers, streams, tool calls and
their results, structured output, cached tokens and errors of OpenAI's and Anthropic's APIs, and cancellation when a
client disconnects. The requests are short and greedy.

Exit code 1: a feature is missing."""
JSON_HELP = "print one JSON list of checks"


def add_parser(commands: Subparsers, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "probe",
        help=about,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("url", metavar="URL", help="address of the server, with or without /v1")
    parser.add_argument("--api-key", default="", metavar="KEY", help="API key of the server")
    parser.add_argument("--model", default="", metavar="NAME", help="model to use (default: the first one listed)")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="per request (default: 120)")
    return parser


def execute(args: argparse.Namespace) -> int:
    checks = []
    with console.status() as show:
        for check in probe(args.url, api_key=args.api_key, model=args.model, timeout_s=args.timeout):
            checks.append(check)
            show(f"{check.protocol}: {check.name}")
    if args.json:
        console.print_json(checks)
    else:
        rows = [[c.protocol, c.name, "ok" if c.ok else "MISSING", f"{c.seconds:.2f}", c.detail] for c in checks]
        console.print_table(["protocol", "check", "result", ("s", "right"), "seen"], rows)
    return 0 if all(check.ok for check in checks) else 1
