"""Fields of SGLang and vLLM that their routers add to every body, with the values that describe this server."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lucebox.serve.protocols.body import Body

__all__ = ["RouterFields"]


class RouterFields(Body):
    """Other values ask for what this server lacks, and are refused."""

    no_stop_trim: Literal[False] | None = None
    skip_special_tokens: Literal[True] | None = None
    return_hidden_states: Literal[False] | None = None
    separate_reasoning: Literal[True] | None = None
    stream_reasoning: Literal[True] | None = None
    include_reasoning: Literal[True] | None = None
    continue_final_message: bool | None = Field(None, description="A last assistant message is continued anyway.")
