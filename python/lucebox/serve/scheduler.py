"""The scheduler: one thread owns the engine; requests wait in a bounded queue for a slot (a session) and take turns.

A turn is a prefill chunk of one job, or a token of each job that decodes: one pass over the weights computes them all.
It goes to the job with the least engine time. Between the layers of a long chunk the others have their turns too, so a
long prompt delays an answer, or the beginning of a short one, by a layer.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import numpy as np

from lucebox import _engine
from lucebox.api import LLM
from lucebox.errors import LuceboxError
from lucebox.page_room import PageRoom
from lucebox.serve.channel import Sink
from lucebox.serve.errors import ApiError, from_lucebox, overloaded
from lucebox.serve.metrics import Metrics, RequestRecord
from lucebox.serve.prefix_cache import PrefixCache, append_ends, turn_ends
from lucebox.serve.request import Failed, Finished, GenerationRequest
from lucebox.serve.work import Job, Slot, Work

__all__ = ["Scheduler"]

log = logging.getLogger("lucebox.serve")

T = TypeVar("T")

MAX_RETRY_AFTER = 60
MIN_EARLIER_TOKENS = 2048  # of each API key's outputs
CANCELLED = ApiError("cancelled", "the request was cancelled")
CLOSING = ApiError("overloaded", "the server is shutting down", retry_after=5)


class Scheduler:
    """Runs jobs on the sessions of one model until it is closed."""

    def __init__(
        self,
        llm: LLM,
        *,
        slots: int = 1,
        max_queue: int = 64,
        request_timeout_s: float = math.inf,
        cache: PrefixCache | None = None,
        senders: Sequence[str] = (),
    ) -> None:
        """senders: digests of the API keys. Neither the outputs nor the prefixes of one key speed up another's answers,
        whose time would tell what the first one sent."""
        self.metrics = Metrics()
        self._llm = llm
        self.cache = cache or PrefixCache(0)
        self._max_queue = max_queue
        self._request_timeout_s = request_timeout_s
        self._slots = [Slot(session) for session in llm.sessions(slots)]
        self.metrics.drafts.watch(slot.session for slot in self._slots)
        self._free = list(self._slots)
        self._outputs: dict[str, _engine.speculation.EarlierOutputs] = {}
        if len(senders) > 1 and llm.options.draft != "none":
            capacity = max(MIN_EARLIER_TOKENS, _engine.Engine.EARLIER_TOKENS // len(senders))
            self._outputs = {sender: _engine.speculation.EarlierOutputs(capacity) for sender in senders}
        self._queue: deque[Job] = deque()
        self._works: list[Work] = []  # in the order in which they started
        self._sent_ahead_s = 0.0  # what this thread took to send the pass of the next turn of tokens
        me = weakref.ref(self)  # no cycle: a closed scheduler frees its sessions at once
        self.cache.free_pages = lambda: (scheduler := me()) is not None and scheduler._free_pages()
        self._room = PageRoom(llm.engine, self._works, self.cache.free_pages)
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._is_draining = self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="lucebox-engine", daemon=True)
        self._thread.start()

    # --- from any thread

    @property
    def n_slots(self) -> int:
        return len(self._slots)

    @property
    def is_accepting(self) -> bool:
        return not self._is_draining and self._thread.is_alive()

    @property
    def capacity(self) -> int:
        """The most jobs that one request can queue."""
        return self._max_queue + len(self._slots)

    def counts(self) -> tuple[int, int]:
        """The numbers of waiting and running jobs."""
        with self._changed:
            return len(self._queue), len(self._works)

    def busy(self) -> list[bool]:
        """Whether each slot has a job."""
        with self._changed:
            return [slot not in self._free for slot in self._slots]

    def submit(self, requests: Sequence[GenerationRequest], sinks: Sequence[Sink]) -> list[Job]:
        """Queues all requests or none. Each request's items go to its sink; the last item is Finished or Failed.

        Raises:
            ApiError: the queue is full, or the scheduler is closing.
        """
        deadline = time.perf_counter() + self._request_timeout_s
        jobs: list[Job] = []
        for request, sink in zip(requests, sinks, strict=True):
            leader = next((job for job in jobs if job.leader is None and _share_a_prompt(job.request, request)), None)
            jobs.append(Job(request, sink, deadline, leader))
        with self._changed:
            if self._is_draining:
                raise CLOSING
            if len(self._queue) + len(jobs) > self._max_queue + len(self._free):
                self.metrics.rejected.add(1)
                raise overloaded(f"the queue is full: {len(self._queue)} requests wait", self._retry_after())
            self._queue.extend(jobs)
            self._changed.notify()
        return jobs

    def in_turn(self, compute: Callable[[], T]) -> T:
        """The result of a computation of another model, run on the engine's thread between two turns.

        Raises:
            ApiError: the scheduler is closing, or `compute` raises it.
        """
        result: Future[T] = Future()
        with self._changed:
            if self._is_closed:
                raise CLOSING
            self._calls.append((result, compute))
            self._changed.notify()
        return result.result()

    def cancel(self, job: Job) -> None:
        """Cancels a job before its next turn; does nothing if the job has ended."""
        with self._changed:
            was_waiting = job in self._queue
            if was_waiting:
                self._queue.remove(job)
            job.is_cancelled = True  # checked by the engine's thread before every turn
        if was_waiting:
            self._fail(job, CANCELLED)

    def close(self, drain_s: float = 0.0) -> None:
        """Refuses new jobs, gives the others `drain_s` seconds to finish, and stops the thread."""
        with self._changed:
            self._is_draining = True
            self._changed.wait_for(lambda: not self._queue and len(self._free) == len(self._slots), drain_s)
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        for slot in self._slots:
            slot.session.reset()  # gives its pages back
        self.cache.close()

    def _retry_after(self) -> int:
        rounds = (len(self._queue) + 1) / len(self._slots)
        return max(1, min(MAX_RETRY_AFTER, math.ceil(rounds * self.metrics.mean_request_s())))

    # --- the engine's thread

    def _run(self) -> None:
        while self._wait():
            self._drop_ended()
            self._call()
            for job, slot in self._admit():
                self._start(job, slot)
            self._room.resume()
            if due := self._room.with_pages(_due(self._works)):
                self._turn(due)
        for work in list(self._works):
            self._end(work, CLOSING)
        with self._changed:
            waiting, calls = list(self._queue), list(self._calls)
            self._queue.clear()
            self._calls.clear()
        for job in waiting:
            self._fail(job, CLOSING)
        for result, _ in calls:
            result.set_exception(CLOSING)

    def _wait(self) -> bool:
        """Waits for work; False once the scheduler is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._queue or self._works or self._calls)
            return not self._is_closed

    def _drop_ended(self, computing: Work | None = None) -> None:
        """Ends cancelled jobs and jobs past their deadline; that of the work whose chunk is being computed by raising.

        Raises:
            ApiError: `computing` has ended.
        """
        now = time.perf_counter()
        for work in list(self._works):
            error = CANCELLED if work.job.is_cancelled else self._late("finished") if now > work.job.deadline else None
            if error is not None and work is computing:
                raise error
            if error is not None:
                self._end(work, error)
        with self._changed:
            late = [job for job in self._queue if now > job.deadline]
            for job in late:
                self._queue.remove(job)
        for job in late:
            self._fail(job, self._late("started"))

    def _call(self) -> None:
        """Runs one computation of in_turn."""
        with self._changed:
            if not self._calls:
                return
            result, compute = self._calls.popleft()
        try:
            result.set_result(compute())
        except Exception as error:
            result.set_exception(error)

    def _late(self, what: str) -> ApiError:
        return ApiError("timeout", f"the request was not {what} within {self._request_timeout_s:g} s")

    def _admit(self) -> list[tuple[Job, Slot]]:
        """Admits waiting jobs to free slots: the slot with the longest matched prefix, among equals the LRU one."""
        admitted: list[tuple[Job, Slot]] = []
        if self._room.has_paused:
            return admitted
        with self._changed:
            while self._queue and self._free:
                job = self._queue.popleft()
                slot = self._nearest(job)
                self._free.remove(slot)
                admitted.append((job, slot))
        return admitted

    def _nearest(self, job: Job) -> Slot:
        ids, sender = job.request.ids, job.request.sender
        chunk = self._llm.options.prefill_chunk
        assert chunk is not None
        ends = append_ends(len(ids), turn_ends(ids, self._llm.end_ids), chunk)

        def match(slot: Slot) -> tuple[int, float]:
            return slot.session.matched_prefix(ids, ends) if slot.sender == sender else 0, -slot.used_at

        return max(self._free, key=match)

    def _start(self, job: Job, slot: Slot) -> None:
        leader = next((work for work in self._works if work.job is job.leader and work.is_prefilling), None)
        try:
            outputs = self._outputs.get(job.request.sender)
            work = Work(self._llm, slot, job, self.cache, outputs, leader, between_layers=self._between_layers)
        except Exception as caught:
            slot.session.reset()
            with self._changed:
                self._free.append(slot)
                self._changed.notify_all()
            self._fail(job, _reported(caught))
            return
        # A new job starts at the least time used, so that it cannot starve the running jobs.
        work.spent_s = min((other.spent_s for other in self._works), default=0.0)
        self._works.append(work)

    def _free_pages(self) -> bool:
        """Drops the pages of the least recently used prefix, else resets the least recently used free slot. False:
        nothing but works has pages."""
        if self.cache.drop_pages():
            return True
        with self._changed:
            holders = [slot for slot in self._free if slot.session.n_pages]
        if not holders:
            return False
        min(holders, key=lambda slot: slot.used_at).session.reset()
        return True

    def _between_layers(self, work: Work) -> None:
        """Turns of other works between two layers of this one's chunk, until they have had as much engine time."""
        if self._is_closed:
            raise CLOSING
        self._drop_ended(work)
        if not self._queue and len(self._works) == 1:
            return
        work.slot.session.wait()  # the clock shows what the device has done
        began = time.perf_counter()
        own_s = began - work.turn_began - work.others_s
        for job, slot in self._admit():
            self._start(job, slot)
        while due := _due([one for one in self._works if one is not work and one.fits_between_layers]):
            if min(one.spent_s for one in due) > work.spent_s + own_s:
                break
            with_pages = self._room.with_pages(due, computing=work)
            if not with_pages:
                break
            self._turn(with_pages, is_within=True)
        work.others_s += time.perf_counter() - began

    def _turn(self, works: list[Work], *, is_within: bool = False) -> None:
        """is_within: another work's chunk. A work alone then runs no steps ahead, whose time would be counted as the
        chunk's."""
        is_pass = len(works) > 1 or (is_within and not works[0].is_prefilling)
        pass_s = 0.0
        if not works[0].is_prefilling:
            self.metrics.sequences.observe(len(works))
            pass_s, self._sent_ahead_s = self._sent_ahead_s, 0.0
        if is_pass:
            pass_s += self._compute_together(works)
        computed = [work for work in works if self._try(partial(self._compute, pass_s), work)]
        if is_pass and not is_within:
            self._send_ahead(computed)
        for work in computed:
            self._try(self._tell, work)

    def _compute_together(self, works: list[Work]) -> float:
        """A pass for the next rows of several works; the seconds that it takes this thread. What it leaves open, each
        work computes alone."""
        start = time.perf_counter()
        self._send(works, waits=True)  # the time that all works share ends when the device has chosen
        spent_s = time.perf_counter() - start
        self.metrics.decode_s.add(spent_s)
        return spent_s

    def _send(self, works: list[Work], *, waits: bool = False) -> None:
        """Sends a pass for the rows that are not yet sent, and the choices after it. waits: until they are made."""
        rows = [(work, ids) for work in works if (ids := work.next_ids()) is not None]
        try:
            sessions = [work.slot.session for work, _ in rows]
            n_rows = _engine.sync_together(sessions, [ids for _, ids in rows])
            self.metrics.rows.observe(n_rows, 1 if n_rows > 0 else 0)
            _engine.start_samples(sessions, [work.next_sampler() for work, _ in rows])
            if waits and sessions:
                sessions[0].wait()
        except Exception:
            log.warning("a pass of %d sequences failed; each goes on alone", len(rows), exc_info=True)

    def _send_ahead(self, works: list[Work]) -> None:
        """Sends the next pass, which a device computes while this thread gives out the texts of the last one. Not where
        a prompt may come first, or pages are short. The row of a work whose text ends it is computed for nothing."""
        start = time.perf_counter()
        has_prompt = (self._queue and self._free) or any(work.is_prefilling for work in self._works)
        if has_prompt or not self._llm.pool.on_device:
            return
        going_on = [work for work in works if work.goes_on]
        if len(going_on) > 1 and all(work.session.reserve(work.next_length) for work in going_on):
            self._send(going_on)
        self._sent_ahead_s = time.perf_counter() - start
        self.metrics.decode_s.add(self._sent_ahead_s)

    def _try(self, step: Callable[[Work], None], work: Work) -> bool:
        """A step of a work's turn. False: it has failed, which ends the work."""
        try:
            step(work)
        except Exception as caught:
            work.slot.session.reset()  # the step may have left any state
            if work.cached:
                ids = work.job.request.ids
                self.cache.forget(work.slot.session, ids, turn_ends(ids, self._llm.end_ids), work.job.request.sender)
            self._end(work, _reported(caught))
            return False
        return True

    def _compute(self, pass_s: float, work: Work) -> None:
        was_prefilling, work.turn_began = work.is_prefilling, time.perf_counter()
        work.compute(pass_s)
        if was_prefilling and not work.is_prefilling:
            self._lead(work)
        now = time.perf_counter()
        if was_prefilling:
            work.spent_s += now - work.turn_began - work.others_s
            self.metrics.prefill_s.add(now - work.turn_began - work.others_s)
            return
        work.spent_s += now - work.turn_began + pass_s
        self.metrics.decode_s.add(now - work.turn_began)
        self.metrics.generated_tokens.add(1)
        if work.n_generated == 1:
            work.first_token_s = now - work.job.submitted
            self.metrics.first_token_s.observe(work.first_token_s)

    def _tell(self, work: Work) -> None:
        start = time.perf_counter()
        finished = work.tell()
        spent_s = time.perf_counter() - start
        work.spent_s += spent_s
        self.metrics.decode_s.add(spent_s)
        if finished is not None:
            self._end(work, finished)

    def _lead(self, leader: Work) -> None:
        """Starts the works that wait for this one's prompt; where it has failed, one of them computes it."""
        waiting = [work for work in self._works if work.leader is leader]
        if leader.is_prefilling and waiting:
            for work in waiting[1:]:
                work.leader = waiting[0]
            self._begin(waiting[0], waiting[0].lead)
            return
        for work in waiting:
            self._begin(work, work.follow)

    def _begin(self, work: Work, begin: Callable[[], None]) -> None:
        try:
            begin()
        except Exception as caught:
            self._end(work, _reported(caught))

    def _end(self, work: Work, result: Finished | ApiError) -> None:
        self.metrics.prompt_tokens.add(work.n_prompt)
        self.metrics.cached_tokens.add(work.cached)
        if (record := work.job.request.compression) is not None:
            self.metrics.cut_tokens.add(record.original_tokens - record.kept_tokens)
        if isinstance(result, ApiError):
            work.slot.session.reset()  # gives its pages back
        with self._changed:
            self._works.remove(work)
            self._free.append(work.slot)
            self._changed.notify_all()
        if work.is_prefilling:
            self._lead(work)
        if isinstance(result, ApiError):
            self._fail(work.job, result, work)
        else:
            self.metrics.record(_record(work.job, result.reason, work))
            work.job.sink.put(result)

    def _fail(self, job: Job, error: ApiError, work: Work | None = None) -> None:
        self.metrics.record(_record(job, error.kind, work))
        job.sink.put(Failed(error))


def _share_a_prompt(a: GenerationRequest, b: GenerationRequest) -> bool:
    """Whether one may take over what the other computes of its prompt."""
    generate = all(one.embedding is None and not one.scores_prompt for one in (a, b))
    return generate and a.sender == b.sender and np.array_equal(a.ids, b.ids)


def _due(works: Sequence[Work]) -> list[Work]:
    """The works of the next turn, the one with the least engine time among them. Works that wait for pages or for
    another work's prompt have none."""
    ready = [work for work in works if not work.is_paused and work.leader is None]
    if not ready:
        return []
    first = min(ready, key=lambda work: work.spent_s)
    return [first] if first.is_prefilling else [work for work in ready if not work.is_prefilling]


def _reported(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, LuceboxError):
        return from_lucebox(error)
    log.error("a request failed", exc_info=error)
    return ApiError("internal", f"{type(error).__name__} while generating")


def _record(job: Job, outcome: str, work: Work | None) -> RequestRecord:
    total_s = time.perf_counter() - job.submitted
    drafts = work.drafts if work else None
    return RequestRecord(
        ended_at=time.time(),
        endpoint=job.request.endpoint,
        outcome=outcome,
        prompt_tokens=len(job.request.ids),
        original_tokens=job.request.compression.original_tokens if job.request.compression else None,
        cached_tokens=work.cached if work else 0,
        generated_tokens=work.n_generated if work else 0,
        queue_s=work.queue_s if work else total_s,
        first_token_s=work.first_token_s if work else None,
        prefill_s=work.prefill_s if work else 0.0,
        decode_s=work.decode_s if work else 0.0,
        total_s=total_s,
        verifies=drafts.verifies if drafts else 0,
        drafted_tokens=drafts.drafted_tokens if drafts else 0,
        accepted_tokens=drafts.accepted_tokens if drafts else 0,
    )
