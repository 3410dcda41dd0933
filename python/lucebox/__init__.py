"""LLM inference compiled ahead of time for the one chip you own.

import lucebox

with lucebox.LLM("tiny-hybrid") as llm:
    print(llm.generate("def add(a, b):", lucebox.Sampling(max_tokens=32)).text)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lucebox.api import LLM
    from lucebox.compression.compress import CompressedPrompt, compress
    from lucebox.compression.scorer import Scorer
    from lucebox.errors import (
        CancelledError,
        DeviceError,
        FormatError,
        HubError,
        InternalError,
        InvalidRequestError,
        LuceboxError,
        ModelNotFoundError,
        OutOfMemoryError,
        PackError,
        UnsupportedError,
    )
    from lucebox.models.memory import MemoryPlan, PlanEntry
    from lucebox.models.model_info import ModelInfo
    from lucebox.options import EngineOptions, Sampling
    from lucebox.results import (
        Choice,
        Chunk,
        CutMessage,
        DraftCounts,
        FinishReason,
        Generation,
        LabelScore,
        PromptCompression,
        Timings,
        TokenLogprob,
        ToolCall,
        Usage,
    )

    __version__: str

__all__ = [
    "LLM",
    "CancelledError",
    "Choice",
    "Chunk",
    "CompressedPrompt",
    "CutMessage",
    "DeviceError",
    "DraftCounts",
    "EngineOptions",
    "FinishReason",
    "FormatError",
    "Generation",
    "HubError",
    "InternalError",
    "InvalidRequestError",
    "LabelScore",
    "LuceboxError",
    "MemoryPlan",
    "ModelInfo",
    "ModelNotFoundError",
    "OutOfMemoryError",
    "PackError",
    "PlanEntry",
    "PromptCompression",
    "Sampling",
    "Scorer",
    "Timings",
    "TokenLogprob",
    "ToolCall",
    "UnsupportedError",
    "Usage",
    "__version__",
    "compress",
]

# Each public name and its module. They load on first use: numpy, the tokenizers and the hub client take 0.3 s.
_MODULES = {
    "CancelledError": "lucebox.errors",
    "Choice": "lucebox.results",
    "Chunk": "lucebox.results",
    "CompressedPrompt": "lucebox.compression.compress",
    "CutMessage": "lucebox.results",
    "DeviceError": "lucebox.errors",
    "DraftCounts": "lucebox.results",
    "EngineOptions": "lucebox.options",
    "FinishReason": "lucebox.results",
    "FormatError": "lucebox.errors",
    "Generation": "lucebox.results",
    "HubError": "lucebox.errors",
    "InternalError": "lucebox.errors",
    "InvalidRequestError": "lucebox.errors",
    "LLM": "lucebox.api",
    "LabelScore": "lucebox.results",
    "LuceboxError": "lucebox.errors",
    "MemoryPlan": "lucebox.models.memory",
    "ModelInfo": "lucebox.models.model_info",
    "ModelNotFoundError": "lucebox.errors",
    "OutOfMemoryError": "lucebox.errors",
    "PackError": "lucebox.errors",
    "PlanEntry": "lucebox.models.memory",
    "PromptCompression": "lucebox.results",
    "Sampling": "lucebox.options",
    "Scorer": "lucebox.compression.scorer",
    "Timings": "lucebox.results",
    "TokenLogprob": "lucebox.results",
    "ToolCall": "lucebox.results",
    "UnsupportedError": "lucebox.errors",
    "Usage": "lucebox.results",
    "compress": "lucebox.compression.compress",
}


def __getattr__(name: str) -> Any:
    """Imports a public name on first use."""
    if name == "__version__":
        value: Any = _version()
    elif name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("lucebox")
    except PackageNotFoundError:  # a source tree on the path
        return "0+unknown"
