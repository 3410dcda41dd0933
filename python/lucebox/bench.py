"""Speed measurements of a loaded model: repeated prefill and decode runs, and the bandwidth they are judged against.

Decoding reads every weight once per token, so its bytes per second against what this machine can read is the share
of the ceiling that is reached. Measures only; the CLI and plots.py show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Literal

from lucebox.errors import InvalidRequestError

if TYPE_CHECKING:
    from lucebox.api import LLM

__all__ = ["Measurement", "Report", "Summary", "measure"]


@dataclass(frozen=True, slots=True)
class Summary:
    """Median and extremes of the runs of one test."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Measurement:
    """The runs of one test."""

    test: Literal["prefill", "decode"]
    n_tokens: int
    depth: int
    """Tokens in the context before the first measured one."""
    seconds: tuple[float, ...]
    """Of all n_tokens, one value per run."""
    weight_bytes: int | None
    """Weight bytes read over one run; None for prefill, which reuses what it reads and is bound by arithmetic."""

    @property
    def label(self) -> str:
        prefix = "pp" if self.test == "prefill" else "tg"
        return f"{prefix}{self.n_tokens}" + (f" @{self.depth}" if self.depth else "")

    @property
    def tok_s(self) -> Summary:
        return Summary.of([self.n_tokens / s for s in self.seconds])

    @property
    def gb_s(self) -> float | None:
        return None if self.weight_bytes is None else self.weight_bytes / median(self.seconds) / 1e9


@dataclass(frozen=True, slots=True)
class Report:
    """All measurements of one model on one machine."""

    model: str
    architecture: str
    file_bytes: int
    target: str
    device: str
    kernels: str
    """What computed: threads and instruction set, or the pack."""
    activations: str
    bandwidth_gb_s: float
    """Read bandwidth of the device: the larger of a measurement before and one after the tests."""
    measurements: tuple[Measurement, ...]

    def share(self, measurement: Measurement) -> float | None:
        """Part of the read bandwidth the median run reached; None where the test is not bound by it."""
        return None if measurement.gb_s is None else measurement.gb_s / self.bandwidth_gb_s


def measure(
    llm: LLM,
    *,
    prefill: Sequence[int] = (128, 512),
    decode: Sequence[int] = (64,),
    depth: int = 0,
    runs: int = 5,
    on_run: Callable[[str, int], None] = lambda label, run: None,
) -> Report:
    """Run every test `runs` times after one run that is not counted; `on_run` hears of each run before it starts."""
    for what, value, least in (("runs", runs, 1), ("depth", depth, 0), *(("size", n, 1) for n in (*prefill, *decode))):
        if value < least:
            raise InvalidRequestError(f"[bench] {what} must be at least {least}, got {value}")

    bandwidth = llm.read_bandwidth()
    measurements = tuple(_tests(llm, prefill, decode, depth, runs, on_run))
    bandwidth = max(bandwidth, llm.read_bandwidth())
    return Report(
        model=llm.info.name,
        architecture=llm.info.architecture,
        file_bytes=llm.info.file_bytes,
        target=llm.options.target,
        device=llm.device,
        kernels=llm.kernels,
        activations=llm.options.activations,
        bandwidth_gb_s=bandwidth,
        measurements=measurements,
    )


def _tests(
    llm: LLM,
    prefill: Sequence[int],
    decode: Sequence[int],
    depth: int,
    runs: int,
    on_run: Callable[[str, int], None],
) -> Iterator[Measurement]:
    def repeat(label: str, test: Callable[[], float]) -> tuple[float, ...]:
        seconds = []
        for run in range(runs + 1):
            on_run(label, run)
            seconds.append(test())
        return tuple(seconds[1:])

    for n in prefill:
        seconds = repeat(f"pp{n}", partial(llm.bench_prefill, n))
        yield Measurement("prefill", n, 0, seconds, None)
    for n in decode:
        seconds = repeat(f"tg{n}", partial(_decode_s, llm, n, depth))
        yield Measurement("decode", n, depth, seconds, n * llm.info.bytes_per_token)


def _decode_s(llm: LLM, n_tokens: int, depth: int) -> float:
    return sum(llm.bench_decode(n_tokens, depth))
