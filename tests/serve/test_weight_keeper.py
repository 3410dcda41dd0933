"""Copies of weights in pinned memory are made while no request runs. No request waits for more than a slice, and no
unload for the copy. `tests/gpu/test_serve.py` has the same with an engine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lucebox.errors import OutOfMemoryError, UnsupportedError
from lucebox.options import EngineOptions
from lucebox.serve import weight_keeper
from lucebox.serve.model_entry import ModelEntry
from lucebox.serve.model_plans import PlannedModel
from lucebox.serve.model_spec import ModelSpec
from lucebox.serve.settings import ServeSettings
from lucebox.serve.weight_keeper import WeightKeeper


@dataclass
class Host:
    """Pinned memory, in slices."""

    room: int = 1000
    allowed: int = 1000
    """Slices that may still be pinned before the next one blocks."""
    is_blocked: bool = False
    n_pinned: int = 0
    n_most: int = 0
    threads: set[int] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def allow(self, n: int) -> None:
        with self.changed:
            self.allowed += n
            self.changed.notify()

    def pin(self) -> None:
        with self.changed:
            self.is_blocked = self.allowed == 0
            assert self.changed.wait_for(lambda: self.allowed > 0, 10)
            self.is_blocked = False
            self.allowed -= 1
            self.n_pinned += 1
            self.n_most = max(self.n_most, self.n_pinned)
        self.threads.add(threading.get_ident())


@dataclass
class Copy:
    host: Host
    files: str
    n_slices: int
    n_bytes: int = 0

    @property
    def is_complete(self) -> bool:
        return self.n_bytes == self.n_slices

    def free_slice(self) -> bool:
        if self.n_bytes > 0:
            self.n_bytes -= 1
            self.host.n_pinned -= 1
        return self.n_bytes > 0


@dataclass
class Engine:
    """An engine whose weights are slices of one byte."""

    host: Host
    files: str
    n_slices: int = 20
    keeps: bool = True

    def keep_weights(self) -> Copy:
        if not self.keeps:
            raise UnsupportedError("weights on the CPU stay in the mapped file")
        return Copy(self.host, self.files, self.n_slices)

    def has_weights_of(self, kept: Copy) -> bool:
        return kept.files == self.files

    def keep_slice(self, kept: Copy, slice_bytes: int) -> bool:
        if kept.n_slices - kept.n_bytes > self.host.room - self.host.n_pinned:
            raise OutOfMemoryError("the rest does not fit")
        self.host.pin()
        kept.n_bytes += 1
        return not kept.is_complete


def model(name: str, n_bytes: int = 60, device: str = "sim:0") -> ModelEntry:
    """An entry of a device with room for 100 bytes."""
    spec = ModelSpec(name, EngineOptions(), ServeSettings())
    return ModelEntry(spec, PlannedModel(spec, name, name, device, 64, 64, 1, n_bytes, 100))


def load(entry: ModelEntry, engine: Engine) -> None:
    loaded = SimpleNamespace(engine=engine)
    entry.running = cast(Any, SimpleNamespace(is_idle=True, model=SimpleNamespace(loaded=loaded)))


def unload(entry: ModelEntry) -> None:
    entry.running, entry.left_at = None, time.monotonic()


async def until(found: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if found():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not happen")


async def settled(keeper: WeightKeeper) -> None:
    """Waits for all work in progress."""
    await asyncio.wait([*keeper._tasks.values(), *keeper._freeing])


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is a coroutine, with a short pause between looks."""

    def run(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(weight_keeper, "POLL_S", 0.001)
        asyncio.run(cast(Any, test()))

    return run


@in_loop
async def test_a_copy_is_made_when_idle() -> None:
    lines: list[str] = []
    a, b = model("a"), model("b")
    keeper, host = WeightKeeper([a, b], lines.append), Host()
    load(a, Engine(host, "a.gguf"))
    keeper.start(a)
    await settled(keeper)
    assert a.kept is not None and a.kept.is_complete and b.kept is None
    assert len(lines) == 1 and lines[0].startswith("copied the weights of a to pinned memory in 0.")
    assert threading.get_ident() not in host.threads  # the event loop stays free
    keeper.start(a)  # after another load
    await settled(keeper)
    assert host.n_most == 20 and len(lines) == 1
    await keeper.stop_all()


@in_loop
async def test_a_request_waits_for_a_slice_at_most() -> None:
    a, b = model("a"), model("b")
    keeper, host = WeightKeeper([a, b], print), Host(allowed=0)
    load(a, Engine(host, "a.gguf"))
    keeper.start(a)
    for n, busy in enumerate((a, b, a)):  # b's request waits for its load
        host.allow(3)
        await until(lambda n=n: host.is_blocked and a.kept_bytes == 4 * n + 3)
        busy.n_users += 1
        host.allow(1)  # the slice that has begun
        await until(lambda n=n: a.kept_bytes == 4 * n + 4)
        host.allow(5)
        await asyncio.sleep(0.02)
        assert a.kept_bytes == 4 * n + 4
        host.allow(-5)
        busy.n_users -= 1
    host.allow(100)
    await settled(keeper)
    assert a.kept_bytes == 20


@in_loop
async def test_an_unload_does_not_wait_for_the_copy() -> None:
    """The slices stay, and the copy continues after the next load."""
    a, b = model("a"), model("b")
    keeper, host = WeightKeeper([a, b], print), Host(allowed=5)
    load(a, Engine(host, "a.gguf"))
    keeper.start(a)
    await until(lambda: host.is_blocked and a.kept_bytes == 5)
    stopping = asyncio.create_task(keeper.stop(a))
    await asyncio.sleep(0.02)
    assert not stopping.done()  # the device still copies a slice
    host.allow(100)
    await stopping
    unload(a)
    begun = a.kept
    assert begun is not None and begun.n_bytes == 6
    load(a, Engine(host, "a.gguf"))
    keeper.start(a)
    await settled(keeper)
    assert a.kept is begun and begun.is_complete and host.n_pinned == 20


@in_loop
async def test_a_copy_of_changed_files_is_replaced() -> None:
    a, b = model("a"), model("b")
    host = Host()
    keeper = WeightKeeper([a, b], print)
    for files in ("a.gguf", "a.gguf, changed"):
        load(a, Engine(host, files))
        keeper.start(a)
        await settled(keeper)
        assert a.kept is not None and a.kept.is_complete and cast(Any, a.kept).files == files
        assert host.n_pinned == host.n_most == 20
        await keeper.stop(a)
        unload(a)


@in_loop
async def test_memory_is_short() -> None:
    """A copy takes the place of those whose models left earlier than its own, and of no others."""
    entries = a, b, c = model("a"), model("b"), model("c")
    host = Host(room=45)
    keeper = WeightKeeper(entries, print)

    async def visit(entry: ModelEntry) -> list[int]:
        load(entry, Engine(host, entry.name))
        keeper.start(entry)
        await settled(keeper)
        await keeper.stop(entry)
        unload(entry)
        return [one.kept_bytes for one in entries]

    assert await visit(a) == [20, 0, 0]
    assert await visit(b) == [20, 20, 0]
    assert await visit(c) == [20, 20, 0]  # a and b left later than c, which has never been loaded
    assert await visit(b) == [20, 20, 0]
    assert await visit(c) == [0, 20, 20]  # a left before c did
    assert await visit(b) == [0, 20, 20]
    assert host.n_most == 40 and a.kept is None
    host.room = 30  # another program has taken memory
    assert await visit(a) == [0, 20, 20]


@in_loop
async def test_who_keeps_nothing() -> None:
    a, b = model("a", 60), model("b", 40)  # both fit
    elsewhere = model("c", 90, device="sim:1")
    keeper = WeightKeeper([a, b, elsewhere], print)
    host = Host()
    load(a, Engine(host, "a.gguf"))
    keeper.start(a)
    assert not keeper._tasks
    bigger = model("d", 41)
    keeper = WeightKeeper([a, b, bigger], print)
    load(a, Engine(host, "a.gguf", keeps=False))  # on the CPU
    keeper.start(a)
    await settled(keeper)
    a.is_pinned = True  # never leaves
    keeper.start(a)
    await settled(keeper)
    assert host.n_most == 0 and a.kept is None
