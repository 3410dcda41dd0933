"""Holds power limits while a server runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from lucebox.api import LLM
from lucebox.measure.efficient_power import choose_power

__all__ = ["PowerLimits"]


class PowerLimits:
    """The limit of each device, chosen with the first model on it and held until `close`."""

    def __init__(self, report: Callable[[str], None] = lambda note: None) -> None:
        """report: gets a note about each choice."""
        self._report = report
        self._held = ExitStack()
        self._devices: set[str] = set()

    def hold(self, llm: LLM) -> None:
        """Chooses the limit for the device of a model that nothing uses yet; blocks for some seconds. A device that has
        a limit keeps it.

        Raises:
            UnsupportedError: as `choose_power`.
        """
        device = llm.options.device
        if device in self._devices:
            return
        power = choose_power(llm)
        if power.chosen.limit_w < power.before.limit_w:
            self._held.enter_context(power.limit.held_at(power.chosen.limit_w))
        self._devices.add(device)
        self._report(str(power))

    def close(self) -> None:
        """Restores all limits."""
        self._held.close()
