"""The client libraries, each imported when a test first uses it. They take seconds of processor time to import, and
every process of pytest reads every test file."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["anthropic", "ollama", "openai"]


class _Late:
    """A module, imported at the first look at a public name in it. pytest looks at private names of all that a file
    has, so importlib's LazyLoader would import it then."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


anthropic, ollama, openai = _Late("anthropic"), _Late("ollama"), _Late("openai")
