"""Questions about documents of 4096 tokens, with a small model that was trained to answer them."""

from __future__ import annotations

from pathlib import Path

import pytest
from lucebox import LLM, Sampling
from lucebox.measure.needle import EncodedDocument, encode_documents, make_documents
from lucebox.measure.quality import measure_quality
from lucebox.models.assets import TextAssets


@pytest.fixture(scope="module")
def scorer(data: Path) -> Path:
    return data / "recall" / "recall-scorer.Q4_0.gguf"


def documents(scorer: Path, length: int) -> list[EncodedDocument]:
    assets = TextAssets.load(scorer)
    return encode_documents(make_documents((length,), 1, assets), assets)


def test_right_answers_are_those_that_the_model_writes(scorer: Path) -> None:
    """Appends of whole answers against greedy generation, token by token."""
    asked = documents(scorer, 1024)
    with LLM(scorer, context=1024, threads=1) as llm:
        written = [
            (question.kind, llm.generate(question.prompt.tolist(), Sampling(max_tokens=16)).ids[:-1])
            for question in asked[0].questions
        ]
    (report,) = measure_quality(lambda kv: LLM(scorer, context=1024, threads=1, kv=kv), [], [], asked)
    for cell in report.recall:
        pairs = zip(asked[0].questions, written, strict=True)
        right = sum(question.answer.tolist() == list(ids) for question, (kind, ids) in pairs if kind == cell.kind)
        assert (cell.right, cell.asked) == (right, 2), cell.kind
    assert sum(cell.right for cell in report.recall) in (8, 9)  # an answer over two sentences is often wrong


@pytest.mark.slow  # 5 s
def test_recall_at_4096_tokens(scorer: Path) -> None:
    asked = documents(scorer, 4096)
    reports = measure_quality(lambda kv: LLM(scorer, context=4096, threads=1, kv=kv), ["q8_0", "wht4"], [], asked)
    for report in reports:
        for cell in report.recall:
            if cell.kind != "hop":
                assert (cell.right, cell.changed) == (2, 0), (report.kv, cell)
                assert cell.answer_nll < 0.05, (report.kv, cell)
