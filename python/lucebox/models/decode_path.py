"""Chooses between the megakernel and a graph by the time of a token, measured once for a model on a device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from lucebox import _engine
from lucebox.models.measured_file import MeasuredFile

__all__ = ["settle_decode_path"]

FORMAT = 1
OPTIONS = ("activations", "kv", "decode_path", "batch_invariant")
MARGIN = 0.03
"""The graph takes the place of the megakernel only where a token takes this much less time: noise decides nothing."""


def settle_decode_path(engine: _engine.Engine, device: str, kernels: str) -> str:
    """Sets the path of the engine's sessions if the option is "auto" and the target's rule is the megakernel. Returns
    why a graph takes its place, empty if none does. The times are kept, so later starts choose the same path.

    device: the name of the chip; kernels: identifies the pack with its constants, so that others are measured anew.
    """
    if engine.options["decode_path"] != "auto":
        return ""
    file = MeasuredFile.of_engine(engine, OPTIONS, format=FORMAT, device=device, kernels=kernels)
    times = file.read()
    if not _is_valid(times):
        times = _measure(engine)
        file.write(**times)
    megakernel, graph = times["megakernel_ms"], times["graph_ms"]
    if not graph or graph > (1 - MARGIN) * megakernel:
        return ""
    if engine.options["decode_path"] != "graph":
        engine.set_decode_path("graph")
    return f"decoded by a graph: {graph:.2f} ms a token, {megakernel:.2f} by the megakernel"


def _measure(engine: _engine.Engine) -> dict[str, float]:
    """Milliseconds of a token by both paths; zeros where the megakernel is not the target's rule."""
    megakernel = _token_ms(engine, "megakernel")
    if not megakernel:
        return {"megakernel_ms": 0.0, "graph_ms": 0.0}
    costs = cast(dict[str, Any] | None, engine.step_costs)
    engine.set_decode_path("graph")
    graph = _token_ms(engine)
    if graph > (1 - MARGIN) * megakernel:
        engine.set_decode_path("auto")
        if costs is not None:
            engine.step_costs = costs  # measured by this path
    return {"megakernel_ms": megakernel, "graph_ms": graph}


def _token_ms(engine: _engine.Engine, path: str = "") -> float:
    """Milliseconds of a plain token of a first session; 0 if it has another path."""
    session = _engine.Session(engine)
    if not session.decode_path.startswith(path):
        return 0.0
    costs = cast(dict[str, Any] | None, engine.step_costs)  # an engine with drafts has measured it
    return float(session.measure_plain_ms() if costs is None else costs["plain_ms"])


def _is_valid(times: Mapping[str, Any]) -> bool:
    values = times.get("megakernel_ms"), times.get("graph_ms")
    return all(isinstance(ms, float) and 0 <= ms < math.inf for ms in values)
