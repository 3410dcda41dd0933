"""A scorer: a small model that reads a long text and weighs its tokens by the attention of the last ones, which are the
question."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from lucebox import catalog
from lucebox.compression.scores import ScoredText, smoothed
from lucebox.errors import InvalidRequestError
from lucebox.generation import NO_IDS, Ids
from lucebox.hub import Progress

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lucebox.api import LLM
    from lucebox.memory import MemoryPlan
    from lucebox.options import EngineFields
    from lucebox.text import Tokenizer

__all__ = ["InTurn", "Scorer", "scorer_options"]

Weights = NDArray[np.float32]
InTurn: TypeAlias = Callable[[Callable[[], Weights]], Weights]
"""Calls a function while no other model computes on the device."""

MAX_CONTEXT = 32768
"""Tokens scored together by default: the keys of more need much memory beside the target."""
QUESTION_TOKENS = 96
"""The question, where a text holds its own and is scored in parts: its last tokens."""
TAIL_ROWS = 8
"""Last tokens of the scorer's prompt, whose attention is averaged."""
_CONTENT = "\u241f"  # stands for the text in the rendered template: SYMBOL FOR UNIT SEPARATOR


class Scorer:
    """A loaded scorer. Safe to share between threads, which take turns.

    `model` is a path, a hub id or a catalog name of a model with attention layers. `options` are fields of
    `EngineOptions`. A text that exceeds the scorer's context is scored in equal parts, with the question behind each.
    layers: the attention layers whose weights count, from 0; None: those of the catalog, else all.

    Raises:
        ModelNotFoundError, HubError, FormatError, UnsupportedError, OutOfMemoryError: as `LLM`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        layers: Sequence[int] | None = None,
        offline: bool = False,
        progress: Progress | None = None,
        **options: Unpack[EngineFields],
    ) -> None:
        from lucebox.api import LLM

        self._llm = LLM(model, offline=offline, progress=progress, **scorer_options(model, options, offline, progress))
        self._layers = catalog.scored_layers(os.fspath(model)) if layers is None else tuple(layers)
        self._before, self._after = _frame(self._llm)

    def __enter__(self) -> Scorer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Frees all memory."""
        self._llm.close()

    @property
    def name(self) -> str:
        """The name that the model was loaded by."""
        return self._llm.info.name

    @property
    def memory_plan(self) -> MemoryPlan:
        """The memory of the scorer, apart from that of any target."""
        return self._llm.memory_plan

    @property
    def tokenizer(self) -> Tokenizer:
        """The scorer's tokenizer."""
        return self._llm.tokenizer

    def score(self, text: str, question: str = "", *, in_turn: InTurn = lambda compute: compute()) -> ScoredText:
        """The scores of a text's tokens: the attention of the question, which follows the text. An empty question is
        the end of the text itself.

        Raises:
            InvalidRequestError: the text is empty, or the question fills the scorer's context.
        """
        ids, starts = self.tokenizer.encode_with_starts(text)
        if not len(ids):
            raise InvalidRequestError("there is no text to score")
        asked = self.tokenizer.encode_with_starts(f"\n\n{question}")[0] if question else NO_IDS
        room = self._room(asked)
        if len(ids) > room and not question:
            asked = ids[-QUESTION_TOKENS:]
            room = self._room(asked)
        if room < 1:
            raise InvalidRequestError(
                f"the question has {len(asked)} tokens; the context of the scorer {self.name} holds "
                f"{self.memory_plan.context}"
            )
        n_parts = -(-len(ids) // room)
        raw = [in_turn(lambda part=part: self._weights(part, asked)) for part in np.array_split(ids, n_parts)]  # type: ignore[misc]
        return ScoredText(text, ids, starts, smoothed(np.concatenate(raw)))

    def body_and_question(self, scored: ScoredText, question: str = "") -> tuple[Ids, Ids]:
        """The token ids of a scored text and of the end of its question, which an empty one takes from the text."""
        if question:
            return scored.ids, self.tokenizer.encode_with_starts(question)[0][-QUESTION_TOKENS:]
        return scored.ids[:-QUESTION_TOKENS], scored.ids[-QUESTION_TOKENS:]

    def _room(self, asked: Ids) -> int:
        """Tokens of text that fit in the context beside the question."""
        return self.memory_plan.context - len(self._before) - len(asked) - len(self._after)

    def _weights(self, part: Ids, asked: Ids) -> Weights:
        """[len(part)] mean over the last TAIL_ROWS tokens of the maximum over heads and layers of their attention."""
        prompt = np.concatenate([self._before, part, asked, self._after])
        begin = len(self._before)
        with self._llm.locked_session() as session:
            weights = session.score_prompt(prompt, tail_rows=min(TAIL_ROWS, len(prompt)), layers=self._layers)
        return cast(Weights, weights[begin : begin + len(part)])


def scorer_options(
    model: str | os.PathLike[str], options: EngineFields, offline: bool, progress: Progress | None
) -> dict[str, Any]:
    """The options of a scorer's LLM: those given, without drafts and with one session."""
    from lucebox.planning import plan_memory

    wanted: dict[str, Any] = {**options, "draft": "none", "sessions": 1, "prefix_cache": 0}
    if wanted.get("context") is None:
        plan = plan_memory(model, offline=offline, progress=progress, **wanted).memory
        wanted["context"] = min(MAX_CONTEXT, plan.context)
    return wanted


def _frame(llm: LLM) -> tuple[Ids, Ids]:
    """Token ids before and after a text: those of the scorer's chat template around a user message."""
    template, tokenizer = llm.chat_template, llm.tokenizer
    if template is None:
        return np.asarray(tokenizer.encode(""), np.int32), NO_IDS
    before, _, after = template.render([{"role": "user", "content": _CONTENT}]).partition(_CONTENT)
    return tuple(np.asarray(tokenizer.encode(part, add_bos=False), np.int32) for part in (before, after))  # type: ignore[return-value]
