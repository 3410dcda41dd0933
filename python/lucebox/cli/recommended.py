"""Default sampling of a chat: as the model's makers recommend."""

from __future__ import annotations

from lucebox.api import LLM
from lucebox.options import Sampling

__all__ = ["recommended_sampling"]

# Used when the model has no recommendation.
CHAT_SAMPLING = Sampling(temperature=0.7, top_p=0.9)

FIELDS = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")


def recommended_sampling(llm: LLM) -> tuple[Sampling, str]:
    """The default sampling of a chat with this model, and its source."""
    config = llm.generation_defaults
    if config.get("do_sample") is False:
        return Sampling(), "greedy, as the model recommends"
    found = {field: config[field] for field in FIELDS if config.get(field) is not None}
    return (Sampling(**found), "as the model recommends") if found else (CHAT_SAMPLING, "lucebox's default")
