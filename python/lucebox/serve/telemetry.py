"""What a server tells the outside of its work: metrics, and the events of its caches."""

from __future__ import annotations

from dataclasses import dataclass, field

from lucebox.serve.kv_events import KvEvents
from lucebox.serve.metrics import Metrics
from lucebox.serve.settings import ServeSettings

__all__ = ["Telemetry"]


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Shared by all models of a server."""

    metrics: Metrics = field(default_factory=Metrics)
    kv_events: KvEvents | None = None

    @classmethod
    def open(cls, settings: ServeSettings) -> Telemetry:
        """
        Raises:
            UnsupportedError, InvalidRequestError: cache events cannot be published.
        """
        events = None if settings.kv_events is None else KvEvents(settings.kv_events, settings.kv_topic)
        return cls(kv_events=events)

    def close(self) -> None:
        if self.kv_events is not None:
            self.kv_events.close()
