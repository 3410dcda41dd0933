"""The parts of a model file other than its weights: tokenizer, chat template, end tokens, recommended sampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lucebox import _engine
from lucebox.chat.template import ChatTemplate
from lucebox.errors import FormatError
from lucebox.models.generation_defaults import checked_defaults
from lucebox.text import Tokenizer
from lucebox.text.tokenizer_json import optional_problem, read_optional_json

__all__ = ["TensorInfo", "TextAssets", "list_tensors"]

# GGUF keys under the names generation_config.json uses.
GGUF_DEFAULTS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int
    bytes: int

    @property
    def n_values(self) -> int:
        return math.prod(self.shape)


def list_tensors(file: _engine.GgufFile | _engine.Safetensors) -> tuple[TensorInfo, ...]:
    """The tensors of a file. NVFP4 bytes of a checkpoint hold two values each, and are listed as such."""
    tensors = tuple(TensorInfo(*tensor) for tensor in file.tensors)
    names = {tensor.name for tensor in tensors}

    def is_nvfp4(tensor: TensorInfo) -> bool:
        return tensor.dtype == "U8" and (
            tensor.name.endswith(".weight_packed") or f"{tensor.name.removesuffix('weight')}weight_scale_2" in names
        )

    def unpacked(tensor: TensorInfo) -> TensorInfo:
        return replace(tensor, dtype="NVFP4", shape=(*tensor.shape[:-1], 2 * tensor.shape[-1]))

    return tuple(unpacked(tensor) if is_nvfp4(tensor) else tensor for tensor in tensors)


# Optional files of a checkpoint folder. A damaged one is ignored with a note.
OPTIONAL_FILES = ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.json")


@dataclass(frozen=True, slots=True)
class TextAssets:
    tokenizer: Tokenizer
    template: ChatTemplate | None
    end_ids: tuple[int, ...]
    generation_defaults: Mapping[str, Any]
    tensors: tuple[TensorInfo, ...]
    notes: tuple[str, ...]
    """One sentence per part ignored because it is damaged or out of range."""

    @staticmethod
    def load(path: Path) -> TextAssets:
        """Reads the assets of a GGUF file or a checkpoint folder.

        Raises:
            FormatError: a part that every use needs is missing or damaged.
        """
        notes: list[str] = []
        file = _engine.open_model_file(str(path))
        tensors = list_tensors(file)
        if isinstance(file, _engine.GgufFile):
            metadata = file.metadata
            tokenizer = Tokenizer.from_gguf(metadata, str(path))
            template = _usable(lambda: ChatTemplate.from_gguf(metadata, str(path), tokenizer), notes)
            found = {name: metadata[key] for key, name in GGUF_DEFAULTS.items() if key in metadata}
            defaults = checked_defaults(found, str(path), notes)
        else:
            tokenizer = Tokenizer.from_file(path / "tokenizer.json")
            problems = (optional_problem(path / name) for name in OPTIONAL_FILES)
            notes += [f"{problem}; the file is not used" for problem in problems if problem]
            template = _usable(lambda: ChatTemplate.from_folder(path, tokenizer), notes)
            config = path / "generation_config.json"
            defaults = checked_defaults(read_optional_json(config), str(config), notes)
        return TextAssets(tokenizer, template, tokenizer.eos_ids, defaults, tensors, tuple(notes))


def _usable(read: Callable[[], ChatTemplate | None], notes: list[str]) -> ChatTemplate | None:
    """The template; None if it is damaged, because raw prompts and a user's template do not need it."""
    try:
        return read()
    except FormatError as error:
        notes.append(f"the chat template cannot be used: {error}")
        return None
