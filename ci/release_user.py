"""Simulates a user in the dry run of a release: a virtual environment into which pip or uv installs from one index, and
the queries to the lucebox installed there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from install_test import LOOK
from project import tools_environment

UV = Path(sys.executable).with_name("uv")


class StepError(Exception):
    """A step failed or had an unexpected result."""


@dataclass(frozen=True)
class Log:
    """Runs commands and logs their output to a file."""

    file: Path

    def run(self, *command: str | Path, env: dict[str, str] | None = None) -> str:
        """The command's stdout.

        Raises:
            StepError: it failed.
        """
        words = [str(word) for word in command]
        done = subprocess.run(
            words, cwd=self.file.parent, env=env or tools_environment(), capture_output=True, text=True, check=False
        )
        with self.file.open("a") as file:
            file.write(f"+ {' '.join(words)}\n{done.stdout}{done.stderr}")
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise StepError(f"exit code {done.returncode}: {' '.join(words)}: {''.join(last)}")
        return done.stdout


@dataclass(frozen=True)
class User:
    """A virtual environment."""

    installer: str
    """pip or uv."""
    folder: Path
    interpreter: Path
    """The interpreter that creates the environment."""
    log: Log

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run(self, *command: str | Path) -> str:
        """Runs a command without any pip or uv setting that could add an index."""
        mine = {name: value for name, value in tools_environment().items() if not name.startswith(("PIP_", "UV_"))}
        alone = {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_NO_CONFIG": "1"}
        return self.log.run(*command, env={**mine, **alone})

    def make(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.installer == "pip":
            self.run(self.interpreter, "-m", "venv", self.folder)
        else:
            self.run(UV, "venv", "-q", "--python", self.interpreter, self.folder)

    def install(self, url: str, *words: str) -> None:
        self.run(*self._command("install"), "-q", "--no-cache-dir", "--index-url", url, *words)

    def has_conflicts(self) -> bool:
        """Whether `pip check` or `uv pip check` fails."""
        try:
            self.run(*self._command("check"))
        except StepError:
            return True
        return False

    def remove(self, projects: list[str]) -> None:
        """Uninstalls the projects.

        Raises:
            StepError: one of their files or folders is left.
        """
        yes = ["--yes"] if self.installer == "pip" else []
        self.run(*self._command("uninstall"), *yes, *projects)
        if left := sorted(file.relative_to(self.folder).as_posix() for file in self.folder.rglob("*lucebox*")):
            raise StepError(f"{self.installer} uninstall leaves {', '.join(left)}")

    def look(self) -> dict[str, object]:
        """Version, packs and usable packs, as lucebox reports them."""
        found: dict[str, object] = json.loads(self.run(self.python, "-I", "-c", LOOK))
        return found

    def lucebox(self, *words: str) -> str:
        return self.run(self.python, "-I", "-m", "lucebox", *words)

    def doctor(self) -> str | None:
        """The line that `lucebox doctor` prints."""
        install: str | None = json.loads(self.lucebox("doctor", "--json"))["install"]
        return install

    def _command(self, verb: str) -> list[str | Path]:
        if self.installer == "pip":
            return [self.python, "-m", "pip", verb]
        return [UV, "pip", verb, "--python", self.python]
