"""The scheduler with a real engine, and sinks that collect items."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from lucebox import LLM, Sampling, _engine
from lucebox.errors import CancelledError, InternalError, InvalidRequestError, OutOfMemoryError
from lucebox.generation import mask_ahead
from lucebox.generation.answer import Answer
from lucebox.generation.errors import BusyError, DeadlineError, QueueFullError, SchedulerClosedError
from lucebox.generation.events import PlainText, TextDelta
from lucebox.generation.prefix_cache import PrefixCache
from lucebox.generation.request import Failed, Finished, GenerationRequest, Item, Sink, Started
from lucebox.generation.scheduler import Scheduler
from lucebox.generation.sequence import Sequence
from lucebox.serve.engine_errors import api_error_of, queue_full
from lucebox.serve.metrics import Metrics
from lucebox.serve.observer import MetricsObserver

TEXT = "Once upon a time there was a small dog. It lived in"


@dataclass
class Collected(Sink):
    """A sink that records items and their arrival times."""

    items: list[Item] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    new: queue.SimpleQueue[Item] = field(default_factory=queue.SimpleQueue)

    def put(self, item: Item) -> None:
        self.items.append(item)
        self.times.append(time.perf_counter())
        self.new.put(item)

    def until(self, kind: type) -> Any:
        """Waits for the next item of a kind."""
        while not isinstance(item := self.new.get(timeout=60), kind):
            assert not isinstance(item, Finished | Failed), item
        return item

    def answer(self) -> Answer:
        self.until(Finished)
        answer = Answer()
        for item in self.items:
            answer.take(item)
        return answer


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny-hybrid", context=1024, threads=1, prefill_chunk=32, draft="none") as llm:
        yield llm


@pytest.fixture(scope="module")
def slow_llm() -> Iterator[LLM]:
    """Its sequences of a thousand tokens still run when a test looks."""
    with LLM("tiny-hybrid", context=1024, threads=1, prefill_chunk=32, draft="none", isa="scalar") as llm:
        yield llm


def started(llm: LLM, **options: Any) -> Scheduler:
    """A scheduler that a thread of its own drives."""
    scheduler = Scheduler(llm.model, **options)
    scheduler.start_thread()
    return scheduler


@pytest.fixture
def scheduler(llm: LLM) -> Iterator[Scheduler]:
    scheduler = started(llm, slots=2, max_queue=2, cache=PrefixCache(64 << 20))
    yield scheduler
    scheduler.close()


@pytest.fixture
def slow(slow_llm: LLM) -> Iterator[Scheduler]:
    scheduler = started(slow_llm, slots=2, max_queue=2)
    yield scheduler
    scheduler.close()


def asked(llm: LLM, prompt: str = TEXT, max_tokens: int = 16, **options: Any) -> GenerationRequest:
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=True, **options)
    return GenerationRequest(llm.ids(prompt), sampling, endpoint="test")


def submit(scheduler: Scheduler, request: GenerationRequest) -> tuple[Sequence, Collected]:
    sink = Collected()
    (sequence,) = scheduler.submit([request], [sink])
    return sequence, sink


def submit_all(scheduler: Scheduler, requests: Iterable[GenerationRequest]) -> list[tuple[Sequence, Collected]]:
    """Submits requests in one call: none of them has ended before the last one waits."""
    requests = list(requests)
    sinks = [Collected() for _ in requests]
    return list(zip(scheduler.submit(requests, sinks), sinks, strict=True))


def fresh_texts(llm: LLM, prompts: list[str], max_tokens: int) -> list[str]:
    options: Any = {"context": 1024, "threads": 1, "prefill_chunk": 32, "draft": "none", "isa": llm.options.isa}
    with LLM("tiny-hybrid", **options) as alone:
        return [alone.generate(p, Sampling(max_tokens=max_tokens, ignore_eos=True)).text for p in prompts]


def test_answers_equal_those_of_the_engine_alone(llm: LLM, scheduler: Scheduler) -> None:
    _, sink = submit(scheduler, asked(llm))
    answer = sink.answer()
    assert answer.text == fresh_texts(llm, [TEXT], 16)[0]
    assert answer.started == Started(len(llm.ids(TEXT)), 0)
    assert answer.finished is not None
    assert answer.finished.reason == "length"
    assert answer.finished.usage.completion_tokens == 16


def test_requests_that_take_turns_do_not_disturb_each_other(llm: LLM, scheduler: Scheduler) -> None:
    prompts = ["The cat", "Two birds were sitting in a tree and"]
    sinks = [sink for _, sink in submit_all(scheduler, (asked(llm, prompt, 40) for prompt in prompts))]
    texts = [sink.answer().text for sink in sinks]
    assert texts == fresh_texts(llm, prompts, 40)
    first, second = (sink.times for sink in sinks)
    assert first[0] < second[-1] and second[0] < first[-1]


@pytest.mark.parametrize("on_device", [False, True])
def test_answers_share_passes(llm: LLM, on_device: bool) -> None:
    """Some are cancelled or end early meanwhile; a pass that fails costs nothing but time."""
    prompts = [f"def f{i}(x):" + "    pass\n" * i for i in range(6)]
    alone = fresh_texts(llm, prompts, 30)
    with pytest.MonkeyPatch.context() as patched:
        compute, calls = _engine.sync_together, []

        def sometimes(sessions: list[Any], ids: list[Any]) -> int:
            calls.append(len(sessions))
            if len(calls) % 5 == 0:
                raise OutOfMemoryError("a pass that does not fit")
            return compute(sessions, ids)

        patched.setattr(_engine, "sync_together", sometimes)
        patched.setattr(llm.model, "on_device", on_device)
        metrics = Metrics()
        scheduler = started(llm, slots=6, max_queue=2, observer=MetricsObserver(metrics, llm.info.name, lambda: None))
        jobs = submit_all(scheduler, (asked(llm, prompt, 30) for prompt in prompts))
        jobs[2][1].until(TextDelta)
        scheduler.cancel(jobs[2][0])
        texts = [sink.answer().text for i, (_, sink) in enumerate(jobs) if i != 2]
        scheduler.close()
    assert texts == [text for i, text in enumerate(alone) if i != 2]
    assert max(calls) > 2 and len(calls) > 10
    assert metrics.sequences.sum > 1.5 * metrics.sequences.total
    assert 0 < metrics.rows.total < len(calls) and metrics.rows.sum > metrics.rows.total


@pytest.mark.parametrize("on_device", [False, True])
def test_a_bug_in_a_pass_is_the_error_of_its_sequences(llm: LLM, on_device: bool, caplog: Any) -> None:
    """It is logged once, and later requests are served."""
    compute, calls = _engine.sync_together, []

    def third_fails(sessions: list[Any], ids: list[Any]) -> int:
        calls.append(len(sessions))
        if len(calls) == 3:
            raise InternalError("assertion failed")
        return compute(sessions, ids)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_engine, "sync_together", third_fails)
        patched.setattr(llm.model, "on_device", on_device)
        scheduler = started(llm, slots=2)
        jobs = submit_all(scheduler, (asked(llm, prompt, 60) for prompt in ("The cat", "The dog")))
        assert all(str(sink.until(Failed).error) == "assertion failed" for _, sink in jobs)
        assert submit(scheduler, asked(llm))[1].answer().text == fresh_texts(llm, [TEXT], 16)[0]
        scheduler.close()
    assert [record.message for record in caplog.records] == ["a pass of 2 sequences failed"]


@pytest.mark.parametrize("draft", ["none", "suffix"])
def test_passes_sent_ahead_of_the_texts(monkeypatch: pytest.MonkeyPatch, draft: str) -> None:
    """What was sent for answers whose texts end them is dropped. Later requests on their sessions are not disturbed."""
    prompts = [f"def f{i}(x):" + "    pass\n" * i for i in range(4)]
    options: dict[str, Any] = {"context": 1024, "threads": 1, "prefill_chunk": 32}
    with LLM("tiny-hybrid", draft="none", **options) as alone:
        full = [alone.generate(p, Sampling(max_tokens=40, ignore_eos=True)).text for p in prompts]
        stops = [[text[len(text) // 3 * (i % 2 + 1) :][:3]] for i, text in enumerate(full)]
        want = [alone.generate(p, asked(alone, p, 40, stop=s).sampling) for p, s in zip(prompts, stops, strict=True)]
    send, sent_ahead = Scheduler._send, []

    def watched(scheduler: Scheduler, sequences: list[Sequence], *, waits: bool = False) -> None:
        if not waits:
            sent_ahead.append(len(sequences))
        send(scheduler, sequences, waits=waits)

    monkeypatch.setattr(Scheduler, "_send", watched)
    with LLM("tiny-hybrid", draft=draft, **options) as llm:
        llm.model.on_device = True
        scheduler = started(llm, slots=4, cache=PrefixCache(64 << 20))
        for _ in range(2):
            jobs = submit_all(scheduler, (asked(llm, p, 40, stop=s) for p, s in zip(prompts, stops, strict=True)))
            answers = [sink.answer() for _, sink in jobs]
            assert [answer.text for answer in answers] == [one.text for one in want]
            assert all(answer.finished and answer.finished.reason == "stop_string" for answer in answers)
        scheduler.close()
    assert max(sent_ahead) == 4


def test_a_group_of_sequences_per_stage(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where devices compute one after the other, groups take turns, each with two sequences or more."""
    prompts = [f"def f{i}(x):" + "    pass\n" * i for i in range(5)]
    want = fresh_texts(llm, prompts, 20)
    send, passes = Scheduler._send, []

    def watched(scheduler: Scheduler, sequences: list[Sequence], *, waits: bool = False) -> None:
        passes.append((waits, [id(one) for one in sequences]))
        send(scheduler, sequences, waits=waits)

    monkeypatch.setattr(Scheduler, "_send", watched)
    monkeypatch.setattr(llm.model, "on_device", True)
    monkeypatch.setattr(llm.model, "max_groups", 3)  # of which five sequences fill two
    scheduler = started(llm, slots=5, cache=PrefixCache(64 << 20))
    jobs = submit_all(scheduler, (asked(llm, prompt, 20) for prompt in prompts))
    assert [sink.answer().text for _, sink in jobs] == want
    scheduler.close()
    sent = [group for waits, group in passes if not waits and len(group) in (2, 3)]
    assert sum(not set(a) & set(b) and len(a) + len(b) == 5 for a, b in pairwise(sent)) > 10


def test_a_long_prompt_does_not_block_a_short_answer(llm: LLM, scheduler: Scheduler) -> None:
    _, long = submit(scheduler, asked(llm, "word " * 900, 4))
    long.until(Started)
    _, short = submit(scheduler, asked(llm, "The cat", 8))
    short.answer()
    assert not any(isinstance(item, TextDelta) for item in long.items)
    long.answer()


@pytest.fixture(scope="module")
def chunky() -> Iterator[LLM]:
    """Its chunks are long enough for others to have turns between their layers."""
    with LLM("tiny-hybrid", context=1024, threads=1, prefill_chunk=512, draft="none") as llm:
        yield llm


def test_short_requests_begin_within_a_chunk(chunky: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    long, short, n_called = asked(chunky, "word " * 900, 4), asked(chunky, "The cat", 8), 0
    want = [chunky.generate(request.ids, request.sampling).text for request in (long, short)]
    scheduler = started(chunky, slots=2)
    between, sinks = scheduler._between_layers, []

    def watched(sequence: Sequence) -> None:
        nonlocal n_called
        n_called += 1
        if not sinks:
            sinks.append(submit(scheduler, short)[1])
        between(sequence)
        if n_called == 1:
            assert sinks[0].items, "admitted, and the prompt computed"

    monkeypatch.setattr(scheduler, "_between_layers", watched)
    try:
        _, sink = submit(scheduler, long)
        texts = [sink.answer().text, sinks[0].answer().text]
        assert texts == want
        assert n_called == 2 * chunky.info.n_layers
        assert sinks[0].times[-1] < sink.times[1], "the short answer ends before the long one begins"
    finally:
        scheduler.close()


@pytest.mark.parametrize("way", ["cancel", "timeout", "close"])
def test_a_chunk_ends_at_a_layer(chunky: LLM, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    scheduler, n_called, closer = started(chunky, slots=1), 0, threading.Thread()
    between = scheduler._between_layers

    def watched(sequence: Sequence) -> None:
        nonlocal n_called, closer
        n_called += 1
        if way == "cancel":
            scheduler.cancel(sequence)
        elif way == "timeout":
            sequence.deadline = 0.0
        else:
            closer = threading.Thread(target=scheduler.close)
            closer.start()
            while not scheduler._is_closed:
                time.sleep(0.001)
        between(sequence)

    monkeypatch.setattr(scheduler, "_between_layers", watched)
    _, sink = submit(scheduler, asked(chunky, "word " * 900, 4))
    error = sink.until(Failed).error
    assert api_error_of(error).kind == {"cancel": "cancelled", "timeout": "timeout", "close": "overloaded"}[way]
    assert n_called == 1
    scheduler.close()
    if way == "close":
        closer.join()


def test_a_prefix_is_reused(llm: LLM, scheduler: Scheduler) -> None:
    long = "Some words. " * 30  # more than a page
    submit(scheduler, asked(llm, long))[1].answer()
    _, sink = submit(scheduler, asked(llm, long + " and then", 4))
    assert sink.until(Started).cached_tokens == 64
    assert sink.answer().text == fresh_texts(llm, [long + " and then"], 4)[0]


def test_cancel_while_waiting_prefilling_and_decoding(slow_llm: LLM, slow: Scheduler) -> None:
    prompts = [("word " * 900, 100), ("The cat", 900), ("Birds", 900)]
    jobs = submit_all(slow, (asked(slow_llm, *one) for one in prompts))
    (prefilling, first), (decoding, second), (waiting, third) = jobs
    second.until(TextDelta)
    assert slow.counts() == (1, 2)
    for job, sink in ((waiting, third), (prefilling, first), (decoding, second)):
        n_before = len(sink.items)
        slow.cancel(job)
        assert isinstance(sink.until(Failed).error, CancelledError)
        assert len(sink.items) - n_before <= 3  # at most the running step
    assert not any(isinstance(item, TextDelta) for item in first.items)
    slow.cancel(decoding)  # a second cancel does nothing
    assert submit(slow, asked(slow_llm))[1].answer().text == fresh_texts(slow_llm, [TEXT], 16)[0]


def test_the_queue_is_bounded(slow_llm: LLM, slow: Scheduler) -> None:
    jobs = [submit(slow, asked(slow_llm, "The cat", 900)) for _ in range(2)]
    for _, sink in jobs:
        sink.until(Started)
    jobs += [submit(slow, asked(slow_llm, "The cat", 900)) for _ in range(2)]
    with pytest.raises(QueueFullError) as caught:
        submit(slow, asked(slow_llm))
    refused = queue_full(caught.value, slow.n_slots, mean_request_s=0.1)
    assert refused.kind == "overloaded"
    assert refused.retry_after is not None and refused.retry_after >= 1
    for job, _ in jobs:
        slow.cancel(job)


def test_request_timeout(slow_llm: LLM) -> None:
    scheduler = started(slow_llm, slots=1, request_timeout_s=0.1)
    _, running = submit(scheduler, asked(slow_llm, "The cat", 1000))
    _, waiting = submit(scheduler, asked(slow_llm, "The cat", 1000))
    for sink in (running, waiting):
        assert isinstance(sink.until(Failed).error, DeadlineError)
    scheduler.close()


def test_close_drains_running_answers(llm: LLM) -> None:
    scheduler = started(llm, slots=1)
    sinks = [submit(scheduler, asked(llm))[1] for _ in range(3)]
    closing = threading.Thread(target=scheduler.close, args=(60.0,))
    closing.start()
    assert [sink.answer().finished is not None for sink in sinks] == [True] * 3
    closing.join()
    with pytest.raises(SchedulerClosedError, match="shutting down"):
        submit(scheduler, asked(llm))


def test_close_waits_for_a_job_that_left_the_queue(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    opening, opened = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> None:
        opening.set()
        opened.wait(60)
        begin(*arguments)

    begin = Sequence.begin
    monkeypatch.setattr(Sequence, "begin", slow)
    scheduler = started(llm, slots=1)
    _, sink = submit(scheduler, asked(llm))
    assert opening.wait(60)
    closing = threading.Thread(target=scheduler.close, args=(60.0,))
    closing.start()
    while scheduler.is_accepting:
        time.sleep(0.001)
    opened.set()
    assert sink.answer().finished is not None
    closing.join()


def test_close_without_drain_fails_all_requests(slow_llm: LLM) -> None:
    scheduler = started(slow_llm, slots=1)
    sinks = [submit(scheduler, asked(slow_llm, "The cat", 1000))[1] for _ in range(2)]
    sinks[0].until(Started)
    scheduler.close()
    assert [type(sink.until(Failed).error) for sink in sinks] == [SchedulerClosedError] * 2


class Broken:
    """A constraint that raises in the middle of an answer."""

    done = False

    def mask(self) -> None:
        return None

    def accept(self, token: int) -> None:
        raise RuntimeError("broken")


def test_a_fault_fails_only_its_own_request(llm: LLM, scheduler: Scheduler) -> None:
    _, good = submit(scheduler, asked(llm, "The cat", 40))
    broken = GenerationRequest(llm.ids(TEXT), Sampling(max_tokens=4), PlainText(), Broken())
    _, bad = submit(scheduler, broken)
    assert api_error_of(bad.until(Failed).error).kind == "internal"
    assert good.answer().text == fresh_texts(llm, ["The cat"], 40)[0]
    assert submit(scheduler, asked(llm))[1].answer().text == fresh_texts(llm, [TEXT], 16)[0]


class Allowing:
    """Allows three tokens from a set."""

    def __init__(self, allowed: set[int], vocab: int) -> None:
        bits = np.zeros((vocab + 31) // 32 * 32, np.uint8)
        bits[list(allowed)] = 1
        self.bits = np.packbits(bits, bitorder="little").view(np.uint32)
        self.taken: list[int] = []

    @property
    def done(self) -> bool:
        return len(self.taken) == 3

    def mask(self) -> Any:
        return self.bits

    def accept(self, token: int) -> None:
        self.taken.append(token)


def test_a_constraint_restricts_and_ends_the_answer(llm: LLM, scheduler: Scheduler) -> None:
    constraint = Allowing({100, 200, 300}, llm.info.vocab)
    request = GenerationRequest(llm.ids(TEXT), Sampling(max_tokens=50, temperature=1.0), PlainText(), constraint)
    answer = submit(scheduler, request)[1].answer()
    assert answer.finished is not None and answer.finished.reason == "stop"
    assert set(constraint.taken) <= {100, 200, 300}
    assert answer.text == llm.detokenize(constraint.taken)


class Budget:
    """Forces these tokens after the second token."""

    def __init__(self, forced: list[int]) -> None:
        self.forced = forced
        self.n = 0

    def push(self, token: int) -> list[int]:
        self.n += 1
        return list(self.forced) if self.n == 2 else []


def test_a_budget_forces_tokens(llm: LLM, scheduler: Scheduler) -> None:
    forced = [500, 501, 502]
    plain = submit(scheduler, asked(llm, max_tokens=8))[1].answer().text
    sampling = Sampling(max_tokens=8, ignore_eos=True)
    request = GenerationRequest(llm.ids(TEXT), sampling, PlainText(), budget=Budget(forced))
    text = submit(scheduler, request)[1].answer().text
    ids = llm.ids(TEXT).tolist() + llm.tokenizer.encode(plain, add_bos=False)[:2] + forced
    with LLM("tiny-hybrid", context=1024, threads=1, prefill_chunk=32, draft="none") as alone:
        rest = alone.generate(ids, Sampling(max_tokens=3, ignore_eos=True)).text
    assert text.endswith(llm.detokenize(forced) + rest)


class EndReplaced:
    """Replaces the first end token with these tokens."""

    def __init__(self, end: int, forced: list[int]) -> None:
        self.end, self.forced = end, forced

    def push(self, token: int) -> list[int]:
        forced, self.forced = (self.forced, []) if token == self.end else ([], self.forced)
        return list(forced)


@pytest.mark.parametrize("together", [False, True])
def test_penalties_count_forced_tokens_and_no_replaced_end(llm: LLM, scheduler: Scheduler, together: bool) -> None:
    """The end token is likeliest by far. After the budget has replaced it, it ends the answer, however large the
    penalties: it has not occurred. The forced tokens have occurred."""
    end, forced = llm.model.end_ids[0], [500, 501]
    bias = {end: 100.0, 500: 90.0, 501: 80.0}
    penalties = Sampling(max_tokens=9, logit_bias=bias, presence_penalty=50.0, frequency_penalty=40.0, logprobs=0)
    request = GenerationRequest(llm.ids(TEXT), penalties, PlainText(), budget=EndReplaced(end, forced))
    beside = submit(scheduler, asked(llm, "The cat", 30))[1] if together else None
    answer = submit(scheduler, request)[1].answer()
    assert answer.finished is not None and answer.finished.ids == (*forced, end)
    assert answer.logprobs == []  # forced tokens have none, and do not take the replaced token's
    request = GenerationRequest(
        llm.ids(TEXT), replace(penalties, logit_bias={500: 90.0, 501: 80.0}), PlainText(), budget=Budget([500])
    )
    answer = submit(scheduler, request)[1].answer()
    assert answer.finished is not None and answer.finished.ids[:3] == (500, 501, 500)
    assert set(answer.finished.ids[3:]).isdisjoint({500, 501})
    if beside is not None:
        assert beside.answer().text == fresh_texts(llm, ["The cat"], 30)[0]


def test_a_stop_string_ends_the_text_before_it(llm: LLM, scheduler: Scheduler) -> None:
    plain = submit(scheduler, asked(llm, max_tokens=24))[1].answer().text
    stop = plain[len(plain) // 2 :][:4]
    answer = submit(scheduler, asked(llm, max_tokens=24, stop=(stop,)))[1].answer()
    assert answer.text == plain[: plain.index(stop)]
    assert answer.finished is not None
    assert (answer.finished.reason, answer.finished.stop_string) == ("stop_string", stop)


def test_an_error_of_no_sequence_ends_all(slow_llm: LLM, slow: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a run loop that has ended."""
    _, sink = submit(slow, asked(slow_llm, "The cat", 900))
    sink.until(TextDelta)

    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(slow._kv, "with_pages", broken)
    assert isinstance(sink.until(Failed).error, RuntimeError)
    with pytest.raises(SchedulerClosedError):
        submit(slow, asked(slow_llm))
    assert not slow.is_accepting and slow.counts() == (0, 0)


# --- masks


@dataclass
class Masks:
    """A constraint that allows all tokens. From the second token on, a mask waits for `opened`."""

    opened: threading.Event
    done: bool = False
    n: int = 0

    def mask(self) -> None:
        if self.n:
            assert self.opened.wait(60)

    def accept(self, token: int) -> None:
        self.n += 1


def constrained(
    llm: LLM, constraint: Masks, max_tokens: int, sender: str = "", prompt: str = TEXT
) -> GenerationRequest:
    return replace(asked(llm, prompt, max_tokens), constraint=constraint, sender=sender)


@pytest.fixture
def closed() -> Iterator[threading.Event]:
    """What slow masks wait for; set at the end, because their threads cannot be stopped."""
    event = threading.Event()
    yield event
    event.set()


def quick_masks() -> Masks:
    opened = threading.Event()
    opened.set()
    return Masks(opened)


def test_a_slow_mask_delays_only_its_own_sequence(
    llm: LLM, scheduler: Scheduler, closed: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mask_ahead, "LIMIT_S", 60.0)
    slow, quick = Collected(), Collected()
    scheduler.submit([constrained(llm, Masks(closed), 3)], [slow])
    slow.until(TextDelta)
    scheduler.submit([asked(llm, max_tokens=20)], [quick])
    assert quick.answer().finished is not None
    assert slow.new.empty()
    closed.set()
    assert len(slow.answer().finished.ids) == 3  # type: ignore[union-attr]


def test_masks_that_end_soon_do_not_count(closed: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request may end while its next mask is computed, and many agents' requests may end at the same time."""
    monkeypatch.setattr(mask_ahead, "COUNTED_S", 60.0)
    for _ in range(mask_ahead.MAX_ABANDONED):
        mask_ahead.MaskAhead(Masks(closed, n=1), "agents", lambda: None).abandon()
    mask_ahead.check_room("agents")
    mask_ahead.MaskAhead(Masks(closed, n=1), "agents", lambda: None).abandon()
    deadline = time.monotonic() + 60
    while any(os.getpriority(os.PRIO_PROCESS, job._thread_id) < 15 for job in mask_ahead._abandoned["agents"]):
        assert time.monotonic() < deadline, "they take no time from what others wait for"
    with pytest.raises(BusyError, match="constraints of your earlier requests are still being computed"):
        mask_ahead.check_room("agents")
    closed.set()
    while mask_ahead._abandoned["agents"]:
        time.sleep(0.001)
    mask_ahead.check_room("agents")


def test_masks_beyond_the_limit_fail_their_request(
    llm: LLM, scheduler: Scheduler, closed: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their threads cannot be stopped, so they count against their sender until they end."""
    long = "Some words. " * 30
    monkeypatch.setattr(mask_ahead, "LIMIT_S", 0.1)
    monkeypatch.setattr(mask_ahead, "COUNTED_S", 0.1)
    while len(mask_ahead._abandoned["slow"]) <= mask_ahead.MAX_LONG:
        failed = Collected()
        scheduler.submit([constrained(llm, Masks(closed), 3, "slow", long)], [failed])
        assert isinstance(failed.until(Failed).error, InvalidRequestError)
    monkeypatch.setattr(mask_ahead, "LIMIT_S", 60.0)  # a busy machine may take long for a quick mask
    refused, other = Collected(), Collected()
    requests = [constrained(llm, quick_masks(), 3, sender, long) for sender in ("slow", "other")]
    scheduler.submit(requests, [refused, other])
    assert api_error_of(refused.until(Failed).error).kind == "overloaded"
    assert other.answer().finished is not None
    closed.set()
    while mask_ahead._abandoned["slow"]:
        time.sleep(0.001)
    after = Collected()
    scheduler.submit([constrained(llm, quick_masks(), 3, "slow", long)], [after])
    assert after.until(Started).cached_tokens > 0, "a refusal drops no prefix"
    assert after.answer().finished is not None


def test_a_cancelled_sequence_does_not_wait_for_its_mask(
    llm: LLM, scheduler: Scheduler, closed: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mask_ahead, "LIMIT_S", 60.0)
    sink = Collected()
    (sequence,) = scheduler.submit([constrained(llm, Masks(closed), 9)], [sink])
    sink.until(TextDelta)
    scheduler.cancel(sequence)
    sink.until(Failed)
    assert not closed.is_set()
