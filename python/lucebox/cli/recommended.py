"""How a chat with a model is sampled where no flag says otherwise: as the model's makers recommend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lucebox import _engine
from lucebox.api import LLM
from lucebox.options import Sampling

__all__ = ["recommended_sampling"]

# Where the model recommends nothing.
CHAT_SAMPLING = Sampling(temperature=0.7, top_p=0.9)

# Sampling fields that generation_config.json and GGUF metadata may recommend, under the names they use there.
CONFIG_NAMES = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "repetition_penalty",
}
GGUF_NAMES = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


def recommended_sampling(llm: LLM) -> tuple[Sampling, str]:
    """How a chat with this model is sampled unless flags say otherwise, and where that comes from."""
    config = llm.generation_defaults
    if config.get("do_sample") is False:
        return Sampling(), "greedy, from generation_config.json"
    found, source = _pick(config, CONFIG_NAMES), "from generation_config.json"
    if not found:
        file = _engine.open_model_file(llm.info.path)
        if isinstance(file, _engine.GgufFile):
            found, source = _pick(file.metadata, GGUF_NAMES), "from the GGUF file"
    return (Sampling(**found), source) if found else (CHAT_SAMPLING, "lucebox's default")


def _pick(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {field: config[name] for field, name in names.items() if config.get(name) is not None}
