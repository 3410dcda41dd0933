"""Streams that nobody reads, threads that wait for each other, and Ctrl-C in a thread that computes for others."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from lucebox import LLM, InvalidRequestError
from lucebox.generation.reader import MAX_UNREAD, ChunkStream

PROMPTS = ("def add(a, b):\n    ", "class Stack:\n    ", "import ")


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM("tiny-hybrid", context=256, threads=1, sessions=2, draft="none") as llm:
        yield llm


def test_an_unread_stream_computes_no_more_than_its_queue_holds(llm: LLM) -> None:
    alone = [llm.generate(prompt, max_tokens=30, ignore_eos=True).ids for prompt in PROMPTS]
    stream = llm.generate(PROMPTS[0], max_tokens=30, ignore_eos=True, stream=True)
    assert isinstance(stream, ChunkStream)
    first = next(stream)
    assert llm.generate(PROMPTS[1], max_tokens=30, ignore_eos=True).ids == alone[1]
    assert stream._sequence is not None and stream._sequence.n_generated == 1 + MAX_UNREAD
    assert llm.generate(PROMPTS[2], max_tokens=30, ignore_eos=True).ids == alone[2]
    assert stream._sequence.n_generated == 1 + MAX_UNREAD
    rest = list(stream)
    assert sum((chunk.ids for chunk in (first, *rest)), ()) == alone[0]
    assert rest[-1].result is not None and rest[-1].result.ids == alone[0]


def test_threads_that_wait_for_each_others_streams_do_not_wait_forever(llm: LLM) -> None:
    """Each has a stream on one of the two sessions and asks for another session: one of them is refused, and closes."""
    began, outcomes = threading.Barrier(2), []

    def work(prompt: str) -> None:
        stream = llm.generate(prompt, max_tokens=40, ignore_eos=True, stream=True)
        next(stream)
        began.wait(60)
        try:
            outcomes.append(llm.generate(PROMPTS[2], max_tokens=3).finish_reason)
        except InvalidRequestError as error:
            assert "2 sessions" in str(error)
            outcomes.append("refused")
        stream.close()  # type: ignore[attr-defined]

    threads = [threading.Thread(target=work, args=(prompt,)) for prompt in PROMPTS[:2]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["length", "refused"]
    assert llm.pool.n_in_use == 0


def test_a_waiting_thread_goes_on_where_the_driver_leaves(llm: LLM) -> None:
    """A thread that reads slowly drives now and then; one that waits for its whole answer takes over."""
    alone = [llm.generate(prompt, max_tokens=60, ignore_eos=True).ids for prompt in PROMPTS[:2]]
    got: list[tuple[int, ...]] = []
    stream = llm.generate(PROMPTS[0], max_tokens=60, ignore_eos=True, stream=True)
    ids = next(stream).ids
    thread = threading.Thread(target=lambda: got.append(llm.generate(PROMPTS[1], max_tokens=60, ignore_eos=True).ids))
    thread.start()
    for chunk in stream:
        ids += chunk.ids
    thread.join(60)
    assert [ids, *got] == alone


def test_a_dropped_stream_gives_its_session_back(llm: LLM) -> None:
    for _ in range(3):
        stream = llm.generate(PROMPTS[0], max_tokens=40, ignore_eos=True, stream=True)
        next(stream)
        del stream
        gc.collect()
        assert llm.pool.n_in_use == 0


INTERRUPTED = """
import os, signal, threading, time
from lucebox import LLM, CancelledError
with LLM("tiny-hybrid", context=8192, threads=1, draft="none", sessions=2) as llm:
    want = llm.generate("x = 1", max_tokens=3).ids
    ends = []
    def other():
        try:
            ends.append(llm.generate("import os", max_tokens=500, ignore_eos=True).finish_reason)
        except CancelledError:
            ends.append("cancelled")
    thread = threading.Thread(target=other)
    try:
        thread.start()
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        llm.generate("def f(x):", max_tokens=8000, ignore_eos=True)
    except KeyboardInterrupt:
        print("interrupted")
    thread.join(60)
    print(ends in (["length"], ["cancelled"]), llm.pool.n_in_use, llm.generate("x = 1", max_tokens=3).ids == want)
"""


@pytest.mark.slow  # 2 s
def test_ctrl_c_in_the_thread_that_computes_leaves_the_others_an_end() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted\nTrue 0 True\n"), done.stderr
