"""Embeddings: the rows of the final norm, their pooling, and the pooling settings in a model's files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import gguf
import numpy as np
import pytest
from lucebox import LLM, FormatError, InvalidRequestError, ModelInfo, UnsupportedError
from lucebox.generation.embedding import Embedder, Pooler
from lucebox.models.embedding_modules import EmbeddingModules, Pooling, read_modules
from lucebox.models.embedding_prompts import PROMPTS_FILE
from lucebox.text import Tokenizer
from safetensors.numpy import save_file

TEXT = "def add(a, b):\n    return a + b\n" * 4


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny-hybrid", context=256, prefill_chunk=16, threads=1) as loaded:
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
        llm.embed(TEXT, pooling="best")  # type: ignore[call-overload]
    with pytest.raises(InvalidRequestError, match="got 0"):
        llm.embed("", pooling="mean")
    with pytest.raises(InvalidRequestError, match="dimensions must be between 1 and"):
        llm.embed(TEXT, pooling="mean", dimensions=100_000)


def modules(*poolings: Any) -> EmbeddingModules:
    return EmbeddingModules(poolings)


@pytest.mark.parametrize(("kind", "poolings"), [(1, ("mean",)), (2, ("cls",)), (3, ("last",)), (0, ()), (4, ())])
def test_pooling_of_a_gguf_file(kind: int, poolings: tuple[str, ...], tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen3")
    writer.add_uint32("qwen3.pooling_type", kind)
    writer.add_tensor("token_embd.weight", np.zeros((1, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    info = cast(ModelInfo, SimpleNamespace(path=str(tmp_path / "m.gguf"), architecture="qwen3", name="m"))
    embedder = Embedder(info, (7, 9))
    assert embedder.poolings == poolings
    ids = np.array([1, 7], np.int32)
    assert embedder.ended(ids).tolist() == [1, 7, 7, 9] == embedder.ended(embedder.ended(ids)).tolist()


@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_the_vector_of_parts_is_that_of_the_whole(rows: np.ndarray, pooling: Any) -> None:
    whole, parts = Pooler(modules(pooling, "max")), Pooler(modules(pooling, "max"))
    whole.add(rows)
    for part in np.array_split(rows, 3):
        parts.add(part)
    np.testing.assert_allclose(whole.vector(normalize=True), parts.vector(normalize=True), rtol=1e-6, atol=1e-7)


# checkpoint folders

Folder = Callable[..., Path]
TRANSFORMER = {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
DENSE = {"path": "2_Dense", "type": "sentence_transformers.base.modules.dense.Dense"}
NORMALIZE = {"path": "3_Normalize", "type": "sentence_transformers.models.Normalize"}


@pytest.fixture
def folder(data: Path, tmp_path: Path) -> Folder:
    """Writes the tiny Qwen3.5 checkpoint with modules: files of JSON, and the weights of 2_Dense."""

    def write(files: Mapping[str, Any], dense: Mapping[str, np.ndarray] | None = None) -> Path:
        path = tmp_path / "model"
        shutil.copytree(data / "tiny" / "qwen35_a", path)
        for name, value in files.items():
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_text(value if isinstance(value, str) else json.dumps(value))
        if dense is not None:
            save_file(dict(dense), path / "2_Dense" / "model.safetensors")
        return path

    return write


def embedded(path: Path, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """The vector of TEXT, and [n_tokens, hidden] the rows it is pooled from."""
    with LLM(path, device="cpu", draft="none", context=256) as llm:
        vector = llm.embed(TEXT, normalize=False, **options)
        with llm.locked_session() as session:
            session.reset()
            return vector, np.asarray(session.hidden(llm.ids(TEXT)), np.float64)


def wanted(rows: np.ndarray, pooling: str) -> np.ndarray:
    n, weights = len(rows), np.arange(1, len(rows) + 1)[:, None]
    return {
        "cls": rows[0],
        "max": rows.max(0),
        "mean": rows.mean(0),
        "mean_sqrt_len_tokens": rows.sum(0) / n**0.5,
        "weightedmean": (rows * weights).sum(0) / weights.sum(),
        "lasttoken": rows[-1],
    }[pooling]


@pytest.mark.parametrize(
    ("config", "poolings"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ["cls", "mean"]),
        ({"pooling_mode_lasttoken": True, "pooling_mode_max_tokens": True}, ["max", "lasttoken"]),
        ({"pooling_mode_weightedmean_tokens": True, "pooling_mode_mean_tokens": False}, ["weightedmean"]),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, ["mean_sqrt_len_tokens"]),
        ({"embedding_dimension": 64, "pooling_mode": "lasttoken", "include_prompt": True}, ["lasttoken"]),
        ({"pooling_mode": ["mean", "cls"]}, ["cls", "mean"]),
    ],
)
def test_poolings_of_a_folder(folder: Folder, config: Any, poolings: list[str]) -> None:
    other = {**POOLING, "path": "1_WordPooling"}
    path = folder({"modules.json": [TRANSFORMER, other], "1_WordPooling/config.json": config})
    vector, rows = embedded(path)
    np.testing.assert_allclose(vector, np.concatenate([wanted(rows, p) for p in poolings]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("activation", "function"), [("linear.Identity", lambda x: x), ("activation.Tanh", np.tanh)])
def test_dense_and_normalize(folder: Folder, activation: str, function: Any) -> None:
    random = np.random.default_rng(3)
    weight, bias = random.normal(size=(24, 64)).astype(np.float16), random.normal(size=24).astype(np.float32)
    config = {"in_features": 64, "out_features": 24, "activation_function": f"torch.nn.modules.{activation}"}
    path = folder(
        {
            "modules.json": [TRANSFORMER, POOLING, DENSE, NORMALIZE],
            "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
            "2_Dense/config.json": config,
        },
        {"linear.weight": weight, "linear.bias": bias},
    )
    vector, rows = embedded(path)
    want = function(weight.astype(np.float64) @ rows.mean(0) + bias)
    np.testing.assert_allclose(vector, want / np.linalg.norm(want), rtol=1e-4, atol=1e-5)
    two = Pooler(replace(read_modules(path), poolings=("mean", "cls")))
    two.add(np.zeros((2, 64), np.float32))
    with pytest.raises(InvalidRequestError, match="takes 64 values"):
        two.vector(normalize=True)


MEAN = {"1_Pooling/config.json": {"pooling_mode_mean_tokens": True}}
DENSE_CONFIG = {"in_features": 64, "out_features": 24, "bias": False, "activation_function": "x.Identity"}


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({"1_Pooling/config.json": "{"}, FormatError, "1_Pooling/config.json: not valid JSON"),
        ({"1_Pooling/config.json": {}}, FormatError, "names no pooling"),
        ({"1_Pooling/config.json": {"pooling_mode": "best"}}, UnsupportedError, "pooling 'best' is not supported"),
        ({"1_Pooling/config.json": {"pooling_mode": 3}}, FormatError, "expected a name"),
        ({"1_Pooling/config.json": {"pooling_mode_first_last": True}}, UnsupportedError, "pooling_mode_first_last"),
        ({"modules.json": "[" * 100_000}, FormatError, "modules.json: not valid JSON"),
        ({"modules.json": {}}, FormatError, "expected a list of modules"),
        ({"modules.json": [TRANSFORMER, {**POOLING, "path": "../x"}]}, FormatError, "expected a folder beside it"),
        ({"modules.json": [TRANSFORMER, POOLING, {"type": "m.LSTM", "path": "2"}], **MEAN}, UnsupportedError, "LSTM"),
        ({"modules.json": [TRANSFORMER, DENSE, POOLING]}, UnsupportedError, "Dense before a Pooling"),
        ({"modules.json": [{"type": "m.BoW", "path": ""}]}, UnsupportedError, "the first module is BoW"),
        (
            {"modules.json": [TRANSFORMER, POOLING, DENSE], **MEAN, "2_Dense/config.json": DENSE_CONFIG},
            UnsupportedError,
            "expected model.safetensors",
        ),
        (
            {
                "modules.json": [TRANSFORMER, POOLING, DENSE],
                **MEAN,
                "2_Dense/config.json": {**DENSE_CONFIG, "activation_function": "x.Softplus"},
            },
            UnsupportedError,
            "activation 'Softplus'",
        ),
    ],
)
def test_modules_that_cannot_be_followed(folder: Folder, files: Any, error: Any, message: str) -> None:
    with LLM(folder(files), device="cpu", draft="none", context=64) as llm:
        assert llm.model.embedder.poolings == ()
        for pooling in (None, "mean"):
            with pytest.raises(error, match=message):
                llm.embed(TEXT[:8], pooling=pooling)


def test_the_end_token_of_a_folder(data: Path, tmp_path: Path) -> None:
    source = data / "tiny" / "qwen35_a" / "tokenizer.json"
    tokenizer = json.loads(source.read_text())
    added = tokenizer["added_tokens"][0]
    token, i = added["content"], added["id"]
    special = {token: {"id": token, "ids": [i], "tokens": [token]}}
    text, mark = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": token, "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [text, mark], "pair": [text, mark], "special_tokens": special}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    (tmp_path / "tokenizer_config.json").write_text("{}")
    for processor, before, after in (
        (template, (), (i,)),
        ({"type": "Sequence", "processors": [byte_level, template]}, (), (i,)),
        ({**template, "single": [mark, text]}, (i,), ()),
        ({**template, "single": [mark, text, mark]}, (i,), (i,)),
        (byte_level, (), ()),
        (None, (), ()),
    ):
        (tmp_path / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": processor}))
        read = Tokenizer.from_file(tmp_path / "tokenizer.json")
        assert read.appended == after
        # A BOS that only the post-processor asks for.
        assert read.add_bos == bool(before) and read.encode("a")[:1] == [*before, *read.encode("a", add_bos=False)][:1]


# prompts

PROMPTS = {"prompts": {"query": "q: ", "passage": "p: ", "empty": None}, "default_prompt_name": "passage"}


def prompted(folder: Folder, prompts: Any, pooling: Any = None) -> LLM:
    config = {"1_Pooling/config.json": pooling or {"pooling_mode_mean_tokens": True}}
    return LLM(folder({PROMPTS_FILE: prompts, **config}), device="cpu", draft="none", context=256)


def test_prompts_of_a_folder(folder: Folder) -> None:
    with prompted(folder, PROMPTS) as llm:
        names = {"query": "q: ", None: "p: ", "passage": "p: ", "document": "p: ", "empty": ""}
        for name, prompt in names.items():
            np.testing.assert_array_equal(llm.embed(TEXT, prompt_name=name), llm.embed(llm.tokenize(prompt + TEXT)))
        both = llm.embed([TEXT, "import os"], prompt_name="query")
        np.testing.assert_array_equal(both[1], llm.embed("import os", prompt_name="query"))
        with pytest.raises(InvalidRequestError, match="is 'other', but the model's prompts are query, passage, empty"):
            llm.embed(TEXT, prompt_name="other")
        with pytest.raises(InvalidRequestError, match="prompt_name needs texts"):
            llm.embed(llm.tokenize(TEXT), prompt_name="query")


@pytest.mark.parametrize("prompts", [{}, {"prompts": {"other": "o: "}, "default_prompt_name": None}])
def test_a_model_without_a_prompt_for_queries(folder: Folder, prompts: Any) -> None:
    with prompted(folder, prompts) as llm:
        plain = llm.embed(llm.tokenize(TEXT))
        for name in (None, "query", "document", "passage"):
            np.testing.assert_array_equal(llm.embed(TEXT, prompt_name=name), plain)


@pytest.mark.parametrize("pooling", ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"])
def test_rows_of_the_prompt_that_are_not_pooled(folder: Folder, pooling: str) -> None:
    """Positions stay those in the whole text."""
    prompts = {"prompts": {"query": "def f(x):\n    return x\n"}}
    with prompted(folder, prompts, {"pooling_mode": pooling, "include_prompt": False}) as llm:
        vector = llm.embed(TEXT, prompt_name="query", normalize=False)
        ids, n = llm.ids(prompts["prompts"]["query"] + TEXT), len(llm.ids(prompts["prompts"]["query"]))
        with llm.locked_session() as session:
            session.reset()
            rows = np.asarray(session.hidden(ids), np.float64)[n:]
        weights = np.arange(n + 1, len(ids) + 1)[:, None]
        want = (rows * weights).sum(0) / weights.sum() if pooling == "weightedmean" else wanted(rows, pooling)
        np.testing.assert_allclose(vector, want, rtol=1e-4, atol=1e-5)
        with pytest.raises(InvalidRequestError, match="no token after the model's prompt"):
            llm.embed("", prompt_name="query")


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("{", "config_sentence_transformers.json: not valid JSON"),
        ({"prompts": ["q: "]}, "prompts is not an object of texts"),
        ({"prompts": {"query": 1}}, "prompts is not an object of texts"),
        ({"prompts": {"query": "q: "}, "default_prompt_name": "x\x1b"}, r"default_prompt_name is 'x\\x1b', but"),
    ],
)
def test_damaged_prompts(folder: Folder, prompts: Any, message: str) -> None:
    with prompted(folder, prompts) as llm, pytest.raises(FormatError, match=message):
        llm.embed(TEXT)
