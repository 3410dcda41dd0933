"""The options a caller may set, as frozen dataclasses. Field docstrings (the string under a field) generate
`--help` and docs/reference; dataclasses refuse unknown names.

ci/generate_options.py writes from the fields what else must know them: the keywords of `LLM` (option_fields.py), the
engine's structs and their binding. A field's metadata has what its type does not tell:

    readers   whose native options have the field; not given: the engine's
    size      the engine has a number of bytes, as parse_size reads it
    none      the engine's value for None; not given: 0, or an empty string
    default   None is this value, which the engine also has for others
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from lucebox.errors import InvalidRequestError
from lucebox.names import did_you_mean, same_name
from lucebox.sizes import parse_size

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["EngineOptions", "Sampling", "check_names", "engine_fields", "parse_layers"]

HOST = {"readers": ()}  # Python alone
MODEL = {"readers": ("engine", "scorer")}
SCORER = {"readers": ("scorer",)}
MAX_INT = 2**31 - 1  # the engine counts in 32 bits
MAX_LAYERS = 1024  # of a model
MAX_LOGPROBS = 20  # as in the OpenAI API


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of loading a model, fixed for the life of an LLM."""

    device: str = field(default="auto", metadata=HOST)
    """Where the model runs: "cpu", "cuda:N", "hip:N", "sim:N", several GPUs, "cuda:0,cuda:1" (of two vendors by layers
    alone, "cuda:0,hip:0"), or "auto": the first GPU with a usable pack, else the CPU."""
    split: str = "auto"
    """How a model is divided among several devices: "layer" (each has contiguous layers), "tensor" (each has a part of
    every layer, and all compute together), each device's share of every layer ("3,1"), or "auto": the first device
    alone if the whole model fits there with its context, else by layers."""
    link: Literal["auto", "peer", "host"] = "auto"
    """How values get from one GPU to another: "peer" (over NVLink or PCIe), "host" (through pinned host memory), or
    "auto": "peer" where the driver allows it and known answers arrive right, else "host". No token depends on it."""
    pack: str | None = field(default=None, metadata=HOST)
    """Name of the GPU pack: "sm_86", or a variant, "sm_86_laptop". None: the best one for the device, a variant before
    its target, the last installed variant before the others."""
    require_gpu: bool = field(default=False, metadata=HOST)
    """Never run on the CPU: if no GPU is usable, an error says why and which command helps."""
    context: int | None = field(default=None, metadata=MODEL)
    """Maximum tokens of a session. None: the model's maximum, or less where memory does not suffice."""
    kv_tokens: int | None = None
    """Tokens of the KV cache, which all sessions share; tokens of a common prefix count once. None: a context for each
    of `sessions`, or the most that fits, at least one context."""
    threads: int | None = field(default=None, metadata=MODEL)
    """Worker threads on the CPU. None: one per physical core that this process may use."""
    activations: Literal["int8", "f32", "fp4"] = field(default="int8", metadata=MODEL)
    """Activations of products with quantised weights: "int8" rounds to 8-bit blocks of 32 (fast), "f32" is exact, "fp4"
    multiplies prompts of NVFP4 weights in 4 bits (fastest, changes texts; sm_120 and sm_121)."""
    kv: str = field(default="f16", metadata=MODEL)
    """Type of the stored keys and values: f32, f16, bf16, fp8, q8_0, q5_1, q5_0, q4_1, q4_0, tq3_0, wht4 or wht3, or
    two of them as K/V: "q8_0/q4_0". All but f32 round: see docs/kv.md."""
    sessions: int | None = None
    """Generations that may run at once, each in a session of up to `context` tokens. Where memory has room for fewer
    sessions, fewer run. Further generations wait. None: 4, which share one context of the KV cache. `lucebox serve` has
    --slots."""
    prefix_cache: str | int = field(default=1 << 30, metadata=HOST | {"size": True})
    """Main memory, at most, that keeps computed prefixes of prompts for later generations: "2GiB", "2GB", or a number
    of bytes. 0: a prompt reuses only what its session has."""
    seed: int = field(default=0, metadata=HOST)
    """Seed of requests without their own."""
    prefill_chunk: int | None = field(default=None, metadata=MODEL)
    """Prompt tokens computed at once, 1 to 8192. Larger is faster and takes more scratch memory. None: the target's
    default, 512 on the CPU; 2048 or more with experts in host memory, which each chunk copies."""
    decode_path: Literal["auto", "graph", "megakernel"] = "auto"
    """How a GPU decodes: "graph" (a launch per op), "megakernel" (a launch per token), or "auto": the faster one.
    The first start of a model on a device measures both."""
    draft: str = field(default="auto", metadata=HOST)
    """Speculation: "none", "suffix" (from what was written before), "mtp" (the block in the model's file), a drafter (a
    file, a hub id, or the catalog name of its model), or "auto": suffix, and the catalog's drafter, the block or an
    assistant of Gemma 4 beside the model, where it fits and pays on the device. "mtp+suffix" and "DRAFTER+suffix" use
    both. Drafts change no token; on a GPU without batch_invariant, where two nearly tie, they may."""
    draft_device: str | None = field(default=None, metadata=HOST)
    """Another GPU for the draft model, "cuda:1", if the whole model is on one GPU. It then holds the draft model with
    its keys and values, and a copy of the model's embedding and head, which drafts need. No token depends on it. None:
    the model's device; of several that have layers, the last."""
    draft_budget: int | None = None
    """Tokens of a draft, 1 to 63. None: chosen for each step."""
    memory_limit: str | int | None = field(default=None, metadata=MODEL | {"size": True})
    """Most of the device's free memory to use: "24GiB", "24GB", or a number of bytes. None: all that is free."""
    expert_slots: int | None = None
    """Mixtures on a GPU: experts of each layer in device memory; the others wait in pinned host memory and are copied
    when a token chooses them. No token depends on it. None: all experts, or where memory does not suffice, as many as
    fit. See docs/mixtures.md."""
    expert_memory: str | int | None = field(default=None, metadata={"size": True})
    """The same as memory for experts on the device: "8GiB", "8GB", or a number of bytes. None: as expert_slots says."""
    sparse_prefill: float = 0.0
    """Lossy block-sparse attention of prompts: rows read the blocks of 128 keys whose weight is at least this share of
    the largest block's, in whole chunks of prefill_chunk; 0: all blocks. `lucebox quality --sparse-prefill` measures
    what it costs. See docs/compression.md."""
    batch_invariant: bool = False
    """On a GPU, ids and log probabilities that depend neither on drafts nor on what is decoded beside them, to the bit.
    A single sequence takes the kernels of several, which is slower, and drafts have at most 31 tokens. NVIDIA GPUs from
    sm_80; the CPU has this property anyway."""
    mmproj: str | None = None
    """The vision tower of the model, for images: a multimodal projector (GGUF), or "none" to load the model without
    one. None: the tower in the model's folder, or a projector beside the model's file. See docs/images.md."""
    vision_device: str | None = field(default=None, metadata=HOST)
    """Another device for the vision tower, "cpu" or "cuda:1", so that the model has the tower's memory. None: the
    model's first device."""
    isa: Literal["auto", "scalar", "portable", "avx2", "avx512"] = field(default="auto", metadata=MODEL)
    """Instruction set of the CPU kernels: "auto", "scalar" (the readable reference), "portable", "avx2" or "avx512"."""
    prefill_compression: Literal["off", "auto", "always"] = field(default="off", metadata=HOST)
    """Lossy compression of the long messages of a conversation, before the model reads them: "off", "auto" (prompts of
    prefill_threshold tokens or more) or "always". Needs prefill_drafter. See docs/compression.md."""
    prefill_threshold: int = field(default=32000, metadata=HOST)
    """Tokens of a prompt from which prefill_compression="auto" compresses it."""
    prefill_keep_ratio: str | float = field(default=0.05, metadata=HOST)
    """Share of the tokens of long messages that compression keeps: 0.05, or a curve over the tokens of the prompt,
    "8000:0.5,32000:0.1,128000:0.05", linear between its points."""
    prefill_anchors: bool = field(default=False, metadata=HOST)
    """Compression keeps first what repeats four tokens of the question in a row."""
    prefill_sparse_alpha: float = field(default=0.0, metadata=SCORER)
    """Block-sparse attention of the scorer: a row reads the blocks of 128 keys whose weight is at least this share of
    the largest block's, 0 to 1. Larger is faster and less exact; 0: all blocks."""
    prefill_drafter: str | None = field(default=None, metadata=HOST)
    """The scorer of compression, a small model: a file, a hub id or a catalog name. It is loaded beside the target, or
    where a GPU has no room for both, swapped with it. None: prompts are not compressed."""
    prefill_layers: str | None = field(default=None, metadata=HOST)
    """The scorer's attention layers whose weights count, from 0, ascending: "2,17,22". Layers behind the last one are
    not computed. None: those of the catalog, else all."""

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_kv(self.kv)
        for name in (
            "context",
            "kv_tokens",
            "threads",
            "prefill_chunk",
            "draft_budget",
            "expert_slots",
            "sessions",
            "prefill_threshold",
        ):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not hasattr(value, "__index__")):
                raise InvalidRequestError(f"{name} must be a whole number, got {value!r}")
            if value is not None and not 1 <= value <= MAX_INT:
                limit = "positive" if value < 1 else f"at most {MAX_INT}"
                raise InvalidRequestError(f"{name} must be {limit}, got {value}")
        if self.memory_limit is not None and parse_size(self.memory_limit) < 1:
            raise InvalidRequestError("memory_limit must be at least a byte, got 0")
        if self.expert_memory is not None and parse_size(self.expert_memory) < 1:
            raise InvalidRequestError("expert_memory must be at least a byte, got 0")
        parse_size(self.prefix_cache)
        for name in ("sparse_prefill", "prefill_sparse_alpha"):
            share = getattr(self, name)
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
                raise InvalidRequestError(f"{name} must be a number from 0 to 1, got {share!r}")
        _check_compression(self)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. Order: logit bias, penalties, temperature, top-k, typical, top-p, min-p. Each sampled
    token takes one uniform draw."""

    max_tokens: int | None = field(default=None, metadata=HOST)
    """Maximum tokens to generate, at most what the context has room for. None: 256 for the continuation of a prompt;
    for an answer in a chat, the length that the model's makers recommend, else 16384."""
    temperature: float = 0.0
    """0 is greedy, as is anything below 1e-5; otherwise logits are divided by it."""
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
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Added to the logits of these token ids, -100 to 100; -100 forbids the token."""
    seed: int | None = field(default=None, metadata={"default": 0})
    """Seed of the uniform draws. None: the LLM's own; the command line draws a fresh one and prints it."""
    logprobs: int | None = field(default=None, metadata={"none": -1})
    """Report the log probability of each generated token and of the N most likely ones (0 to 20). None: no report."""
    stop: tuple[str, ...] = field(default=(), metadata=HOST)
    """Generation ends before the first of these strings; it is not part of the text."""
    stop_ids: tuple[int, ...] = field(default=(), metadata=HOST)
    """Generation ends at these token ids, in addition to the model's end tokens."""
    ignore_eos: bool = field(default=False, metadata=HOST)
    """Do not end at the model's end tokens (for measurements)."""

    def __post_init__(self) -> None:
        is_list = isinstance(self.stop, list | tuple)
        if not is_list or not all(isinstance(text, str) and text for text in self.stop):
            raise InvalidRequestError("stop must be a tuple of strings that are not empty")
        for name in ("max_tokens", "logprobs", "seed"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not hasattr(value, "__index__")):
                raise InvalidRequestError(f"{name} must be a whole number or None, got {value!r}")
        for name in ("top_k", "penalty_window"):
            value = getattr(self, name)
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise InvalidRequestError(f"{name} must be a whole number, got {value!r}")
        ids = self.stop_ids
        if isinstance(ids, str) or not isinstance(ids, Sequence) or not all(hasattr(i, "__index__") for i in ids):
            raise InvalidRequestError(f"stop_ids must be token ids, got {ids!r}")
        if not isinstance(self.logit_bias, Mapping):
            raise InvalidRequestError(f"logit_bias must map token ids to numbers, got {self.logit_bias!r}")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise InvalidRequestError(f"logprobs must be between 0 and {MAX_LOGPROBS}, got {self.logprobs}")
        if self.max_tokens is not None and self.max_tokens < 0:
            raise InvalidRequestError(f"max_tokens must not be negative, got {self.max_tokens}")
        # Copies, so that the caller's lists and dicts may change, and tuples, so that a Sampling can be hashed.
        for name, kind in (("stop", tuple), ("stop_ids", tuple), ("logit_bias", dict)):
            object.__setattr__(self, name, kind(getattr(self, name)))

    def check(self) -> None:
        """Checks the ranges that the engine has, without a model. Token ids of logit_bias are checked with one.

        Raises:
            InvalidRequestError: an option is out of range; the message names it.
        """
        from lucebox import _engine

        _engine.check_sampling(**engine_fields(self) | {"seed": 0})


def parse_layers(text: str) -> tuple[int, ...]:
    """Reads "2,17,22".

    Raises:
        InvalidRequestError: another form.
    """
    numbers = [number.strip() for number in str(text).split(",", MAX_LAYERS)]
    if not all(number.isdecimal() and len(number) <= len(str(MAX_LAYERS)) for number in numbers):
        raise InvalidRequestError(f"prefill_layers are the numbers of layers, as 2,17,22; got {str(text)[:80]!r}")
    return tuple(map(int, numbers))


def check_names(options: type[EngineOptions] | type[Sampling], given: Iterable[str]) -> None:
    """Checks keywords before they become options.

    Raises:
        TypeError: there is no option of a name.
    """
    known = [one.name for one in fields(options)]
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f"; the options are {', '.join(known)}"
            raise TypeError(f"there is no option {name!r} of {options.__name__}{hint}")


def engine_fields(options: DataclassInstance, reader: Literal["engine", "scorer"] = "engine") -> dict[str, Any]:
    """The fields that the engine or a scorer reads, by name. It refuses a name it does not have."""
    values = {}
    for one in fields(options):
        if reader in one.metadata.get("readers", ("engine",)):
            value = getattr(options, one.name)
            values[one.name] = parse_size(value) if one.metadata.get("size") and value is not None else value
    return values


@cache
def _choices() -> dict[str, tuple[str, ...]]:
    """The allowed words of the engine options with a Literal type."""
    return {name: get_args(kind) for name, kind in get_type_hints(EngineOptions).items() if get_origin(kind) is Literal}


def _check_choices(options: EngineOptions) -> None:
    for name, words in _choices().items():
        value = getattr(options, name)
        if value not in words:
            hint = did_you_mean(value, words) if isinstance(value, str) else ""
            raise InvalidRequestError(f"{name} must be {', '.join(words)}, got {value!r}{hint}")


def _check_compression(options: EngineOptions) -> None:
    from lucebox.compression.keep_ratio import KeepRatio

    KeepRatio.parse(options.prefill_keep_ratio)
    if options.prefill_layers is not None:
        parse_layers(options.prefill_layers)
    if options.prefill_compression != "off" and options.prefill_drafter is None:
        raise InvalidRequestError(
            f"prefill_compression is {options.prefill_compression!r}, which needs a scorer: name one with "
            "prefill_drafter, a small model of the family qwen3, llama or qwen35"
        )


def _check_kv(kv: object) -> None:
    from lucebox import _engine

    known = _engine.kv_types()
    words = kv.split("/") if isinstance(kv, str) else [repr(kv)]
    wrong = next((word for word in words if same_name(word, known) is None), None)
    if wrong is None and len(words) <= 2:
        return
    hint = did_you_mean(wrong, known) if wrong else ""
    raise InvalidRequestError(f"kv must be one of {', '.join(known)}, or two of them as K/V, got {kv!r}{hint}")
