"""Resolves the option `draft` to the engine's: "none", "suffix", "mtp" or a file, the last two also with "+suffix".

"auto" is a list of these, best first; loading takes the first that fits in memory and is worth its cost on the device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from lucebox import _engine
from lucebox.errors import InvalidRequestError
from lucebox.models import catalog
from lucebox.models.hub import Progress
from lucebox.models.resolve import ResolvedModel, resolve

__all__ = ["draft_label", "resolve_drafts"]

_WITH_SUFFIX = "+suffix"
# Tensors of a prediction block, in GGUF files and in checkpoints.
_MTP_TENSOR = {
    _engine.GgufFile: re.compile(r"blk\.\d+\.nextn\."),  # Ollama's mtp.* tensors have a different layout
    _engine.Safetensors: re.compile(r"(model\.)?mtp\."),
}


def resolve_drafts(
    draft: str,
    model: ResolvedModel,
    *,
    offline: bool = False,
    progress: Progress | None = None,
    endpoint: str | None = None,
) -> tuple[str, ...]:
    """The drafters to try for a model, in this order; only "auto" has more than one.

    draft: "none", "suffix", "mtp", or a drafter as `resolve` finds it. "mtp+suffix" and "DRAFTER+suffix" draft with
    both. "auto" downloads nothing. It tries, in order: the catalog's drafter for the model, if it is on this machine,
    with the suffix drafter; the prediction block (MTP) of the model's file, with the suffix drafter; the suffix drafter
    alone; none.

    Raises:
        ModelNotFoundError, HubError: the drafter cannot be found or fetched.
        InvalidRequestError: "+suffix" follows a word that is not a draft model.
    """
    name = draft.removesuffix(_WITH_SUFFIX)
    with_suffix = draft[len(name) :]
    if name in ("none", "suffix"):
        if with_suffix:
            raise InvalidRequestError(f"draft cannot be {draft!r}: {_WITH_SUFFIX} follows auto, mtp or a drafter")
        return (name,)
    if name == "auto":
        return *(own + _WITH_SUFFIX for own in _own_drafters(model)), "suffix", "none"
    if name != "mtp":
        name = str(resolve(name, offline=offline, progress=progress, endpoint=endpoint, is_drafter=True).path)
    return (name + with_suffix,)


def draft_label(draft: str) -> str:
    """A resolved draft without the folder of its file."""
    return draft if draft in ("none", "suffix") else Path(draft).name


def _own_drafters(model: ResolvedModel) -> Iterator[str]:
    """The drafters that come with a model: the catalog's, and the prediction block in its file."""
    file = catalog.drafter(model.name) if model.source == "catalog" else None
    if file is not None:
        yield str(file)
    opened = _engine.open_model_file(str(model.path))
    if any(_MTP_TENSOR[type(opened)].match(name) for name, *_ in opened.tensors):
        yield "mtp"
