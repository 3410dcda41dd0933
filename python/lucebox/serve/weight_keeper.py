"""`WeightKeeper`: copies of loaded models' weights in pinned host memory, made while the server has no requests.

Pinning memory takes several times as long as a load, so no request may wait for a copy. The copy grows slice by slice,
and pauses while any request runs. An unload does not wait for it: the slices stay, and the copy continues after the
next load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from lucebox.errors import LuceboxError, OutOfMemoryError
from lucebox.serve.in_thread import in_thread
from lucebox.serve.model_entry import ModelEntry
from lucebox.sizes import show_size

__all__ = ["SLICE_BYTES", "WeightKeeper"]

SLICE_BYTES = 16 << 20
"""Bytes pinned and copied at a time. A request waits for one slice at most: about 10 ms on an H200, from 15.4 GiB in
10.1 s; slices were not timed."""
POLL_S = 0.05
"""How often a paused copy looks whether the server is idle."""


class WeightKeeper:
    """Copies weights for the next load of their model, one model at a time. The event loop alone uses it."""

    def __init__(self, entries: Sequence[ModelEntry], report: Callable[[str], None]) -> None:
        """entries: all models of the server. report: called with a line about each copy."""
        self._entries = tuple(entries)
        self._report = report
        self._tasks: dict[ModelEntry, asyncio.Task[None]] = {}
        self._copying = asyncio.Lock()
        self._freeing: set[asyncio.Task[None]] = set()

    def start(self, entry: ModelEntry) -> None:
        """Begins or continues the copy of a model that has been loaded, if another one may take its place."""
        if not entry.is_pinned and self._shares_memory(entry):
            self._tasks[entry] = asyncio.get_running_loop().create_task(self._keep(entry))

    async def stop(self, entry: ModelEntry) -> None:
        """Ends the work on a model's copy, after the slice in progress. The slices stay."""
        if (task := self._tasks.pop(entry, None)) is not None:
            task.cancel()
            await asyncio.wait([task])

    async def stop_all(self) -> None:
        """Ends all work, after the slice in progress."""
        for entry in list(self._tasks):
            await self.stop(entry)
        for task in self._freeing:
            task.cancel()
        await asyncio.gather(*self._freeing, return_exceptions=True)

    def _shares_memory(self, entry: ModelEntry) -> bool:
        device = entry.facts.device
        sizes = [one.planned.n_bytes for one in self._entries if one.planned and one.planned.device == device]
        return sum(sizes) > entry.facts.available_bytes

    async def _keep(self, entry: ModelEntry) -> None:
        assert entry.running is not None  # until stop()
        engine = entry.running.model.loaded.engine
        async with self._copying:
            if entry.kept is not None and not engine.has_weights_of(entry.kept):
                await self._free(entry)  # the files have changed
            if entry.kept is not None and entry.kept.is_complete:
                return
            began = time.monotonic()
            try:
                if entry.kept is None:
                    entry.kept = engine.keep_weights()
                await self._copy(entry, partial(engine.keep_slice, entry.kept, SLICE_BYTES))
            except LuceboxError:  # no memory for it, the model is on the CPU, or its device failed
                await self._free(entry)
                return
            self._report(
                f"copied the weights of {entry.title} to pinned memory in {time.monotonic() - began:.2f} s: "
                f"{show_size(entry.kept.n_bytes)}"
            )

    async def _copy(self, entry: ModelEntry, next_slice: Callable[[], bool]) -> None:
        """Completes a copy. If memory is short, it frees the copies of models that left memory earlier."""
        earlier = sorted(
            (one for one in self._entries if one.kept is not None and one.left_at < entry.left_at),
            key=lambda one: one.left_at,
        )
        while True:
            try:
                return await self._while_idle(next_slice)
            except OutOfMemoryError:
                if not earlier:
                    raise
                await self._free(earlier.pop(0))

    async def _free(self, entry: ModelEntry) -> None:
        """Takes a copy from its model and frees it, even if the caller is cancelled: unpinning takes time, too."""
        kept, entry.kept = entry.kept, None
        if kept is not None:
            task = asyncio.get_running_loop().create_task(self._while_idle(kept.free_slice))
            self._freeing.add(task)
            task.add_done_callback(self._freeing.discard)
            await asyncio.shield(task)

    async def _while_idle(self, next_slice: Callable[[], bool]) -> None:
        """Calls next_slice in a thread until it returns False, each time when no model has requests."""
        more = True
        while more:
            while any(one.is_busy for one in self._entries):
                await asyncio.sleep(POLL_S)
            more = await in_thread(next_slice)
