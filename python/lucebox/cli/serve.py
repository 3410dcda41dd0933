"""`lucebox serve`: serves a model over the HTTP APIs of OpenAI and Anthropic."""

from __future__ import annotations

import argparse
import os

from lucebox.cli import console, options
from lucebox.cli.session import open_model, opening_line
from lucebox.errors import UnsupportedError
from lucebox.options import EngineOptions
from lucebox.serve.listening import bound_sockets
from lucebox.serve.settings import ServeSettings

DESCRIPTION = """Serve OpenAI's APIs (chat completions, completions, responses) and Anthropic's (messages).

By default the server listens on this machine only and needs no key. Another --host needs --api-key or --api-key-file.
SIGINT and SIGTERM stop it after the answers in progress. docs/server.md lists the endpoints and fields."""
JSON_HELP = "print one JSON object with address, model and limits when the server listens"


def add_parser(commands: options.Subparsers, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "serve",
        usage="lucebox serve MODEL [flags]",
        help=about,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_model(parser)
    options.add_server(parser)
    options.add_engine(parser)
    return parser


def execute(args: argparse.Namespace) -> int:
    try:
        from lucebox.serve.run import serve
        from lucebox.serve.server import DEFAULT_SLOTS
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("lucebox"):
            raise
        raise UnsupportedError(f"{error.name} is not installed; run: pip install 'lucebox[serve]'") from error
    settings = ServeSettings(**options.given(args, ServeSettings))
    settings.check()
    EngineOptions(**options.given(args, EngineOptions))  # before a model loads
    sockets = bound_sockets(settings)
    with open_model(args, sessions=settings.slots or DEFAULT_SLOTS) as llm:

        def on_start(url: str, slots: int) -> None:
            if args.json:
                facts = {"url": url, "pid": os.getpid(), "model": settings.model_name or llm.info.name}
                console.print_json({**facts, "context": llm.memory_plan.context, "slots": slots})
            else:
                console.note(f"{opening_line(llm, slots)}\n{slots} slots; listening on {url} (Ctrl-C ends)")

        serve(llm, settings, sockets, on_start)
    return 0
