"""The sampling that a model's own files state: checks it, and turns it into fields of `Sampling`.

Published files contain values that other loaders ignore or read as "off", such as top_k -1. They must not make a
default request fail. Keys that change the tokens of other loaders but are not implemented are named in a note.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

__all__ = ["OwnSampling", "checked_defaults", "own_sampling"]

# (lowest, highest) of each option; an exclusive bound of 0 is the smallest number above it.
_ABOVE_0 = math.ulp(0.0)
_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (_ABOVE_0, 1),
    "min_p": (0, 1),
    "typical_p": (_ABOVE_0, 1),
    "repetition_penalty": (_ABOVE_0, 100),
    "frequency_penalty": (-100, 100),
    "presence_penalty": (-100, 100),
}
_MAX_INT = (1 << 31) - 1
_MAX_ITEMS = 1 << 16
_MAX_SHOWN = 16

# Values with which a key changes no token. Only other values are worth a note.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "penalty_alpha": (0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "guidance_scale": (1,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "max_length": (20,),  # transformers' default, which it writes into older files
    "begin_suppress_tokens": ([],),
    "xtc_probability": (0,),
    "mirostat": (0,),
}
# Keys about other things than which token follows.
_NO_EFFECT = frozenset({
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "transformers_version", "use_cache",
    "cache_implementation", "cache_config", "return_legacy_cache", "return_dict_in_generate", "output_attentions",
    "output_hidden_states", "output_scores", "output_logits", "num_return_sequences", "length_penalty",
    "early_stopping", "renormalize_logits", "remove_invalid_values", "low_memory", "compile_config",
    "disable_compile", "prefill_chunk_size", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind", "target_lookbehind",
    "prompt_lookup_num_tokens", "max_matching_ngram_size", "trust_remote_code", "use_model_defaults",
    "xtc_threshold", "mirostat_tau", "mirostat_eta", "sampler_sequence",
})  # fmt: skip


def checked_defaults(found: Mapping[str, Any], where: str, notes: list[str]) -> dict[str, Any]:
    """The usable values; appends sentences to `notes` about unusable values and about keys that are not implemented.

    top_k below 1 becomes 0, which keeps all tokens.
    """
    result: dict[str, Any] = {}
    unused = []
    for key, value in found.items():
        if value is None or key in _NO_EFFECT or key.startswith("_"):
            result[key] = value
        elif check := _CHECKS.get(key):
            kept = check(key, value)
            if kept is None:
                notes.append(f"{where}: {key} is {_shown(value)}, which is out of range; it is not used")
            else:
                result[key] = kept
        elif key not in _NEUTRAL or value not in _NEUTRAL[key]:
            unused.append(f"{ascii(key)[1:-1][:40]} {_shown(value)}")
    if unused:
        notes.append(f"{where}: not implemented, so answers do not follow: {', '.join(unused[:20])}")
    for words in result.get("bad_words_ids") or ():
        if len(words) > 1:
            notes.append(f"{where}: bad_words_ids has words of several tokens; only words of one token are forbidden")
            break
    return result


@dataclass(frozen=True, slots=True)
class OwnSampling:
    """What a model's files say about its answers."""

    fields: Mapping[str, float | int] = field(default_factory=lambda: MappingProxyType({}))
    """Numbers by the field of `Sampling`."""
    is_whole: bool = False
    """They say how tokens are chosen: by temperature or greedy. Otherwise they change single fields of another
    recommendation."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    forbidden: frozenset[int] = frozenset()
    """Token ids."""


def own_sampling(defaults: Mapping[str, Any]) -> OwnSampling:
    """Reads values that `checked_defaults` returned.

    As in transformers, the repetition penalty considers the whole text, do_sample false is greedy, and do_sample true
    has temperature 1 if no other is given. Without do_sample, a temperature means sampling.
    """
    found = {key: defaults[key] for key in ("top_k", *_RANGES) if defaults.get(key) is not None}
    chooses = defaults.get("do_sample")
    if chooses is False:
        found = {key: value for key, value in found.items() if key.endswith("_penalty")}
        found["temperature"] = 0
    elif chooses is True:
        found.setdefault("temperature", 1.0)
    if "repetition_penalty" in found:
        found["penalty_window"] = defaults.get("penalty_window", -1)
    stops = defaults.get("stop_strings") or ()
    words = [words[0] for words in defaults.get("bad_words_ids") or () if len(words) == 1]
    return OwnSampling(
        fields=found,
        is_whole="temperature" in found,
        max_tokens=defaults.get("max_new_tokens"),
        stop=(stops,) if isinstance(stops, str) else tuple(stops),
        forbidden=frozenset([*(defaults.get("suppress_tokens") or ()), *words]),
    )


def _shown(value: object) -> str:
    if isinstance(value, list | dict) and len(value) > _MAX_SHOWN:
        return f"{type(value).__name__} of {len(value)} items"
    try:
        return ascii(value)[:40]
    except (RecursionError, ValueError):  # nested deeply, or a number of thousands of digits
        return type(value).__name__


def _in_range(key: str, value: object) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    low, high = _RANGES[key]
    return value if low <= value <= high else None


def _top_k(key: str, value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return max(0, int(value)) if value == int(value) and value <= _MAX_INT else None


def _integer(lowest: int) -> Callable[[str, object], int | None]:
    def check(key: str, value: object) -> int | None:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return value if is_whole and lowest <= value <= _MAX_INT else None  # type: ignore[operator, return-value]

    return check


def _flag(key: str, value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _texts(key: str, value: object) -> str | list[str] | None:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > _MAX_ITEMS or not all(isinstance(t, str) and t for t in texts):
        return None
    return value  # type: ignore[return-value]


def _ids(key: str, value: object) -> list[int] | None:
    is_id = _integer(0)
    if not isinstance(value, list) or len(value) > _MAX_ITEMS or any(is_id(key, item) is None for item in value):
        return None
    return value


def _words(key: str, value: object) -> list[list[int]] | None:
    if not isinstance(value, list) or len(value) > _MAX_ITEMS or any(not _ids(key, words) for words in value):
        return None
    return value


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(_RANGES, _in_range),
    "top_k": _top_k,
    "do_sample": _flag,
    "max_new_tokens": _integer(1),
    "penalty_window": _integer(-1),
    "stop_strings": _texts,
    "suppress_tokens": _ids,
    "bad_words_ids": _words,
}
