"""One model of a server: where its files are, its options, and the settings that are its own."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from lucebox.errors import InvalidRequestError
from lucebox.options import EngineOptions
from lucebox.serve.settings import ServeSettings
from lucebox.serve.shared_scorer import SharedScorer
from lucebox.sizes import parse_size

__all__ = ["OWN_OPTIONS", "OWN_SETTINGS", "ModelSpec"]

OWN_SETTINGS = ("alias", "profile", "chat_template_kwargs", "slots", "max_tokens", "replicas")
"""Fields of ServeSettings that each model may have for itself."""
OWN_OPTIONS = tuple(
    field.name for field in fields(EngineOptions) if field.name not in ("seed", "sessions", "prefix_cache")
)
"""Fields of EngineOptions that each model may have; the server decides the others."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model to serve, before it is planned or loaded."""

    model: str
    """A path, a hub id or a catalog name."""
    options: EngineOptions
    settings: ServeSettings
    """The server's, with this model's own in their place. `model_name` is its name in the APIs; None: the name it is
    loaded by."""
    offline: bool = False
    limit: int | None = None
    """Bytes of the device that all models of the server may use together. None: all that is free."""
    scorer: SharedScorer | None = None
    """The scorer that it shares with other models; None: it has its own, or none."""
    replica: int = 0
    """Which of the model's `settings.replicas` copies it is."""
    n_caches: int = 1
    """Prefix caches of the server, one for each model and replica; each gets an equal part of its memory."""

    def with_options(self, **options: Any) -> ModelSpec:
        return replace(self, options=replace(self.options, **options))

    def replicated(self) -> list[ModelSpec]:
        """The copies of the model, each with its part of the devices.

        Raises:
            InvalidRequestError: the devices cannot be divided among the copies.
        """
        n, devices = self.settings.replicas, self.options.device.split(",")
        if n == 1:
            return [self]
        if len(devices) % n:
            raise InvalidRequestError(
                f"{n} replicas of {self.model} need devices of their own: name {n} of them, or a multiple, as --device "
                f"cuda:0,cuda:1; got {self.options.device!r}"
            )
        if self.options.draft_device is not None:
            raise InvalidRequestError(
                f"{n} replicas of {self.model} draft on their own devices: use no draft_device, or one replica"
            )
        if self.settings.kv_events is not None:
            raise InvalidRequestError("--kv-events is for models with one replica: its events do not name replicas")
        each = len(devices) // n
        return [
            replace(self.with_options(device=",".join(devices[i * each : (i + 1) * each])), replica=i) for i in range(n)
        ]

    def keywords(self) -> dict[str, Any]:
        """The options as keywords of `LLM`, within the limit."""
        values = {field.name: getattr(self.options, field.name) for field in fields(self.options)}
        limits = [parse_size(limit) for limit in (self.options.memory_limit, self.limit) if limit is not None]
        return values | {"memory_limit": min(limits, default=None)}
