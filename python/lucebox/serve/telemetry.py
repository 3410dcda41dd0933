"""`Telemetry`: metrics, cache events and power limits, which all models of a server share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lucebox.serve.kv_events import KvEvents
from lucebox.serve.metrics import Metrics
from lucebox.serve.power_limits import PowerLimits
from lucebox.serve.settings import ServeSettings

__all__ = ["Telemetry"]


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Shared by all models of a server."""

    metrics: Metrics = field(default_factory=Metrics)
    kv_events: KvEvents | None = None
    power: PowerLimits = field(default_factory=PowerLimits)

    @classmethod
    def open(cls, settings: ServeSettings, report: Callable[[str], None] = lambda note: None) -> Telemetry:
        """report: gets notes for whoever started the server.

        Raises:
            UnsupportedError, InvalidRequestError: cache events cannot be published.
        """
        events = None if settings.kv_events is None else KvEvents(settings.kv_events, settings.kv_topic)
        return cls(kv_events=events, power=PowerLimits(report))

    def close(self) -> None:
        self.power.close()
        if self.kv_events is not None:
            self.kv_events.close()
