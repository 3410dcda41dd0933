"""Formats the server's metrics: as Prometheus' text, and as the JSON document of /status and the live page."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from lucebox import __version__
from lucebox.generation.loaded_model import LoadedModel
from lucebox.serve.metrics import exposition
from lucebox.serve.server import Server

__all__ = ["metrics_text", "status_document"]


def metrics_text(server: Server) -> str:
    lines = [*server.metrics.lines()]
    waiting, running = server.scheduler.counts()
    pages = pages_of(server.model.loaded)
    gauges: dict[str, tuple[str, float]] = {
        "lucebox_requests_waiting": ("Requests in the queue.", waiting),
        "lucebox_requests_running": ("Requests on a slot.", running),
        "lucebox_slots": ("Slots.", server.scheduler.n_slots),
        "lucebox_context_tokens": ("Context length of a slot.", server.model.context),
        "lucebox_planned_memory_bytes": (
            "Memory in the engine's plan.",
            server.model.loaded.memory_plan.bytes_with(server.scheduler.n_slots),
        ),
        "lucebox_kv_pages": ("Pages of the KV cache.", pages["total"]),
        "lucebox_kv_pages_free": ("Pages that no sequence and no prefix holds.", pages["free"]),
        "lucebox_start_time_seconds": ("Start of the server in Unix time.", server.metrics.started_at),
    }
    cache = server.scheduler.cache.stats()
    gauges |= {
        "lucebox_prefix_cache_bytes": ("Memory of the prefix cache.", cache.memory_bytes),
        "lucebox_prefix_cache_disk_bytes": ("Files of the prefix cache.", cache.disk_bytes),
        "lucebox_prefix_cache_segments": ("Segments in the prefix cache.", cache.segments),
    }
    load = server.device_load()
    if load.busy is not None:
        gauges["lucebox_device_busy_ratio"] = ("Utilisation of the device, 0 to 1.", load.busy)
    if load.watts is not None:
        gauges["lucebox_device_power_watts"] = ("Power draw of the device.", load.watts)
    for name, (doc, value) in gauges.items():
        lines += exposition(name, "gauge", doc, [("", float(value))])
    return "\n".join(lines) + "\n"


def status_document(server: Server) -> dict[str, Any]:
    scheduler, loaded = server.scheduler, server.model.loaded
    metrics = server.metrics
    waiting, running = scheduler.counts()
    plan = loaded.memory_plan
    return {
        "version": __version__,
        "model": server.model.name,
        "context": server.model.context,
        "device": loaded.options.device,
        "device_name": loaded.device.chip,
        "unused_gpus": loaded.device.unused_gpus,
        "kernels": loaded.kernels,
        "draft": loaded.draft_label,
        "sparse_prefill": loaded.options.sparse_prefill,
        "uptime_s": time.time() - metrics.started_at,
        "slots": scheduler.n_slots,
        "waiting": waiting,
        "running": running,
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
        "kv_pages": pages_of(loaded),
        "prefix_cache": asdict(scheduler.cache.stats()),
        "compression": _compression(loaded),
        "device_load": asdict(server.device_load()),
        "memory": {
            "place": plan.place,
            "total_bytes": plan.bytes_with(server.scheduler.n_slots),
            "available_bytes": plan.available_bytes,
            "mapped_bytes": plan.mapped_bytes,
            "entries": [asdict(entry) for entry in plan.entries],
        },
        "requests": [asdict(record) for record in metrics.records()],
    }


def pages_of(loaded: LoadedModel) -> dict[str, int]:
    """KV pages: total and free."""
    return {"total": loaded.engine.n_pages, "free": loaded.engine.n_free_pages}


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
    }
