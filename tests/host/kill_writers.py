"""Kills a process that fills a prefix cache, at random moments; after each kill, checks that the next process starts
and answers like a cold run. The test suite runs it with only a few kills:

    PYTHONPATH=python python tests/host/kill_writers.py MODEL FOLDER --kills 50
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from conversations import Conversation, check, cold, warm
from engines import open_engine
from lucebox import _engine
from lucebox.generation.prefix_cache import PrefixCache, fingerprint

N_TALKS = 6  # restarted repeatedly: each run reads the files of the previous run
DISK_BYTES = 24 << 20


def work(model: Path, folder: Path, turn: int) -> None:
    """Talks until it is killed. The first answer is compared with a cold run."""
    warnings: list[str] = []
    logging.getLogger("lucebox").addHandler(Collect(warnings))
    engine = open_engine(model, activations="int8", kv="f16", context=2048)
    cache = PrefixCache(8 << 20, folder, fingerprint(engine), DISK_BYTES)
    session, other = _engine.Session(engine), _engine.Session(engine)
    n_checked = n_reused = 0
    while True:
        talk = Conversation(engine.info["vocab"], np.random.default_rng(turn % N_TALKS), 200, 2048)
        for i in range(6):
            prompt, boundaries = talk.ask(3)
            got = warm(session, cache, prompt, boundaries, 3, i)
            check(got, cold(other, prompt, boundaries, 3, i), (turn, i))
            talk.answered(got.ids)
            n_checked, n_reused = n_checked + 1, n_reused + got.reused
            print(n_checked, n_reused, len(warnings), *warnings[-1:], flush=True)
        turn += 1


class Collect(logging.Handler):
    def __init__(self, into: list[str]) -> None:
        super().__init__()
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        self._into.append(record.getMessage())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.model, options.folder, options.work)
    checked = reused = unfinished = 0
    for kill in range(options.kills):
        command = [sys.executable, __file__, options.model, options.folder, "--work", str(kill)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        lines = [process.stdout.readline()]  # the process has started, and its first answer was correct
        time.sleep(random.uniform(0.0, 0.5))
        process.send_signal(signal.SIGKILL)
        rest, errors = process.communicate()
        lines += rest.splitlines()
        whole = [line.split(maxsplit=3) for line in lines if len(line.split()) >= 3]
        if process.returncode != -signal.SIGKILL or not whole or whole[-1][2] != "0":
            print(f"kill {kill}: exit {process.returncode}: {lines[-1:]}\n{errors}")
            return 1
        checked, reused = checked + int(whole[-1][0]), reused + int(whole[-1][1])
        unfinished += len(list(options.folder.glob("*.unfinished")))
    n_files = len([*options.folder.glob("*.pages"), *options.folder.glob("*.state"), *options.folder.glob("*.windows")])
    print(f"{options.kills} kills, {unfinished} of them within a file: {checked} answers as cold, {reused} tokens "
          f"reused, {n_files} files")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
