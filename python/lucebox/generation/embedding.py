"""Embeddings: one vector per text, pooled from the rows of the final norm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from lucebox import _engine
from lucebox.errors import InvalidRequestError, LuceboxError, UnsupportedError
from lucebox.models.embedding_modules import EmbeddingModules, Pooling, Vector, normalized, read_modules
from lucebox.models.embedding_prompts import EmbeddingPrompts, read_prompts
from lucebox.models.model_info import ModelInfo
from lucebox.text import Ids

__all__ = ["Embedder", "Embedding", "Pooler", "Pooling"]

_GGUF_POOLING: dict[object, Pooling] = {1: "mean", 2: "cls", 3: "last"}


class Embedder:
    """How a model embeds text, read from its files: prompts, pooling and what follows it, and the tokens to append."""

    def __init__(self, info: ModelInfo, appended: Sequence[int]) -> None:
        path = Path(info.path)
        self._name = info.name
        self._appended = np.asarray(appended, np.int32)
        self._modules = EmbeddingModules()
        self._prompts = EmbeddingPrompts()
        self._problem: LuceboxError | None = None
        try:
            if path.is_dir():
                self._modules, self._prompts = read_modules(path), read_prompts(path)
            else:
                file = _engine.open_model_file(str(path))
                assert isinstance(file, _engine.GgufFile)
                kind = file.metadata.get(f"{info.architecture}.pooling_type")
                self._modules = EmbeddingModules((_GGUF_POOLING[kind],) if kind in _GGUF_POOLING else ())
        except LuceboxError as error:  # of the modules alone: the model can do everything but embed
            self._problem = error

    @property
    def poolings(self) -> tuple[Pooling, ...]:
        """The poolings the model was trained with; empty if its files name none."""
        return self._modules.poolings

    def choose(self, wanted: Pooling | None) -> EmbeddingModules:
        """What to do with the rows of a text.

        Raises:
            UnsupportedError: none is wanted, and the model names none: it is not made for embeddings. Or it has a
                module that is not supported.
            FormatError: a module's file is damaged.
            InvalidRequestError: no such pooling.
        """
        if wanted is not None and wanted not in get_args(Pooling):
            raise InvalidRequestError(f"pooling must be {', '.join(get_args(Pooling))}, got {wanted!r}")
        if self._problem is not None:
            raise self._problem
        if wanted is not None:
            return replace(self._modules, poolings=(wanted,))
        if not self.poolings:
            raise UnsupportedError(
                f"{self._name} is not made for embeddings: its files name no pooling. To pool its rows "
                'anyway, say which way: pooling="mean"'
            )
        return self._modules

    def prompt(self, name: str | None) -> str:
        """The text before each text to embed; None is the model's default prompt.

        Raises:
            InvalidRequestError: the model has no prompt of this name.
        """
        return self._prompts.text(name)

    def ended(self, ids: Ids) -> Ids:
        """[n_tokens] the ids of a text, with the tokens that the model expects after it."""
        n = len(self._appended)
        if n == 0 or np.array_equal(ids[-n:], self._appended):
            return ids
        return np.append(ids, self._appended)


class Embedding:
    """The embeddings of several texts: ids [n_tokens] of each, of which the first n_skipped are not pooled."""

    def __init__(self, texts: Sequence[Ids], modules: EmbeddingModules, n_skipped: int = 0) -> None:
        self.texts = texts
        self.poolers = [Pooler(modules, n_skipped) for _ in texts]

    @property
    def n_tokens(self) -> int:
        return sum(len(ids) for ids in self.texts)

    def prefill(self, session: _engine.Session) -> Iterator[int]:
        """Computes the texts one after the other; yields 0, then the tokens done after every prefill chunk."""
        session.reset()  # before its pages are counted: cached prefixes may share them
        yield 0
        before = 0
        for ids, pooler in zip(self.texts, self.poolers, strict=True):
            session.reset()
            for start in range(0, len(ids), session.prefill_chunk):
                done = min(start + session.prefill_chunk, len(ids))
                pooler.add(session.hidden(ids[:done]))
                yield before + done
            before += len(ids)


class Pooler:
    """Pools the rows of one text, which arrive in parts, without the first n_skipped."""

    def __init__(self, modules: EmbeddingModules, n_skipped: int = 0) -> None:
        self._modules = modules
        self._n_skipped = n_skipped
        self._first: Vector | None = None
        self._last: Vector | None = None
        self._max: Vector | None = None
        self._sum: Vector | float = 0.0
        self._weighted: Vector | float = 0.0
        self._weights = 0.0
        self._n = 0
        self._n_seen = 0

    def add(self, rows: NDArray[np.float32]) -> None:
        """rows: [n, hidden], the next ones."""
        skipped = max(0, self._n_skipped - self._n_seen)
        values = rows[skipped:].astype(np.float64)
        positions = np.arange(self._n_seen, self._n_seen + len(rows))[skipped:]  # in the whole text
        self._n_seen += len(rows)
        if not len(values):
            return
        self._first = values[0] if self._first is None else self._first
        self._last = values[-1]
        largest = values.max(axis=0)
        self._max = largest if self._max is None else np.maximum(self._max, largest)
        self._sum = self._sum + values.sum(axis=0)
        self._weighted = self._weighted + (positions + 1) @ values
        self._weights += float((positions + 1).sum())
        self._n += len(values)

    def vector(self, *, normalize: bool, dimensions: int | None = None) -> NDArray[np.float32]:
        """[n] the pooled rows after the model's further modules, or the first dimensions; of length 1 with `normalize`.

        Raises:
            InvalidRequestError: more dimensions than the model has, or a pooling of a size that its modules do not
                take.
        """
        vector = np.concatenate([self._pooled(pooling) for pooling in self._modules.poolings])
        for step in self._modules.steps:
            vector = step(vector)
        if dimensions is not None:
            if not 1 <= dimensions <= len(vector):
                raise InvalidRequestError(f"dimensions must be between 1 and {len(vector)}, got {dimensions}")
            vector = vector[:dimensions]
        return (normalized(vector) if normalize else vector).astype(np.float32)

    def _pooled(self, pooling: Pooling) -> Vector:
        n = self._n
        values = {
            "cls": self._first,
            "last": self._last,
            "max": self._max,
            "mean": self._sum / n,
            "mean_sqrt_len": self._sum / math.sqrt(n),
            "weightedmean": self._weighted / self._weights,
        }
        return np.asarray(values[pooling], np.float64)
