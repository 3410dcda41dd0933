"""Finds the vision tower of a model: in its folder, or in a multimodal projector (mmproj) beside its file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lucebox import _engine
from lucebox.errors import HubError, LuceboxError, ModelNotFoundError
from lucebox.models import hub
from lucebox.models.assets import list_tensors
from lucebox.models.hub import Progress
from lucebox.models.hub_name import parse_hub_name
from lucebox.models.resolve import ResolvedModel

__all__ = ["TowerInfo", "fetch_tower", "find_tower", "tower_info"]

_PROJECTORS = {"qwen35": "qwen3vl_merger", "qwen35moe": "qwen3vl_merger", "gemma4": "gemma4v"}
"""The projector of each architecture (GGUF) with a vision tower."""
_QUANT = re.compile(r"[-_.](?:i?q\d\w*|b?f16|f32)$")  # at the end of a name
_PATCHES = ("model.visual.patch_embed.proj.weight", "visual.patch_embed.proj.weight")
_GEMMA_PATCHES = "model.vision_tower.patch_embedder.input_proj.weight"
_TOWERS = ("visual.", "model.vision_tower.", "model.embed_vision.")  # in names of tensors


def find_tower(mmproj: str | None, model: Path) -> str | None:
    """The file or folder with the tower; None: the model is loaded without one.

    mmproj: a projector's file; "none"; or None: what is found. A tower that the engine lacks is not found.

    Raises:
        ModelNotFoundError: the named file does not exist.
    """
    if mmproj == "none":
        return None
    if mmproj is not None:
        if not Path(mmproj).expanduser().exists():
            raise ModelNotFoundError(f'mmproj: {mmproj!r} is not a file here; give a projector\'s GGUF file, or "none"')
        return str(Path(mmproj).expanduser())
    opened = _engine.open_model_file(str(model))
    if isinstance(opened, _engine.Safetensors):
        return str(model) if _has_tower(opened) else None
    metadata: Mapping[str, Any] = opened.metadata
    architecture = metadata.get("general.architecture")
    if architecture not in _PROJECTORS:
        return None
    hidden = metadata.get(f"{architecture}.embedding_length")
    files = [file for folder in _folders(model) for file in sorted(folder.glob("*mmproj*.gguf"))]
    beside = (file for file in files if _may_belong(file.name, model.name))
    found = [file for file in beside if _fits(file, _PROJECTORS[architecture], hidden)]
    return str(min(found, key=lambda file: -_common(file.name, model.name))) if found else None


def fetch_tower(
    mmproj: str | None,
    found: ResolvedModel,
    *,
    progress: Progress | None = None,
    endpoint: str | None = None,
) -> str | None:
    """`find_tower`, and for a model of the hub a projector of its repository. If the hub did not answer when it was
    asked for the model, it is not asked again.

    Raises:
        HubError: the download of a projector failed, or it is damaged.
    """
    tower = find_tower(mmproj, found.path)
    name = parse_hub_name(found.name, is_link=hub.is_link) if found.source == "hub" else None
    if mmproj is not None or name is None or not _reads_images(found.path):
        return tower
    try:
        if tower is not None:
            hub.check(name.repo, Path(tower), progress)
        if tower is not None or found.hub_files is None:
            return tower
        hub.fetch_projector(
            name.repo,
            found.hub_files,
            lambda file: _may_belong(file, found.path.name),
            revision=name.revision,
            progress=progress,
            endpoint=endpoint,
        )
    except HubError as error:
        raise HubError(f"{error}; --mmproj none loads the model without its vision tower") from None
    return find_tower(None, found.path)


@dataclass(frozen=True, slots=True)
class TowerInfo:
    """The shape and size of a vision tower."""

    path: str
    n_layers: int
    width: int
    bytes: int
    """Bytes of its tensors."""


def tower_info(path: str) -> TowerInfo:
    """The tower in a file or folder that `find_tower` found."""
    opened = _engine.open_model_file(path)
    if isinstance(opened, _engine.Safetensors):
        vision = cast(Mapping[str, Any], opened.config).get("vision_config", {})
        n_layers, width = vision.get("depth", vision.get("num_hidden_layers")), vision.get("hidden_size")
    else:
        metadata: Mapping[str, Any] = opened.metadata
        n_layers, width = metadata.get("clip.vision.block_count"), metadata.get("clip.vision.embedding_length")
    tensors = [
        one
        for one in list_tensors(opened)
        if isinstance(opened, _engine.GgufFile) or any(part in one.name for part in _TOWERS)
    ]
    return TowerInfo(path, int(n_layers or 0), int(width or 0), sum(one.bytes for one in tensors))


def _has_tower(model: _engine.Safetensors) -> bool:
    config = cast(Mapping[str, Any], model.config)
    vision, kind = config.get("vision_config"), str(config.get("model_type", ""))
    if kind == "gemma4":
        return any(name == _GEMMA_PATCHES for name, *_ in model.tensors)
    is_known = kind.startswith("qwen3_5") and isinstance(vision, Mapping)
    if not is_known or not isinstance(vision, Mapping) or vision.get("deepstack_visual_indexes"):
        return False
    return any(name in _PATCHES for name, *_ in model.tensors)


def _reads_images(model: Path) -> bool:
    """Whether a GGUF file is of an architecture with a vision tower."""
    opened = _engine.open_model_file(str(model))
    return isinstance(opened, _engine.GgufFile) and opened.metadata.get("general.architecture") in _PROJECTORS


def _folders(model: Path) -> list[Path]:
    """The folder of a model, and the root of the hub's snapshot if the model is in a folder of it."""
    parent = model.parent
    return [parent, parent.parent] if parent.parent.parent.name == "snapshots" else [parent]


def _may_belong(mmproj: str, model: str) -> bool:
    """Whether the name of a projector is a model's: its part before "mmproj", if any, begins the model's name too."""
    name = _QUANT.sub("", mmproj.lower().partition("mmproj")[0].rstrip("-_."))
    return model.lower().startswith(name)


def _fits(file: Path, projector: str, hidden: object) -> bool:
    try:
        opened = _engine.open_model_file(str(file))
    except LuceboxError:
        return False
    metadata: Mapping[str, Any] = opened.metadata if isinstance(opened, _engine.GgufFile) else {}
    found = metadata.get("clip.vision.projector_type") or metadata.get("clip.projector_type")
    return found == projector and metadata.get("clip.vision.projection_dim") == hidden


def _common(a: str, b: str) -> int:
    """Number of common leading characters."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
