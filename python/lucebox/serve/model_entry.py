"""`ModelEntry`: a model of a `ModelSet`, in memory or not."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

from lucebox import _engine
from lucebox.api import LLM
from lucebox.errors import LuceboxError
from lucebox.models.hub import Progress
from lucebox.models.model_info import ModelInfo
from lucebox.serve.model_plans import PlannedModel
from lucebox.serve.model_spec import ModelSpec
from lucebox.serve.running_model import RunningModel
from lucebox.serve.telemetry import Telemetry

__all__ = ["ModelEntry"]


class ModelEntry:
    """What a server knows of one of its models, whether it is loaded, and who uses it."""

    def __init__(self, spec: ModelSpec, planned: PlannedModel | None) -> None:
        """planned: None for a model that has its device to itself and is loaded before the first request."""
        self.spec = spec if planned is None else planned.spec
        self.planned = planned
        """Its name, memory and limits: as planned, then as loaded."""
        self.running: RunningModel | None = None
        self.info: ModelInfo | None = None
        """Known from the first load on."""
        self.created = int(time.time())
        self.is_pinned = False
        """Whether it stays in memory, because the caller owns it."""
        self.n_users = 0
        """Requests that wait for it to be loaded or are being prepared."""
        self.n_waiting = 0
        """Requests that wait for it to be loaded."""
        self.loading: asyncio.Task[LuceboxError | None] | None = None
        self.is_opening = False
        """Whether a thread loads it now: a load that is only waiting can be cancelled."""
        self.may_enter = asyncio.Event()
        """Cleared while it waits for its last requests before it is unloaded; others wait for the next load."""
        self.may_enter.set()
        self.error = ""
        """Why the last load failed."""
        self.kept: _engine.KeptWeights | None = None
        """The copy of its weights in pinned host memory, by `WeightKeeper`. While it is complete, loads do not read
        the files."""
        self.left_at = 0.0
        """Monotonic seconds at its last unload; 0 before the first."""
        self.n_loads = 0
        self.load_s: float | None = None
        self.unload_s: float | None = None

    @classmethod
    def pinned(cls, llm: LLM, spec: ModelSpec, telemetry: Telemetry) -> ModelEntry:
        """An entry of a model that the caller has loaded and closes."""
        entry = cls(spec, None)
        entry.is_pinned = True
        entry.take(RunningModel(llm, spec.settings, telemetry, n_caches=spec.n_caches, owns_llm=False))
        return entry

    @property
    def facts(self) -> PlannedModel:
        assert self.planned is not None  # set by the first load at the latest
        return self.planned

    @property
    def name(self) -> str:
        """Its name in the APIs."""
        return self.facts.name

    @property
    def title(self) -> str:
        """Its name in messages, which tells replicas apart."""
        return self.name if self.spec.settings.replicas == 1 else f"replica {self.spec.replica} of {self.name}"

    @property
    def n_requests(self) -> int:
        """Requests that use it or wait for it."""
        return self.n_users + (0 if self.running is None else sum(self.running.scheduler.counts()))

    @property
    def last_used(self) -> float:
        """`RunningModel.last_used`; 0 if it is not loaded."""
        return 0.0 if self.running is None else self.running.last_used

    @property
    def is_busy(self) -> bool:
        """Whether a request uses it."""
        return self.n_users > 0 or (self.running is not None and not self.running.is_idle)

    @property
    def kept_bytes(self) -> int:
        """Bytes of its weights in pinned host memory."""
        return 0 if self.kept is None else self.kept.n_bytes

    @property
    def state(self) -> str:
        """ "loaded", "loading", "unloading" (as soon as its requests end), "failed" or "unloaded"."""
        if self.running is not None:
            return "loaded" if self.may_enter.is_set() else "unloading"
        if self.loading is not None:
            return "loading"
        return "failed" if self.error else "unloaded"

    def open(self, telemetry: Telemetry, progress: Progress | None = None) -> RunningModel:
        """Loads the model; blocks.

        Raises:
            LuceboxError: as `LLM`.
        """
        spec = self.spec
        scorer = None if spec.scorer is None else spec.scorer.loaded(progress)
        llm = LLM(
            spec.model, offline=spec.offline, progress=progress, _scorer=scorer, _kept=self.kept, **spec.keywords()
        )
        try:
            return RunningModel(llm, spec.settings, telemetry, n_caches=spec.n_caches, owns_llm=True)
        except BaseException:
            llm.close()
            raise

    def take(self, running: RunningModel, load_s: float | None = None) -> None:
        """Begins to serve a model that has been opened."""
        loaded = running.model.loaded
        self.running, self.info = running, loaded.info
        self.spec = replace(self.spec, offline=True)  # later loads find all files on this machine
        self.error, self.load_s, self.n_loads = "", load_s, self.n_loads + 1
        self.planned = PlannedModel(
            spec=self.spec,
            name=running.model.name,
            loaded_by=loaded.info.name,
            device=loaded.device.name,
            context=running.model.context,
            max_context=loaded.info.context_length,
            slots=running.scheduler.n_slots,
            n_bytes=running.planned_bytes,
            available_bytes=loaded.memory_plan.available_bytes
            if self.planned is None
            else self.planned.available_bytes,
        )

    def status(self) -> dict[str, Any]:
        """Its state and memory, for clients that manage models."""
        running, facts = self.running, self.facts
        waiting, active = (0, 0) if running is None else running.scheduler.counts()
        return {
            "value": self.state,
            "device": facts.device,
            "memory_bytes": facts.n_bytes,
            "available_bytes": facts.available_bytes,
            "kept_bytes": self.kept_bytes,
            "slots": facts.slots,
            "running": active,
            "waiting": waiting + self.n_waiting,
            "idle_s": None if running is None or self.is_busy else round(time.monotonic() - running.last_used, 3),
            "loads": self.n_loads,
            "load_s": self.load_s and round(self.load_s, 3),
            "unload_s": self.unload_s and round(self.unload_s, 3),
            "error": self.error or None,
        }
