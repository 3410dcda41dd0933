"""Chooses the power limit at which a model generates the most tokens per joule without a noticeable loss of speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lucebox.errors import UnsupportedError
from lucebox.measure.bench import measure
from lucebox.measure.energy import find_meter
from lucebox.measure.power_limit import PowerLimit, find_power_limit
from lucebox.measure.power_sweep import PowerPoint, measure_points

if TYPE_CHECKING:
    from lucebox.api import LLM

__all__ = ["MAX_LOSS", "EfficientPower", "best_point", "choose_power"]

MAX_LOSS = 0.03
SHARES = (1.0, 0.85, 0.7, 0.6, 0.5, 0.4)  # of the limit in force, tried in this order
TEST_S = 0.8  # of a run; shorter ones have no measurable energy
PROBE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class EfficientPower:
    """A power limit and what it changes."""

    limit: PowerLimit
    before: PowerPoint
    """Decoding at the limit in force before."""
    chosen: PowerPoint

    def __str__(self) -> str:
        if self.chosen.limit_w >= self.before.limit_w:
            return f"--power efficient: the limit stays at {self.before.limit_w:.0f} W, no lower one saves energy"
        slower, gain = 1 - self.chosen.tok_s / self.before.tok_s, self.chosen.tok_j / self.before.tok_j - 1
        return (
            f"power limit {self.chosen.limit_w:.0f} W in place of {self.before.limit_w:.0f} W: {self.chosen.tok_j:.2f} "
            f"tok/J in place of {self.before.tok_j:.2f} ({100 * gain:+.0f} %), decoding {100 * slower:.1f} % slower"
        )


def best_point(points: Sequence[PowerPoint]) -> PowerPoint:
    """The point with the most tokens per joule that is at most MAX_LOSS slower than the first one."""
    fast = [point for point in points if point.tok_s >= (1 - MAX_LOSS) * points[0].tok_s]
    return max(fast, key=lambda point: point.tok_j)


def choose_power(llm: LLM) -> EfficientPower:
    """Decodes at lower and lower power limits, until decoding slows down, and restores the limit. Takes about a second
    per limit.

    Raises:
        UnsupportedError: the device has no power limit or no energy to read, this user may not set the limit, or the
            context is too short to measure energy.
    """
    option, device = "--power efficient", llm.options.device
    if "," in device:
        raise UnsupportedError(f"{option} is for a model on one device, got {device}: leave the option out")
    limit = find_power_limit(llm.device_info)
    if limit is None or find_meter(llm.device_info) is None:
        raise UnsupportedError(
            f"{option}: the power limit and the energy of {device} cannot be read (NVML or hwmon): leave the option out"
        )
    before = limit.read()
    if not limit.write(before):
        raise UnsupportedError(
            f"{option}: this user may not set the power limit of {device}: run as root, or leave the option out"
        )
    (probe,) = measure(llm, prefill=(), decode=(PROBE_TOKENS,), runs=1).measurements
    n_tokens = math.ceil(TEST_S * probe.tok_s.median)
    if n_tokens > llm.memory_plan.context - PROBE_TOKENS:
        raise UnsupportedError(
            f"{option}: {n_tokens} tokens are needed to measure energy: use a --context of at least "
            f"{n_tokens + PROBE_TOKENS}, or leave the option out"
        )
    points: list[PowerPoint] = []
    for watts in dict.fromkeys(max(limit.lowest, share * before) for share in SHARES):
        points += measure_points(llm, [watts], n_tokens=n_tokens, depth=0, runs=1)
        if points[-1].tok_s < (1 - MAX_LOSS) * points[0].tok_s:
            break
    return EfficientPower(limit, points[0], best_point(points))
