"""Concurrent generations of one LLM whose KV cache is too small for all of them together."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest
from lucebox import LLM, Chunk, Generation

PROMPTS = [f"def f{i}(x):" + f"    y = {i} * x\n" * (4 + 3 * i) for i in range(6)]
N = 70


@pytest.fixture(params=[False, True], ids=["cpu", "as_on_a_device"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    """With pages for one context, which is less than the prompts and their answers take together."""
    with LLM("tiny-hybrid", context=320, kv_tokens=320, sessions=6, prefill_chunk=64, threads=1, draft="none") as llm:
        llm.model.on_device = request.param
        llm.reset()
        yield llm
        llm.reset()
        assert llm.engine.n_free_pages == llm.engine.n_pages


@pytest.fixture(scope="module")
def alone() -> list[tuple[int, ...]]:
    with LLM("tiny-hybrid", context=320, prefill_chunk=64, threads=1, draft="none") as llm:
        return [llm.generate(prompt, max_tokens=N, ignore_eos=True).ids for prompt in PROMPTS]


def test_a_closed_llm_frees_its_engine_at_once() -> None:
    """Without the garbage collector, which may come late: the next model needs the memory."""
    llm = LLM("tiny-hybrid", context=320, prefill_chunk=64, threads=1, draft="none")
    llm.model.on_device = True
    llm.reset()
    llm.generate(PROMPTS[3], max_tokens=3)
    assert llm.engine.n_free_pages < llm.engine.n_pages
    engine = llm.engine
    gc.disable()
    try:
        llm.close()
        alone = object()  # counted in the same way: Python 3.14 counts no reference for an argument
        assert sys.getrefcount(engine) == sys.getrefcount(alone)
        assert engine.n_free_pages == engine.n_pages
    finally:
        gc.enable()


@pytest.mark.first_case
def test_a_list_of_prompts(llm: LLM, alone: list[tuple[int, ...]]) -> None:
    answers = llm.generate(PROMPTS, max_tokens=N, ignore_eos=True)
    assert [answer.ids for answer in answers] == alone


@pytest.mark.first_case
def test_streams_that_take_turns_in_a_thread(llm: LLM, alone: list[tuple[int, ...]]) -> None:
    streams = [llm.generate(prompt, max_tokens=N, ignore_eos=True, stream=True) for prompt in PROMPTS]
    results: list[Generation] = []
    running: list[Iterator[Chunk]] = list(streams)
    while running:
        for stream in list(running):
            chunk = next(stream, None)
            if chunk is None:
                running.remove(stream)
            elif chunk.result is not None:
                results.append(chunk.result)
    assert sorted(result.ids for result in results) == sorted(alone)


@pytest.mark.first_case
def test_threads(llm: LLM, alone: list[tuple[int, ...]]) -> None:
    ids: dict[int, tuple[int, ...]] = {}

    def run(i: int) -> None:
        ids[i] = llm.generate(PROMPTS[i], max_tokens=N, ignore_eos=True).ids

    threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [ids.get(i) for i in range(6)] == alone


def test_a_closed_stream_gives_its_pages_back(llm: LLM) -> None:
    stream = llm.generate(PROMPTS[-1], max_tokens=N, ignore_eos=True, stream=True)
    next(stream)
    used = llm.engine.n_pages - llm.engine.n_free_pages
    stream.close()  # type: ignore[attr-defined]
    assert used > 2
    assert llm.score("word " * 250)  # takes all of them


def test_answers_of_one_prompt_compute_it_once(llm: LLM) -> None:
    done: list[tuple[int, int]] = []
    options = {"max_tokens": 20, "temperature": 1.0, "ignore_eos": True}
    several = llm.generate(PROMPTS[4], n=4, seed=5, on_prompt=lambda *at: done.append(at), **options)  # type: ignore[call-overload]
    prompt = several[0].usage.prompt_tokens
    assert [one.usage.cached_tokens for one in several] == [0, prompt, prompt, prompt]
    assert done.count((prompt, prompt)) == 4 and done[0] == (0, prompt)
    with LLM("tiny-hybrid", context=320, prefill_chunk=64, threads=1, draft="none") as fresh:
        for i, one in enumerate(several):
            assert one.ids == fresh.generate(PROMPTS[4], seed=5 + i, **options).ids  # type: ignore[call-overload]
