"""What drafts for a model: the option `draft`, parsed and with its files found.

"auto" is a list of drafters, best first; loading takes the first that fits in memory and is worth its cost on the
device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lucebox import _engine
from lucebox.errors import InvalidRequestError, LuceboxError
from lucebox.models import catalog
from lucebox.models.hub import Progress
from lucebox.models.resolve import ResolvedModel, resolve

__all__ = ["Drafters", "check_draft_device", "resolve_drafts"]

_WITH_SUFFIX = "+suffix"
# Tensors of a prediction block, in GGUF files and in checkpoints.
_MTP_TENSOR = {
    _engine.GgufFile: re.compile(r"blk\.\d+\.nextn\."),  # Ollama's mtp.* tensors have a different layout
    _engine.Safetensors: re.compile(r"(model\.)?mtp\."),
}
# Names of GGUF files that may be an assistant of Gemma 4.
_ASSISTANT = re.compile(r"(?<![a-z0-9])(assistant|mtp)(?![a-z0-9])", re.I)


@dataclass(frozen=True, slots=True)
class Drafters:
    """What drafts: options of the engine, which a user writes as one word, `draft`."""

    draft_model: str | None = None
    """The draft model: "mtp", the prediction block in the model's file, or a drafter's file. None: no draft model."""
    suffix: bool = False
    """Whether the suffix drafter drafts, too: from what was written before."""

    @classmethod
    def parse(cls, draft: str) -> Drafters:
        """Reads "none", "suffix", "mtp", a drafter, or one of the last two with "+suffix".

        Raises:
            InvalidRequestError: "+suffix" follows a word that is not a draft model.
        """
        if draft in ("none", "suffix"):
            return cls(suffix=draft == "suffix")
        model = draft.removesuffix(_WITH_SUFFIX)
        if model in ("none", "suffix"):
            raise InvalidRequestError(f"draft cannot be {draft!r}: {_WITH_SUFFIX} follows auto, mtp or a drafter")
        return cls(model, suffix=model != draft)

    def __str__(self) -> str:
        """The option `draft` that means these drafters."""
        if self.draft_model is None:
            return "suffix" if self.suffix else "none"
        return self.draft_model + _WITH_SUFFIX * self.suffix

    @property
    def label(self) -> str:
        """The drafters without the folder of a file: "none", "suffix", "mtp+suffix", "drafter.gguf"."""
        return str(self if self.draft_model is None else replace(self, draft_model=Path(self.draft_model).name))


def check_draft_device(device: str | None, drafts: Sequence[Drafters]) -> None:
    """Raises:
    InvalidRequestError: a device for a draft model, which none of the drafters is.
    """
    if device is not None and all(one.draft_model is None for one in drafts):
        names = " or ".join(one.label for one in drafts)
        raise InvalidRequestError(
            f"draft_device = {device} is for a draft model, and the model drafts with {names}. Use draft = mtp or a "
            "drafter, or no draft_device"
        )


def resolve_drafts(
    draft: str,
    model: ResolvedModel,
    *,
    offline: bool = False,
    progress: Progress | None = None,
    endpoint: str | None = None,
) -> tuple[Drafters, ...]:
    """The drafters to try for a model, in this order; only "auto" has more than one.

    draft: as `Drafters.parse` reads it, with a drafter as `resolve` finds it; or "auto", which downloads nothing. It
    tries, in order, each with the suffix drafter: the catalog's drafter for the model, if it is on this machine; the
    prediction block (MTP) of the model's file; an assistant of Gemma 4 beside the model. Then the suffix drafter alone;
    none.

    Raises:
        ModelNotFoundError, HubError: the drafter cannot be found or fetched.
        InvalidRequestError: "+suffix" follows a word that is not a draft model.
    """
    named = Drafters.parse(draft)
    if named.draft_model == "auto":
        return *(Drafters(own, suffix=True) for own in _own_drafters(model)), Drafters(suffix=True), Drafters()
    if named.draft_model in (None, "mtp"):
        return (named,)
    found = resolve(named.draft_model, offline=offline, progress=progress, endpoint=endpoint, is_drafter=True)
    return (replace(named, draft_model=str(found.path)),)


def _own_drafters(model: ResolvedModel) -> Iterator[str]:
    """The draft models of a model: the catalog's, the prediction block in its file, assistants beside it."""
    file = catalog.drafter(model.name) if model.source == "catalog" else None
    if file is not None:
        yield str(file)
    opened = _engine.open_model_file(str(model.path))
    if any(_MTP_TENSOR[type(opened)].match(name) for name, *_ in opened.tensors):
        yield "mtp"
    if isinstance(opened, _engine.GgufFile):
        yield from _assistant_files(model.path, opened)
    elif opened.config.get("model_type", "").startswith("gemma4"):  # type: ignore[attr-defined]
        folder = model.path.with_name(f"{model.path.name}-assistant")
        if (folder / "config.json").is_file():
            yield str(folder)


def _assistant_files(path: Path, model: _engine.GgufFile) -> Iterator[str]:
    """Assistants for this model of Gemma 4 in its folder."""
    if model.metadata.get("general.architecture") != "gemma4":
        return
    for file in sorted(path.parent.glob("*.gguf")):
        if file == path or not _ASSISTANT.search(file.name):
            continue
        with suppress(LuceboxError):
            metadata = _engine.GgufFile(str(file)).metadata
            width = metadata.get("gemma4-assistant.embedding_length_out")
            if width == model.metadata.get("gemma4.embedding_length"):
                yield str(file)
