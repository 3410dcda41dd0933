"""`plan_modes`: the ways to use several GPUs for a model, with the predicted speed and the longest context of each.

A prediction adds up what a decoded token of a short context waits for, one after the other: the reads of the weights,
the launches of each layer, and the link. The times were measured on H100 and H200 (docs/several_devices.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from lucebox.errors import LuceboxError
from lucebox.models.memory import MemoryPlan
from lucebox.models.planning import Plan, plan_sizes

__all__ = ["Mode", "plan_modes", "tokens_s"]

READ_SHARE = 0.92  # of the bandwidth of the memory
LAYER_US, MIXTURE_LAYER_US = 26.0, 34.0  # of a layer by a graph, besides the weights: the same for a part of the layer
ALL_REDUCE_US = {"peer": 2.9, "host": 5.1}  # of a row of 5,120 values: NVLink, pinned host memory
N_ALL_REDUCES = 2  # of a layer
HAND_OVER_US = 26.0  # from a device to the next, or of the token to the first


@dataclass(frozen=True, slots=True)
class Mode:
    mode: str
    """one: the first GPU alone; layer, tensor: the split; replicas: a copy on each GPU."""
    link: str | None = None
    """peer or host, where the speed depends on it."""
    tokens_s: float | None = None
    """Predicted speed of decoding without drafts: of one sequence; with replicas, of one on each. None if the bandwidth
    of a GPU is unknown."""
    largest_context: int | None = None
    error: str | None = None
    """The first line of the error that a load in this mode would raise; None: it is possible."""


def plan_modes(
    model: str | os.PathLike[str], options: Mapping[str, Any], *, board: str | None = None
) -> tuple[Mode, ...]:
    """The modes of the GPUs that `board` or the option `device` names; none for one GPU. The model's files are on this
    machine. options: of `plan_memory`."""
    where = board or options.get("device", "auto")
    names = where.split(",")
    if len(names) < 2:
        return ()

    @cache  # boards of one name
    def plan(place: str, split: str) -> Plan | str:
        given = {**options, "split": split} | ({} if board else {"device": place})
        try:
            return plan_sizes(model, board=place if board else None, offline=True, sessions=1, **given)[0]
        except LuceboxError as error:
            return str(error).partition("\n")[0]

    alone = [_mode("one", plan(name, "auto")) for name in names]
    shares = options.get("split", "auto")
    tensor = plan(where, shares if "," in shares else "tensor")
    return (
        alone[0],
        _mode("layer", plan(where, "layer")),
        *(_mode("tensor", tensor, link) for link in ALL_REDUCE_US),
        _replicas(alone),
    )


def _mode(mode: str, plan: Plan | str, link: str | None = None) -> Mode:
    if isinstance(plan, str):
        return Mode(mode, link, error=plan)
    return Mode(mode, link, tokens_s(plan, mode, link), plan.memory.largest_context)


def _replicas(alone: list[Mode]) -> Mode:
    if error := next((one.error for one in alone if one.error), None):
        return Mode("replicas", error=error)
    speeds, contexts = ([getattr(one, name) for one in alone] for name in ("tokens_s", "largest_context"))
    return Mode("replicas", tokens_s=None if None in speeds else sum(speeds), largest_context=min(contexts))


def tokens_s(plan: Plan, mode: str, link: str | None = None) -> float | None:
    """The predicted speed in a mode. None if the bandwidth of a device is unknown, or experts are in host memory."""
    memory, bandwidths = plan.memory, plan.bandwidths_gb_s
    if memory.experts is not None and memory.experts.host_bytes:
        return None
    n_bytes = _bytes_of_devices(memory, mode)
    reads = [_read_us(n, gb_s) for n, gb_s in zip(n_bytes, bandwidths, strict=False) if gb_s is not None]
    if len(reads) < len(n_bytes):
        return None
    layer_us = LAYER_US if memory.experts is None else MIXTURE_LAYER_US
    if link is not None:
        layer_us += N_ALL_REDUCES * ALL_REDUCE_US[link]
    hand_overs = len(n_bytes) if mode == "layer" else 0
    waits = max(reads) if mode == "tensor" else sum(reads)
    return 1e6 / (waits + layer_us * memory.n_layers + hand_overs * HAND_OVER_US)


def _bytes_of_devices(memory: MemoryPlan, mode: str) -> list[float]:
    """Weights that a token reads on each device."""
    if mode == "tensor":
        return [part.bytes_per_token for part in memory.parts]
    if not memory.parts:
        return [memory.bytes_per_token]
    weights = [part.bytes_of("weights") for part in memory.parts]
    return [memory.bytes_per_token * own / sum(weights) for own in weights]


def _read_us(n_bytes: float, gb_s: float) -> float:
    return n_bytes / (READ_SHARE * gb_s * 1e9) * 1e6
