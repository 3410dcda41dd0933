"""The options a caller may set, as frozen dataclasses. Field docstrings (the string under a field) generate
`--help` and docs/reference; dataclasses refuse unknown names.

A field reaches the engine by its name: src/cpp/bindings/options.cpp has a row for each. Fields that Python alone reads
are marked HOST.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from lucebox.errors import InvalidRequestError
from lucebox.memory import parse_size

__all__ = ["EngineOptions", "Sampling", "check_options", "engine_fields"]

HOST = {"host": True}


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of loading a model, fixed for the life of an LLM."""

    device: str = field(default="auto", metadata=HOST)
    """Where the model runs: "cpu", "cuda:N", "hip:N", "sim", or "auto": the first GPU with a usable pack, else the
    CPU."""
    pack: str | None = field(default=None, metadata=HOST)
    """Name of the GPU pack: "sm_86", or a variant, "sm_86_laptop". None: the best one for the device, a variant before
    its target, the last installed variant before the others."""
    context: int | None = None
    """Maximum tokens of the session. None: the model's maximum, or less where memory does not suffice."""
    threads: int | None = None
    """Worker threads on the CPU. None: one per physical core that this process may use."""
    activations: str = "int8"
    """Activations of products with quantised weights: "int8" rounds to 8-bit blocks of 32 (fast), "f32" is exact."""
    kv: str = "f16"
    """Element type of the KV cache: "f16", "bf16" or "f32"."""
    seed: int = field(default=0, metadata=HOST)
    """Seed of requests without their own."""
    prefill_chunk: int | None = None
    """Prompt tokens computed at once, 1 to 4096. Larger is faster and takes more scratch memory. None: the target's
    default, 512 on the CPU."""
    decode_path: str = "auto"
    """How a GPU decodes: "graph" (a launch per op), "megakernel" (a launch per token), or "auto": the faster one."""
    draft: str = "none"
    """Speculation: "none", "suffix" (from what was written before), "mtp" (the block in the model's file), a drafter (a
    file, a hub id, or the catalog name of its model), or "auto": the catalog's drafter, else the block, and suffix.
    "mtp+suffix" and "DRAFTER+suffix" use both. Drafts change no token, but where two tie."""
    draft_budget: int | None = None
    """Tokens of a draft, 1 to 63. None: chosen for each step."""
    memory_limit: str | int | None = None
    """Most of the device's free memory to use: "24GiB", "24GB", or a number of bytes. None: all that is free."""
    isa: str = "auto"
    """Instruction set of the CPU kernels: "auto", "scalar" (the readable reference), "portable", "avx2" or "avx512"."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. Order: logit bias, penalties, temperature, top-k, typical, top-p, min-p. Each sampled
    token takes one uniform draw."""

    max_tokens: int | None = field(default=None, metadata=HOST)
    """Maximum tokens to generate. None: until the context is full."""
    temperature: float = 0.0
    """0 is greedy; otherwise logits are divided by it."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches top_p."""
    min_p: float = 0.0
    """Drop tokens whose probability is below min_p times the highest."""
    typical_p: float = 1.0
    """Keep the tokens whose surprisal is nearest the entropy, up to this probability (locally typical sampling)."""
    repetition_penalty: float = 1.0
    """Divide positive and multiply negative logits of the tokens in the penalty window by this."""
    frequency_penalty: float = 0.0
    """Subtract this times the number of occurrences in the generated text."""
    presence_penalty: float = 0.0
    """Subtract this from tokens that occur in the generated text."""
    penalty_window: int = 64
    """Number of last tokens (prompt and generated) the repetition penalty considers; 0: none, -1: all."""
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    """Added to the logits of these token ids, -100 to 100; -100 forbids the token."""
    seed: int | None = None
    """Seed of the uniform draws. None: the LLM's own."""
    logprobs: int | None = None
    """Report the log probability of each generated token and of the N most likely ones (0 to 20). None: no report."""
    stop: tuple[str, ...] = field(default=(), metadata=HOST)
    """Generation ends before the first of these strings; it is not part of the text."""
    stop_ids: tuple[int, ...] = field(default=(), metadata=HOST)
    """Generation ends at these token ids, in addition to the model's end tokens."""
    ignore_eos: bool = field(default=False, metadata=HOST)
    """Do not end at the model's end tokens (for measurements)."""


def check_options(options: EngineOptions) -> EngineOptions:
    """The options, if each number that may be left out is positive.

    Raises:
        InvalidRequestError: one is not.
    """
    for name in ("context", "threads", "prefill_chunk", "draft_budget"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise InvalidRequestError(f"{name} must be positive, got {value}")
    return options


def engine_fields(options: EngineOptions | Sampling) -> dict[str, Any]:
    """The fields that the engine reads, by name. The engine refuses a name it does not have."""
    values = {one.name: getattr(options, one.name) for one in fields(options) if not one.metadata.get("host")}
    if values.get("memory_limit") is not None:
        values["memory_limit"] = parse_size(values["memory_limit"])
    return values
