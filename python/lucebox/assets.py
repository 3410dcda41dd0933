"""The parts of a model file besides its weights: tokenizer, chat template, end tokens, recommended sampling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lucebox import _engine
from lucebox.chat.template import ChatTemplate
from lucebox.text import Tokenizer
from lucebox.text.tokenizer_json import read_json

__all__ = ["TensorInfo", "TextAssets"]

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
    """One tensor of a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int
    bytes: int

    @property
    def n_values(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class TextAssets:
    tokenizer: Tokenizer
    template: ChatTemplate | None
    end_ids: tuple[int, ...]
    generation_defaults: Mapping[str, Any]
    tensors: tuple[TensorInfo, ...]

    @staticmethod
    def load(path: Path) -> TextAssets:
        """Reads the assets of a GGUF file or a checkpoint folder.

        Raises:
            FormatError: a part is missing or damaged.
        """
        file = _engine.open_model_file(str(path))
        tensors = tuple(TensorInfo(*tensor) for tensor in file.tensors)
        if isinstance(file, _engine.GgufFile):
            metadata = file.metadata
            tokenizer = Tokenizer.from_gguf(metadata, str(path))
            template = ChatTemplate.from_gguf(metadata, str(path), tokenizer)
            defaults = {name: metadata[key] for key, name in GGUF_DEFAULTS.items() if key in metadata}
            return TextAssets(tokenizer, template, tokenizer.eos_ids, defaults, tensors)
        tokenizer = Tokenizer.from_file(path / "tokenizer.json")
        config = path / "generation_config.json"
        return TextAssets(
            tokenizer,
            ChatTemplate.from_folder(path, tokenizer),
            tokenizer.eos_ids,
            read_json(config) if config.is_file() else {},
            tensors,
        )
