"""Formats the server's metrics: as Prometheus' text, and as the JSON document of /status and the live page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from lucebox import __version__
from lucebox.generation.loaded_model import LoadedModel
from lucebox.generation.prefix_cache.plan import PAGE
from lucebox.serve.device_load import DeviceLoad
from lucebox.serve.metrics import exposition, label
from lucebox.serve.model_entry import ModelEntry
from lucebox.serve.model_set import ModelSet
from lucebox.serve.running_model import RunningModel
from lucebox.serve.server import Server

__all__ = ["metrics_text", "status_document"]


def metrics_text(server: Server) -> str:
    lines = [*server.metrics.lines()]
    for name, (doc, read) in MODEL_GAUGES.items():
        rows = [
            (f"{{{_labels(entry)}}}", float(read(entry.running)))
            for entry in server.models.entries
            if entry.running is not None
        ]
        lines += exposition(name, "gauge", doc, rows)
    lines += _link_gauge(server)
    lines += _vllm_gauges(server)
    models = [(f"{{{_labels(entry)}}}", float(entry.running is not None)) for entry in server.models.entries]
    lines += exposition("lucebox_model_loaded", "gauge", "Whether the model is in memory, 1 or 0.", models)
    started = [("", server.metrics.started_at)]
    lines += exposition("lucebox_start_time_seconds", "gauge", "Start of the server in Unix time.", started)
    busy, watts = [], []
    for device, load in device_loads(server.models).items():
        busy += [(f'{{device="{device}"}}', load.busy)] if load.busy is not None else []
        watts += [(f'{{device="{device}"}}', load.watts)] if load.watts is not None else []
    if busy:
        lines += exposition("lucebox_device_busy_ratio", "gauge", "Utilisation of the device, 0 to 1.", busy)
    if watts:
        lines += exposition("lucebox_device_power_watts", "gauge", "Power draw of the device.", watts)
    return "\n".join(lines) + "\n"


MODEL_GAUGES: dict[str, tuple[str, Callable[[RunningModel], float]]] = {
    "lucebox_requests_waiting": ("Requests in the queue.", lambda one: one.scheduler.counts()[0]),
    "lucebox_requests_running": ("Requests on a slot.", lambda one: one.scheduler.counts()[1]),
    "lucebox_slots": ("Slots.", lambda one: one.scheduler.n_slots),
    "lucebox_context_tokens": ("Context length of a slot.", lambda one: one.model.context),
    "lucebox_planned_memory_bytes": ("Memory in the engine's plan.", lambda one: one.engine_bytes),
    "lucebox_kv_pages": ("Pages of the KV cache.", lambda one: one.n_pages),
    "lucebox_kv_pages_free": ("Pages that no sequence and no prefix holds.", lambda one: one.n_free_pages),
    "lucebox_prefix_cache_bytes": ("Memory of the prefix cache.", lambda one: one.scheduler.cache.stats().memory_bytes),
    "lucebox_prefix_cache_disk_bytes": (
        "Files of the prefix cache, of all models.",
        lambda one: one.scheduler.cache.stats().disk_bytes,
    ),
    "lucebox_prefix_cache_segments": (
        "Segments in the prefix cache.",
        lambda one: one.scheduler.cache.stats().segments,
    ),
}
"""Gauges of a loaded model."""


def _labels(entry: ModelEntry) -> str:
    replica = "" if entry.spec.settings.replicas == 1 else f',replica="{entry.spec.replica}"'
    return f'model="{label(entry.name)}"{replica}'


def _link_gauge(server: Server) -> Iterator[str]:
    rows = [
        (f'{{{_labels(entry)},link="{i}",path="{link.path.split(":")[0]}"}}', link.row_us / 1e6)
        for entry in server.models.entries
        if entry.running is not None
        for i, link in enumerate(entry.running.model.loaded.device.links)
    ]
    doc = "Time of one row over a link between the model's devices, measured when the model was loaded."
    if rows:
        yield from exposition("lucebox_link_row_seconds", "gauge", doc, rows)


def _vllm_gauges(server: Server) -> Iterator[str]:
    """The gauges that routers read from vLLM, under its names and labels. A replica is an engine."""
    running = [
        (f'engine="{entry.spec.replica}",model_name="{label(entry.name)}"', entry.running)
        for entry in server.models.entries
        if entry.running is not None
    ]

    def rows(read: Callable[[RunningModel], float]) -> list[tuple[str, float]]:
        return [(f"{{{labels}}}", float(read(one))) for labels, one in running]

    waiting, active = rows(lambda one: one.scheduler.counts()[0]), rows(lambda one: one.scheduler.counts()[1])
    usage = rows(lambda one: 1 - one.n_free_pages / one.n_pages)
    config = [(f'{{{labels},block_size="{PAGE}",num_gpu_blocks="{one.n_pages}"}}', 1.0) for labels, one in running]
    yield from exposition("vllm:num_requests_waiting", "gauge", "Requests in the queue.", waiting)
    yield from exposition("vllm:num_requests_running", "gauge", "Requests on a slot.", active)
    yield from exposition("vllm:kv_cache_usage_perc", "gauge", "Used pages of the KV cache, 0 to 1.", usage)
    yield from exposition("vllm:cache_config_info", "gauge", "Pages of the KV cache.", config)


def device_loads(models: ModelSet) -> dict[str, DeviceLoad]:
    """The load of each device that has a loaded model."""
    readers = {entry.facts.device: entry.running.device_load for entry in models.entries if entry.running is not None}
    return {device: read() for device, read in readers.items()}


def status_document(server: Server, entry: ModelEntry) -> dict[str, Any]:
    """The counters of the server, and the state of a model; null stands for what only a loaded model has.

    entry: of a model with replicas, the first. The first loaded replica gives the fields of a loaded
    model.
    """
    metrics = server.metrics
    state = server.models.status(entry)
    running = next(iter(server.models.loaded_replicas(entry)), None)
    return {
        "version": __version__,
        "model": entry.name,
        "models": {one.name: server.models.status(one) for one in server.models.firsts},
        "state": state["value"],
        "context": entry.facts.context,
        "device": state["device"],
        "uptime_s": time.time() - metrics.started_at,
        "slots": state["slots"],
        "waiting": state["waiting"],
        "running": state["running"],
        "totals": {
            "prompt_tokens": metrics.prompt_tokens.value,
            "cached_tokens": metrics.cached_tokens.value,
            "cut_tokens": metrics.cut_tokens.value,
            "generated_tokens": metrics.generated_tokens.value,
            "prefill_s": metrics.prefill_s.value,
            "decode_s": metrics.decode_s.value,
            "steps": metrics.sequences.total,
            "sequences": metrics.sequences.sum,
            "passes": metrics.rows.total,
            "rows": metrics.rows.sum,
            "rejected": metrics.rejected.value,
            "verifies": metrics.drafts.total("verified"),
            "drafted_tokens": metrics.drafts.total("drafted"),
            "accepted_tokens": metrics.drafts.total("accepted"),
        },
        **(dict.fromkeys(LOADED_FIELDS) if running is None else _loaded_fields(running)),
        "requests": [asdict(record) for record in metrics.records()],
    }


LOADED_FIELDS = ("device_name", "links", "unused_gpus", "notes", "kernels", "draft", "sparse_prefill", "kv_pages",
                 "prefix_cache", "compression", "device_load", "memory")  # fmt: skip


def _loaded_fields(running: RunningModel) -> dict[str, Any]:
    loaded = running.model.loaded
    plan = loaded.memory_plan
    return {
        "device_name": loaded.device.chip,
        "links": [asdict(link) for link in loaded.device.links],
        "unused_gpus": loaded.device.unused_gpus,
        "notes": loaded.notes,
        "kernels": loaded.kernels,
        "draft": loaded.draft_label,
        "sparse_prefill": loaded.options.sparse_prefill,
        "kv_pages": {"total": running.n_pages, "free": running.n_free_pages},
        "prefix_cache": asdict(running.scheduler.cache.stats()),
        "compression": _compression(loaded),
        "device_load": asdict(running.device_load()),
        "memory": {
            "place": plan.place,
            "total_bytes": running.engine_bytes,
            "available_bytes": plan.available_bytes,
            "mapped_bytes": plan.mapped_bytes,
            "entries": [asdict(one) for one in plan.entries],
            "experts": None if plan.experts is None else asdict(plan.experts),
        },
    }


def _compression(loaded: LoadedModel) -> dict[str, Any] | None:
    """The server's compression setting and its scorer; None without a scorer."""
    if loaded.compressor is None:
        return None
    policy, scorer = loaded.compressor.policy, loaded.compressor.scorer
    return {
        "mode": policy.mode,
        "threshold": policy.threshold,
        "keep_ratio": loaded.options.prefill_keep_ratio,
        "scorer": scorer.name,
        "scorer_bytes": 0 if scorer.is_swapped else scorer.memory_plan.total_bytes,  # if co-resident with the target
        "scorer_is_swapped": scorer.is_swapped,
        "scorer_is_shared": not loaded.compressor.owns_scorer,
    }
