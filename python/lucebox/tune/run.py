"""A complete tuning run: measures each model, chooses constants, then re-measures before and after."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import lucebox
from lucebox import _engine
from lucebox.errors import InvalidRequestError, PackError
from lucebox.packs import Pack, Selection
from lucebox.packs.devices import resolve_device
from lucebox.tune.kernels import CANDIDATES, COMPILED, Compiled, Kernels, UnfitError
from lucebox.tune.measure import Bench, bandwidth_gb_s
from lucebox.tune.search import Choice, Constant, Model, Sample, Trial, choose, compare, is_better

__all__ = ["SCHEMA", "Progress", "Report", "Result", "select_device", "tune"]

SCHEMA = 1
MEASURING = 0.7  # share of the time budget for trials; the rest is for re-measuring before and after
# Called with the current trial and the most seconds that may remain.
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Report:
    """The measurements and the choice. Contains no paths of the machine."""

    schema: int
    lucebox: str
    """Version of the host and of the pack."""
    commit: str
    """Commit of the pack's sources; empty if the pack did not record one."""
    date: str
    target: str
    device: str
    """The device's name."""
    architecture: str
    n_sms: int
    memory_bytes: int
    driver: str
    compiler: str
    """The compiler of the pack's code: "nvcc 13.0.88"."""
    bandwidth_gb_s: float
    models: tuple[Model, ...]
    constants: tuple[Constant, ...]
    variant: str
    """Name of the variant, "sm_86_tuned"; empty if the pack's own constants are best."""
    before: tuple[Sample, ...]
    after: tuple[Sample, ...]
    samples: tuple[Sample, ...]
    """Every trial."""
    skipped: tuple[str, ...]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Result:
    report: Report
    choice: Choice
    compiled: Compiled | None
    """Recompiled code of the choice; None if the pack's own code is best."""


def select_device(device: str) -> Selection:
    """The device to tune and the pack of its target, not a variant.

    Raises:
        InvalidRequestError: the device is the CPU.
        PackError: no GPU, or no pack for it.
    """
    selection = resolve_device(device)
    if selection.info is None or selection.choice is None:
        raise InvalidRequestError(
            f"[tune] there is no GPU to tune ({'; '.join(selection.report)}); `lucebox doctor` says what is missing. "
            "--device sim tries the command on the simulator"
        )
    if selection.choice.pack.variant:
        try:
            return resolve_device(device if device != "auto" else selection.device, selection.choice.pack.target)
        except PackError as error:
            raise PackError(
                f"[tune] only the variant {selection.choice.pack.name} is installed; a variant is made from the pack "
                f"of its target: {error}"
            ) from error
    return selection


def tune(
    models: Sequence[tuple[str, Path]],
    selection: Selection,
    *,
    word: str = "tuned",
    budget_s: float = 300,
    kernels: Kernels | None = None,
    progress: Progress = lambda what, seconds: None,
) -> Result:
    """Measures (name, path) models one after another on the device of `selection`, within about `budget_s` seconds.
    With `kernels`, tunes compile-time constants too.

    Raises:
        PackError: the kernels cannot be compiled.
        LuceboxError: a model cannot be run at all.
    """
    assert selection.info is not None and selection.choice is not None
    device = _engine.gpu.Device(selection.info.vendor, selection.info.index).info
    pack, clock = selection.choice.pack, _Clock(budget_s)
    code = pack.load(selection.choice.code)
    tuning = _Tuning(clock, progress)
    if kernels is not None:
        tuning.compile(kernels, pack)
    progress("read bandwidth", clock.left)
    bandwidth = bandwidth_gb_s(selection, code)
    for i, (name, path) in enumerate(models):
        progress(f"{name}: loading", clock.left)
        tuning.benches.append(Bench(path, name, selection, code))
        tuning.benches[-1].use(tuning.compiled)
        share = (MEASURING * budget_s - clock.elapsed) / (len(models) - i)
        tuning.measure(tuning.benches[-1], clock.elapsed + share)
    facts = tuple(bench.model for bench in tuning.benches)
    choice = choose(pack.manifest.tuning, COMPILED if kernels else {}, facts, tuning.samples)
    before, after, choice = tuning.check(choice)
    report = Report(
        schema=SCHEMA,
        lucebox=lucebox.__version__,
        commit=pack.manifest.commit,
        date=date.today().isoformat(),
        target=pack.target,
        device=device.name,
        architecture=device.architecture,
        n_sms=device.n_sms,
        memory_bytes=device.memory_bytes,
        driver=device.driver,
        compiler=str(selection.choice.code.compiler),
        bandwidth_gb_s=bandwidth,
        models=facts,
        constants=choice.constants,
        variant=f"{pack.target}_{word}" if choice.is_change else "",
        before=tuple(before),
        after=tuple(after),
        samples=tuple(tuning.samples),
        skipped=(*tuning.skipped, *(reason for bench in tuning.benches for reason in bench.skipped)),
        seconds=clock.elapsed,
    )
    chosen = next((tuning.compiled[value] for value in choice.defines.values()), None)
    return Result(report, choice, chosen)


class _Clock:
    """The time budget, in seconds."""

    def __init__(self, budget: float) -> None:
        self._start, self._budget = time.monotonic(), budget

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    @property
    def left(self) -> float:
        return max(0.0, self._budget - self.elapsed)


class _Tuning:
    """The benches and samples of a run."""

    def __init__(self, clock: _Clock, progress: Progress) -> None:
        self._clock, self._progress = clock, progress
        self.benches: list[Bench] = []
        self.samples: list[Sample] = []
        self.compiled: dict[int, Compiled] = {}
        self.skipped: list[str] = []

    def compile(self, kernels: Kernels, pack: Pack) -> None:
        """Compiles the candidate values of the compile-time constant; keeps those that fit the chip."""
        for name, values in CANDIDATES.items():
            for value in values:
                self._progress(f"compiling {name} = {value}", self._clock.left)
                with tempfile.TemporaryDirectory(prefix="lucebox-tune-") as folder:
                    try:
                        self.compiled[value] = kernels.compile(pack, {name: value}, Path(folder))
                    except UnfitError as error:
                        self.skipped.append(f"{name} = {value}: {error}")

    def measure(self, bench: Bench, deadline: float) -> None:
        """Runs as many trials of one model as fit before `deadline`, in seconds since the start."""
        start = self._clock.elapsed
        self._show(bench, Trial())
        plain = bench.baseline()
        self.samples += plain
        expected = self._clock.elapsed - start  # expected duration of the next trial
        self._show(bench, Trial(path="megakernel"))
        self.samples += bench.megakernel(plain)
        for trial, tests in [*bench.value_trials(), *bench.compiled_trials(), *bench.left_out_trials()]:
            start = self._clock.elapsed
            if start + expected > deadline:
                bench.skipped.append(f"{bench.model.name}, {trial}: no time left")
                continue
            self._show(bench, trial)
            self.samples += bench.trial(trial, tests)
            expected = self._clock.elapsed - start

    def check(self, choice: Choice) -> tuple[list[Sample], list[Sample], Choice]:
        """Measures every model before and after, with the tests that depend on the change. Reverts a choice that is not
        faster overall."""
        changed = Trial(tuning=choice.tuning, without=choice.without, defines=choice.defines)
        before: list[Sample] = []
        after: list[Sample] = []
        for bench in self.benches:
            self._progress(f"{bench.model.name}: before", self._clock.left)
            before += bench.final(Trial(), choice.tests)
            if choice.is_change:
                self._progress(f"{bench.model.name}: after", self._clock.left)
                after += bench.final(changed, choice.tests)
        if not choice.is_change or is_better(compare(before, after)):
            return before, after, choice
        kept = tuple(
            replace(one, after=one.before, reason=f"{one.reason}; all changes together were not faster")
            if one.has_changed
            else one
            for one in choice.constants
        )
        return before, [], Choice(kept, {}, (), {})

    def _show(self, bench: Bench, trial: Trial) -> None:
        self._progress(f"{bench.model.name}: {trial}", self._clock.left)
