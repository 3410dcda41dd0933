"""`lucebox completion`: a completion script for bash, zsh or fish, made from the parsers of all commands."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from lucebox.cli import console
from lucebox.cli.options import Subparsers, one_of

DESCRIPTION = """Print a completion script: commands, their flags, and the names of catalog models.

    bash:  source <(lucebox completion bash)                              # in ~/.bashrc
    zsh:   source <(lucebox completion zsh)                               # in ~/.zshrc, after compinit
    fish:  lucebox completion fish > ~/.config/fish/completions/lucebox.fish"""
JSON_HELP = "print one JSON object: the flags of each command, and the model names"
SHELLS = ("bash", "zsh", "fish")
WITH_MODEL = ("run", "chat", "serve", "inspect", "bench", "pull", "rm", "tune")


def add_parser(commands: Subparsers, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "completion",
        help=about,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("shell", type=one_of(SHELLS), metavar="{" + ",".join(SHELLS) + "}", help="the shell")
    return parser


def execute(args: argparse.Namespace) -> int:
    from lucebox.cli import build_parser
    from lucebox.models import catalog

    flags = flags_of(build_parser())
    models = [entry.name for entry in catalog.entries()]
    if args.json:
        console.print_json({"flags": flags, "models": models})
    elif args.shell == "fish":
        console.write(fish(flags, models))
    else:
        console.write(
            ("autoload -U +X bashcompinit && bashcompinit\n" if args.shell == "zsh" else "") + bash(flags, models)
        )
    return 0


def flags_of(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """The long flags of every command."""
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {
        name: sorted(flag for flag in sub._option_string_actions if flag.startswith("--"))
        for name, sub in commands.choices.items()
    }


def bash(flags: Mapping[str, list[str]], models: list[str]) -> str:
    """A function for bash, which zsh runs through bashcompinit. Words that are no flag complete to models and files."""
    cases = "".join(f"    {name}) flags='{' '.join(words)}' ;;\n" for name, words in flags.items())
    return f"""_lucebox() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} flags=
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{" ".join(flags)} help' -- "$word"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{cases}  esac
  case $word in
    -*) COMPREPLY=($(compgen -W "$flags" -- "$word")) ;;
    *)
      case ${{COMP_WORDS[1]}} in
        {"|".join(WITH_MODEL)}) [ "$COMP_CWORD" -eq 2 ] && COMPREPLY=($(compgen -W '{" ".join(models)}' -- "$word")) ;;
        help) COMPREPLY=($(compgen -W '{" ".join(flags)}' -- "$word")) ;;
      esac ;;
  esac
}}
complete -o default -F _lucebox lucebox
"""


def fish(flags: Mapping[str, list[str]], models: list[str]) -> str:
    """One `complete` per command, flag and model name."""
    from lucebox.cli import COMMANDS

    lines = []
    for name, about in COMMANDS.items():
        text = about.replace("'", "\\'")
        lines.append(f"complete -c lucebox -n __fish_use_subcommand -f -a {name} -d '{text}'")
        lines += [f"complete -c lucebox -n '__fish_seen_subcommand_from {name}' -l {flag[2:]}" for flag in flags[name]]
    seen = " ".join(WITH_MODEL)
    lines.append(f"complete -c lucebox -n '__fish_seen_subcommand_from {seen}' -a '{' '.join(models)}'")
    return "\n".join(lines) + "\n"
