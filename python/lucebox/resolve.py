"""MODEL to a path: files and folders here, names of the catalog, models of the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lucebox import catalog, hub
from lucebox.errors import InvalidRequestError, ModelNotFoundError
from lucebox.hub import Progress

__all__ = ["ResolvedModel", "resolve"]

_CATALOG_PREFIX = "catalog:"
_HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<want>[^:]+))?")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """Where a model is on this machine."""

    path: Path
    """A GGUF file (the first of a split one), or a folder of safetensors."""
    source: str
    """"path", "catalog" or "hub"."""
    name: str


def resolve(
    model: str, *, offline: bool = False, progress: Progress | None = None, endpoint: str | None = None
) -> ResolvedModel:
    """Find a model, and fetch it where it has to be.

    model: a GGUF file or a model folder; a catalog name; or org/name on the hub, with ":Q8_0" or ":file.gguf" to choose
    among its GGUF files and ":safetensors" for its original weights. "catalog:NAME" and "./NAME" say which is meant.
    endpoint: another hub server than the client's own setting.

    Raises:
        ModelNotFoundError: it is none of these, or the hub does not have it.
        InvalidRequestError: it could be several things; the message lists them.
        HubError: it would have to be fetched, and could not.
    """
    path = Path(model).expanduser()
    entry = catalog.find(model.removeprefix(_CATALOG_PREFIX))
    if path.exists() and entry is not None:
        raise InvalidRequestError(
            f"{model!r} is a catalog name and also exists here: say {_CATALOG_PREFIX}{model} or ./{model}"
        )
    if path.exists():
        if path.is_file():
            return ResolvedModel(path, "path", path.stem)
        return ResolvedModel(hub.model_in_folder(path), "path", path.resolve().name)
    if entry is not None:
        return ResolvedModel(catalog.fetch(entry.name, offline=offline, progress=progress), "catalog", entry.name)
    match = _HUB_ID.fullmatch(model)
    if match is None or model.startswith((".", "~")) or (path.suffix == ".gguf" and match["want"] is None):
        names = ", ".join(entry.name for entry in catalog.entries())
        raise ModelNotFoundError(
            f"{model!r} is not a file or folder here, not a catalog name ({names}), and not a hub id (org/name)"
        )
    found = hub.fetch(match["repo"], match["want"], offline=offline, progress=progress, endpoint=endpoint)
    return ResolvedModel(found, "hub", model)
