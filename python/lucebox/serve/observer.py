"""Records the scheduler's work in the server's metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from lucebox.errors import LuceboxError
from lucebox.generation.observer import Observer
from lucebox.generation.request import Finished
from lucebox.generation.sequence import Sequence
from lucebox.serve.engine_errors import api_error_of
from lucebox.serve.metrics import Metrics, RequestRecord

log = logging.getLogger("lucebox.serve")

__all__ = ["MetricsObserver"]


class MetricsObserver(Observer):
    """Writes metrics, from the driver thread."""

    def __init__(self, metrics: Metrics, model: str, on_end: Callable[[], None]) -> None:
        """model: its name in the APIs. on_end: called at the end of each request."""
        self._metrics = metrics
        self._model = model
        self._on_end = on_end

    def refused(self) -> None:
        self._metrics.rejected.add(1)

    def begun_step(self, n_sequences: int) -> None:
        self._metrics.sequences.observe(n_sequences)

    def sent_pass(self, n_rows: int) -> None:
        self._metrics.rows.observe(n_rows)

    def spent_on_prompt(self, seconds: float) -> None:
        self._metrics.prefill_s.add(seconds)

    def spent_on_tokens(self, seconds: float, n_tokens: int = 0) -> None:
        self._metrics.decode_s.add(seconds)
        if n_tokens:
            self._metrics.generated_tokens.add(n_tokens)

    def first_token(self, seconds: float) -> None:
        self._metrics.first_token_s.observe(seconds)

    def ended(self, sequence: Sequence, result: Finished | Exception) -> None:
        if sequence.queue_s is not None:
            self._metrics.prompt_tokens.add(sequence.n_prompt)
            self._metrics.cached_tokens.add(sequence.cached)
            if (cut := sequence.request.compression) is not None:
                self._metrics.cut_tokens.add(cut.original_tokens - cut.kept_tokens)
        joules = result.usage.joules if isinstance(result, Finished) else None
        if joules is not None:
            self._metrics.joules.add(joules)
            self._metrics.measured_tokens.add(sequence.n_generated)
        if isinstance(result, Exception) and not isinstance(result, LuceboxError):
            log.error("a request failed", exc_info=result)
        outcome = result.reason if isinstance(result, Finished) else api_error_of(result).kind
        self._metrics.record(_record(sequence, self._model, outcome, joules))
        self._on_end()


def _record(sequence: Sequence, model: str, outcome: str, joules: float | None) -> RequestRecord:
    total_s = time.perf_counter() - sequence.submitted
    request, drafts = sequence.request, sequence.drafts
    return RequestRecord(
        ended_at=time.time(),
        model=model,
        endpoint=request.endpoint,
        outcome=outcome,
        prompt_tokens=sequence.n_prompt,
        original_tokens=request.compression.original_tokens if request.compression else None,
        cached_tokens=sequence.cached,
        generated_tokens=sequence.n_generated,
        queue_s=total_s if sequence.queue_s is None else sequence.queue_s,
        first_token_s=sequence.first_token_s,
        prefill_s=sequence.prefill_s,
        decode_s=sequence.decode_s,
        total_s=total_s,
        verifies=drafts.verifies if drafts else 0,
        drafted_tokens=drafts.drafted_tokens if drafts else 0,
        accepted_tokens=drafts.accepted_tokens if drafts else 0,
        joules=joules,
    )
