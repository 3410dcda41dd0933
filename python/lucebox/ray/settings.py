"""`RaySettings`: how many replicas of each model run, and what each one takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from lucebox.errors import InvalidRequestError
from lucebox.ray.tables import named

__all__ = ["RaySettings"]


@dataclass(frozen=True, slots=True)
class RaySettings:
    """The table `ray` of a cluster's TOML file."""

    address: str | None = None
    """Address of the Ray cluster that `lucebox serve --ray` deploys on, "auto" for the one that runs on this machine.
    None: it starts one on this machine."""
    min_replicas: int = 1
    """Replicas of each model that always run."""
    max_replicas: int | None = None
    """Replicas of each model under load. None: min_replicas."""
    gpus: float | None = None
    """GPUs of a replica; a share, such as 0.25, for models that fit on a card together. None: 1, or 0 for a model with
    the device "cpu"."""
    cpus: int = 1
    """CPUs of a replica, and the threads of a model without a GPU."""
    ingresses: int = 1
    """Processes that accept requests and choose a replica."""

    def __post_init__(self) -> None:
        for name in ("min_replicas", "max_replicas", "cpus", "ingresses"):
            value = getattr(self, name)
            if name == "max_replicas" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidRequestError(f"ray: {name} must be a positive whole number, got {value!r}")
        if self.address is not None and not isinstance(self.address, str):
            raise InvalidRequestError(f"ray: address must be a string, got {self.address!r}")
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            raise InvalidRequestError(
                f"ray: max_replicas, {self.max_replicas}, is less than min_replicas, {self.min_replicas}"
            )
        if self.gpus is not None and (
            isinstance(self.gpus, bool) or not isinstance(self.gpus, int | float) or self.gpus < 0
        ):
            raise InvalidRequestError(f"ray: gpus must be a number from 0, got {self.gpus!r}")

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> RaySettings:
        """
        Raises:
            InvalidRequestError: a name or a value that has no meaning.
        """
        return cls(**named(table, [field.name for field in fields(cls)], "ray"))
