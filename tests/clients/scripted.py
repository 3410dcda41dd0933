"""A real server whose model writes scripted answers, for tests of clients.

The model is tiny-hybrid with the chat template of Qwen3.5. A constraint allows exactly the script's tokens, so the
prompt, the thinking budget, the parser, and the writers of the protocols are the server's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lucebox
import lucebox.serve.model
import numpy as np
from lucebox.chat import ChatTemplate
from lucebox.chat.conversation_to_request import ChatModel
from lucebox.generation.request import GenerationRequest
from lucebox.serve.listening import bound_sockets
from lucebox.serve.model_entry import ModelEntry
from lucebox.serve.model_set import ModelSet
from lucebox.serve.model_spec import ModelSpec
from lucebox.serve.run import serve
from lucebox.serve.settings import ServeSettings
from lucebox.serve.telemetry import Telemetry
from numpy.typing import NDArray

TEMPLATE = Path(__file__).parents[1] / "data" / "templates" / "Qwen3.5-4B.jinja"


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


def call_text(tool: str, arguments: Mapping[str, Any]) -> str:
    """A call as the model writes it."""
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in arguments.items()}
    parameters = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in values.items())
    return f"<tool_call>\n<function={tool}>\n{parameters}</function>\n</tool_call>"


def serve_scripted(
    answer: Callable[[str], str | None],
    facts: Mapping[str, Any],
    *,
    model: str = "tiny-hybrid",
    context: int = 4096,
    max_tokens: int | None = None,
) -> None:
    """Serves until a signal; prints the facts and the URL as JSON.

    answer: the whole answer to a prompt, from within its thought; None: the model writes what it likes.
    """

    class ScriptedModel(ChatModel):
        def requests(self, *arguments: Any, **options: Any) -> list[GenerationRequest]:
            tokenizer, end = self.model.tokenizer, self.model.end_ids[0]
            made = super().requests(*arguments, **options)
            text = answer(tokenizer.decode(made[0].ids.tolist(), skip_special=False))
            if text is None:
                return made
            ids = [*map(int, tokenizer.encode(text, add_bos=False)), end]
            return [replace(request, constraint=Script(ids, self.model.info.vocab)) for request in made]

    settings = ServeSettings(port=0, alias=("*",), max_tokens=max_tokens)
    lucebox.serve.model.ChatModel = ScriptedModel  # type: ignore[misc]
    with lucebox.LLM(model, context=context, threads=1) as llm:
        template = ChatTemplate.from_file(TEMPLATE, llm.tokenizer)
        llm.model.assets = replace(llm.model.assets, template=template)
        telemetry = Telemetry.open(settings)
        entry = ModelEntry.pinned(llm, ModelSpec(model, llm.options, settings), telemetry)
        models = ModelSet([entry], telemetry)

        def announce(url: str) -> None:
            print(json.dumps({"url": url, **facts}), flush=True)

        serve(models, settings, bound_sockets(settings), announce)
