"""Resolves MODEL to a path: a local file or folder, a name of the catalog, or a model of the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lucebox.errors import InvalidRequestError, ModelNotFoundError
from lucebox.models import catalog, hub
from lucebox.models.hub import Progress
from lucebox.models.hub_name import parse_hub_name
from lucebox.names import did_you_mean

__all__ = ["ResolvedModel", "resolve"]

_CATALOG_PREFIX = "catalog:"


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    path: Path
    """A GGUF file (the first part of a split one), or a folder of safetensors."""
    source: str
    """"path", "catalog" or "hub"."""
    name: str
    hub_files: tuple[str, ...] | None = None
    """The names of the repository's files; None if the hub was not asked or did not answer."""


def resolve(
    model: str,
    *,
    offline: bool = False,
    progress: Progress | None = None,
    endpoint: str | None = None,
    is_drafter: bool = False,
) -> ResolvedModel:
    """Finds a model, and downloads it if necessary.

    model: a GGUF file or a model folder; a catalog name; or org/name on the hub, with ":Q8_0" or ":file.gguf" to choose
    among its GGUF files, ":safetensors" for its original weights, and "@revision" before these; or a link to the hub.
    "catalog:NAME" and "./NAME" resolve an ambiguity.
    endpoint: a hub server instead of the client's own setting.
    is_drafter: resolve a drafter: a catalog name means that model's drafter, and the files need no tokenizer.

    Raises:
        ModelNotFoundError: not a known name, or the hub has no such model.
        InvalidRequestError: the name is ambiguous; the message lists the possibilities.
        HubError: the download failed.
    """
    if not model:
        raise ModelNotFoundError("the name of the model is empty")
    try:
        path = Path(model).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, or a home folder that does not exist
        raise ModelNotFoundError(f"{model[:200]!r} is no path: {getattr(error, 'strerror', None) or error}") from error
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
        if is_drafter:
            return ResolvedModel(catalog.fetch_drafter(entry.name), "catalog", entry.name)
        return ResolvedModel(catalog.fetch(entry.name, offline=offline, progress=progress), "catalog", entry.name)
    found = parse_hub_name(model, is_link=hub.is_link)
    if found is None:
        names = [entry.name for entry in catalog.entries()]
        raise ModelNotFoundError(
            f"{model!r} is not a file or folder here, not a catalog name ({', '.join(names)}), and not a hub id "
            f"(org/name){did_you_mean(model, names) or _nearest_file(path)}"
        )
    path, hub_files = hub.fetch(
        found.repo,
        found.want,
        revision=found.revision,
        offline=offline,
        progress=progress,
        endpoint=endpoint,
        has_tokenizer=not is_drafter,
    )
    return ResolvedModel(path, "hub", str(found), hub_files)


def _nearest_file(path: Path) -> str:
    """A hint that names a file in the same folder with a similar name."""
    folder = path.parent
    if not folder.is_dir():
        return ""
    models = [file.name for file in folder.iterdir() if file.suffix == ".gguf" or (file / "config.json").is_file()]
    return did_you_mean(path.name, models)
