"""Embeddings: the rows of the final norm, their pooling, and the pooling settings in a model's files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gguf
import numpy as np
import pytest
from lucebox import LLM, InvalidRequestError, ModelInfo, UnsupportedError
from lucebox.generation.embedding import Embedder, Pooler

TEXT = "def add(a, b):\n    return a + b\n" * 4


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny-hybrid", context=256, prefill_chunk=16) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def rows(llm: LLM) -> np.ndarray:
    """[n_tokens, hidden] the taps of the final norm, in the appends of a prefill."""
    parts, ids = [], llm.ids(TEXT)
    with llm.locked_session() as session:
        session.reset()
        for start in range(0, len(ids), 16):
            part = ids[start : start + 16]
            parts.append(session.append(part, taps=[llm.info.n_layers])[1][0])
            session.commit(list(range(len(part))))
        session.reset()
    return np.concatenate(parts)


def test_hidden_rows_are_those_of_the_final_norm(llm: LLM, rows: np.ndarray) -> None:
    ids = llm.ids(TEXT)
    with llm.locked_session() as session:
        first = session.hidden(ids[:32])
        np.testing.assert_array_equal(np.concatenate([first, session.hidden(ids)]), rows)
        np.testing.assert_array_equal(session.hidden(ids[:16]), rows[:16])  # a timeline that ids do not continue


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooling(llm: LLM, rows: np.ndarray, pooling: Any) -> None:
    want = {"mean": rows.mean(axis=0, dtype=np.float64), "cls": rows[0], "last": rows[-1]}[pooling]
    vector = llm.embed(TEXT, pooling=pooling, normalize=False)
    assert vector.shape == (llm.info.hidden,) and vector.dtype == np.float32
    np.testing.assert_allclose(vector, want, rtol=1e-6, atol=1e-6)
    unit = llm.embed(TEXT, pooling=pooling, dimensions=8)
    np.testing.assert_allclose(unit, want[:8] / np.linalg.norm(want[:8]), rtol=1e-5, atol=1e-6)


def test_texts_may_be_longer_together_than_the_context(llm: LLM) -> None:
    texts = [TEXT * 3, TEXT * 2, TEXT]
    assert len(llm.ids("".join(texts))) > llm.memory_plan.context
    alone = [llm.embed(text, pooling="mean") for text in texts]
    np.testing.assert_array_equal(llm.embed(texts, pooling="mean"), alone)


def test_several_texts_are_rows(llm: LLM) -> None:
    both = llm.embed([TEXT, "import os"], pooling="mean")
    np.testing.assert_array_equal(both, [llm.embed(TEXT, pooling="mean"), llm.embed("import os", pooling="mean")])
    assert llm.generate("x = ", max_tokens=2).finish_reason == "length"


def test_wrong_requests(llm: LLM) -> None:
    with pytest.raises(UnsupportedError, match="not made for embeddings"):
        llm.embed(TEXT)
    with pytest.raises(InvalidRequestError, match="pooling must be mean, cls, last"):
        llm.embed(TEXT, pooling="max")  # type: ignore[call-overload]
    with pytest.raises(InvalidRequestError, match="got 0"):
        llm.embed("", pooling="mean")
    with pytest.raises(InvalidRequestError, match="dimensions must be between 1 and"):
        llm.embed(TEXT, pooling="mean", dimensions=100_000)


def embedder_of(path: Path) -> Embedder:
    """The embedder of files without weights."""
    return Embedder(cast(ModelInfo, SimpleNamespace(path=str(path), architecture="qwen3", name="m")))


@pytest.mark.parametrize(("kind", "pooling"), [(1, "mean"), (2, "cls"), (3, "last"), (0, None), (4, None)])
def test_pooling_of_a_gguf_file(kind: int, pooling: str | None, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen3")
    writer.add_uint32("qwen3.pooling_type", kind)
    writer.add_eos_token_id(7)
    writer.add_add_eos_token(True)
    writer.add_tensor("token_embd.weight", np.zeros((1, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    embedder = embedder_of(tmp_path / "m.gguf")
    assert (embedder.pooling, embedder._end_id) == (pooling, 7)


def test_the_vector_of_parts_is_that_of_the_whole(rows: np.ndarray) -> None:
    for pooling in ("mean", "cls", "last"):
        whole, parts = Pooler(pooling), Pooler(pooling)  # type: ignore[arg-type]
        whole.add(rows)
        for part in np.array_split(rows, 3):
            parts.add(part)
        np.testing.assert_allclose(whole.vector(normalize=True), parts.vector(normalize=True), rtol=1e-6, atol=1e-7)


def test_the_end_token_of_a_folder(tmp_path: Path) -> None:
    from lucebox.generation.embedding import _appended_id, _pooling_of_folder

    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    template = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<end>", "type_id": 0}}],
        "special_tokens": {"<end>": {"id": "<end>", "ids": [9], "tokens": ["<end>"]}},
    }
    file = tmp_path / "tokenizer.json"
    for processor, want in (
        (template, 9),
        ({"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]}, 9),
        ({"type": "ByteLevel"}, None),
        (None, None),
    ):
        file.write_text(json.dumps({"post_processor": processor}))
        assert _appended_id(file) == want
    assert _pooling_of_folder(tmp_path) == "last"
