"""A real server whose model writes a scripted answer: `python server.py` prints its URL and the script as JSON.

The model is tiny-hybrid with the chat template of Qwen3.5. A constraint allows exactly the script's tokens, so the
prompt, the thinking budget, the parser, and the writers of the protocols are the server's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lucebox
import lucebox.serve.model
import numpy as np
from lucebox.chat import ChatTemplate
from lucebox.chat.conversation import Conversation
from lucebox.chat.conversation_to_request import ChatModel, Limits
from lucebox.generation.request import GenerationRequest
from lucebox.options import Sampling
from lucebox.serve.listening import bound_sockets
from lucebox.serve.run import serve
from lucebox.serve.settings import ServeSettings
from numpy.typing import NDArray

TEMPLATE = Path(__file__).parents[2] / "data" / "templates" / "Qwen3.5-4B.jinja"
THOUGHT = "I need the weather of both. 🌦"
TEXT = "Let me look: é…"
CITIES = ("Oslo", "Zürich")
RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


class Script:
    """Allows the tokens of a text, and then the end (generation.decode.Constraint)."""

    done = False

    def __init__(self, ids: list[int], vocab: int) -> None:
        self._ids = ids
        self._at = 0
        self._vocab = vocab

    def mask(self) -> NDArray[np.uint32]:
        bits = np.zeros((self._vocab + 31) // 32, np.uint32)
        token = self._ids[self._at]
        bits[token // 32] = np.uint32(1 << (token % 32))
        return bits

    def accept(self, token: int) -> None:
        assert token == self._ids[self._at], "the thinking budget cut the script"
        self._at = min(self._at + 1, len(self._ids) - 1)


def call(city: str) -> str:
    return f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{city}\n</parameter>\n</function>\n</tool_call>"


def script(prompt: str) -> str:
    """The answer to a prompt. First text and two calls; after their results, the results, and whether the prompt still
    has the thought of the first answer."""
    results = RESULT.findall(prompt)
    if results:
        kept = "with" if THOUGHT in prompt else "without"
        return f"Both are there.\n</think>\n\n{'; '.join(results)} ({kept} the thought)"
    return f"{THOUGHT}\n</think>\n\n{TEXT}\n\n" + "\n".join(map(call, CITIES))


class ScriptedModel(ChatModel):
    def requests(
        self,
        conversation: Conversation,
        sampling: Mapping[str, Any] | Sampling,
        limits: Limits,
        endpoint: str = "",
        n: int = 1,
    ) -> list[GenerationRequest]:
        tokenizer, end = self.model.tokenizer, self.model.end_ids[0]
        made = super().requests(conversation, sampling, limits, endpoint, n)
        text = script(tokenizer.decode(made[0].ids.tolist(), skip_special=False))
        ids = [*map(int, tokenizer.encode(text, add_bos=False)), end]
        return [replace(request, constraint=Script(ids, self.model.info.vocab)) for request in made]


def expected() -> dict[str, Any]:
    """What a client shows of the two turns."""
    calls = [["get_weather", {"city": city}] for city in CITIES]
    return {"thought": THOUGHT, "text": TEXT, "calls": calls, "answer": "; ".join(f"{city}: sunny" for city in CITIES)}


def announce(url: str, _: int) -> None:
    print(json.dumps({"url": url, "script": expected()}), flush=True)


def main() -> None:
    settings = ServeSettings(port=0, alias=("*",))
    lucebox.serve.model.ChatModel = ScriptedModel  # type: ignore[misc]
    with lucebox.LLM("tiny-hybrid", context=4096, threads=1) as llm:
        template = ChatTemplate.from_file(TEMPLATE, llm.tokenizer)
        llm.model.assets = replace(llm.model.assets, template=template)
        serve(llm, settings, bound_sockets(settings), announce)


if __name__ == "__main__":
    main()
