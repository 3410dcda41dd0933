"""`SharedScorer`: a scorer of prompt compression that several models of a server use together."""

from __future__ import annotations

import threading

from lucebox.compression.scorer import Scorer
from lucebox.models.hub import Progress
from lucebox.models.planning import Plan, scorer_fields
from lucebox.models.resolve import resolve
from lucebox.options import EngineOptions, parse_layers
from lucebox.serve.running_model import bytes_in_use

__all__ = ["SharedScorer"]


class SharedScorer:
    """The scorer of several models on one device. It loads with the first of them and stays in memory until close()."""

    def __init__(self, plan: Plan, options: EngineOptions) -> None:
        """plan: of one of its models, whose options these are."""
        assert plan.scorer is not None and options.prefill_drafter is not None
        self.name = resolve(options.prefill_drafter, offline=True).name  # the plan has downloaded what was missing
        self.device = plan.memory.place
        self.n_bytes = bytes_in_use(plan.scorer.memory, 1)
        self._model = options.prefill_drafter
        self._layers = options.prefill_layers
        self._options = {**scorer_fields(options), "memory_limit": None, "context": plan.scorer.memory.context}
        self._lock = threading.Lock()
        self._scorer: Scorer | None = None

    def loaded(self, progress: Progress | None = None) -> Scorer:
        """The scorer; the first call loads it.

        Raises:
            LuceboxError: as `Scorer`.
        """
        with self._lock:
            if self._scorer is None:
                layers = None if self._layers is None else parse_layers(self._layers)
                self._scorer = Scorer(self._model, layers=layers, offline=True, progress=progress, **self._options)
            return self._scorer

    def close(self) -> None:
        """Frees its memory, after its models are closed."""
        with self._lock:
            if self._scorer is not None:
                self._scorer.close()
                self._scorer = None
