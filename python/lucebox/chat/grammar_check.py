"""Compiles a request's grammars in another process before the server does: with a time limit and a memory limit.

llguidance has no limit on recursion, on time or on memory while it compiles. Its reports are remembered. Every grammar
first gets QUICK_S. One that takes longer waits for the seat of long ones, so the others pass it.
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
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from lucebox.chat.fair_seats import FairSeats
from lucebox.chat.grammar_process import LENGTH, NOT_BEGUN
from lucebox.chat.grammar_work import GrammarWork, grammar_work
from lucebox.chat.presence import check_present
from lucebox.errors import InvalidRequestError
from lucebox.generation.request import SENDER

__all__ = ["GrammarCheck", "check_size"]

QUICK_S = 0.25
QUICK_PROCESSES, LONG_PROCESSES = 2, 1
MAX_WAITING, MAX_WAITING_LONG = 64, 4
"""Requests of a sender that wait for a process."""
MAX_BYTES = 1 << 20
"""The longest grammar."""
MAX_REPORTS = 1024
"""Reports by the grammar's digest, least recently used first."""
START_S = 60.0
"""For a process to begin."""
POLL_S = 0.05
SCRIPT = Path(__file__).with_name("grammar_process.py")


class GrammarCheck:
    """Refuses grammars that cannot be compiled within the limits. Safe to share between threads."""

    def __init__(self) -> None:
        self._idle: list[GrammarProcess] = []
        self._reports: OrderedDict[bytes, list[str]] = OrderedDict()
        self._lock = threading.Lock()
        self._quick = FairSeats(QUICK_PROCESSES, MAX_WAITING)
        self._long = FairSeats(LONG_PROCESSES, MAX_WAITING_LONG)

    def check(self, grammar: str, begun: str = "") -> None:
        """Compiles a grammar. begun: the beginning of an answer, which it must allow.

        Raises:
            InvalidRequestError: llguidance rejects the grammar or the beginning, or a limit is exceeded.
            CancelledError: the client has left.
            BusyError: too many requests of the sender wait.
        """
        error, *_ = self._answer(grammar=grammar, begun=begun)
        if error == NOT_BEGUN:
            raise InvalidRequestError(error)
        if error:
            raise _refused(error)

    def report(self, grammar: str) -> tuple[str, list[str]]:
        """The error of a grammar, empty without one, and warnings about what it does not enforce.

        Raises:
            InvalidRequestError: it exceeds a limit.
            CancelledError, BusyError: as check.
        """
        error, *warnings = self._answer(grammar=grammar, begun="")
        return error, warnings

    def lark_of(self, gbnf: str) -> str:
        """A grammar of llama.cpp in Lark.

        Raises:
            InvalidRequestError: it cannot be translated, or exceeds a limit.
            CancelledError, BusyError: as check.
        """
        error, lark = self._answer(gbnf=gbnf)
        if error:
            raise InvalidRequestError(f"the grammar is not GBNF: {_brief(error)}")
        return lark

    def _answer(self, **question: str) -> list[str]:
        if (n_bytes := sum(len(text.encode("utf-8", "replace")) for text in question.values())) > MAX_BYTES:
            raise _refused(f"it has {n_bytes} bytes, more than {MAX_BYTES}")
        data = json.dumps(question).encode()
        digest = hashlib.sha256(data).digest()
        with self._lock:
            if digest in self._reports:
                self._reports.move_to_end(digest)
                return self._reports[digest]
        with grammar_work() as work:
            answer = self._asked(self._quick, data, work, QUICK_S)
            while answer is None:
                answer = self._asked(self._long, data, work, work.left_s)
        with self._lock:
            self._reports[digest] = answer
            while len(self._reports) > MAX_REPORTS:
                self._reports.popitem(last=False)
        return answer

    def _asked(self, seats: FairSeats, data: bytes, work: GrammarWork, seconds: float) -> list[str] | None:
        """The answer of a process; None if it does not come in time.

        Raises:
            InvalidRequestError: no time is left.
        """
        work.check()
        with seats.seat(SENDER.get()):
            with self._lock:
                process = self._idle.pop() if self._idle else None
            process = process or GrammarProcess()
            try:
                process.wait_until_ready()
                began = time.monotonic()
                answer = process.ask(data, min(seconds, work.left_s))
                work.spent_s += time.monotonic() - began
            except BaseException:
                process.end()
                raise
        if answer is None:
            process.end()
            process = GrammarProcess()  # it begins while others compute
        with self._lock:
            self._idle.append(process)
        return answer

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()


def check_size(schema: object) -> None:
    """Refuses a schema that is surely too long, before it becomes one text: json.dumps holds the GIL meanwhile.

    Raises:
        InvalidRequestError: it is too long.
    """
    n_bytes, queue = 0, [schema]
    while queue:
        value = queue.pop()
        for item in value if isinstance(value, list) else _members(value):
            n_bytes += (
                2 if isinstance(item, list | dict) else len(item) + 2 if isinstance(item, str) else len(repr(item))
            )
            if n_bytes > MAX_BYTES:
                raise _refused(f"it has more than {MAX_BYTES} bytes")
            if isinstance(item, list | dict):
                queue.append(item)


def _members(value: object) -> Iterator[object]:
    return chain.from_iterable(value.items()) if isinstance(value, dict) else iter(())


def _refused(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"the constraint cannot be compiled: {_brief(reason)}")


def _brief(text: str) -> str:
    return " ".join(text.split())[:300]


class GrammarProcess:
    """A process of grammar_process.py. One thread uses it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._is_ready = False

    def wait_until_ready(self) -> None:
        """Waits until the process has imported what it needs.

        Raises:
            InvalidRequestError: it does not begin.
            CancelledError: the client has left.
        """
        if not self._is_ready and self._read(START_S) is None:
            raise _refused(f"the process that compiles grammars did not begin within {START_S:g} s")
        self._is_ready = True

    def ask(self, data: bytes, seconds: float) -> list[str] | None:
        """The answer to a question; None if it takes longer.

        Raises:
            InvalidRequestError: the question ends the process.
            CancelledError: the client has left.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the end of the process is detected below
            self._process.stdin.write(LENGTH.pack(len(data)) + data)
            self._process.stdin.flush()
        return self._read(seconds)

    def _read(self, seconds: float) -> list[str] | None:
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        answer = b""
        while len(answer) < LENGTH.size or len(answer) < LENGTH.size + LENGTH.unpack_from(answer)[0]:
            check_present()
            if (left := deadline - time.monotonic()) < 0:
                return None
            if select.select([self._process.stdout], [], [], min(POLL_S, left))[0]:
                part = os.read(self._process.stdout.fileno(), 1 << 16)
                if not part:
                    raise _refused("it is too deeply nested, or needs too much memory")
                answer += part
        found: list[str] = json.loads(answer[LENGTH.size :])
        return found

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # it flushes what the process has not read
                    pipe.close()
