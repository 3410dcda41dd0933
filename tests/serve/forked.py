"""The command `lucebox` in a process that is forked from one that has imported the server: the imports take three
quarters of a server's start."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["lucebox.cli.serve", "lucebox.serve.app", "lucebox.serve.running_model"])


def run(words: Sequence[str], environment: Mapping[str, str], output: Connection, errors: Path | None) -> None:
    """In the new process: the command with these words."""
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(output.fileno(), 1)
    output.close()
    if errors is not None:
        with errors.open("w") as file:
            os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = (open(fd, "w", buffering=1, closefd=False) for fd in (1, 2))  # noqa: SIM115
    sys.argv = ["lucebox", *words]
    from lucebox.__main__ import main

    sys.exit(main())


class Forked:
    """The process, with the methods of subprocess.Popen that tests call."""

    def __init__(self, words: Sequence[str], errors: Path | None = None) -> None:
        received, sent = FORKS.Pipe(duplex=False)
        self._process = FORKS.Process(target=run, args=(words, dict(os.environ), sent, errors))
        self._process.start()
        sent.close()
        self.stdout = os.fdopen(os.dup(received.fileno()))
        received.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def send_signal(self, signal: int) -> None:
        os.kill(self.pid, signal)

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("lucebox", timeout or 0)
        self.stdout.close()
        return self._process.exitcode
