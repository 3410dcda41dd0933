"""Benchmarks a loaded model: prefill, decoding of one or several sequences, appends of several rows, and time per
kernel; also read bandwidth and energy, for reference.

Decoding is bandwidth-bound: a step, an append of a few rows, or a pass of several sequences reads every weight once.
Weight bytes per second divided by the device's read bandwidth is the share of that roofline. Prefill is compute-bound;
its roofline is not measured. The CLI and plots.py show the results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import astuple, dataclass
from functools import partial, reduce
from operator import add
from statistics import median
from typing import TYPE_CHECKING, Literal

import numpy as np

from lucebox import _engine, _kernels
from lucebox.errors import InvalidRequestError
from lucebox.generation.pass_groups import pass_groups
from lucebox.measure.energy import Meter, find_meter
from lucebox.results import ExpertCounts
from lucebox.text import Ids

if TYPE_CHECKING:
    from lucebox.api import LLM

__all__ = [
    "MAX_APPEND",
    "KernelTime",
    "Measurement",
    "Profile",
    "Report",
    "Summary",
    "arbitrary_ids",
    "context_for",
    "measure",
    "profile",
    "read_bandwidth",
]

APPENDS = 4  # appends per run of an append test
PARALLEL_TOKENS = 64
MAX_APPEND = 64  # rows; recurrent layers can rewind no more
BANDWIDTH_BYTES = 512 << 20  # well past any last-level cache
Window = AbstractContextManager[object]
KernelTimes = list[tuple[str, int, float]]  # (kernel, launches, seconds)
OnRun = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Summary:
    """Median, minimum and maximum over the runs of one test."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Measurement:
    """The runs of one test."""

    test: Literal["prefill", "decode", "append", "parallel"]
    n_tokens: int
    """For an append: its rows. For parallel sequences: tokens of each."""
    depth: int
    """Tokens in the context before the first measured token."""
    seconds: tuple[float, ...]
    """Time of n_tokens, one value per run; for appends, the mean over a run's appends."""
    weight_bytes: int | None
    """Weight bytes read per run; None for prefill, which is compute-bound."""
    joules: float | None
    """Energy of the device over all runs; None if no counter can be read, or the runs were too short."""
    sequences: int = 1
    """Number of sequences decoded in parallel."""
    experts: ExpertCounts | None = None
    """Of all runs; None unless experts of a mixture are in host memory."""

    @property
    def label(self) -> str:
        prefix = {"prefill": "pp", "decode": "tg", "append": "b", "parallel": f"{self.sequences} x tg"}[self.test]
        return f"{prefix}{self.n_tokens}" + (f" @{self.depth}" if self.depth else "")

    @property
    def tok_s(self) -> Summary:
        """Tokens per second over all sequences."""
        return Summary.of([self.sequences * self.n_tokens / s for s in self.seconds])

    @property
    def ms(self) -> Summary:
        return Summary.of([1e3 * s for s in self.seconds])

    @property
    def gb_s(self) -> float | None:
        return None if self.weight_bytes is None else self.weight_bytes / median(self.seconds) / 1e9

    @property
    def link_bytes(self) -> float | None:
        """Bytes of experts copied from host memory, per token."""
        n = self.sequences * self.n_tokens * len(self.seconds)
        return None if self.experts is None else self.experts.link_bytes / n

    @property
    def tok_j(self) -> float | None:
        """Tokens per joule."""
        return None if self.joules is None else self.sequences * self.n_tokens * len(self.seconds) / self.joules


@dataclass(frozen=True, slots=True)
class Report:
    """All measurements of one model on one machine."""

    model: str
    architecture: str
    file_bytes: int
    device: str
    """cpu, cuda:0."""
    device_name: str
    kernels: str
    """Threads and instruction set, or the pack."""
    activations: str
    bandwidth_gb_s: float
    """Read bandwidth of the device in GB/s: the larger of two measurements, before and after the tests."""
    energy_source: str | None
    """The energy counter; None without one."""
    decode_path: str
    """How a GPU decoded: by graph or megakernel, and why; empty on the CPU and without a decode test."""
    measurements: tuple[Measurement, ...]

    def share(self, measurement: Measurement) -> float | None:
        """Share of the read bandwidth that the median run reached; None if the test is not bandwidth-bound."""
        return None if measurement.gb_s is None else measurement.gb_s / self.bandwidth_gb_s

    def of_one_row(self, measurement: Measurement) -> float | None:
        """Time of an append relative to an append of one row; None for other tests."""
        one = [m for m in self.measurements if m.test == "append" and m.n_tokens == 1]
        if measurement.test != "append" or not one:
            return None
        return measurement.ms.median / one[0].ms.median

    def of_one_sequence(self, measurement: Measurement) -> float | None:
        """Tokens per second of parallel sequences relative to one sequence; None for other tests."""
        one = [m for m in self.measurements if m.test == "parallel" and m.sequences == 1]
        if measurement.test != "parallel" or not one:
            return None
        return measurement.tok_s.median / one[0].tok_s.median


@dataclass(frozen=True, slots=True)
class KernelTime:
    """All launches of one kernel."""

    kernel: str
    launches: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The time of a test by kernel, longest first."""

    label: str
    times: tuple[KernelTime, ...]

    @property
    def seconds(self) -> float:
        return sum(time.seconds for time in self.times)


def context_for(
    prefill: Sequence[int],
    decode: Sequence[int],
    batch: Sequence[int],
    depth: int,
    runs: int,
    parallel: Sequence[int] = (),
) -> int:
    """The context that these tests of `measure` need."""
    longest = [1, *prefill, *(depth + n for n in decode)]
    if parallel:
        longest.append(max(depth, 1) + next(iter(decode), PARALLEL_TOKENS))
    if batch:  # every append commits its first row
        kept = (len(batch) + 1) * (runs + 1) * APPENDS
        longest.append(depth + kept + max(batch))
    return max(longest)


def measure(
    llm: LLM,
    *,
    prefill: Sequence[int] = (128, 512),
    decode: Sequence[int] = (64,),
    batch: Sequence[int] = (),
    parallel: Sequence[int] = (),
    depth: int = 0,
    runs: int = 5,
    on_run: OnRun = lambda label, run: None,
) -> Report:
    """Runs every test `runs` times after one warm-up run. `on_run` is called before each run.

    A batch=N test appends N rows in one pass and computes logits for all of them. A parallel=N test decodes N sequences
    together, each for PARALLEL_TOKENS or the first size of `decode`. Tests of one row and of one sequence are always
    added.

    Raises:
        InvalidRequestError: a size, `runs` or `depth` is out of range.
        OutOfMemoryError: the sequences of `parallel` do not fit.
    """
    sizes = (("size", n, 1) for n in (*prefill, *decode, *batch, *parallel))
    for what, value, least in (("runs", runs, 1), ("depth", depth, 0), *sizes):
        if value < least:
            raise InvalidRequestError(f"[bench] {what} must be at least {least}, got {value}")
    if max(batch, default=0) > MAX_APPEND:
        raise InvalidRequestError(f"[bench] an append has at most {MAX_APPEND} rows, got {max(batch)}")
    if batch and 1 not in batch:
        batch = (1, *batch)
    if parallel and 1 not in parallel:
        parallel = (1, *parallel)

    if decode:
        _decode_s(llm, 1, 0, nullcontext())  # fails early if the decode path is missing
    meter = find_meter(llm.device_info)
    bandwidth = read_bandwidth(llm)
    measurements = tuple(_tests(llm, meter, prefill, decode, batch, parallel, depth, runs, on_run))
    bandwidth = max(bandwidth, read_bandwidth(llm))
    return Report(
        model=llm.info.name,
        architecture=llm.info.architecture,
        file_bytes=llm.info.file_bytes,
        device=llm.options.device,
        device_name=llm.device_name,
        kernels=llm.kernels,
        activations=llm.options.activations,
        bandwidth_gb_s=bandwidth,
        energy_source=None if meter is None else meter.source,
        decode_path=llm.decode_path.partition("\n")[0],
        measurements=measurements,
    )


def profile(
    llm: LLM, *, prefill: int, decode: int, depth: int = 0, parallel: Sequence[int] = ()
) -> tuple[Profile, ...]:
    """Time per kernel of one prefill, of `decode` steps after `depth` tokens without sampling, and of one pass per
    entry n of `parallel`, with n sequences.

    Kernels run serialised and without a graph, so their sum is not the time of a test.

    Raises:
        UnsupportedError: the device is the CPU.
    """
    profiles = []
    if prefill:
        profiles.append(Profile(f"pp{prefill}", _sums(_profile_prefill(llm, prefill))))
    if decode:
        label = f"tg{decode}" + (f" @{depth}" if depth else "")
        profiles.append(Profile(label, _sums(_profile_appends(llm, [1] * decode, depth))))
    for n in parallel:
        label = f"pass of {n}" + (f" @{depth}" if depth else "")
        profiles.append(Profile(label, _sums([_profile_pass(llm, n, depth)])))
    return tuple(profiles)


def _tests(
    llm: LLM,
    meter: Meter | None,
    prefill: Sequence[int],
    decode: Sequence[int],
    batch: Sequence[int],
    parallel: Sequence[int],
    depth: int,
    runs: int,
    on_run: OnRun,
) -> Iterator[Measurement]:
    def repeat(
        label: str, test: Callable[[Window], float], has_setup: bool = False
    ) -> tuple[tuple[float, ...], float | None, ExpertCounts | None]:
        """Seconds of each run, joules and copied experts of all runs. Energy is measured over all runs, because a short
        window is inaccurate; a test with a setup measures each run alone."""
        on_run(label, 0)
        test(nullcontext())
        energy = None if meter is None else meter.energy()
        experts: list[ExpertCounts] = []

        @contextmanager
        def window() -> Iterator[None]:
            before = llm.model.expert_counts()
            with energy or nullcontext():
                yield
            after = llm.model.expert_counts()
            if before is not None and after is not None:
                experts.append(after - before)

        seconds = []
        with nullcontext() if has_setup else window():
            for run in range(1, runs + 1):
                on_run(label, run)
                seconds.append(test(window() if has_setup else nullcontext()))
        joules = None if energy is None else energy.joules
        return tuple(seconds), joules, reduce(add, experts) if experts else None

    bytes_per_token = llm.info.bytes_per_token
    for n in prefill:
        seconds, joules, experts = repeat(f"pp{n}", partial(_prefill_s, llm, n))
        yield Measurement("prefill", n, 0, seconds, None, joules, experts=experts)
    for n in decode:
        seconds, joules, experts = repeat(f"tg{n}", partial(_decode_s, llm, n, depth), has_setup=depth > 0)
        yield Measurement("decode", n, depth, seconds, n * bytes_per_token, joules, experts=experts)
    if batch:
        _fill(llm, depth)
    for n in batch:
        seconds, joules, experts = repeat(f"b{n}", partial(_append_s, llm, n))
        joules = None if joules is None else joules / APPENDS
        if experts is not None:
            experts = ExpertCounts(*(count // APPENDS for count in astuple(experts)))
        yield Measurement("append", n, depth, seconds, bytes_per_token, joules, experts=experts)
    if parallel:
        tokens = next(iter(decode), PARALLEL_TOKENS)
    for n in parallel:
        test = partial(_parallel_s, llm, n, tokens, depth)
        seconds, joules, experts = repeat(f"{n} x tg{tokens}", test, has_setup=True)
        yield Measurement("parallel", tokens, depth, seconds, tokens * bytes_per_token, joules, n, experts)


def arbitrary_ids(llm: LLM, n: int) -> Ids:
    """[n] arbitrary tokens, for tests where only the time counts."""
    return np.arange(n, dtype=np.int32) % llm.info.vocab


def read_bandwidth(llm: LLM) -> float:
    """Measures the device's read bandwidth in GB/s, the upper bound of decoding speed."""
    if llm.loaded_pack is not None:
        return _kernels.ops.read_bandwidth(llm.loaded_pack, BANDWIDTH_BYTES) / 1e9
    assert llm.options.threads is not None  # an open LLM knows its number
    return _engine.read_bandwidth(llm.options.threads, BANDWIDTH_BYTES)


def _prefill_s(llm: LLM, n_tokens: int, _window: Window) -> float:
    """Seconds to compute a prompt of n_tokens from an empty session."""
    ids = arbitrary_ids(llm, n_tokens)
    with llm.locked_session() as session:
        session.reset()
        start = time.perf_counter()
        session.sync(ids)
        return time.perf_counter() - start


def _decode_s(llm: LLM, n_tokens: int, depth: int, window: Window) -> float:
    """Seconds of n_tokens greedy decode steps after `depth` tokens, inside `window`."""
    ids = arbitrary_ids(llm, depth + n_tokens + 1)
    sampler, seconds = _engine.Sampler(llm.info.vocab), 0.0
    with llm.locked_session() as session:
        session.reset()
        if depth:
            session.sync(ids[:depth])
            ids[depth] = session.sample(sampler)
        with window:
            for n in range(depth + 1, depth + n_tokens + 1):
                start = time.perf_counter()
                session.sync(ids[:n])
                ids[n] = session.sample(sampler)
                seconds += time.perf_counter() - start
    return seconds


def _parallel_s(llm: LLM, n: int, n_tokens: int, depth: int, window: Window) -> float:
    """Seconds for n sessions to decode n_tokens each, greedily, after `depth` + 1 tokens of context."""
    first = max(depth, 1)
    ids = [(arbitrary_ids(llm, first + n_tokens + 1) + 7 * i) % llm.info.vocab for i in range(n)]
    samplers = [_engine.Sampler(llm.info.vocab) for _ in range(n)]
    with llm.locked_sessions(n) as sessions:
        for session, own, sampler in zip(sessions, ids, samplers, strict=True):
            session.reset()
            session.sync(own[:first])
            own[first] = session.sample(sampler)
        groups = pass_groups(list(zip(sessions, ids, samplers, strict=True)), llm.model.max_groups)

        def send(group: Sequence[tuple[_engine.Session, Ids, _engine.Sampler]], end: int) -> None:
            if n > 1 and end <= first + n_tokens:
                _engine.sync_together([session for session, _, _ in group], [own[:end] for _, own, _ in group])
                _engine.start_samples([session for session, _, _ in group], [sampler for _, _, sampler in group])

        with window:
            start = time.perf_counter()
            for group in groups:
                send(group, first + 1)
            for end in range(first + 1, first + n_tokens + 1):
                for group in groups:
                    for session, own, sampler in group:
                        session.sync(own[:end])
                        own[end] = session.sample(sampler)
                    send(group, end + 1)
            return time.perf_counter() - start


def _fill(llm: LLM, depth: int) -> None:
    """Fills the session with `depth` tokens, for the appends that follow."""
    with llm.locked_session() as session:
        session.reset()
        if depth:
            session.sync(arbitrary_ids(llm, depth))


def _append_s(llm: LLM, rows: int, _window: Window) -> float:
    """Mean seconds of APPENDS consecutive appends with the logits of every row, which stay on the device. Each append
    commits its first row, as verification would."""
    ids = arbitrary_ids(llm, rows)
    seconds = 0.0
    with llm.locked_session() as session:
        for _ in range(APPENDS):
            seconds += _kernels.SessionProbe(session).time_append(ids, rows)
            session.commit([0])
    return seconds / APPENDS


def _profile_prefill(llm: LLM, n_tokens: int) -> list[KernelTimes]:
    """Profiles a prompt of n_tokens; one entry per chunk."""
    chunk = llm.options.prefill_chunk
    assert chunk is not None  # an open LLM knows its number
    return _profile_appends(llm, [min(chunk, n_tokens - at) for at in range(0, n_tokens, chunk)], 0)


def _profile_appends(llm: LLM, appends: Sequence[int], depth: int) -> list[KernelTimes]:
    """Profiles appends of the given rows, one entry each. An append computes the logits of its last row and is
    committed.

    Raises:
        UnsupportedError: the device is the CPU.
    """
    _fill(llm, depth)
    times = []
    with llm.locked_session() as session:
        for rows in appends:
            times.append(_kernels.SessionProbe(session).profile_append(arbitrary_ids(llm, rows), 1))
            session.commit(list(range(rows)))
    return times


def _profile_pass(llm: LLM, n: int, depth: int) -> KernelTimes:
    """Profiles a pass with one row of each of n sequences after `depth` + 1 tokens. The extra token folds the prompt's
    pending rows first.

    Raises:
        UnsupportedError: the device is the CPU.
    """
    first = max(depth, 1)
    ids = [(arbitrary_ids(llm, first + 2) + 7 * i) % llm.info.vocab for i in range(n)]
    with llm.locked_sessions(n) as sessions:
        for session, own in zip(sessions, ids, strict=True):
            session.reset()
            session.sync(own[:first])
        _engine.sync_together(sessions, [own[:-1] for own in ids])
        return _kernels.SessionProbe.profile_together(sessions, ids)


def _sums(appends: Sequence[KernelTimes]) -> tuple[KernelTime, ...]:
    launches: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for append in appends:
        for kernel, n, s in append:
            launches[kernel] = launches.get(kernel, 0) + n
            seconds[kernel] = seconds.get(kernel, 0.0) + s
    order = sorted(seconds, key=lambda kernel: -seconds[kernel])
    return tuple(KernelTime(kernel, launches[kernel], seconds[kernel]) for kernel in order)
