"""The prompts of sentence-transformers: texts before the text to embed, such as "query: ", which the model was trained
with. config_sentence_transformers.json has them by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lucebox.errors import FormatError, InvalidRequestError
from lucebox.text.tokenizer_json import read_json

__all__ = ["PROMPTS_FILE", "EmbeddingPrompts", "read_prompts"]

PROMPTS_FILE = "config_sentence_transformers.json"
_DOCUMENT = ("document", "passage", "corpus")  # names of the same prompt, the first one that a model has
_KINDS: Mapping[str, tuple[str, ...]] = {"query": ("query",), "document": _DOCUMENT, "passage": _DOCUMENT}


@dataclass(frozen=True, slots=True)
class EmbeddingPrompts:
    """A model's prompts."""

    texts: Mapping[str, str] = field(default_factory=dict)
    """By name."""
    default: str = ""

    def text(self, name: str | None) -> str:
        """The prompt of a name; None is the default. Every model has "query", "document" and "passage", which are empty
        if its files have no such prompt.

        Raises:
            InvalidRequestError: the model has no prompt of this name.
        """
        if name is None:
            return self.default
        found = next((other for other in (name, *_KINDS.get(name, ())) if other in self.texts), None)
        if found is not None:
            return self.texts[found]
        if name in _KINDS:
            return ""
        names = ", ".join(dict.fromkeys((*self.texts, *_KINDS)))
        raise InvalidRequestError(f"prompt_name is {name!r}, but the model's prompts are {names}")


def read_prompts(folder: Path) -> EmbeddingPrompts:
    """The prompts of a checkpoint folder.

    Raises:
        FormatError: the file is damaged, or its default is no prompt of it.
    """
    file = folder / PROMPTS_FILE
    if not file.is_file():
        return EmbeddingPrompts()
    config = read_json(file)
    given = config.get("prompts") or {}
    if not isinstance(given, dict) or not all(isinstance(text, str | None) for text in given.values()):
        raise FormatError(f"{file}: prompts is not an object of texts")
    texts = {name: text or "" for name, text in given.items()}
    default = config.get("default_prompt_name")
    if default is None:
        return EmbeddingPrompts(texts)
    if not isinstance(default, str) or (default not in texts and default not in _KINDS):
        names = ", ".join(map(ascii, texts)) or "none"
        raise FormatError(f"{file}: default_prompt_name is {default!a}, but the prompts are {names}")
    return EmbeddingPrompts(texts, EmbeddingPrompts(texts).text(default))
