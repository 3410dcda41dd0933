"""The recall scorer at work: `lucebox.compress`, the plan of scorer and target, and the command that counts answers."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lucebox import LLM, EngineOptions, OutOfMemoryError, Scorer, compress
from lucebox.cli import main
from lucebox.compression.scores import smoothed
from lucebox.errors import InvalidRequestError, UnsupportedError
from lucebox.measure.needle import Document, Question, make_documents, text_of
from lucebox.models import catalog
from lucebox.models.planning import plan_memory
from text_data import DATA

SCORER = DATA / "recall" / "recall-scorer.Q4_0.gguf"


@pytest.fixture(scope="module")
def scorer() -> Iterator[Scorer]:
    with Scorer(SCORER, threads=1) as scorer:
        yield scorer


@pytest.fixture(scope="module")
def document() -> Document:
    from lucebox.models.assets import TextAssets

    (document,) = make_documents([2048], 1, TextAssets.load(SCORER))
    return document


def direct(document: Document) -> list[tuple[Question, str]]:
    """The questions that one sentence answers, with it."""
    return [
        (one, next(line for line in document.text.split("\n") if one.answer in line))
        for one in document.questions
        if one.kind != "hop"
    ]


def test_the_facts_are_kept(scorer: Scorer, document: Document, tmp_path: Path) -> None:
    for question, fact in direct(document)[:2]:
        text = text_of(document, question)
        found = compress(text, scorer=scorer, keep=0.1)
        assert fact in found.text and found.text.endswith(question.text)
        assert found.text == "".join(text[a:b] for a, b in found.spans)  # lines: no word touches another
        assert found.total_tokens == len(scorer.tokenizer.encode(text, special=False))
        assert found.kept_tokens < 0.1 * found.total_tokens + 32 + 160
        assert len(found.chunks) == -(-found.total_tokens // 32)
        assert (found.chunks[0].start, found.chunks[-1].stop) == (0, len(text))
    found.plot(tmp_path / "scores.png")
    assert (tmp_path / "scores.png").stat().st_size > 1000
    with pytest.raises(UnsupportedError):
        found.plot(tmp_path / "scores.unknown")


def test_scores_are_those_of_the_rendered_prompt(scorer: Scorer) -> None:
    from lucebox import _engine

    native = _engine.PromptScorer.open(str(SCORER), score_rows=8, threads=1, context=512, kv="f16")
    ids = scorer.tokenizer.encode("<|im_start|>user\nx = 5\ny = 6\n\nWhat is y?<|im_end|>\n<|im_start|>assistant\n")
    text = "x = 5\ny = 6"
    got = scorer.score(text, "What is y?")
    first = ids.index(got.ids[0])
    wanted = smoothed(native.score(np.asarray(ids, np.int32), [])[first : first + len(got.ids)])
    np.testing.assert_allclose(got.scores, wanted, rtol=1e-6)


def test_the_catalog_names_the_layers(scorer: Scorer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LUCEBOX_CACHE", str(tmp_path))
    sha256 = hashlib.sha256(SCORER.read_bytes()).hexdigest()
    (tmp_path / "models").mkdir()
    shutil.copy(SCORER, tmp_path / "models")
    file = catalog.CatalogFile(SCORER.name, SCORER.stat().st_size, sha256)
    entry = catalog.CatalogEntry("recall-scorer", "a test", "none", file, None, (), scored_layers=(3, 5))
    monkeypatch.setattr(catalog, "entries", lambda: (entry,))
    text = "x = 5\ny = 6\n\nWhat is y?"
    with Scorer("recall-scorer", threads=1) as by_name, Scorer(SCORER, threads=1, layers=[3, 5]) as by_layers:
        scores = by_name.score(text).scores
        assert by_name.layers == by_layers.layers == (3, 5) and scorer.layers == tuple(range(6))
        np.testing.assert_array_equal(scores, by_layers.score(text).scores)
    assert (scores != scorer.score(text).scores).any()


def test_options_name_the_layers() -> None:
    options: dict[str, Any] = {"prefill_drafter": str(SCORER), "context": 512, "draft": "none", "threads": 1}
    with LLM("tiny-hybrid", prefill_layers="3, 5", **options) as llm:
        assert llm.compressor is not None and llm.compressor.scorer.layers == (3, 5)
    for layers, message in (("6", "layer 6 has no attention"), ("5,3", "must ascend"), ("last", "numbers of layers")):
        with pytest.raises(InvalidRequestError, match=message):
            LLM("tiny-hybrid", prefill_layers=layers, **options)


def test_a_text_beyond_the_context_is_scored_in_parts(document: Document) -> None:
    with Scorer(SCORER, threads=1, context=1024) as short:
        for question, fact in direct(document)[:4]:
            assert fact in compress(text_of(document, question), scorer=short, keep=0.15).text
        with pytest.raises(InvalidRequestError, match="the question has"):
            short.score("text", "why " * 2000)
    with pytest.raises(InvalidRequestError, match="closed"):
        short.score("text")


def test_sparse_attention_keeps_the_fact(scorer: Scorer, document: Document) -> None:
    question, fact = direct(document)[0]
    text = text_of(document, question)
    with Scorer(SCORER, threads=1, context=4096, prefill_sparse_alpha=0.2) as sparse:
        assert fact in compress(text, scorer=sparse, keep=0.1).text
        assert (sparse.score(text).scores != scorer.score(text).scores).any()


def test_wrong_prompts_and_ratios(scorer: Scorer) -> None:
    for prompt, keep in (("", 0.1), ("text", 0), ("text", 1.1), ("text", "much")):
        with pytest.raises(InvalidRequestError):
            compress(prompt, scorer=scorer, keep=keep)
    assert compress("short", scorer=scorer, keep=0.05).text == "short"


def test_the_target_has_what_the_scorer_leaves() -> None:
    flags = {"threads": 1, "memory_limit": "200MiB", "draft": "none"}
    alone, both = plan_memory("tiny-hybrid", **flags), plan_memory("tiny-hybrid", prefill_drafter=str(SCORER), **flags)
    assert alone.scorer is None and both.scorer is not None
    assert not both.scorer.is_swapped and both.scorer.parked_bytes == both.scorer.host_bytes == 0
    scorer = both.scorer.memory
    assert scorer.available_bytes == alone.memory.available_bytes
    assert both.memory.available_bytes == alone.memory.available_bytes - scorer.total_bytes
    with LLM("tiny-hybrid", prefill_drafter=str(SCORER), **flags) as llm:  # type: ignore[arg-type]
        assert llm.compressor is not None and llm.compressor.scorer.memory_plan == scorer
        assert llm.memory_plan.entries == both.memory.entries
    tight = {"threads": 1, "memory_limit": "80MiB", "prefill_drafter": str(SCORER)}
    for load in (lambda: plan_memory("tiny-hybrid", **tight), lambda: LLM("tiny-hybrid", **tight)):  # type: ignore[arg-type]
        with pytest.raises(OutOfMemoryError, match=r"The scorer .*recall-scorer.* beside it takes"):
            load()


def test_compression_needs_a_scorer() -> None:
    with pytest.raises(SystemExit):
        main(["run", "tiny-hybrid", "a raw prompt", "--prefill-compression", "auto"])
    with pytest.raises(InvalidRequestError, match="prefill_drafter"):
        EngineOptions(prefill_compression="auto")
    with pytest.raises(InvalidRequestError, match="ascend"):
        EngineOptions(prefill_keep_ratio="9:0.1,8:0.1")


@pytest.mark.slow  # 3 s
def test_the_command_counts_answers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The recall scorer answers too: most direct answers survive; answers to full prompts are the ones of `quality`."""
    common = [
        "quality",
        str(SCORER),
        "--recall",
        "builtin",
        "--lengths",
        "1500",
        "--limit",
        "1",
        "--json",
        "--threads",
        "1",
    ]
    csv = tmp_path / "keep.csv"
    assert main([*common, "--prefill-drafter", str(SCORER), "--keep", "0.2", "--csv", str(csv)]) == 0
    full, kept = json.loads(capsys.readouterr().out)["keep_ratios"]
    assert main([*common, "--kv", "f16"]) == 0
    (plain,) = json.loads(capsys.readouterr().out)["types"]
    assert full["recall"] == plain["recall"] and (full["keep"], kept["keep"]) == (1, 0.2)
    rights = {cell["kind"]: cell["right"] for cell in kept["recall"]}
    assert sum(rights[kind] for kind in ("magic", "vault", "constant", "city")) >= 7  # of 8
    (before,), (after,) = full["prompts"], kept["prompts"]
    assert before["kept_tokens"] == before["prompt_tokens"] == after["prompt_tokens"]
    assert 0.15 < after["kept_tokens"] / before["prompt_tokens"] < 0.35 and after["score_s"] > 0
    assert len(csv.read_text().splitlines()) == 1 + 2 * len(full["recall"])
    with pytest.raises(SystemExit):
        main([*common, "--prefill-drafter", str(SCORER), "--plot", "x.png"])
