"""The run loop: requests wait in a bounded queue for a session and take turns. `step` computes one turn: a prefill
chunk of one sequence, or one token of every decoding sequence in one pass over the weights.

The turn goes to the sequence with the least engine time. Other sequences also get turns between the layers of a long
chunk, so a long prompt delays them by at most a layer.

One thread at a time has the driver role and calls `step`: the server's thread, or a caller that waits for its own
answer. Other threads submit, wait, and take over the role when the driver leaves it.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from lucebox import _engine
from lucebox.errors import CancelledError, InternalError, InvalidRequestError, LuceboxError
from lucebox.generation.driver import Driver
from lucebox.generation.energy_shares import EnergyShares
from lucebox.generation.errors import BusyError, DeadlineError, QueueFullError, SchedulerClosedError
from lucebox.generation.kv_admission import KvAdmission
from lucebox.generation.loaded_model import LoadedModel
from lucebox.generation.observer import Observer
from lucebox.generation.pass_groups import pass_groups
from lucebox.generation.prefix_cache import PrefixCache, append_ends, around_images, turn_ends
from lucebox.generation.request import Failed, Finished, GenerationRequest, Sink
from lucebox.generation.sequence import Sequence

__all__ = ["Scheduler"]

log = logging.getLogger("lucebox.generation")

MASK_PATIENCE_S = 0.005
"""How long a turn waits for masks. Most take microseconds, while the logits are computed."""
LATE_MASK_POLL_S = 0.02

NO_DAMAGE = (BusyError, CancelledError, DeadlineError, SchedulerClosedError)
"""Errors that no damaged part of the prefix cache causes."""
MIN_EARLIER_TOKENS = 2048  # minimum tokens of earlier outputs kept per sender


class Scheduler:
    """Runs requests on the sessions of one model until it is closed."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        slots: int | None = None,
        max_queue: float = math.inf,
        request_timeout_s: float = math.inf,
        cache: PrefixCache | None = None,
        senders: Iterable[str] = (),
        observer: Observer | None = None,
        joules: Callable[[], float] | None = None,
    ) -> None:
        """slots: number of sessions, created now; None: created on demand, up to the model's limit.
        senders: digests of the API keys. Earlier outputs and prefixes are not shared between keys: timing would reveal
            what another key sent.
        joules: the energy counter of the model's device."""
        self.cache = cache or PrefixCache(0)
        self._model = model
        self._pool = model.sessions
        if slots is not None:
            self._pool.resize(slots)
        self.slots = tuple(self._pool.all())
        """The sessions created at the start."""
        self._max_queue = max_queue
        self._request_timeout_s = request_timeout_s
        self._observer = observer or Observer()
        self._energy = EnergyShares(joules)
        keys = list(senders)
        self._outputs: dict[str, _engine.speculation.EarlierOutputs] = {}
        if len(keys) > 1 and model.options.draft != "none":
            capacity = max(MIN_EARLIER_TOKENS, _engine.Engine.EARLIER_TOKENS // len(keys))
            self._outputs = {sender: _engine.speculation.EarlierOutputs(capacity) for sender in keys}
        self._queue: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # oldest first
        self._kv = KvAdmission(model, self._running, self.cache)
        self._n_passes = 0  # by groups of sequences
        self._sent_ahead_s = 0.0  # time spent sending the next decode turn's pass
        self.driver = Driver(self._has_turn, self.step, self._check_progress)
        """Decides which thread calls `step`. Its `changed` guards the queue, the sessions and the running list."""
        self._changed = self.driver.changed
        self._is_draining = self._is_closed = False
        self._close_error: Exception = SchedulerClosedError("the scheduler is shutting down")
        self._thread: threading.Thread | None = None
        _schedulers.add(self)

    # --- from any thread

    @property
    def is_accepting(self) -> bool:
        return not self._is_draining and (self._thread is None or self._thread.is_alive())

    @property
    def n_slots(self) -> int:
        """Maximum number of concurrent sequences."""
        return self._pool.limit

    @property
    def capacity(self) -> float:
        """Maximum number of sequences that one submit() can queue."""
        return self._max_queue + self.n_slots

    def counts(self) -> tuple[int, int]:
        """The numbers of waiting and running sequences."""
        with self._changed:
            return len(self._queue), len(self._running)

    def busy(self) -> list[bool]:
        """Whether each of `slots` runs a sequence."""
        with self._changed:
            return [not self._pool.is_free(session) for session in self.slots]

    def submit(self, requests: Iterable[GenerationRequest], sinks: Iterable[Sink]) -> list[Sequence]:
        """Queues all requests or none. Each request's items go to its sink; the last item is Finished or Failed.

        Raises:
            QueueFullError: the queue has no room for all of them.
            SchedulerClosedError: the scheduler is closing or closed.
        """
        deadline = time.perf_counter() + self._request_timeout_s
        leaders: dict[tuple[str, bytes], Sequence] = {}
        sequences: list[Sequence] = []
        for request, sink in zip(requests, sinks, strict=True):
            key = request.sender, request.ids.tobytes()
            sequences.append(Sequence(request, sink, deadline, leaders.get(key) if request.is_answer else None))
            if request.is_answer:
                leaders.setdefault(key, sequences[-1])
        with self._changed:
            if self._is_draining:
                raise self._close_error
            if len(self._queue) + len(sequences) > self.capacity - self._pool.n_in_use:
                self._observer.refused()
                raise QueueFullError(len(self._queue))
            self._queue.extend(sequences)
            self.driver.notify()
        return sequences

    def cancel(self, sequence: Sequence) -> None:
        """Ends a sequence before its next turn; no effect if it has ended."""
        with self._changed:
            was_waiting = sequence in self._queue
            if was_waiting:
                self._queue.remove(sequence)
            sequence.is_cancelled = True  # checked before every turn
            self.driver.notify()
        if was_waiting:
            self._fail(sequence, _cancelled())

    def withdraw(self, sequences: Iterable[Sequence]) -> None:
        """Cancels sequences, and waits until their sessions are free."""
        left = [one for one in sequences if not one.is_over and not self._model.is_forked]
        if self.driver.is_stepping_here:  # in a finalizer: the current step must finish first
            for one in left:
                one.is_cancelled = True
            return
        for one in left:
            self.cancel(one)
        if not all(one.is_over for one in left):
            with self.driver.alone():
                self._drop_ended()

    @contextmanager
    def session(self) -> Iterator[_engine.Session]:
        """The most recently used free session, with the run loop stopped; waits for a free one.

        Raises:
            InvalidRequestError: deadlock: only waiting threads could free one.
        """
        session = None
        while session is None:
            with self._changed:
                self.driver.wait_until(lambda: self._pool.has_room)
            with self.driver.alone():
                if (session := self._pool.take(lambda free: free[-1])) is None:
                    continue
                try:
                    yield session
                finally:
                    if session.is_swapped_out:
                        session.reset()
                    with self._changed:
                        self._pool.give_back(session)
                        self.driver.notify()

    def take_pages(self, session: _engine.Session, n_tokens: int) -> None:
        """Reserves KV pages for a session that `session` returned."""
        self._kv.take_alone(session, n_tokens)

    def use_cache(self, cache: PrefixCache) -> None:
        """Replaces the prefix cache, and empties the free sessions."""
        with self.driver.alone():
            self.cache.close()
            self.cache = cache
            self._kv.watch(cache)
            self._pool.reset()

    def start_thread(self) -> None:
        """Starts a thread that drives until the scheduler is closed."""
        self._thread = threading.Thread(target=self._drive, name="lucebox-engine", daemon=True)
        self._thread.start()

    def close(self, drain_s: float = 0.0, error: Exception | None = None) -> None:
        """Refuses new requests, gives queued and running ones `drain_s` seconds to finish, fails the rest with `error`,
        and empties the sessions."""
        with self._changed:
            self._close_error = error or self._close_error
            self._is_draining = True
            self._changed.wait_for(lambda: not self._queue and not self._running, drain_s)
            self._is_closed = True
            self.driver.notify()
        if self._thread is not None:
            self._thread.join()
        with self.driver.alone():
            self._end_all(self._close_error)
            self._pool.reset()
            self.cache.close()
            self.cache.free_pages = None
            self.slots = ()

    def _drive(self) -> None:
        try:
            self.driver.run_until(lambda: self._is_closed, may_idle=True)
        except Exception as error:  # not caused by one sequence
            log.error("the run loop ends", exc_info=error)
            with self._changed:
                self._close_error = SchedulerClosedError("the run loop ended with an error")
                self._is_draining = True
            with self.driver.alone():
                self._end_all(error)

    def _has_turn(self) -> bool:
        has_next = bool(self._queue) and self._pool.has_room
        return has_next or any(
            one.is_due or one.is_paused or one.is_cancelled or one.waits_for_mask for one in self._running
        )

    def _check_progress(self, waiting: set[int]) -> None:
        """Raises if only the waiting threads could end a sequence, because its stream is unread: a deadlock."""
        if self._thread is None and self._pool.owners <= waiting:
            n = self._pool.n_in_use
            raise InvalidRequestError(
                f"this LLM has {n} sessions, and {n} streams that are unfinished use them: finish or close one, or "
                f"load with sessions={n + 1}, and kv_tokens for what they hold together"
            )

    # --- in the driver's role

    def step(self) -> None:
        """Begins waiting sequences, or computes the next turn."""
        self._drop_ended()
        if self._admit():
            return  # their readers learn of the start before the first chunk
        self._kv.resume()
        _wait_for_masks(self._running)
        if due := self._kv.with_pages(self._group(_due(self._running))):
            self._turn(due)
        elif late := [one for one in self._running if one.waits_for_mask]:
            with self._changed:
                self._changed.wait_for(lambda: not all(one.waits_for_mask for one in late), LATE_MASK_POLL_S)

    def _drop_ended(self, computing: Sequence | None = None) -> None:
        """Ends sequences that are cancelled or past their deadline. For `computing`, whose chunk is in progress, it
        raises instead.

        Raises:
            CancelledError, DeadlineError: `computing` has ended.
        """
        now = time.perf_counter()
        for sequence in list(self._running):
            error: Exception | None = None
            if sequence.is_cancelled or now > sequence.deadline:
                error = _cancelled() if sequence.is_cancelled else self._late("finished")
            if error is not None and sequence is computing:
                raise error
            if error is not None:
                self._end(sequence, error)
        if self._request_timeout_s == math.inf:
            return
        with self._changed:
            late = [one for one in self._queue if now > one.deadline]
            for sequence in late:
                self._queue.remove(sequence)
        for sequence in late:
            self._fail(sequence, self._late("started"))

    def _late(self, what: str) -> DeadlineError:
        return DeadlineError(f"the request was not {what} within {self._request_timeout_s:g} s")

    def _admit(self) -> bool:
        """Starts waiting sequences on free sessions. Each takes the session with the longest matching prefix; ties go
        to the least recently used one. False: none started."""
        n_begun = 0
        while self._queue and not self._kv.has_paused:
            with self._changed:
                if not self._queue or not self._pool.has_room:
                    break
                sequence = self._queue.popleft()
                session = self._pool.take(partial(self._nearest, sequence.request), sequence.owner)
                if session is None:
                    self._queue.appendleft(sequence)
                    break
                # A new sequence starts with the minimum engine time of the running ones, so it cannot starve them.
                sequence.handicap_s = min((other.engine_s for other in self._running), default=0.0)
                self._running.append(sequence)
            self._begin(sequence, session)
            n_begun += 1
        return n_begun > 0

    def _nearest(self, request: GenerationRequest, free: list[_engine.Session]) -> _engine.Session:
        ends = append_ends(len(request.ids), turn_ends(request.ids, self._model.end_ids), free[0].prefill_chunk)
        if free[0].images_are_whole:
            ends = around_images(ends, request.ids)

        def match(session: _engine.Session) -> int:
            return session.matched_prefix(request.ids, ends) if self._pool.sender_of(session) == request.sender else 0

        return max(free, key=match)

    def _begin(self, sequence: Sequence, session: _engine.Session) -> None:
        leader, request = sequence.leader, sequence.request
        if leader is not None and (leader not in self._running or not leader.is_prefilling):
            sequence.leader = None

        def begin() -> None:
            self._pool.set_sender(session, request.sender)
            outputs = self._outputs.get(request.sender)
            sequence.begin(self._model, self.cache, outputs, self._between_layers, self.driver.notify)

        sequence.session = session
        self._energy.begin(sequence)
        self._try(begin, sequence)

    def _between_layers(self, sequence: Sequence) -> None:
        """Runs turns of other sequences between two layers of this sequence's chunk, until they have caught up in
        engine time."""
        if self._is_closed:
            raise self._close_error
        self._drop_ended(sequence)
        if not self._queue and len(self._running) == 1:
            return
        sequence.session.wait()  # so the clock measures the device's work
        began = time.perf_counter()
        own_s = began - sequence.turn_began - sequence.others_s
        self._admit()
        while due := _due([one for one in self._running if one is not sequence and one.fits_between_layers]):
            if min(one.engine_s for one in due) > sequence.engine_s + own_s:
                break
            with_pages = self._kv.with_pages(due, computing=sequence)
            if not with_pages:
                break
            self._turn(with_pages, is_within=True)
        sequence.others_s += time.perf_counter() - began

    def _turn(self, due: list[Sequence], *, is_within: bool = False) -> None:
        """is_within: the turn runs between the layers of another sequence's chunk. Then a single sequence sends no step
        ahead, because its time would be charged to the chunk."""
        is_pass = len(due) > 1 or (is_within and not due[0].is_prefilling)
        pass_s = 0.0
        if not due[0].is_prefilling:
            self._observer.begun_step(len(due))
            pass_s, self._sent_ahead_s = self._sent_ahead_s, 0.0
        if is_pass:
            pass_s += self._compute_together(due)
        computed = [one for one in due if self._try(partial(self._compute, one, pass_s), one)]
        if is_pass and not is_within:
            self._send_ahead(computed)
        for one in computed:
            self._try(partial(self._emit, one), one)

    def _compute_together(self, due: list[Sequence]) -> float:
        """Runs a pass for the next rows of several sequences; returns the seconds it took this thread."""
        start = time.perf_counter()
        self._send(due, waits=True)  # the shared time ends when the device has chosen the tokens
        spent_s = time.perf_counter() - start
        self._observer.spent_on_tokens(spent_s)
        return spent_s

    def _send(self, sequences: list[Sequence], *, waits: bool = False) -> None:
        """Sends a pass for rows not yet sent, then the sampling of their tokens. waits: block until the tokens are
        chosen.

        If the pass fails because of one sequence or for want of memory, each sequence computes its row alone: the one
        that caused the failure fails in its own turn, and the others continue. A bug fails all sequences of the pass.
        """
        rows = [(one, ids) for one in sequences if (ids := one.next_ids()) is not None]
        sessions = [one.session for one, _ in rows]
        try:
            n_rows = _engine.sync_together(sessions, [ids for _, ids in rows])
            if n_rows > 0:
                self._observer.sent_pass(n_rows)
            ready = _wait_for_masks([one for one, _ in rows])  # the others sample, or fail, in their own turn
            choices = [(one.session, sampler) for one in ready if (sampler := one.next_sampler()) is not None]
            _engine.start_samples([session for session, _ in choices], [sampler for _, sampler in choices])
            for session in sessions if waits else ():
                session.wait_for_choice()
        except Exception as error:
            if isinstance(error, LuceboxError) and not isinstance(error, InternalError):
                log.warning("a pass of %d sequences failed; each computes its row alone: %s", len(rows), error)
                return
            log.error("a pass of %d sequences failed", len(rows), exc_info=error)
            for one, _ in rows:
                one.error = error

    def _send_ahead(self, sequences: list[Sequence]) -> None:
        """Sends the next pass, so the device computes while this thread emits the texts of the last one. Skipped if a
        prompt may come first or pages are short. The row of a sequence that ends meanwhile is wasted."""
        start = time.perf_counter()
        if self._has_prompt() or not self._model.on_device:
            return
        following = [one for one in sequences if one.may_continue]
        if len(following) > 1 and all(one.session.reserve(one.next_length) for one in following):
            self._send(following)
        self._sent_ahead_s = time.perf_counter() - start
        self._observer.spent_on_tokens(self._sent_ahead_s)

    def _has_prompt(self) -> bool:
        return bool(self._queue and self._pool.has_room) or any(one.is_prefilling for one in self._running)

    def _group(self, due: list[Sequence]) -> list[Sequence]:
        """The sequences of the next pass: the group among those due whose last pass is the oldest. While a prompt waits
        or is computed, all decode together."""
        if self._model.max_groups == 1 or not due or due[0].is_prefilling or self._has_prompt():
            return due
        groups = [[one for one in group if one in due] for group in pass_groups(self._running, self._model.max_groups)]
        group = min(filter(None, groups), key=lambda group: min(one.pass_number for one in group))
        self._n_passes += 1
        for one in group:
            one.pass_number = self._n_passes
        return group

    def _compute(self, sequence: Sequence, pass_s: float) -> None:
        before_s, n_before, was_prefilling = sequence.engine_s, sequence.n_generated, sequence.is_prefilling
        sequence.compute(pass_s)
        if was_prefilling:
            self._observer.spent_on_prompt(sequence.engine_s - before_s)
            if not sequence.is_prefilling:
                self._lead(sequence)
        elif sequence.n_generated > n_before:
            self._observer.spent_on_tokens(sequence.engine_s - before_s - pass_s, 1)
            if sequence.n_generated == 1:
                sequence.first_token_s = time.perf_counter() - sequence.submitted
                self._observer.first_token(sequence.first_token_s)

    def _emit(self, sequence: Sequence) -> None:
        before_s = sequence.engine_s
        finished = sequence.emit()
        self._observer.spent_on_tokens(sequence.engine_s - before_s)
        if finished is not None:
            self._end(sequence, finished)

    def _lead(self, leader: Sequence) -> None:
        """Starts the sequences that wait for the leader's prompt; if the leader failed, the first of them becomes the
        leader."""
        waiting = [one for one in self._running if one.leader is leader]
        if leader.is_prefilling and waiting:
            for one in waiting[1:]:
                one.leader = waiting[0]
            self._try(waiting[0].lead, waiting[0])
            return
        for one in waiting:
            self._try(one.follow, one)

    def _try(self, part: Callable[[], None], sequence: Sequence) -> bool:
        """Runs a part of a sequence's turn. False: it failed, which ends only this sequence."""
        try:
            part()
        except Exception as error:
            if sequence.cached and not isinstance(error, NO_DAMAGE):
                ids = sequence.request.ids
                self.cache.forget(sequence.session, ids, turn_ends(ids, self._model.end_ids), sequence.request.sender)
            self._end(sequence, error)
            return False
        except BaseException:  # Ctrl-C: this thread may not be the one that submitted the sequence
            self._end(sequence, CancelledError("the thread that computed this answer was interrupted"))
            raise
        return True

    def _end(self, sequence: Sequence, result: Finished | Exception) -> None:
        joules = self._energy.end(sequence)
        if isinstance(result, Finished) and joules is not None:
            result = replace(result, usage=replace(result.usage, joules=joules))
        self._observer.ended(sequence, result)
        session, was_prefilling = sequence.session, sequence.is_prefilling
        if isinstance(result, Exception) or session.is_swapped_out:
            session.reset()  # frees its pages, whatever state a failed part left
        with self._changed:  # nothing under this lock may wait for the engine: the server's event loop takes it too
            self._running.remove(sequence)
            self._pool.give_back(session)
            sequence.release()
            self.driver.notify()
        if was_prefilling:
            self._lead(sequence)
        sequence.sink.put(Failed(result) if isinstance(result, Exception) else result)

    def _end_all(self, error: Exception) -> None:
        for sequence in list(self._running):
            self._end(sequence, error)
        with self._changed:
            waiting = list(self._queue)
            self._queue.clear()
        for sequence in waiting:
            self._fail(sequence, error)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        """Fails a sequence that has not begun."""
        self._observer.ended(sequence, error)
        sequence.release()
        sequence.sink.put(Failed(error))
        self.driver.notify()


def _cancelled() -> CancelledError:
    return CancelledError("the request was cancelled")


def _due(sequences: list[Sequence]) -> list[Sequence]:
    """The sequences of the next turn, including the one with the least engine time."""
    ready = [one for one in sequences if one.is_due]
    if not ready:
        return []
    first = min(ready, key=lambda one: one.engine_s)
    return [first] if first.is_prefilling else [one for one in ready if not one.is_prefilling]


def _wait_for_masks(sequences: list[Sequence]) -> list[Sequence]:
    """Waits briefly for the masks of sequences; returns those whose next token can be sampled."""
    deadline = time.perf_counter() + MASK_PATIENCE_S
    return [one for one in sequences if one.is_prefilling or one.has_mask(deadline - time.perf_counter())]


_schedulers: weakref.WeakSet[Scheduler] = weakref.WeakSet()


@atexit.register
def _stop_generating() -> None:
    """At exit, waits until no thread is inside the engine, and bars re-entry: a daemon thread that returns from the
    engine during interpreter shutdown aborts the process. Sessions of unfinished sequences live until the process ends,
    which nanobind would report as leaks."""
    for scheduler in list(_schedulers):
        if scheduler._is_closed or scheduler._model.is_forked:
            continue
        scheduler.driver.claim()
        if scheduler._pool.n_in_use:
            _engine.allow_leaks()
