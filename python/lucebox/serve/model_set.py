"""The models of a server: which one a request means, which ones are in memory, and which one leaves for another.

The event loop alone uses a set, except for `load_first` before the loop runs and `close`, which blocks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request

from lucebox import _engine
from lucebox.chat.presence import LEFT
from lucebox.errors import InternalError, LuceboxError
from lucebox.models.hub import Progress
from lucebox.serve.engine_errors import closing
from lucebox.serve.errors import ApiError, overloaded
from lucebox.serve.in_thread import in_thread
from lucebox.serve.model_entry import ModelEntry
from lucebox.serve.model_plans import needed_room
from lucebox.serve.prefix_table import PrefixTable
from lucebox.serve.running_model import RunningModel
from lucebox.serve.shared_scorer import SharedScorer
from lucebox.serve.telemetry import Telemetry
from lucebox.serve.weight_keeper import WeightKeeper
from lucebox.sizes import show_size

__all__ = ["DIGESTS", "LEAVE", "ModelSet"]

T = TypeVar("T")
LEAVE = "lucebox.leave"
"""The key of a request's scope that lists what to call when its route has ended."""
DIGESTS = "lucebox.prefixes"
"""The key of a request's scope that has the digests of its prefixes, where a model has replicas."""
POLL_S = 0.02
"""How often an unload looks for the end of the last request."""
RETRY_S = 10


class ModelSet:
    """Loads models when requests name them, and unloads idle ones by age and for memory. A busy model stays."""

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        telemetry: Telemetry,
        *,
        keep_loaded_s: float | None = None,
        max_waiting: int = 64,
        wait_s: float = 3600.0,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        """keep_loaded_s: idle time after which a model is unloaded; None: never.
        max_waiting: requests that may wait for a model to be loaded; wait_s: for how long.
        report: called with a line about each load and unload."""
        self.entries = tuple(entries)
        """All models; the replicas of one follow each other."""
        self.firsts = tuple(entry for entry in entries if entry.spec.replica == 0)
        """One entry of each model: its only one, or its first replica."""
        self._prefixes: dict[ModelEntry, PrefixTable[ModelEntry]] = {
            first: PrefixTable() for first in self.firsts if first.spec.settings.replicas > 1
        }
        self.telemetry = telemetry
        self._keep_loaded_s = keep_loaded_s
        self._max_waiting = max_waiting
        self._wait_s = wait_s
        self._report = report
        self._keeper = WeightKeeper(entries, report)
        self._moving = asyncio.Lock()  # held by the load or unload in progress
        self._loop: asyncio.AbstractEventLoop | None = None
        self._expiry: asyncio.Task[None] | None = None
        self._is_closed = False

    # --- which model

    @property
    def default(self) -> ModelEntry:
        """The model of requests that name none."""
        return self.entries[0]

    @property
    def has_replicas(self) -> bool:
        return bool(self._prefixes)

    def replicas(self, first: ModelEntry) -> tuple[ModelEntry, ...]:
        """All entries of a model."""
        at = self.entries.index(first)
        return self.entries[at : at + first.spec.settings.replicas]

    def loaded_replicas(self, first: ModelEntry) -> list[RunningModel]:
        """What a model has in memory now: one for each of its replicas that is loaded."""
        return [entry.running for entry in self.replicas(first) if entry.running is not None]

    def find(self, requested: str | None) -> ModelEntry:
        """The model of a name or an alias; of one with replicas, the first.

        Raises:
            ApiError: there is none.
        """
        if requested is None:
            return self.default
        for entry in self.firsts:
            if requested == entry.name:
                return entry
        for entry in self.firsts:
            aliases = entry.spec.settings.alias
            if requested == entry.facts.loaded_by or any(fnmatchcase(requested, alias) for alias in aliases):
                return entry
        names = ", ".join(repr(entry.name) for entry in self.firsts)
        raise ApiError(
            "not_found",
            f"The model {requested!r} does not exist; this server has {names}",
            "model",
            "model_not_found",
        )

    @property
    def is_accepting(self) -> bool:
        """Whether the set takes requests."""
        return not self._is_closed and all(
            entry.running.scheduler.is_accepting for entry in self.entries if entry.running is not None
        )

    # --- use

    async def use(self, requested: str | None, request: Request) -> tuple[RunningModel, str]:
        """The model that a request names, loaded, and its name for the response: the requested one, because clients
        compare the two. It is the replica that has the prefix of the request's prompt, else the least busy one. It
        stays loaded until the request's route has ended; then its scheduler knows of the request.

        Raises:
            ApiError: no such model, it cannot be loaded, too many requests wait for it, or the client has left.
        """
        first = self.find(requested)
        entry = self._replica_for(first, request.scope.get(DIGESTS, ()))
        running = await self._enter(entry, request)
        request.scope.setdefault(LEAVE, []).append(partial(self._leave, entry))
        return running, requested or entry.name

    def _replica_for(self, first: ModelEntry, digests: Sequence[bytes]) -> ModelEntry:
        if (table := self._prefixes.get(first)) is None:
            return first
        queues = {one: one.n_requests for one in self.replicas(first)}
        slots = first.facts.slots
        loaded = {one: n for one, n in queues.items() if one.running is not None}
        if loaded and min(loaded.values()) < slots:
            queues = loaded  # no request waits for a load while a copy has a free slot
        # Equally busy ones take turns: if one had all prompts, it alone would keep prefixes.
        chosen = table.holder(digests, queues, slots) or min(queues, key=lambda one: (queues[one], one.last_used))
        table.add(digests, chosen)
        return chosen

    async def load(self, name: str, request: Request) -> ModelEntry:
        """Loads a model with all its replicas, unless they are loaded.

        Raises:
            ApiError: as `use`.
        """
        first = self.find(name)
        for entry in self.replicas(first):
            await self._enter(entry, request)
            self._leave(entry)
        return first

    async def unload(self, name: str) -> ModelEntry:
        """Unloads a model with all its replicas, if they are loaded.

        Raises:
            ApiError: no such model, or it is busy or pinned.
        """
        first = self.find(name)
        if first.is_pinned:
            raise ApiError("unsupported", f"the program that serves {first.name!r} keeps it loaded")
        replicas = self.replicas(first)
        if any(entry.is_busy for entry in replicas):
            raise ApiError("conflict", f"{first.name!r} is busy: it is unloaded only while no request uses it")
        async with self._moving:
            for entry in replicas:
                await self._unload(entry, "as requested")
                kept, entry.kept = entry.kept, None
                if kept is not None:
                    await in_thread(partial(_free, kept))
        return first

    def status(self, first: ModelEntry) -> dict[str, Any]:
        """The state and memory of a model: of one with replicas, their sums, and each in `replicas`."""
        each = [entry.status() for entry in self.replicas(first)]
        if len(each) == 1:
            return each[0]
        states = [one["value"] for one in each]
        sums = ("memory_bytes", "available_bytes", "kept_bytes", "slots", "running", "waiting", "loads")
        longest = {
            name: max((one[name] for one in each if one[name] is not None), default=None)
            for name in ("load_s", "unload_s")
        }
        return {
            **each[0],
            "value": next(one for one in ("loaded", "loading", "unloading", "failed", "unloaded") if one in states),
            "device": ",".join(one["device"] for one in each),
            **{name: sum(one[name] for one in each) for name in sums},
            **longest,
            "idle_s": None if any(one["idle_s"] is None for one in each) else min(one["idle_s"] for one in each),
            "error": next((one["error"] for one in each if one["error"]), None),
            "replicas": each,
        }

    async def _enter(self, entry: ModelEntry, request: Request) -> RunningModel:
        if self._is_closed:
            raise closing()
        if entry.running is not None and entry.may_enter.is_set():
            entry.n_users += 1
            return entry.running
        if entry.n_waiting >= self._max_waiting:
            raise overloaded(
                f"the queue is full: {entry.n_waiting} requests wait until {entry.name!r} is loaded", RETRY_S
            )
        entry.n_waiting += 1
        try:
            return await _unless_left(request, self._loaded(entry), self._wait_s, entry.name)
        finally:
            entry.n_waiting -= 1

    async def _loaded(self, entry: ModelEntry) -> RunningModel:
        while not entry.may_enter.is_set():
            await entry.may_enter.wait()
        entry.n_users += 1
        try:
            while entry.running is None:
                if self._is_closed:
                    raise closing()
                if entry.loading is None:
                    self._loop = asyncio.get_running_loop()
                    entry.loading = self._loop.create_task(self._load(entry))
                task = entry.loading
                await asyncio.wait([task])
                if not task.cancelled() and (error := task.result()) is not None:
                    raise overloaded(f"the model {entry.name!r} cannot be loaded: {error}", RETRY_S) from error
            return entry.running
        except BaseException:
            self._leave(entry)
            raise

    def _leave(self, entry: ModelEntry) -> None:
        entry.n_users -= 1
        if entry.running is not None:
            entry.running.touch()
        elif entry.n_users == 0 and entry.loading is not None and not entry.is_opening:
            entry.loading.cancel()  # nobody waits for it

    # --- load and unload

    def load_first(self, progress: Progress | None = None) -> None:
        """Loads the models that fit in memory together, in their order; blocks.

        Raises:
            LuceboxError: as `LLM`.
        """
        for entry in self.entries:
            if entry.running is None and not self.leaving_for(entry):
                began = time.monotonic()
                entry.take(entry.open(self.telemetry, progress), time.monotonic() - began)

    def leaving_for(self, entry: ModelEntry) -> list[ModelEntry]:
        """The models to unload before an entry can be loaded: idle ones first, the least recently used first."""
        if entry.planned is None or entry.running is not None:
            return []
        beside = [other for other in self.entries if other.running and other.facts.device == entry.facts.device]
        free_bytes = entry.facts.available_bytes - sum(other.facts.n_bytes for other in beside)
        ordered = sorted(
            (other for other in beside if not other.is_pinned),
            key=lambda other: (other.is_busy, other.last_used),
        )
        names = needed_room(entry.facts.n_bytes, free_bytes, [(other.title, other.facts.n_bytes) for other in ordered])
        return [other for other in ordered if other.title in names]

    async def _load(self, entry: ModelEntry) -> LuceboxError | None:
        """Loads a model after those that must leave for it; returns the error of a load that failed."""
        try:
            async with self._moving:
                while leaving := self.leaving_for(entry):
                    await self._unload(leaving[0], f"for {entry.title}")
                if self._is_closed or entry.n_users == 0:
                    return None
                entry.is_opening = True
                began = time.monotonic()
                entry.take(await in_thread(partial(entry.open, self.telemetry)), time.monotonic() - began)
                self._keeper.start(entry)
                self._report(
                    f"loaded {entry.title} in {entry.load_s:.2f} s: {show_size(entry.facts.n_bytes)} of "
                    f"{show_size(entry.facts.available_bytes)} on {entry.facts.device}"
                )
        except LuceboxError as error:
            entry.error = str(error)
            self._report(f"{entry.title} cannot be loaded: {error}")
            return error
        except Exception as error:
            entry.error = type(error).__name__
            self._report(f"{entry.title} cannot be loaded: {error!r}")
            return InternalError(entry.error)
        finally:
            entry.is_opening, entry.loading = False, None
        return None

    async def _unload(self, entry: ModelEntry, why: str) -> None:
        """Waits until no request uses a model, while new ones wait for its next load, and unloads it. The copy of its
        weights stays as it is."""
        entry.may_enter.clear()
        try:
            while entry.is_busy:
                await asyncio.sleep(POLL_S)
            running, entry.running = entry.running, None
        finally:
            entry.may_enter.set()
        if running is not None:
            began = time.monotonic()
            await self._keeper.stop(entry)
            await in_thread(running.close)
            entry.left_at = time.monotonic()
            entry.unload_s = entry.left_at - began
            kept = f"; {show_size(entry.kept_bytes)} of weights stay in pinned memory" if entry.kept_bytes else ""
            self._report(f"unloaded {entry.title} in {entry.unload_s:.2f} s, {why}{kept}")

    # --- the life of the set

    def start(self) -> None:
        """Begins to copy weights and to unload idle models by age; called on the event loop."""
        self._loop = asyncio.get_running_loop()
        for entry in self.entries:
            if entry.running is not None:
                self._keeper.start(entry)
        if self._keep_loaded_s is not None:
            self._expiry = self._loop.create_task(self._expire(self._keep_loaded_s))

    async def _expire(self, keep_s: float) -> None:
        while True:
            next_s = keep_s
            for entry in self.entries:
                if entry.running is None or entry.is_pinned or entry.is_busy:
                    continue
                left_s = entry.running.last_used + keep_s - time.monotonic()
                if left_s > 0:
                    next_s = min(next_s, left_s)
                    continue
                async with self._moving:
                    if not entry.is_busy:
                        await self._unload(entry, f"idle for {keep_s:g} s")
            await asyncio.sleep(next_s)

    def expires_at(self, first: ModelEntry) -> float | None:
        """When the last loaded replica of a model will be unloaded by age if nobody uses it, in Unix time; None:
        never."""
        loaded = self.loaded_replicas(first)
        if self._keep_loaded_s is None or not loaded or first.is_pinned:
            return None
        return time.time() + max(one.last_used for one in loaded) + self._keep_loaded_s - time.monotonic()

    def close(self, drain_s: float) -> None:
        """Refuses new requests, gives running ones `drain_s` seconds and ends all threads; blocks. Requests that wait
        for a model fail."""
        self._is_closed = True
        if self._loop is not None and self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        running = [entry.running for entry in self.entries if entry.running is not None]
        with ThreadPoolExecutor(len(self.entries)) as threads:
            for done in [threads.submit(one.stop, drain_s) for one in running]:
                done.result()
        self.telemetry.close()

    def free(self) -> None:
        """Frees the memory of all models, after the event loop has ended."""
        for entry in self.entries:
            if entry.running is not None:
                entry.running.close()
                entry.running = None
            entry.kept = None
        for scorer in self.shared_scorers:
            scorer.close()

    @property
    def shared_scorers(self) -> list[SharedScorer]:
        """The scorers that several of its models use."""
        return list(dict.fromkeys(entry.spec.scorer for entry in self.entries if entry.spec.scorer is not None))

    async def _stop(self) -> None:
        """Ends the tasks. A load that has begun cannot be interrupted."""
        tasks = [entry.loading for entry in self.entries if entry.loading is not None and not entry.is_opening]
        for task in [*tasks, *([] if self._expiry is None else [self._expiry])]:
            task.cancel()
        if begun := [entry.loading for entry in self.entries if entry.loading is not None]:
            await asyncio.wait(begun)
        await self._keeper.stop_all()


def _free(kept: _engine.KeptWeights) -> None:
    while kept.free_slice():
        pass


async def _unless_left(request: Request, wait: Coroutine[Any, Any, T], limit_s: float, name: str) -> T:
    """The result of a coroutine, which is cancelled when the client disconnects or the time is over."""
    task = asyncio.ensure_future(wait)
    watch = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, watch}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if watch.done():
            raise ApiError("cancelled", LEFT)
        raise ApiError("timeout", f"the model {name!r} was not loaded within {limit_s:g} s")
    finally:
        task.cancel()
        watch.cancel()


async def _disconnected(request: Request) -> None:
    """Waits until the client disconnects. The guard has read the body, so no other message can arrive."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
