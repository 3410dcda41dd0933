"""The `lucebox` command. Results go to stdout, notes about them to stderr; an error is one line.

One module per command, imported when the command runs, so that `lucebox --help` imports none. options.py derives flags
from the option dataclasses; console.py owns both streams.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from lucebox.cli import console
from lucebox.cli.interrupts import EXIT_INTERRUPTED, importing
from lucebox.cli.terminal_text import for_stream
from lucebox.errors import CancelledError, HubError, LuceboxError
from lucebox.names import did_you_mean

__all__ = ["COMMANDS", "build_parser", "main"]

COMMANDS = {
    "run": "stream the continuation of a prompt",
    "chat": "talk with a model",
    "serve": "serve a model over HTTP",
    "inspect": "show a model's metadata and the memory it needs",
    "bench": "measure prefill and decode speed",
    "quality": "measure what each type of the KV cache costs in quality",
    "models": "list the catalog and the cached models",
    "pull": "fetch a model, or continue an interrupted fetch",
    "rm": "delete a fetched model",
    "clean": "delete measurements and records that are made again by themselves",
    "targets": "list the GPU families with a kernel pack",
    "doctor": "show this machine's GPUs and what to install",
    "selftest": "check the kernels of a GPU pack against the CPU",
    "tune": "fit a GPU pack to this chip",
    "launch": "start a coding agent against a server",
    "probe": "check a server's protocols",
    "completion": "print a completion script for a shell",
    "version": "show version and machine",
}

ONE_DEVICE = "a model is on the CPU or on GPUs as a whole, --device cpu, cuda:0 or cuda:0,cuda:1"
CONTEXT = "use --context N (-c)"
LENGTH = "use --max-tokens N (-n)"
FOREIGN_FLAGS = {
    "--temp": "use --temperature X (-t)",
    "-ngl": ONE_DEVICE,
    "--gpu-layers": ONE_DEVICE,
    "--n-gpu-layers": ONE_DEVICE,
    "--tensor-parallel-size": "name the devices, --device cuda:0,cuda:1; each has some of the layers",
    "--ctx-size": CONTEXT,
    "--max-model-len": CONTEXT,
    "--n-predict": LENGTH,
    "--predict": LENGTH,
    "--repeat-penalty": "use --repetition-penalty X",
}
"""Flags of llama.cpp and vLLM, with what they are here. No command has a flag of these names."""
EXIT_ERROR = 1
EXIT_USAGE = 2  # like argparse's own
EXIT_BROKEN_PIPE = 128 + 13  # as a shell reports SIGPIPE


class ShowVersion(argparse.Action):
    """Prints the version. argparse's own action wants it in advance, which costs 50 ms in every command."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **kwargs)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        import lucebox

        console.write(f"lucebox {lucebox.__version__}\n")
        parser.exit()


class Parser(argparse.ArgumentParser):
    """Escapes its errors like all other text on stderr: they repeat arguments, which may come from elsewhere."""

    def error(self, message: str) -> NoReturn:
        super().error(message if sys.stderr is None else for_stream(message, sys.stderr))


def build_parser(wanted: Collection[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """The parser of the command line. Only the modules of the wanted commands are imported; the others have a line."""
    parser = Parser(
        prog="lucebox",
        description="LLM inference compiled ahead of time for the one chip you own.",
        epilog="lucebox COMMAND --help shows the flags of a command; lucebox help COMMAND does too.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=ShowVersion, help="show the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, about in COMMANDS.items():
        if name not in wanted:
            commands.add_parser(name, help=about, add_help=False)
            continue
        command = importlib.import_module(f"lucebox.cli.{name}")
        sub = command.add_parser(commands, about)
        sub.add_argument("--json", action="store_true", help=command.JSON_HELP)
        sub.add_argument("--debug", action="store_true", help="show a traceback where an error stops the command")
        sub.set_defaults(execute=command.execute, parser=sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; wrong usage raises SystemExit(2), as argparse does."""
    if sys.stdout is None:
        console.error("stdout is closed; redirect it to a file or /dev/null")
        return EXIT_ERROR
    console.tolerate_narrow_encodings()
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    try:
        with importing():
            args = parse(words)
        code: int = 0 if args is None else args.execute(args)
        console.write("")  # flushes
    except BrokenPipeError:
        discard_stdout()
        return EXIT_BROKEN_PIPE
    except (KeyboardInterrupt, CancelledError):
        console.note("interrupted")
        return EXIT_INTERRUPTED
    except (LuceboxError, OSError, UnicodeError) as error:
        if debug:
            raise
        console.error(reason(error), keeps_lines=isinstance(error, HubError))
        discard_unwritable_stdout()
        return EXIT_ERROR
    return code


def parse(words: list[str]) -> argparse.Namespace | None:
    """The arguments of a command line; None where it asks for the overview, which is then printed."""
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words or words[0] in ("-h", "--help"):
        console.write(build_parser(()).format_help())
        return None
    if words[0].startswith("-"):
        build_parser(()).parse_args(words)  # --version, or an error
    name = words[0].lower()
    if name not in COMMANDS:
        usage_error(f"no command {words[0]!r}{did_you_mean(name, [*COMMANDS, 'help']) or '; lucebox help lists them'}")
    words = [name, *words[1:]]
    behind: list[str] = []
    if name == "launch" and "--" in words:  # the agent's own arguments
        at = words.index("--")
        words, behind = words[:at], words[at + 1 :]
    parser = build_parser((name,))
    for word in words[1:]:
        if (hint := FOREIGN_FLAGS.get(word.partition("=")[0])) is not None:
            usage_error(f"lucebox {name} has no flag {word.partition('=')[0]}: {hint}")
    args, rest = parser.parse_known_args(words)
    args.behind = behind
    if rest and getattr(args, "prompt", "") is None and (rest[0] == "-" or not rest[0].startswith("-")):
        args.prompt = rest.pop(0)  # argparse before 3.12.8 does not take an optional positional after a flag
    if rest:
        flags = [flag for flag in args.parser._option_string_actions if flag.startswith("--")]
        args.parser.error(f"unrecognized arguments: {' '.join(rest)}{did_you_mean(rest[0], flags)}")
    return args


def reason(error: Exception) -> str:
    """The text of an error, without the number of the operating system's own."""
    if isinstance(error, OSError) and not isinstance(error, LuceboxError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def usage_error(text: str) -> None:
    console.error(text)
    raise SystemExit(EXIT_USAGE)


def discard_stdout() -> None:
    """Redirects stdout to nowhere, or the interpreter's flush at exit fails too, with lines of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def discard_unwritable_stdout() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        discard_stdout()
