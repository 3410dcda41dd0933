"""Chooses tuning constants from measurements: pure functions, no device.

A constant keeps its value unless the measurements contradict it. A change must be faster by MARGIN, so 1 % of noise
changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

__all__ = [
    "ALL_TESTS",
    "Choice",
    "Constant",
    "Model",
    "Sample",
    "Trial",
    "choose",
    "choose_limit",
    "choose_value",
    "compare",
    "is_better",
    "mean_ratio",
]

MARGIN = 1.02  # minimum speed-up for a changed value
TIE = 1.01  # speeds within this ratio count as equal
LOSS = 0.98  # reject constants that slow any test below this ratio
SPLIT_DIM = 256  # head_dim that the unit of megakernel_max_kv_mib assumes (kSplitMaxDim)
MIB = 1 << 20

THREADS = "matvec_threads_per_sm"
ALL_TESTS = ("decode", "prefill", "append", "deep")
# Constant -> the tests that depend on it. "deep" is decoding after a long context.
TESTS = {
    "matvec_threads_per_sm": ("decode",),
    "prefill_chunk": ("prefill",),
    "megakernel_max_mib": ("decode", "deep"),
    "megakernel_max_kv_mib": ("decode", "deep"),
}


@dataclass(frozen=True, slots=True)
class Model:
    """The facts of a model that the limits depend on."""

    name: str
    weights: str
    """Type of most weights: "Q4_K"."""
    bytes_per_token: int
    """Bytes of weights read per decoded token."""
    kv_bytes_per_token: int
    """Bytes of K and V that a token adds, over all layers."""
    head_dim: int
    context: int
    """Maximum context of the model, in tokens."""

    @property
    def token_mib(self) -> float:
        return self.bytes_per_token / MIB

    def kv_mib(self, tokens: int) -> float:
        """MiB of K and V of a context, scaled to heads of SPLIT_DIM columns: the unit of megakernel_max_kv_mib."""
        return tokens * self.kv_bytes_per_token * SPLIT_DIM / max(self.head_dim, 1) / MIB


@dataclass(frozen=True, slots=True)
class Trial:
    """One way to run a model, as a difference from the installed pack."""

    path: str = "graph"
    """graph, megakernel or auto."""
    tuning: Mapping[str, int] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    """Kernel files that are left out."""
    defines: Mapping[str, int] = field(default_factory=dict)
    """Compile-time constants of kernels."""

    def __str__(self) -> str:
        parts = [f"{name} = {value}" for name, value in {**self.tuning, **self.defines}.items()]
        parts += [f"without {stem}" for stem in self.without]
        return ", ".join(parts) or f"{self.path}, constants of the pack"


@dataclass(frozen=True, slots=True)
class Sample:
    """The runs of one test."""

    model: str
    trial: Trial
    test: str
    """decode, prefill or append."""
    n_tokens: int
    depth: int
    """Tokens in the context before the test."""
    seconds: tuple[float, ...]

    @property
    def tok_s(self) -> float:
        return self.n_tokens / median(self.seconds)

    @property
    def label(self) -> str:
        """The label of the test, as in `lucebox bench`."""
        prefix = {"prefill": "pp", "decode": "tg", "append": "b"}[self.test]
        return f"{prefix}{self.n_tokens}" + (f" @{self.depth}" if self.depth else "")


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant's value before and after tuning."""

    name: str
    before: int | str
    after: int | str
    reason: str

    @property
    def has_changed(self) -> bool:
        return self.before != self.after


@dataclass(frozen=True, slots=True)
class Choice:
    """The constants that the measurements choose."""

    constants: tuple[Constant, ...]
    tuning: Mapping[str, int]
    """The constants that change, read at load."""
    without: tuple[str, ...]
    """Kernel files to leave out."""
    defines: Mapping[str, int]
    """The constants that change, compiled into kernels."""

    @property
    def is_change(self) -> bool:
        return bool(self.tuning or self.without or self.defines)

    @property
    def tests(self) -> tuple[str, ...]:
        """The tests that depend on the changed constants, in the order of ALL_TESTS; all tests if nothing changes."""
        if self.without or self.defines or not self.tuning:
            return ALL_TESTS
        concerned = {test for name in self.tuning for test in TESTS[name]}
        return tuple(test for test in ALL_TESTS if test in concerned)


def choose(
    current: Mapping[str, int], compiled: Mapping[str, int], models: Sequence[Model], samples: Sequence[Sample]
) -> Choice:
    """Chooses constants from the samples. `current`: the pack's constants read at load; `compiled`: its compile-time
    constants."""
    constants: list[Constant] = []
    tuning: dict[str, int] = {}
    defines: dict[str, int] = {}
    for name in (THREADS, "prefill_chunk"):
        gains = _gains(samples, name, TESTS[name][0])
        value, reason = choose_value(current[name], gains)
        constants.append(Constant(name, current[name], value, reason))
        if value != current[name]:
            tuning[name] = value
    best_read = _gains(samples, THREADS, "decode").get(tuning.get(THREADS, 0), 1.0)
    for constant in _limits(current, models, samples):
        constants.append(constant)
        if constant.has_changed:
            tuning[constant.name] = int(constant.after)
    for name, before in compiled.items():
        value, reason = _compiled_value(before, _gains(samples, name, "decode"), best_read)
        constants.append(Constant(name, before, value, reason))
        if value != before:
            defines[name] = value
            threads = next(one.trial.tuning for one in samples if one.trial.defines.get(name) == value)
            tuning |= threads
            constants[0] = replace(constants[0], after=threads[THREADS], reason=f"goes with {name} = {value}")
    without = []
    for stem, ratios in _left_out(samples).items():
        gain, worst = mean_ratio(ratios), min(ratios)
        is_slower = gain >= MARGIN and worst >= 1 / TIE
        verdict = f"{percent(gain)} without it" + ("" if worst >= 1 / TIE else f", {percent(worst)} in one test")
        constants.append(Constant(stem, "in the pack", "left out" if is_slower else "in the pack", verdict))
        if is_slower:
            without.append(stem)
    return Choice(tuple(constants), tuning, tuple(without), defines)


def choose_value(current: int, gains: Mapping[int, float]) -> tuple[int, str]:
    """The value of a constant, and the reason. `gains` maps every other value to its speed relative to the current
    value. Ties go to the smallest value, which takes the least memory."""
    if not gains:
        return current, "not measured"
    best = max(gains.values())
    if best < MARGIN:
        value = max(gains, key=lambda one: gains[one])
        return current, f"best other value: {value}, {percent(best)}"
    value = min(one for one, gain in gains.items() if gain >= max(MARGIN, best / TIE))
    return value, f"{percent(gains[value])} faster than {current}"


def _compiled_value(current: int, gains: Mapping[int, float], best_read: float) -> tuple[int, str]:
    """Like choose_value, for a compile-time constant, which must also beat `best_read`: the best gain of constants read
    at load."""
    value, reason = choose_value(current, {one: gain / best_read for one, gain in gains.items()})
    return value, reason if best_read == 1.0 or not gains else f"{reason}, beside the best {THREADS}"


def choose_limit(current: int, ratios: Iterable[tuple[float, float]]) -> tuple[int, str]:
    """The size limit up to which the megakernel is faster, and the reason. `ratios` are pairs (size in MiB, megakernel
    speed / graph speed). A limit consistent with all pairs stays. Otherwise the limit is where a power law, through the
    last size the megakernel wins and the first the graph wins, crosses 1."""
    points = sorted((size, ratio) for size, ratio in ratios if not 1 / TIE < ratio < TIE)
    if not points:
        return current, "not measured, or equal"
    shown = ", ".join(f"{size:.0f} MiB: {percent(ratio)}" for size, ratio in points)
    reason = f"megakernel over graph: {shown}"
    if all((size <= current) == (ratio > 1) for size, ratio in points):
        return current, reason
    lost = next((point for point in points if point[1] < 1), None)
    won = [point for point in points if point[1] > 1 and (lost is None or point[0] < lost[0])]
    if not won:
        return 0, reason
    if lost is None:
        return math.ceil(won[-1][0]), reason
    (low, faster), (high, slower) = won[-1], lost
    part = math.log(faster) / (math.log(faster) - math.log(slower))
    return math.floor(low * (high / low) ** part), reason


def compare(before: Sequence[Sample], after: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    """Pairs of samples, before and after, of the tests that are in both, in the order of `before`."""
    found = {(one.model, one.label): one for one in after}
    return [(one, found[key]) for one in before if (key := (one.model, one.label)) in found]


def is_better(pairs: Sequence[tuple[Sample, Sample]]) -> bool:
    """Whether the second samples are faster in the geometric mean, and none is slower than LOSS allows."""
    ratios = [after.tok_s / before.tok_s for before, after in pairs]
    return bool(ratios) and mean_ratio(ratios) > 1 and min(ratios) >= LOSS


def mean_ratio(ratios: Sequence[float]) -> float:
    """Geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def percent(ratio: float) -> str:
    """Formats a ratio as a change: +3.1 %."""
    return f"{100 * (ratio - 1):+.1f} %"


def _plain(samples: Sequence[Sample]) -> dict[tuple[str, str], Sample]:
    """Samples of the unmodified pack, decoding by graph: (model, test) -> sample."""
    return {(one.model, one.label): one for one in samples if one.trial == Trial()}


def _gains(samples: Sequence[Sample], name: str, test: str) -> dict[int, float]:
    """Value of a constant -> speed relative to the unmodified pack, over all models. A trial may also change a constant
    that the test does not depend on."""
    plain = _plain(samples)
    ratios: dict[int, list[float]] = {}
    for one in samples:
        value = one.trial.defines.get(name) if one.trial.defines else one.trial.tuning.get(name)
        if value is not None and one.test == test and (one.model, one.label) in plain:
            ratios.setdefault(value, []).append(one.tok_s / plain[one.model, one.label].tok_s)
    return {value: mean_ratio(found) for value, found in ratios.items()}


def _left_out(samples: Sequence[Sample]) -> dict[str, list[float]]:
    """Kernel file -> (speed without it / speed with it) of each test."""
    plain = _plain(samples)
    ratios: dict[str, list[float]] = {}
    for one in samples:
        if one.trial.without and (one.model, one.label) in plain:
            ratio = one.tok_s / plain[one.model, one.label].tok_s
            ratios.setdefault(one.trial.without[0], []).append(ratio)
    return ratios


def _limits(current: Mapping[str, int], models: Sequence[Model], samples: Sequence[Sample]) -> list[Constant]:
    """Fits megakernel_max_mib to the shallowest decode test of each model, and megakernel_max_kv_mib to all depths of
    the models for which the megakernel wins at the shallowest depth."""
    plain = _plain(samples)
    by_weights: list[tuple[float, float]] = []
    by_kv: list[tuple[float, float]] = []
    for model in models:
        of_model = [
            (one.depth + one.n_tokens, one.tok_s / plain[model.name, one.label].tok_s)
            for one in samples
            if one.model == model.name and one.trial.path == "megakernel" and (model.name, one.label) in plain
        ]
        if not of_model:
            continue
        shallow, *_ = sorted(of_model)
        by_weights.append((model.token_mib, shallow[1]))
        if shallow[1] >= TIE:
            by_kv += [(model.kv_mib(tokens), ratio) for tokens, ratio in of_model]
    names = ("megakernel_max_mib", "megakernel_max_kv_mib")
    chosen = [
        (name, *choose_limit(current[name], ratios)) for name, ratios in zip(names, (by_weights, by_kv), strict=True)
    ]
    return [Constant(name, current[name], value, reason) for name, value, reason in chosen]
