"""The server's counters and histograms, shown by /metrics, /status and the web UI. Holds no request text.

The driver thread and the event loop write. A reader may see one counter updated before a related one.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from lucebox import _engine

__all__ = ["Counter", "DraftMetrics", "Histogram", "Metrics", "RequestRecord", "exposition", "label"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)  # tokens
HISTORY = 200  # requests
MEAN_OF = 32  # number of newest requests whose mean time gives Retry-After


class Counter:
    """A monotonic counter."""

    def __init__(self, name: str, doc: str) -> None:
        self.name, self.doc, self.value = name, doc, 0.0
        self._lock = threading.Lock()

    def add(self, amount: float) -> None:
        with self._lock:
            self.value += amount

    def lines(self) -> Iterable[str]:
        yield from exposition(self.name, "counter", self.doc, [("", self.value)])


class Histogram:
    def __init__(self, name: str, doc: str, bounds: tuple[float, ...] = SECONDS) -> None:
        self.name, self.doc, self.bounds = name, doc, bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float, n: int = 1) -> None:
        with self._lock:
            self.counts[bisect_left(self.bounds, value)] += n
            self.sum += n * value

    @property
    def total(self) -> int:
        return sum(self.counts)

    def lines(self) -> Iterable[str]:
        total, rows = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            rows.append((f'_bucket{{le="{bound}"}}', float(total)))
        rows += [("_sum", self.sum), ("_count", float(total))]
        yield from exposition(self.name, "histogram", self.doc, rows)


class DraftMetrics:
    """Draft counters, summed over the sessions of all models, unloaded ones included."""

    def __init__(self) -> None:
        self._sessions: dict[object, tuple[_engine.Session, ...]] = {}
        self._ended_counts: dict[str, int] = {}
        self._ended_lengths: dict[int, int] = {}
        self._lock = threading.Lock()

    def watch(self, owner: object, sessions: Iterable[_engine.Session]) -> None:
        with self._lock:
            self._sessions[owner] = tuple(sessions)

    def unwatch(self, owner: object) -> None:
        """Keeps the counts of an owner's sessions, and lets go of the sessions."""
        with self._lock:
            for session in self._sessions.pop(owner):
                for name, n in session.draft_counts.items():
                    self._ended_counts[name] = self._ended_counts.get(name, 0) + n
                for length, n in enumerate(session.accepted_lengths):
                    self._ended_lengths[length] = self._ended_lengths.get(length, 0) + n

    def total(self, name: str) -> int:
        """Sum over the sessions of "verified", "drafted" or "accepted"."""
        with self._lock:
            watched = sum(int(session.draft_counts[name]) for all in self._sessions.values() for session in all)
            return self._ended_counts.get(name, 0) + watched

    def lines(self) -> Iterable[str]:
        for metric, name, doc in (
            ("lucebox_verifies_total", "verified", "Trees of drafted tokens verified."),
            ("lucebox_drafted_tokens_total", "drafted", "Tokens drafted."),
            ("lucebox_accepted_tokens_total", "accepted", "Drafted tokens accepted."),
        ):
            yield from exposition(metric, "counter", doc, [("", float(self.total(name)))])
        lengths = Histogram("lucebox_accepted_length", "Tokens accepted per verify, of verifies that ended.", LENGTHS)
        with self._lock:
            for length, n in self._ended_lengths.items():
                lengths.observe(length, n)
            for session in (session for all in self._sessions.values() for session in all):
                for length, n in enumerate(session.accepted_lengths):
                    lengths.observe(length, n)
        yield from lengths.lines()


class ExpertMetrics:
    """Counters of experts that are not all in device memory, summed over all models, unloaded ones included."""

    def __init__(self) -> None:
        self._engines: dict[object, _engine.Engine] = {}
        self._ended = (0, 0, 0)
        self._lock = threading.Lock()

    def watch(self, owner: object, engine: _engine.Engine) -> None:
        with self._lock:
            self._engines[owner] = engine

    def unwatch(self, owner: object) -> None:
        """Keeps the counts of an owner's engine, and lets go of the engine."""
        with self._lock:
            self._ended = _sum([self._ended, self._engines.pop(owner).expert_counts])

    def lines(self) -> Iterable[str]:
        with self._lock:
            hits, misses, copied = _sum([self._ended, *(one.expert_counts for one in self._engines.values())])
        for name, doc, value in (
            ("lucebox_expert_hits_total", "Experts that passes found in device memory, if not all are there.", hits),
            ("lucebox_expert_misses_total", "Experts that passes copied from host memory.", misses),
            ("lucebox_expert_copied_bytes_total", "Bytes of experts copied from host memory.", copied),
        ):
            yield from exposition(name, "counter", doc, [("", float(value))])


def _sum(counts: Iterable[tuple[int, int, int]]) -> tuple[int, int, int]:
    hits, misses, copied = (sum(one) for one in zip(*counts, strict=True))
    return hits, misses, copied


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Statistics of a request that has ended."""

    ended_at: float
    """Unix time in seconds."""
    model: str
    endpoint: str
    outcome: str
    """The stop reason, or the kind of error."""
    prompt_tokens: int
    original_tokens: int | None
    """Tokens of the prompt before compression; None if it was not compressed."""
    cached_tokens: int
    generated_tokens: int
    queue_s: float
    first_token_s: float | None
    """Time to first token, from the request's arrival; None without a token."""
    prefill_s: float
    decode_s: float
    total_s: float
    verifies: int
    drafted_tokens: int
    accepted_tokens: int
    joules: float | None = None
    """Its share of the device's energy; None where that is unknown."""


class Metrics:
    def __init__(self) -> None:
        self.started_at = time.time()
        self.rejected = Counter("lucebox_requests_rejected_total", "Requests refused because the queue was full.")
        self.prompt_tokens = Counter("lucebox_prompt_tokens_total", "Prompt tokens, reused ones included.")
        self.cached_tokens = Counter("lucebox_cached_tokens_total", "Prompt tokens that were reused.")
        self.cut_tokens = Counter("lucebox_cut_tokens_total", "Prompt tokens that compression left out.")
        self.generated_tokens = Counter("lucebox_generated_tokens_total", "Tokens generated.")
        self.prefill_s = Counter("lucebox_prefill_seconds_total", "Engine time of prompts.")
        self.decode_s = Counter("lucebox_decode_seconds_total", "Engine time of generated tokens.")
        self.joules = Counter("lucebox_energy_joules_total", "Energy of the requests that could be measured.")
        self.measured_tokens = Counter("lucebox_energy_tokens_total", "Tokens generated by these requests.")
        self.queue_s = Histogram("lucebox_queue_seconds", "From a request to its slot.")
        self.first_token_s = Histogram("lucebox_first_token_seconds", "From a request to its first token.")
        self.request_s = Histogram("lucebox_request_seconds", "From a request to its end.")
        self.sequences = Histogram("lucebox_step_sequences", "Sequences of a decode step.", ROWS)
        self.rows = Histogram("lucebox_pass_rows", "Rows that a pass computes for several sequences.", ROWS)
        self.drafts = DraftMetrics()
        self.experts = ExpertMetrics()
        self.history: deque[RequestRecord] = deque(maxlen=HISTORY)
        self._outcomes: dict[tuple[str, str, str], int] = {}
        self._lock = threading.Lock()

    def record(self, record: RequestRecord) -> None:
        self.queue_s.observe(record.queue_s)
        self.request_s.observe(record.total_s)
        with self._lock:
            self.history.append(record)
            key = (record.model, record.endpoint, record.outcome)
            self._outcomes[key] = self._outcomes.get(key, 0) + 1

    def records(self) -> list[RequestRecord]:
        """The newest requests that ended, oldest first."""
        with self._lock:
            return list(self.history)

    def mean_request_s(self) -> float:
        """Mean service time of the newest MEAN_OF requests, without queueing; 1 s before the first."""
        records = self.records()[-MEAN_OF:]
        return sum(r.total_s - r.queue_s for r in records) / len(records) if records else 1.0

    def lines(self) -> Iterable[str]:
        """All metrics in Prometheus' text format."""
        with self._lock:
            outcomes = [
                (f'{{model="{label(model)}",endpoint="{endpoint}",outcome="{outcome}"}}', float(n))
                for (model, endpoint, outcome), n in sorted(self._outcomes.items())
            ]
        yield from exposition("lucebox_requests_total", "counter", "Requests that ended, by outcome.", outcomes)
        for metric in (
            self.rejected, self.prompt_tokens, self.cached_tokens, self.cut_tokens, self.generated_tokens,
            self.prefill_s, self.decode_s, self.queue_s, self.first_token_s, self.request_s, self.sequences,
            self.rows, self.drafts, self.experts,
        ):  # fmt: skip
            yield from metric.lines()
        if self.joules.value > 0:
            yield from (*self.joules.lines(), *self.measured_tokens.lines())


def exposition(name: str, kind: str, doc: str, rows: Iterable[tuple[str, float]]) -> Iterable[str]:
    """One metric: rows of (suffix with labels, value)."""
    yield f"# HELP {name} {doc}"
    yield f"# TYPE {name} {kind}"
    for suffix, value in rows:
        yield f"{name}{suffix} {value:.10g}"


def label(text: str) -> str:
    """A label's value in Prometheus' text format."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
