"""Compiles a request's grammar in another process before the server does: with a time limit and a memory limit.

llguidance has no limit on recursion, on time or on memory while it compiles. Its reports are remembered.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from pathlib import Path

from lucebox.chat.grammar_process import LENGTH
from lucebox.chat.presence import check_present
from lucebox.errors import InvalidRequestError

__all__ = ["GrammarCheck"]

SECONDS = 3.0
"""For one grammar, the start of the process not included."""
PROCESSES = 2
"""Grammars compiled at a time."""
MAX_BYTES = 1 << 20
"""The longest grammar."""
MAX_REPORTS = 1024
"""Reports by the grammar's digest, least recently used first."""
POLL_S = 0.05
SCRIPT = Path(__file__).with_name("grammar_process.py")


class GrammarCheck:
    """Refuses grammars that cannot be compiled within the limits. Safe to share between threads."""

    def __init__(self) -> None:
        self._idle: subprocess.Popen[bytes] | None = None
        self._reports: OrderedDict[bytes, tuple[str, list[str]]] = OrderedDict()
        self._lock = threading.Lock()
        self._seats = threading.Semaphore(PROCESSES)

    def check(self, grammar: str) -> None:
        """Compiles a grammar.

        Raises:
            InvalidRequestError: llguidance rejects the grammar, or it exceeds a limit.
            CancelledError: the client has left.
        """
        error, _ = self.report(grammar)
        if error:
            raise _refused(error)

    def report(self, grammar: str) -> tuple[str, list[str]]:
        """The error of a grammar, empty without one, and warnings about what it does not enforce.

        Raises:
            InvalidRequestError: it exceeds a limit.
            CancelledError: the client has left.
        """
        data = grammar.encode("utf-8", "replace")
        if len(data) > MAX_BYTES:
            raise _refused(f"it has {len(data)} bytes, more than {MAX_BYTES}")
        digest = hashlib.sha256(data).digest()
        with self._lock:
            if digest in self._reports:
                self._reports.move_to_end(digest)
                return self._reports[digest]
        while not self._seats.acquire(timeout=POLL_S):
            check_present()
        try:
            error, *warnings = self._compile(data)
        finally:
            self._seats.release()
        with self._lock:
            self._reports[digest] = error, warnings
            while len(self._reports) > MAX_REPORTS:
                self._reports.popitem(last=False)
        return error, warnings

    def _compile(self, data: bytes) -> list[str]:
        with self._lock:
            process, self._idle = self._idle, None
        process = process or _start()
        try:
            report = _ask(process, data)
        except BaseException:
            _end(process)
            raise
        with self._lock:
            spare, self._idle = self._idle, process
        if spare is not None:
            _end(spare)
        return report

    def close(self) -> None:
        with self._lock:
            process, self._idle = self._idle, None
        if process is not None:
            _end(process)


def _refused(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"the constraint cannot be compiled: {' '.join(reason.split())[:300]}")


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, str(SCRIPT)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    _ask(process, b'start: ""', seconds=60.0)  # waits for the imports
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _ask(process: subprocess.Popen[bytes], data: bytes, seconds: float = SECONDS) -> list[str]:
    assert process.stdin is not None and process.stdout is not None
    deadline = time.monotonic() + seconds
    try:
        process.stdin.write(LENGTH.pack(len(data)) + data)
        process.stdin.flush()
    except BrokenPipeError:
        pass  # the process's exit is detected below
    answer = b""
    while len(answer) < LENGTH.size or len(answer) < LENGTH.size + LENGTH.unpack_from(answer)[0]:
        check_present()
        if time.monotonic() > deadline:
            raise _refused(f"it takes more than {seconds:g} s")
        if select.select([process.stdout], [], [], POLL_S)[0]:
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                raise _refused("it is too deeply nested, or needs too much memory")
            answer += part
    report: list[str] = json.loads(answer[LENGTH.size :])
    return report
