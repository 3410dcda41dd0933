"""The scheduler with a KV cache that is too small for its requests: they wait, are swapped out, and answer as alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lucebox import LLM, Sampling
from lucebox.errors import InternalError
from lucebox.generation.answer import Answer
from lucebox.generation.events import TextDelta
from lucebox.generation.prefix_cache import PrefixCache
from lucebox.generation.request import Failed, Started
from lucebox.generation.scheduler import Scheduler
from test_scheduler import Collected, asked, started, submit

PROMPTS = [f"def f{i}(x):" + f"    y = {i} * x\n" * (4 + 3 * i) for i in range(8)]
N = 60  # tokens of an answer


@pytest.fixture(scope="module", params=["none", "suffix"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    """With pages for one context, which is less than the requests take together."""
    options: dict[str, Any] = {"context": 512, "kv_tokens": 512, "sessions": 8, "prefill_chunk": 64}
    with LLM("tiny-hybrid", threads=1, draft=request.param, **options) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone() -> list[str]:
    with LLM("tiny-hybrid", context=512, threads=1, prefill_chunk=64, draft="none") as llm:
        sampling = Sampling(max_tokens=N, ignore_eos=True)
        return [llm.generate(prompt, sampling).text for prompt in PROMPTS]


@pytest.fixture(params=[False, True], ids=["cpu", "as_on_a_device"])
def scheduler(llm: LLM, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    monkeypatch.setattr(llm.model, "on_device", request.param)
    scheduler = started(llm, slots=8, cache=PrefixCache(64 << 20, engine=llm.engine if request.param else None))
    sessions = scheduler.slots
    yield scheduler
    scheduler.close()
    assert all(not session.is_swapped_out for session in sessions)
    for session in sessions:
        session.reset()
    assert llm.engine.n_free_pages == llm.engine.n_pages


def swaps_of(scheduler: Scheduler) -> list[int]:
    """The numbers of sequences that waited for pages, looked at before every turn."""
    paused: list[int] = []
    resume = scheduler._kv.resume

    def watched() -> None:
        paused.append(sum(sequence.is_paused for sequence in scheduler._running))
        resume()

    scheduler._kv.resume = watched  # type: ignore[method-assign]
    return paused


@pytest.mark.first_case
def test_more_than_the_cache_holds(llm: LLM, scheduler: Scheduler, alone: list[str]) -> None:
    assert sum(len(llm.ids(prompt)) + N for prompt in PROMPTS) > 2 * 512
    paused = swaps_of(scheduler)
    for order in (range(8), reversed(range(8))):
        sinks = {i: submit(scheduler, asked(llm, PROMPTS[i], N))[1] for i in order}
        assert [sinks[i].answer().text for i in range(8)] == alone
    assert max(paused) >= 2


def test_a_cancelled_request_gives_its_pages_back(llm: LLM, scheduler: Scheduler, alone: list[str]) -> None:
    """Whether it runs or waits for pages; the others go on."""
    jobs = [submit(scheduler, asked(llm, prompt, 300)) for prompt in PROMPTS[:7]]
    _, kept = submit(scheduler, asked(llm, PROMPTS[7], N))
    for _, sink in jobs[:2]:
        sink.until(TextDelta)
    for job, _ in jobs:
        scheduler.cancel(job)
    for _, sink in jobs:
        sink.until(Failed)
    assert sum(session.n_pages > 0 for session in scheduler.slots) <= 1
    assert kept.answer().text == alone[7]


@pytest.mark.first_case
def test_the_oldest_goes_on(llm: LLM, scheduler: Scheduler) -> None:
    """Later requests never hold up the first one, and each ends in its turn."""
    sinks = [submit(scheduler, asked(llm, PROMPTS[-1], 250 - 10 * i))[1] for i in range(6)]
    for sink in sinks:
        sink.answer()
    ends = [sink.times[-1] for sink in sinks]
    assert ends == sorted(ends)


@pytest.mark.first_case
def test_answers_of_one_prompt_share_its_pages(llm: LLM, scheduler: Scheduler) -> None:
    """The first one computes the prompt; the others fork it."""
    requests = [asked(llm, PROMPTS[5], 20, temperature=1.0, seed=seed) for seed in range(4)]
    sinks = [Collected() for _ in requests]
    scheduler.submit(requests, sinks)
    answers: list[Answer] = [sink.answer() for sink in sinks]
    n = len(requests[0].ids)
    assert [answer.started for answer in answers[1:]] == [Started(n, n)] * 3
    with LLM("tiny-hybrid", context=512, threads=1, prefill_chunk=64, draft="none") as fresh:
        expected = [
            fresh.generate(PROMPTS[5], Sampling(max_tokens=20, ignore_eos=True, temperature=1.0, seed=seed)).text
            for seed in range(4)
        ]
    assert [answer.text for answer in answers] == expected


def test_another_computes_the_prompt_where_the_first_is_cancelled(llm: LLM, scheduler: Scheduler) -> None:
    prompt = "word " * 300
    requests = [asked(llm, prompt, 5, seed=seed) for seed in range(3)]
    sinks = [Collected() for _ in requests]
    first, *_ = scheduler.submit(requests, sinks)
    scheduler.cancel(first)
    assert sinks[1].answer().text == sinks[2].answer().text != ""


def test_a_prompt_that_fails_again_and_again(llm: LLM, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its answers tries once, and none is left waiting."""
    tried: list[int] = []

    def fail(self: PrefixCache, *_: Any) -> Iterator[int]:
        tried.append(0)
        yield 0
        raise InternalError("a prompt that fails")

    monkeypatch.setattr(PrefixCache, "prefill", fail)
    sinks = [Collected() for _ in range(3)]
    scheduler.submit([asked(llm, "The cat", seed=seed) for seed in range(3)], sinks)
    for sink in sinks:
        sink.until(Failed)
    assert len(tried) == 3 and scheduler.counts() == (0, 0)


@pytest.mark.slow  # 6 s
def test_a_thousand_requests() -> None:
    """Used pages and resident memory stay where they are."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with LLM("tiny-hybrid", context=512, kv_tokens=512, sessions=8, prefill_chunk=64, threads=1, draft="none") as llm:
        scheduler = started(llm, slots=8, cache=PrefixCache(1 << 20, engine=llm.engine))

        def run(n: int) -> None:
            for at in range(n):
                submit(scheduler, asked(llm, PROMPTS[at % 8][: 20 + at % 50], 2))[1].answer()

        run(200)
        before = resident()
        run(800)
        assert resident() - before < 4 << 20
        with scheduler.driver.alone():
            while scheduler._kv.free_pages():
                pass
        assert llm.engine.n_free_pages == llm.engine.n_pages
        scheduler.close()
