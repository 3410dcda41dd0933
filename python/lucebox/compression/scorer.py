"""A scorer: a small model that reads a long text and scores each token by the attention it gets from the question, the
last tokens."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lucebox import _engine
from lucebox.compression.scores import ScoredText, smoothed
from lucebox.errors import InvalidRequestError
from lucebox.models import catalog
from lucebox.models.assets import TextAssets
from lucebox.models.hub import Progress
from lucebox.models.memory import MemoryPlan
from lucebox.models.planning import lent_memory, local_device, plan_scorer
from lucebox.models.resolve import resolve
from lucebox.options import EngineOptions, check_names, engine_fields
from lucebox.packs.devices import open_pack, resolve_device
from lucebox.text import NO_IDS, Ids

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lucebox.option_fields import EngineFields

__all__ = ["Lender", "Scorer"]

Weights = NDArray[np.float32]

POLL_S = 0.05
# If a text contains its own question, the question is its last QUESTION_TOKENS tokens.
QUESTION_TOKENS = 96
_CONTENT = "\u241f"  # placeholder for the text in the rendered template: SYMBOL FOR UNIT SEPARATOR


@dataclass(frozen=True, slots=True)
class Lender:
    """A loaded target whose weights are swapped out while a scorer computes."""

    engine: _engine.Engine
    pack: _engine.gpu.Pack


class Scorer:
    """A loaded scorer. Thread-safe; it takes turns with everything else that computes on its device.

    `model` is a path, a hub id or a catalog name of a model with attention layers. `options` are fields of
    `EngineOptions`; the context is the model's maximum, and at most 131072 tokens, unless given. A text that exceeds
    the context is scored in equal parts, each followed by the question.
    layers: the attention layers whose weights count, from 0, ascending; None: the catalog's layers, else all.
    lender: a target on the same device, whose memory the scorer borrows for each score. None: the scorer has its own
        memory.

    Raises:
        InvalidRequestError: a layer has no attention, or the layers do not ascend.
        ModelNotFoundError, HubError, FormatError, UnsupportedError, OutOfMemoryError: as `LLM`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        layers: Sequence[int] | None = None,
        lender: Lender | None = None,
        offline: bool = False,
        progress: Progress | None = None,
        **options: Unpack[EngineFields],
    ) -> None:
        check_names(EngineOptions, options)
        wanted = EngineOptions(**options)
        device = local_device(wanted)
        if lender is None:
            pack = open_pack(resolve_device(wanted.device, wanted.pack))
        else:
            pack, wanted = lender.pack, replace(wanted, memory_limit=None)
            device = lent_memory(device, MemoryPlan.from_engine(lender.engine.plan))
        found = resolve(os.fspath(model), offline=offline, progress=progress)
        plan = plan_scorer(found.path, wanted, device)
        native = _engine.PromptScorer.open(
            str(found.path),
            pack=pack,
            lender=None if lender is None else lender.engine,
            progress=progress and partial(progress, "loading the scorer"),
            **engine_fields(replace(wanted, context=plan.context), "scorer"),
        )
        self.name = found.name
        """The name under which the model was loaded."""
        self.memory_plan = MemoryPlan.from_engine(native.plan)
        """The scorer's memory plan. A swapped scorer borrows this memory from its target."""
        self.is_swapped = lender is not None
        """Whether the scorer borrows the memory of a target's weights."""
        assets = TextAssets.load(found.path)
        self.tokenizer = assets.tokenizer
        self._before, self._after = _frame(assets)
        if layers is None and found.source == "catalog":
            layers = catalog.scored_layers(found.name)
        self.layers = tuple(native.scored_layers(layers or ()))
        """The layers whose weights count, ascending. Layers after the last one are not computed."""
        self._native: _engine.PromptScorer | None = native
        self._lock = threading.Lock()

    def __enter__(self) -> Scorer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Frees all memory. Further calls raise InvalidRequestError."""
        with self._lock:
            self._native = None

    def score(self, text: str, question: str = "", *, check: Callable[[], None] | None = None) -> ScoredText:
        """The scores of a text's tokens: the attention they get from the question, which follows the text. If the
        question is empty, the end of the text is the question.

        check: called often meanwhile; ends the scoring by raising.

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
        raw = [self._weights(part, asked, check) for part in np.array_split(ids, n_parts)]
        return ScoredText(text, ids, starts, smoothed(np.concatenate(raw)))

    def body_and_question(self, scored: ScoredText, question: str = "") -> tuple[Ids, Ids]:
        """The token ids of a scored text and of the end of its question. If the question is empty, the end of the text
        is the question."""
        if question:
            return scored.ids, self.tokenizer.encode_with_starts(question)[0][-QUESTION_TOKENS:]
        return scored.ids[:-QUESTION_TOKENS], scored.ids[-QUESTION_TOKENS:]

    def _room(self, asked: Ids) -> int:
        """Tokens of text that fit in the context together with the question."""
        return self.memory_plan.context - len(self._before) - len(asked) - len(self._after)

    def _weights(self, part: Ids, asked: Ids, check: Callable[[], None] | None) -> Weights:
        """[len(part)] per token: the maximum attention weight over heads and layers, averaged over the last 8 rows of
        the prompt."""
        prompt = np.concatenate([self._before, part, asked, self._after])
        while not self._lock.acquire(timeout=POLL_S):
            if check is not None:
                check()
        try:
            if self._native is None:
                raise InvalidRequestError("this scorer was closed")
            weights = self._native.score(prompt, self.layers, check=check)
        finally:
            self._lock.release()
        return weights[len(self._before) :][: len(part)]


def _frame(assets: TextAssets) -> tuple[Ids, Ids]:
    """Token ids that the scorer's chat template puts before and after a user message."""
    tokenizer = assets.tokenizer
    if assets.template is None:
        return np.asarray(tokenizer.encode(""), np.int32), NO_IDS
    before, _, after = assets.template.render([{"role": "user", "content": _CONTENT}]).partition(_CONTENT)
    return (
        np.asarray(tokenizer.encode(before, add_bos=False), np.int32),
        np.asarray(tokenizer.encode(after, add_bos=False), np.int32),
    )
