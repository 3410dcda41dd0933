"""A model in memory: the preparation of its requests, and the run loop on its engine."""

from __future__ import annotations

import time

from lucebox import _engine
from lucebox.api import LLM
from lucebox.errors import OutOfMemoryError
from lucebox.generation.prefix_cache import PrefixCache, fingerprint, state_bytes
from lucebox.generation.scheduler import Scheduler
from lucebox.measure.energy import find_meter
from lucebox.models.memory import MemoryPlan
from lucebox.serve.device_load import load_reader
from lucebox.serve.model import ServedModel
from lucebox.serve.observer import MetricsObserver
from lucebox.serve.security import key_owners
from lucebox.serve.settings import ServeSettings
from lucebox.serve.telemetry import Telemetry
from lucebox.sizes import show_size

__all__ = ["DEFAULT_SLOTS", "RunningModel", "bytes_in_use", "fitting_slots", "prefix_cache_bytes"]

DEFAULT_SLOTS = 4
DEFAULT_PREFIX_CACHE = 2 << 30
STATES_PER_SLOT = 4  # an agent's turn reads one of its newest states and stores two (docs/prefix_cache.md)


class RunningModel:
    """A loaded model that answers requests until it is closed."""

    def __init__(
        self, llm: LLM, settings: ServeSettings, telemetry: Telemetry, *, n_caches: int = 1, owns_llm: bool
    ) -> None:
        """n_caches: prefix caches that share the memory of `settings`. owns_llm: close() closes the LLM, too.

        Raises:
            OutOfMemoryError: the requested slots do not fit in memory.
            UnsupportedError: the power limit cannot be chosen or set.
        """
        if settings.power == "efficient":
            telemetry.power.hold(llm)
        loaded = llm.model
        self.llm = llm
        self._owns_llm = owns_llm
        self._telemetry = telemetry
        self._is_stopped = False
        self.model = ServedModel(loaded, settings)
        self.device_load = load_reader(loaded.device_info)
        self.last_used = time.monotonic()
        """When a request last began or ended."""
        owners = key_owners(settings.all_keys())
        meter = None if loaded.device.others or loaded.device.draft else find_meter(loaded.device_info)
        slots = fitting_slots(loaded.memory_plan, settings.slots)
        self.scheduler = Scheduler(
            loaded,
            slots=slots,
            max_queue=settings.max_queue,
            request_timeout_s=settings.request_timeout,
            senders=owners,
            cache=PrefixCache(
                prefix_cache_bytes(settings.prefix_cache, n_caches, slots * state_bytes(loaded.sessions.latest)),
                settings.prefix_cache_dir,
                # The fingerprint reads all weights, so it is computed only if there is a cache folder.
                fingerprint(loaded.engine, loaded.device.pack_manifest, loaded.device.code, loaded.device.chip)
                if settings.prefix_cache_dir
                else "",
                settings.prefix_cache_disk,
                owners or ("",),
                loaded.engine if loaded.on_device else None,
                None
                if telemetry.kv_events is None
                else telemetry.kv_events.listener(self.model.name, on_device=loaded.on_device),
            ),
            observer=MetricsObserver(telemetry.metrics, self.model.name, self.touch),
            joules=None if meter is None else meter.counter,
        )
        telemetry.metrics.drafts.watch(self, self.scheduler.slots)
        telemetry.metrics.experts.watch(self, loaded.engine)
        self.scheduler.start_thread()

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or runs."""
        return self.scheduler.counts() == (0, 0)

    @property
    def engine_bytes(self) -> int:
        """Memory in the engine's plan, with all slots."""
        return self.model.loaded.memory_plan.bytes_with(self.scheduler.n_slots)

    @property
    def planned_bytes(self) -> int:
        """Memory of the model with all slots, and of a scorer of its own beside it. Mapped weights count, too."""
        loaded = self.model.loaded
        n_bytes = bytes_in_use(loaded.memory_plan, self.scheduler.n_slots)
        compressor = loaded.compressor
        if compressor is not None and compressor.owns_scorer and not compressor.scorer.is_swapped:
            n_bytes += bytes_in_use(compressor.scorer.memory_plan, 1)
        return n_bytes

    @property
    def n_pages(self) -> int:
        """Pages of the KV cache."""
        return self.model.loaded.engine.n_pages

    @property
    def n_free_pages(self) -> int:
        return self.model.loaded.engine.n_free_pages

    def touch(self) -> None:
        """Notes that the model is in use."""
        self.last_used = time.monotonic()

    def stop(self, drain_s: float) -> None:
        """Lets running answers finish for `drain_s` seconds, and ends all threads."""
        if not self._is_stopped:
            self._is_stopped = True
            self.scheduler.close(drain_s)
            self._telemetry.metrics.drafts.unwatch(self)
            self._telemetry.metrics.experts.unwatch(self)
            self.model.close()

    def close(self) -> None:
        """Ends what still runs, and frees the memory of a model that it owns."""
        self.stop(0.0)
        if self._owns_llm:
            self.llm.close()


def bytes_in_use(plan: MemoryPlan, slots: int) -> int:
    """Memory of a model with all slots. Weights that are mapped from the file should stay in memory, so they count."""
    return plan.mapped_bytes + plan.bytes_with(slots)


def prefix_cache_bytes(requested: int | None, n_caches: int, state_bytes: int) -> int:
    """Main memory of one of the server's n_caches prefix caches: its part of what is requested for all, else of
    DEFAULT_PREFIX_CACHE, or more if STATES_PER_SLOT states of each slot need it, up to its part of a quarter of the
    available memory.

    state_bytes: one state of each slot."""
    if requested is not None:
        return requested // n_caches
    states = min(STATES_PER_SLOT * state_bytes, _engine.available_memory() // 4 // n_caches)
    return max(DEFAULT_PREFIX_CACHE // n_caches, states)


def fitting_slots(plan: MemoryPlan, requested: int | None) -> int:
    """The number of slots: as requested, else DEFAULT_SLOTS, or fewer if memory is short.

    Raises:
        OutOfMemoryError: the requested slots do not fit.
    """
    n = plan.max_sessions
    if requested is None:
        return min(DEFAULT_SLOTS, n)
    if requested > n:
        raise OutOfMemoryError(
            f"{requested} slots of {show_size(plan.session_bytes)} do not fit in {plan.place}: there is room for {n} "
            f"with a context of {plan.context}. Use fewer, or a smaller --context"
        )
    return requested
