"""`lucebox launch`: starts a coding agent, configured for a lucebox server."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from lucebox.cli import console
from lucebox.cli.options import Subparsers
from lucebox.clients import CLIENTS, Client, Endpoint, Setup
from lucebox.errors import UnsupportedError
from lucebox.probe import server_models

DESCRIPTION = """Start a coding agent against a running server (lucebox serve), with its settings in a separate home.
Your own settings are neither read nor changed. The home is removed when the agent ends, unless --home names one.
Arguments after -- are passed to the agent.

    lucebox launch codex -- exec "fix the failing test" """
JSON_HELP = "with --print: print one JSON object"


def add_parser(commands: Subparsers) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "launch",
        usage="lucebox launch {" + ",".join(CLIENTS) + "} [flags] [-- ARGUMENTS]",
        help="start a coding agent against a server",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("client", choices=CLIENTS, help="the agent")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server (default: %(default)s)")
    parser.add_argument("--api-key", default="none", metavar="KEY", help="API key of the server")
    parser.add_argument("--model", default="", metavar="NAME", help="model to use (default: the first one listed)")
    parser.add_argument("--home", type=Path, metavar="FOLDER", help="use this folder as the agent's home, and keep it")
    parser.add_argument("--print", action="store_true", help="show files, variables and command; start nothing")
    return parser


def split(argv: list[str]) -> tuple[list[str], list[str]]:
    """The arguments of lucebox, and those of the agent."""
    if argv[:1] != ["launch"] or "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def execute(args: argparse.Namespace) -> int:
    client = CLIENTS[args.client]
    url = args.url.rstrip("/").removesuffix("/v1")
    model, context = server_models(url, api_key=args.api_key, model=args.model)
    setup = client.setup(Endpoint(url, model, context, args.api_key))
    command = [client.program, *setup.arguments, *args.behind]
    if args.print:
        show(setup, command, args.home or Path("HOME"), as_json=args.json)
        return 0
    if shutil.which(client.program) is None:
        raise UnsupportedError(f"{client.program} is not installed; run: npm install -g {client.package}")
    with ExitStack() as stack:
        home = args.home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"lucebox-{client.name}-")))
        return start(client, setup, command, home.absolute())


def variables_in(setup: Setup, home: Path) -> dict[str, str]:
    return {name: str(home / value[2:]) if value.startswith("~/") else value for name, value in setup.variables.items()}


def show(setup: Setup, command: list[str], home: Path, *, as_json: bool) -> None:
    variables = variables_in(setup, home)
    files = {str(home / name): text for name, text in setup.files.items()}
    if as_json:
        console.print_json({"files": files, "variables": variables, "command": command})
        return
    for name, text in files.items():
        console.write(f"# {name}\n{text}\n")
    for name, value in variables.items():
        console.write(f"export {name}={shlex.quote(value)}\n")
    console.write(f"{shlex.join(command)}\n")


def start(client: Client, setup: Setup, command: list[str], home: Path) -> int:
    """Runs the agent and returns its exit code."""
    for name, text in setup.files.items():
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    home.mkdir(parents=True, exist_ok=True)
    given = [f"{name}={value}" for name, value in variables_in(setup, home).items()]
    # env adds the variables to the inherited environment, which this program does not read.
    process = subprocess.Popen(["env", *given, *command])
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the agent got the signal too, and handles it
            continue
