"""`lucebox launch`: starts a coding agent, or Open WebUI, configured for a lucebox server."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from lucebox.cli import console
from lucebox.cli.clients import CLIENTS, Client, Endpoint, Setup
from lucebox.cli.options import Subparsers, one_of
from lucebox.errors import UnsupportedError
from lucebox.probe import server_models

DESCRIPTION = """Start a coding agent, or Open WebUI, against a running server (lucebox serve), with its settings in a
separate home. Your own settings are neither read nor changed. The home, with Open WebUI's chats, is removed when the
client ends, unless --home names one. Arguments after -- are passed to the client.

    lucebox launch codex -- exec "fix the failing test" """
JSON_HELP = "with --print: print one JSON object"


def add_parser(commands: Subparsers, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "launch",
        usage="lucebox launch {" + ",".join(CLIENTS) + "} [flags] [-- ARGUMENTS]",
        help=about,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("client", type=one_of(CLIENTS), metavar="{" + ",".join(CLIENTS) + "}", help="the client")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server (default: %(default)s)")
    parser.add_argument("--api-key", default="none", metavar="KEY", help="API key of the server")
    parser.add_argument("--model", default="", metavar="NAME", help="model to use (default: the first one listed)")
    parser.add_argument("--home", type=Path, metavar="FOLDER", help="use this folder as the client's home, and keep it")
    parser.add_argument("--print", action="store_true", help="print a shell script that does the same; start nothing")
    return parser


def execute(args: argparse.Namespace) -> int:
    client = CLIENTS[args.client]
    url = args.url.rstrip("/").removesuffix("/v1")
    model, context = server_models(url, api_key=args.api_key, model=args.model)
    setup = client.setup(Endpoint(url, model, context, args.api_key))
    if args.print:
        show(client, setup, args.behind, args.home, as_json=args.json)
        return 0
    if shutil.which(client.program) is None:
        raise UnsupportedError(f"{client.program} is not installed; run: {client.install}")
    with ExitStack() as stack:
        home = args.home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"lucebox-{client.name}-")))
        return start(client, setup, args.behind, home.absolute())


def in_home(value: str, home: Path) -> str:
    return str(home / value[2:]) if value.startswith("~/") else value


def command_in(client: Client, setup: Setup, arguments: list[str], home: Path) -> list[str]:
    return [client.program, *(in_home(argument, home) for argument in setup.arguments), *arguments]


def quoted(value: str) -> str:
    """A variable or an argument for a shell that has the home's path in $home."""
    return f'"$home{value[1:].rstrip("/")}"' if value.startswith("~/") else shlex.quote(value)


def show(client: Client, setup: Setup, arguments: list[str], home: Path | None, *, as_json: bool) -> None:
    """Prints what start() would do: with --json as one object, else as a script to paste into a shell."""
    if as_json:
        folder = home or Path("HOME")
        files = {str(folder / name): text for name, text in setup.files.items()}
        variables = {name: in_home(value, folder) for name, value in setup.variables.items()}
        command = command_in(client, setup, arguments, folder)
        console.print_json({"files": files, "variables": variables, "command": command})
        return
    console.write(f"home={'$(mktemp -d)' if home is None else shlex.quote(str(home.absolute()))}\n")
    console.write('mkdir -p "$home"\n')
    for name, text in setup.files.items():
        file = f'"$home"/{shlex.quote(name)}'
        console.write(f'mkdir -p "$(dirname {file})"\n')
        console.write(f"printf %s {shlex.quote(text)} > {file}\n")
    values = [f"{name}={quoted(value)}" for name, value in setup.variables.items()]
    command = [client.program, *map(quoted, setup.arguments), *map(shlex.quote, arguments)]
    console.write(" ".join(["env", *values, *command]) + "\n")


def start(client: Client, setup: Setup, arguments: list[str], home: Path) -> int:
    """Runs the client and returns its exit code."""
    for name, text in setup.files.items():
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    home.mkdir(parents=True, exist_ok=True)
    given = [f"{name}={in_home(value, home)}" for name, value in setup.variables.items()]
    # `env` adds the variables to the inherited environment, which this program does not read.
    process = subprocess.Popen(["env", *given, *command_in(client, setup, arguments, home)])
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the client got the signal too, and handles it
            continue
