"""Measures a model under different tuning constants: opens the engine with a modified manifest, and times decoding,
prefill and appends. search.py interprets the times."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lucebox import _engine, _kernels
from lucebox.errors import LuceboxError
from lucebox.packs import Selection
from lucebox.tune.kernels import BLOCK_THREADS, COMPILED, Compiled
from lucebox.tune.search import ALL_TESTS, TIE, Model, Sample, Trial
from lucebox.tune.variant import changed_manifest, file_stem

__all__ = ["Bench", "Code", "Sizes", "bandwidth_gb_s"]

# Code objects by file name.
Code = Mapping[str, bytes]

PAGE = 64  # tokens in Session.page_bytes

# Kernel files that other kernels of the pack can replace, and the test they affect.
ALTERNATIVES = (
    ("gemv_ring_sm90", "decode"),
    ("gemv_whole_sm90", "decode"),
    ("gemm_skinny_256", "append"),
    ("gemm_skinny_32", "append"),
    ("gemm_skinny_plain", "append"),
    ("gemm_skinny_pairs", "append"),
    ("gated_delta_small", "append"),
    ("attention_prefill_sm90", "prefill"),
    ("attention_prefill_32", "prefill"),
    ("gated_delta_chain", "prefill"),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the tests, and the values to try."""

    shallow: int = 128
    """Context depth of the first decode test, in tokens."""
    depths: tuple[int, ...] = (4096, 16384, 32768)
    """Context depths of the other decode tests, in tokens."""
    prompts: tuple[int, ...] = (512, 1024, 2048, 4096)
    """Candidate prompt lengths; the test uses the longest that takes at most prompt_s."""
    chunks: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    """Values of prefill_chunk."""
    threads: tuple[int, ...] = (256, 512, 768, 1024)
    """Values of matvec_threads_per_sm."""
    decode: tuple[int, int] = (16, 128)
    """Minimum and maximum tokens of a decode test."""
    rows: int = 16
    """Rows of an append test."""
    appends: int = 4
    """Appends per run."""
    runs: int = 3
    bandwidth_bytes: int = 512 << 20
    prompt_s: float = 1.5
    decode_s: float = 0.5
    fill_s: float = 5.0
    """Maximum seconds to fill a context before a decode test."""


# The simulator is slow, and its times say nothing: the sizes only exercise the search.
SIM_SIZES = Sizes(
    shallow=4,
    depths=(),
    prompts=(16,),
    chunks=(),
    threads=(256, 512),
    decode=(2, 2),
    rows=2,
    appends=1,
    runs=1,
    bandwidth_bytes=1 << 20,
)


def bandwidth_gb_s(selection: Selection, code: Code) -> float:
    assert selection.info is not None and selection.choice is not None
    device = _engine.gpu.Device(selection.info.vendor, selection.info.index)
    pack = _engine.gpu.Pack(device, selection.choice.pack.manifest_json, dict(code))
    n_bytes = sizes_of(selection.info.vendor).bandwidth_bytes
    return float(_kernels.ops.read_bandwidth(pack, n_bytes)) / 1e9


def sizes_of(vendor: str) -> Sizes:
    return SIM_SIZES if vendor == "sim" else Sizes()


class Bench:
    """Benchmarks one model on one device. Nothing stays loaded between trials.

    Raises:
        LuceboxError: the file cannot be read.
    """

    def __init__(self, path: Path, name: str, selection: Selection, code: Code) -> None:
        assert selection.info is not None and selection.choice is not None
        self._path, self._info = path, selection.info
        self._manifest: dict[str, Any] = json.loads(selection.choice.pack.manifest_json)
        self._code = code
        self.sizes = sizes_of(selection.info.vendor)
        self.skipped: list[str] = []
        """Trials that could not be measured, and why."""
        self._name = name
        self._used: set[str] = set()
        self._compiled: Mapping[int, Compiled] = {}
        self._context = 0  # 0: as much as fits, until the sizes are known
        self.model = self._first_look()

    # --- stages, most valuable first

    def baseline(self) -> list[Sample]:
        """The unmodified pack, decoding by graphs."""
        return self._run(Trial(), ALL_TESTS)

    def megakernel(self, plain: Sequence[Sample]) -> list[Sample]:
        """Decodes by megakernel; deep contexts only if the megakernel is faster at the shallow depth."""
        found = self._try(Trial(path="megakernel"), ("decode",))
        of_graph = next(one for one in plain if one.test == "decode")
        if found and self._depths and found[0].tok_s >= TIE * of_graph.tok_s:
            found += self._try(Trial(path="megakernel"), ("deep",))
        return found

    def value_trials(self) -> list[tuple[Trial, tuple[str, ...]]]:
        """Other values of the constants that are read at load. One trial changes two constants: decoding does not
        depend on prefill_chunk, nor prefill on matvec_threads_per_sm."""
        tuning = self._manifest["tuning"]
        threads = [n for n in self.sizes.threads if n != tuning["matvec_threads_per_sm"]]
        effective = min(tuning["prefill_chunk"], self._prompt)
        chunks = [n for n in self.sizes.chunks if n <= self._prompt and n != effective]
        trials: list[tuple[Trial, tuple[str, ...]]] = []
        for i in range(max(len(threads), len(chunks))):
            values = {"matvec_threads_per_sm": threads[i]} if i < len(threads) else {}
            values |= {"prefill_chunk": chunks[i]} if i < len(chunks) else {}
            tests = (*(("decode",) if i < len(threads) else ()), *(("prefill",) if i < len(chunks) else ()))
            trials.append((Trial(tuning=values), tests))
        return trials

    def left_out_trials(self) -> list[tuple[Trial, tuple[str, ...]]]:
        """Trials without a kernel file that the baseline used and that has an alternative; none for the simulator's
        single-file pack."""
        code = self._manifest["generations"][0]
        stems = {kernel["name"]: file_stem(kernel["file"]) for kernel in code["kernels"]}
        used = {stems[name] for name in self._used if name in stems}
        return [(Trial(without=(stem,)), (test,)) for stem, test in ALTERNATIVES if stem in used]

    def compiled_trials(self) -> list[tuple[Trial, tuple[str, ...]]]:
        """Trials of the code passed to `use`."""
        name = next(iter(COMPILED))
        return [
            (Trial(tuning={"matvec_threads_per_sm": value * BLOCK_THREADS}, defines={name: value}), ("decode",))
            for value in self._compiled
        ]

    def use(self, compiled: Mapping[int, Compiled]) -> None:
        """Adds code with other values of the compiled-in constant."""
        self._compiled = compiled

    def trial(self, trial: Trial, tests: Sequence[str]) -> list[Sample]:
        """Runs the tests of a trial. Returns none if the engine cannot run it; `skipped` then says why."""
        return self._try(trial, tests)

    def final(self, trial: Trial, tests: Sequence[str]) -> list[Sample]:
        """Runs these tests with the decode path that users get."""
        return self._run(replace(trial, path="auto"), tests)

    # --- inside

    def _first_look(self) -> Model:
        """Reads the model's facts, and adapts the test sizes to its speed, its context and the device memory."""
        sizes = self.sizes
        engine = self._open(Trial())
        info, fits = engine.info, int(engine.plan["context"])
        limit = fits if fits == info["max_context"] else fits // 2  # the rest is for larger chunks' scratch memory
        session = _engine.Session(engine)
        self._vocab = int(info["vocab"])
        prefill = self._speed(session, "prefill", min(sizes.prompts[0], limit))
        decode = self._speed(session, "decode", min(sizes.decode[0], limit // 4))
        least, most = sizes.decode
        self._shallow = min(sizes.shallow, limit // 4)
        room = (limit - self._shallow - 1) // (sizes.runs + 1)
        self._n_decode = max(1, min(max(int(decode * sizes.decode_s), least), most, room))
        longest = max(sizes.prompts[0], int(prefill * sizes.prompt_s))
        self._prompt = max(min(n, limit) for n in sizes.prompts if n <= longest)
        self._depths = [n for n in sizes.depths if n <= prefill * sizes.fill_s and self._context_of(n) <= limit]
        self._context = max(self._prompt, *(self._context_of(n) for n in (self._shallow, *self._depths)))
        self._context = min(max(self._context, sizes.rows + sizes.appends), limit)
        return Model(
            name=self._name,
            weights=weight_type(self._path),
            bytes_per_token=int(info["bytes_per_token"]),
            kv_bytes_per_token=max(session.page_bytes // PAGE, 1),
            head_dim=int(info["head_dim"]),
            context=self._context,
        )

    def _context_of(self, depth: int) -> int:
        """Tokens of a decode test."""
        return depth + (self.sizes.runs + 1) * self._n_decode + 1

    def _speed(self, session: _engine.Session, test: str, n: int) -> float:
        """Tokens per second, after a warm-up."""
        return n / self._seconds(session, test, n, 0, 1)[0]

    def _open(self, trial: Trial) -> _engine.Engine:
        manifest, images = self._manifest, self._code
        if trial.defines:
            (value,) = trial.defines.values()
            manifest, images = self._compiled[value].manifest, self._compiled[value].images
        manifest = changed_manifest(manifest, trial.tuning, trial.without)
        device = _engine.gpu.Device(self._info.vendor, self._info.index)
        pack = _engine.gpu.Pack(device, json.dumps(manifest), dict(images))
        options: dict[str, Any] = {"decode_path": trial.path} | ({"context": self._context} if self._context else {})
        return _engine.Engine.open(str(self._path), pack=pack, **options)

    def _try(self, trial: Trial, tests: Sequence[str]) -> list[Sample]:
        try:
            return self._run(trial, tests)
        except LuceboxError as error:
            self.skipped.append(f"{self._name}, {trial}: {error}")
            return []

    def _run(self, trial: Trial, tests: Sequence[str]) -> list[Sample]:
        engine = self._open(trial)
        session = _engine.Session(engine)
        samples = [
            Sample(self._name, trial, test, n, depth, self._seconds(session, test, n, depth, self.sizes.runs))
            for test, n, depth in self._cases(tests)
        ]
        if trial == Trial():
            session.reset()  # its pages are for the probes
            self._used = {name for n in (1, self.sizes.rows, self._prompt) for name in self._kernels_of(engine, n)}
        return samples

    def _kernels_of(self, engine: _engine.Engine, rows: int) -> Iterator[str]:
        """Names of the kernels of an append."""
        probe = _kernels.SessionProbe(_engine.Session(engine))
        for kernel, _, _ in probe.profile_append(self._ids(rows), 1):
            yield kernel

    def _cases(self, tests: Sequence[str]) -> Iterator[tuple[str, int, int]]:
        """(test, tokens, depth)."""
        for test in tests:
            if test == "deep":
                yield from (("decode", self._n_decode, depth) for depth in self._depths)
            else:
                n = {"decode": self._n_decode, "prefill": self._prompt, "append": self.sizes.rows}[test]
                yield test, n, self._shallow if test == "decode" else 0

    def _seconds(self, session: _engine.Session, test: str, n: int, depth: int, runs: int) -> tuple[float, ...]:
        """Seconds of each run, after one warm-up run."""
        if test == "decode":
            return tuple(self._decode_s(session, n, depth, runs + 1))[1:]
        once = self._prefill_s if test == "prefill" else self._append_s
        return tuple(once(session, n) for _ in range(runs + 1))[1:]

    def _prefill_s(self, session: _engine.Session, n: int) -> float:
        session.reset()
        start = time.perf_counter()
        session.sync(self._ids(n))
        return time.perf_counter() - start

    def _append_s(self, session: _engine.Session, rows: int) -> float:
        """Mean seconds of several appends with logits for all rows, as in draft verification."""
        session.reset()
        probe, seconds = _kernels.SessionProbe(session), 0.0
        for _ in range(self.sizes.appends):
            seconds += probe.time_append(self._ids(rows), rows)
            session.commit([0])
        return seconds / self.sizes.appends

    def _decode_s(self, session: _engine.Session, n: int, depth: int, runs: int) -> Iterator[float]:
        """Yields the seconds of n greedy steps, for `runs` consecutive stretches after `depth` tokens."""
        sampler = _engine.Sampler(self._vocab)
        ids = self._ids(max(depth, 1) + runs * n + 1)
        session.reset()
        done = max(depth, 1)
        session.sync(ids[:done])
        ids[done] = session.sample(sampler)
        for _ in range(runs):
            start = time.perf_counter()
            for _ in range(n):
                done += 1
                session.sync(ids[:done])
                ids[done] = session.sample(sampler)
            yield time.perf_counter() - start

    def _ids(self, n: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        return np.arange(n, dtype=np.int32) % self._vocab


def weight_type(path: Path) -> str:
    """The most common weight type of a model, by number of values."""
    values: dict[str, int] = {}
    for _, dtype, shape, *_ in _engine.open_model_file(path).tensors:
        values[dtype] = values.get(dtype, 0) + int(np.prod(shape))
    return max(values, key=lambda dtype: values[dtype])
