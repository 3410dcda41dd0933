"""Embeddings: one vector per text, pooled from the rows of the final norm."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from lucebox import _engine
from lucebox.errors import InvalidRequestError, UnsupportedError
from lucebox.models.model_info import ModelInfo
from lucebox.text import Ids

__all__ = ["Embedder", "Embedding", "Pooler", "Pooling"]

Pooling: TypeAlias = Literal["mean", "cls", "last"]
"""The mean of all rows, the first row, or the last one."""

_GGUF_POOLING: dict[object, Pooling] = {1: "mean", 2: "cls", 3: "last"}
_FOLDER_POOLING: dict[str, Pooling] = {  # sentence-transformers: 1_Pooling/config.json
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}


class Embedder:
    """How a model embeds text, read from its files: the pooling, and the end token to append."""

    def __init__(self, info: ModelInfo) -> None:
        path = Path(info.path)
        file = _engine.open_model_file(str(path))
        self._name = info.name
        self.pooling: Pooling | None
        """The pooling the model was trained with; None if its files name none."""
        self._end_id: int | None
        if isinstance(file, _engine.GgufFile):
            metadata = file.metadata
            self.pooling = _GGUF_POOLING.get(metadata.get(f"{info.architecture}.pooling_type"))
            appends = metadata.get("tokenizer.ggml.add_eos_token") is True
            self._end_id = metadata.get("tokenizer.ggml.eos_token_id") if appends else None
        else:
            self.pooling = _pooling_of_folder(path)
            self._end_id = _appended_id(path / "tokenizer.json")

    def choose(self, wanted: Pooling | None) -> Pooling:
        """The pooling to use.

        Raises:
            UnsupportedError: none is wanted, and the model names none: it is not made for embeddings.
            InvalidRequestError: no such pooling.
        """
        if wanted is not None and wanted not in get_args(Pooling):
            raise InvalidRequestError(f"pooling must be {', '.join(get_args(Pooling))}, got {wanted!r}")
        if wanted is None and self.pooling is None:
            raise UnsupportedError(
                f"{self._name} is not made for embeddings: its files name no pooling. To pool its rows "
                'anyway, say which way: pooling="mean"'
            )
        return wanted or self.pooling or "mean"

    def ended(self, ids: Ids) -> Ids:
        """[n_tokens] the ids of a text, with the end token that the model expects."""
        if self._end_id is None or (len(ids) and ids[-1] == self._end_id):
            return ids
        return np.append(ids, np.int32(self._end_id))


class Embedding:
    """The embeddings of several texts: ids [n_tokens] of each."""

    def __init__(self, texts: Sequence[Ids], pooling: Pooling) -> None:
        self.texts = texts
        self.poolers = [Pooler(pooling) for _ in texts]

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
    """Pools the rows of one text, which arrive in parts."""

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._sum: NDArray[np.float64] | None = None
        self._n = 0

    def add(self, rows: NDArray[np.float32]) -> None:
        """rows: [n, hidden], the next ones."""
        if self._pooling == "mean":
            total = rows.sum(axis=0, dtype=np.float64)
            self._sum = total if self._sum is None else self._sum + total
        elif self._pooling == "last" or self._sum is None:
            self._sum = rows[-1 if self._pooling == "last" else 0].astype(np.float64)
        self._n += len(rows)

    def vector(self, *, normalize: bool, dimensions: int | None = None) -> NDArray[np.float32]:
        """[hidden] the pooled row, or its first dimensions; of length 1 with `normalize`.

        Raises:
            InvalidRequestError: more dimensions than the model has.
        """
        assert self._sum is not None
        pooled = self._sum / self._n if self._pooling == "mean" else self._sum
        if dimensions is not None:
            if not 1 <= dimensions <= len(pooled):
                raise InvalidRequestError(f"dimensions must be between 1 and {len(pooled)}, got {dimensions}")
            pooled = pooled[:dimensions]
        length = float(np.linalg.norm(pooled))
        return (pooled / length if normalize and length > 0 else pooled).astype(np.float32)


def _pooling_of_folder(folder: Path) -> Pooling | None:
    file = folder / "1_Pooling" / "config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return next((pooling for name, pooling in _FOLDER_POOLING.items() if config.get(name) is True), None)


def _appended_id(file: Path) -> int | None:
    """The id that tokenizer.json's post-processor appends to a text."""
    processor = json.loads(file.read_text(encoding="utf-8")).get("post_processor") or {}
    steps = processor.get("processors") or [processor]
    for step in steps:
        parts = step.get("single") or []
        name = parts[-1].get("SpecialToken", {}).get("id") if parts else None
        if name is not None and len(parts) > 1:
            ids: list[int] = step["special_tokens"][name]["ids"]
            return ids[-1]
    return None
