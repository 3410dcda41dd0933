"""Runs `pip install` and `pip uninstall` in this interpreter's environment: with its pip, else with uv (`uv venv`
installs no pip). Does not decide what to install."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from lucebox.errors import PackError

__all__ = ["Ran", "command_line", "run"]


@dataclass(frozen=True, slots=True)
class Ran:
    """A completed command."""

    command: tuple[str, ...]
    exit_code: int


def command_line(words: Sequence[str]) -> tuple[str, ...]:
    """The full, non-interactive command line for the arguments after `pip`: ("install", "lucebox[sm90]").

    Raises:
        PackError: neither pip nor uv is there.
    """
    verb, *rest = words
    if find_spec("pip"):
        answers = ("--yes",) if verb == "uninstall" else ()
        return (sys.executable, "-m", "pip", verb, *answers, *rest)
    beside = str(Path(sys.executable).parent)
    if uv := shutil.which("uv", path=beside) or shutil.which("uv"):
        return (uv, "pip", verb, "--python", sys.executable, *rest)
    raise PackError(
        f"{sys.prefix} has no pip, and there is no uv on PATH; run {sys.executable} -m ensurepip, then this again"
    )


def run(words: Sequence[str], *, quiet_stdout: bool = False) -> Ran:
    """Runs the command. It inherits stdout and stderr; with `quiet_stdout`, all its output goes to stderr.

    Raises:
        PackError: neither pip nor uv is there.
    """
    command = command_line(words)
    sys.stdout.flush()
    done = subprocess.run(command, stdout=sys.stderr if quiet_stdout else None, check=False)
    return Ran(command, done.returncode)
