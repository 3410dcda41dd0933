"""LLM inference compiled ahead of time for the one chip you own.

import lucebox

with lucebox.LLM("tiny-hybrid") as llm:
    print(llm.generate("def add(a, b):", lucebox.Sampling(max_tokens=32)).text)
"""

from importlib.metadata import PackageNotFoundError, version

from lucebox.api import LLM, ModelInfo
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
from lucebox.memory import MemoryPlan, PlanEntry
from lucebox.options import EngineOptions, Sampling
from lucebox.results import Chunk, DraftCounts, FinishReason, Generation, Timings, TokenLogprob, Usage

__all__ = [
    "LLM",
    "CancelledError",
    "Chunk",
    "DeviceError",
    "DraftCounts",
    "EngineOptions",
    "FinishReason",
    "FormatError",
    "Generation",
    "HubError",
    "InternalError",
    "InvalidRequestError",
    "LuceboxError",
    "MemoryPlan",
    "ModelInfo",
    "ModelNotFoundError",
    "OutOfMemoryError",
    "PackError",
    "PlanEntry",
    "Sampling",
    "Timings",
    "TokenLogprob",
    "UnsupportedError",
    "Usage",
]

try:
    __version__ = version("lucebox")
except PackageNotFoundError:  # a source tree on the path
    __version__ = "0+unknown"
