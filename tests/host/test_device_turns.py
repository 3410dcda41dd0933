"""Engines and scorers of one device take turns: the order of threads, what a plan leaves free for the sessions of
others, and the device of a forked child."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import Decoder, open_engine, open_scorer, random_ids
from lucebox import _engine
from reference.gguf_files import Shape, write_model

SHAPES = {
    "target": Shape("qwen35", n_layers=3, recurrent=(True, False, True)),
    "other": Shape("llama", n_layers=2),
    "scorer": Shape("qwen3", n_layers=2, n_heads=6, n_kv_heads=2),
}
VOCAB = SHAPES["target"].vocab


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("turns")
    for name, shape in SHAPES.items():
        write_model(made / f"{name}.gguf", shape)
    return made


def run_together(*calls: Callable[[], object]) -> None:
    """Runs each call in a thread, and raises what one of them raises."""
    failures: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_two_engines_and_a_scorer_in_threads(folder: Path) -> None:
    """Each computes the bits that it computes alone."""
    prompt = random_ids(40, VOCAB).tolist()
    text = random_ids(200, VOCAB)
    wanted = [Decoder(open_engine(folder / f"{name}.gguf"), prompt).decode(12) for name in ("target", "other")]
    scores = open_scorer(folder / "scorer.gguf", prefill_chunk=16).score(text)
    decoders = [Decoder(open_engine(folder / f"{name}.gguf"), prompt) for name in ("target", "other")]
    scorer = open_scorer(folder / "scorer.gguf", prefill_chunk=16)

    def decode(i: int) -> None:
        assert [token for _ in range(4) for token in decoders[i].decode(3)] == wanted[i]

    def score() -> None:
        for _ in range(3):
            np.testing.assert_array_equal(scorer.score(text), scores)

    run_together(lambda: decode(0), lambda: decode(1), score, score)


def test_sessions_step_between_the_chunks_of_a_scorer(folder: Path) -> None:
    """A scorer gives way between its chunks: another engine takes several steps between two layers of one text."""
    scorer = open_scorer(folder / "scorer.gguf", prefill_chunk=2, context=2048)
    prompt, text = random_ids(9, VOCAB).tolist(), random_ids(2048, VOCAB)
    decoder = Decoder(open_engine(folder / "target.gguf"), prompt)
    scored, n_steps, steps_at = threading.Event(), 0, [0]

    def score() -> None:
        end = time.monotonic() + 120
        try:
            # Text after text: a busy machine may run no other thread within the first ones.
            while steps_at[-1] <= steps_at[0] + 2 and time.monotonic() < end:
                steps_at.clear()
                scorer.score(text, progress=lambda done, total: steps_at.append(n_steps))
        finally:
            scored.set()

    def decode() -> None:
        nonlocal n_steps
        while not scored.is_set():
            decoder.start(prompt)
            for _ in range(20):
                decoder.decode(1)
                n_steps += 1

    run_together(score, decode)
    assert steps_at[-1] > steps_at[0] + 2


def test_threads_of_a_session_that_never_pauses_let_others_by(folder: Path) -> None:
    """A thread that computes call after call does not keep the turn."""
    engine = open_engine(folder / "target.gguf")
    busy, other = (Decoder(engine, random_ids(5, VOCAB, seed).tolist()) for seed in (1, 2))
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            busy.session.append(random_ids(8, VOCAB))

    def decode() -> None:
        try:
            other.decode(50)
        finally:
            stop.set()

    run_together(run, decode)


def test_a_plan_leaves_the_sessions_of_others_free(folder: Path) -> None:
    """Sessions that may still be opened are promised; those that are open have their memory."""
    before = _engine.promised_bytes("cpu")
    engine: Any = open_engine(folder / "target.gguf", sessions=3)
    each = sum(size for _, size, _, per_session in engine.plan["entries"] if per_session)
    assert _engine.promised_bytes("cpu") == before + 3 * each > before
    sessions = [_engine.Session(engine) for _ in range(2)]
    assert _engine.promised_bytes("cpu") == before + each
    sessions += [_engine.Session(engine) for _ in range(2)]  # one more than planned
    assert _engine.promised_bytes("cpu") == before
    del sessions[1:]
    assert _engine.promised_bytes("cpu") == before + 2 * each
    sessions.clear()
    del engine
    assert _engine.promised_bytes("cpu") == before
    assert _engine.promised_bytes("no such device") == 0


FORK = """
import os, sys, threading
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from engines import Decoder, open_engine, open_scorer, random_ids
folder = Path(sys.argv[1])
scorer = open_scorer(folder / "scorer.gguf", context=2048)
began = threading.Event()
thread = threading.Thread(target=lambda: scorer.score(random_ids(2048, 100), progress=lambda done, total: began.set()))
thread.start()
began.wait()
child = os.fork()  # while the scorer has the turn
if child == 0:
    Decoder(open_engine(folder / "target.gguf"), [1, 2, 3]).decode(2)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
thread.join()
print("ok")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_has_turns_of_its_own(folder: Path) -> None:
    command = [sys.executable, "-c", FORK, str(folder), str(Path(__file__).parent)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.stdout == "ok\n", found.stderr
