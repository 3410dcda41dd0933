"""Quality of the types of the KV cache: arithmetic of NLL and KL, windows, made and loaded documents, the command."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lucebox import LLM
from lucebox.cli import main
from lucebox.errors import FormatError, InvalidRequestError
from lucebox.measure.needle import KINDS, Document, Question, encode_documents, load_documents, make_documents
from lucebox.measure.plots import save_quality_plot
from lucebox.measure.quality import CSV_COLUMNS, measure_quality, save_rows, score_rows, text_windows
from lucebox.models.assets import TextAssets
from lucebox.models.resolve import resolve

MODEL = "tiny-hybrid"
EXACT: dict[str, Any] = {"threads": 1, "activations": "f32", "prefix_cache": 0, "context": 192, "draft": "none"}
TEXT = Path(__file__).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def assets() -> TextAssets:
    return TextAssets.load(resolve(MODEL).path)


def test_scores_of_rows_are_the_definitions() -> None:
    rng = np.random.default_rng(1)
    wanted, got = rng.normal(0, 3, (2, 4, 5)).astype(np.float32)
    got[3] = wanted[3]
    ids = np.array([4, 0, 2, 2], np.int32)
    nothing, reference = score_rows(wanted, ids, None)
    table, _ = score_rows(got, ids, reference.astype(np.float32))
    for row in range(4):
        p, q = ([math.exp(x) / sum(map(math.exp, r)) for x in r] for r in (wanted[row].tolist(), got[row].tolist()))
        kl = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        same = float(p.index(max(p)) == q.index(max(q)))
        assert table[row] == pytest.approx([-math.log(q[ids[row]]), kl, same], abs=1e-6)
        assert nothing[row] == pytest.approx([-math.log(p[ids[row]]), 0, 1])
    assert table[0, 1] > 0.1 and table[3, 1] == pytest.approx(0, abs=1e-7)


def test_huge_logits_stay_finite() -> None:
    table, _ = score_rows(np.array([[1e30, 0, -1e30]], np.float32), np.array([0], np.int32), None)
    assert table.tolist() == [[0, 0, 1]]


def test_windows_have_something_to_predict() -> None:
    assert [one.tolist() for one in text_windows(np.arange(7, dtype=np.int32), 3)] == [[0, 1, 2], [3, 4, 5]]
    assert [len(one) for one in text_windows(np.arange(8, dtype=np.int32), 3)] == [3, 3, 2]


def test_a_text_is_scored_as_by_the_model_itself() -> None:
    """NLL equals LLM.score's and KL equals LLM.logits', over windows longer than an append."""
    with LLM(MODEL, kv="f16", **EXACT) as llm:
        windows = text_windows(llm.ids(TEXT)[:250], 150)
        nll = -np.concatenate([llm.score(one.tolist()) for one in windows]).mean()
        wanted = np.concatenate([llm.logits(one.tolist())[:-1] for one in windows])
    with LLM(MODEL, kv="wht3/q4_0", **EXACT) as llm:
        got = np.concatenate([llm.logits(one.tolist())[:-1] for one in windows])
    ids = np.concatenate([one[1:] for one in windows])
    _, reference = score_rows(wanted, ids, None)
    table, _ = score_rows(got, ids, reference.astype(np.float32))
    first, second = measure_quality(lambda kv: LLM(MODEL, kv=kv, **EXACT), ["wht3/q4_0"], windows, [])
    assert first.text is not None and second.text is not None and first.recall == ()
    assert (first.kv, first.text.kl, first.text.same_top, first.text.n_tokens) == ("f16", 0, 1, 248)
    assert first.text.nll == pytest.approx(nll, abs=1e-4)
    assert [second.text.nll, second.text.kl, second.text.same_top] == pytest.approx(table.mean(axis=0), abs=1e-4)
    assert second.text.kl_p99 == pytest.approx(np.percentile(table[:, 1], 99), rel=0.01)
    assert second.text.kl > 1e-3
    assert first.token_bytes == 2048 and second.token_bytes == 2 * (256 * 3 / 8 + 2 * 2) + 2 * (8 * 18)


def test_documents_hide_their_facts(assets: TextAssets) -> None:
    documents = make_documents((1024, 2048), 2, assets)
    assert [one.length for one in documents] == [1024, 1024, 2048, 2048]
    assert documents == make_documents((1024, 2048), 2, assets)
    assert documents != make_documents((1024, 2048), 2, assets, seed=1)
    for document, encoded in zip(documents, encode_documents(documents, assets), strict=True):
        assert [one.kind for one in document.questions] == [kind for kind in KINDS for _ in range(2)]
        for question in document.questions:
            assert document.text.count(question.answer) >= 1
        assert len({(one.text, one.answer) for one in document.questions}) == 10
        for one in encoded.questions:
            assert document.length - 128 < len(one.prompt) + len(one.answer) <= document.length
            assert (one.prompt[: encoded.n_shared] == encoded.questions[0].prompt[: encoded.n_shared]).all()
        assert max(len(one.prompt) for one in encoded.questions) - encoded.n_shared < 40


def test_a_hop_needs_two_sentences(assets: TextAssets) -> None:
    (document,) = make_documents((1024,), 1, assets, filler=TEXT * 2)
    for question in document.questions:
        if question.kind != "hop":
            continue
        word = question.text.split()[-2]
        other = document.text.split(f"magic {word} number is the same as that of ")[1].split(".")[0]
        assert f"The special magic {other} number is: {question.answer}.\n" in document.text
        assert f"magic {word} number is:" not in document.text


def test_documents_need_room_and_filler(assets: TextAssets) -> None:
    with pytest.raises(InvalidRequestError, match="a document of 400 tokens has no room"):
        make_documents((400,), 1, assets)
    with pytest.raises(InvalidRequestError, match=r"the filler has \d+ tokens too few"):
        make_documents((1024,), 1, assets, filler="x = 1\n")


def test_documents_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    row = {"document": "Anna is in Rome.", "length": 8, "questions": []}
    asked = [{"kind": "city", "question": "Where is Anna?", "answer": "Rome"}]
    file.write_text("\n".join(json.dumps({**row, "length": n, "questions": asked}) for n in (8, 8, 8, 9)) + "\n\n")
    wanted = Document(8, "Anna is in Rome.", (Question("city", "Where is Anna?", "Rome"),))
    assert load_documents(file) == [wanted] * 3 + [replace(wanted, length=9)]
    assert load_documents(file, 1) == [wanted, replace(wanted, length=9)]
    for bad, error in (
        ("{", "line 1: not JSON"),
        (json.dumps(row), 'line 1: expected "questions", a list of objects that is not empty'),
        (json.dumps({**row, "questions": ["where"]}), 'expected "kind", text that is not empty'),
        ("[]", 'expected "document", text'),
        ("\n", "has no documents"),
    ):
        file.write_text(bad)
        with pytest.raises(FormatError, match=error):
            load_documents(file)


def test_the_command_measures_shows_and_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, file, table, picture = (tmp_path / name for name in ("a.txt", "a.jsonl", "a.csv", "a.png"))
    text.write_text(TEXT)
    asked = [{"kind": kind, "question": f"Where is {kind}?", "answer": "Rome"} for kind in ("Anna", "Ben")]
    file.write_text(json.dumps({"document": TEXT[:300], "length": 128, "questions": asked}))
    flags = ["quality", MODEL, "--kv", "q8_0,WHT4/q4_0", "--text", str(text), "--tokens", "96", "--window", "64"]
    flags += ["--recall", str(file), "--threads", "1", "--csv", str(table), "--plot", str(picture)]
    assert main(flags) == 0
    shown = capsys.readouterr().out
    assert "predictions of 94 tokens, compared with f16" in shown
    assert "right answers about documents of 128 tokens, 1 questions of each kind" in shown
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([*flags, "--json"]) == 0
    types = json.loads(capsys.readouterr().out)["types"]
    assert [one["kv"] for one in types] == ["f16", "q8_0", "WHT4/q4_0"]
    assert 0 < types[1]["text"]["kl"] < types[2]["text"]["kl"]
    assert [(cell["kind"], cell["asked"]) for cell in types[0]["recall"]] == [("Anna", 1), ("Ben", 1)]
    with table.open(newline="") as rows:
        saved = list(csv.DictReader(rows))
    assert tuple(saved[0]) == CSV_COLUMNS and len(saved) == 2 * 3 * 3
    assert float(saved[6]["kl"]) == pytest.approx(types[2]["text"]["kl"], rel=1e-5)
    assert (saved[1]["kind"], saved[1]["n"], saved[1]["right"]) == ("Anna", "1", "0")


def test_reports_with_one_test_only_are_drawn(tmp_path: Path) -> None:
    windows = text_windows(np.arange(40, dtype=np.int32), 40)
    (report,) = measure_quality(lambda kv: LLM(MODEL, kv=kv, **EXACT), [], windows, [])
    picture = tmp_path / "one.svg"
    save_quality_plot([report], picture)
    assert "<svg" in picture.read_text()
    file = tmp_path / "other.csv"
    file.write_text("date,model\n")
    with pytest.raises(FormatError, match=r"other.csv has other columns"):
        save_rows(file, report)


def test_nothing_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidRequestError, match="neither a text nor a document"):
        next(measure_quality(lambda kv: LLM(MODEL, kv=kv, **EXACT), [], [], []))
    for flags in ([], ["--recall", "builtin", "--limit", "0"], ["--text", __file__, "--window", "1"]):
        with pytest.raises(SystemExit):
            main(["quality", MODEL, *flags])
    assert main(["quality", "absent.gguf", "--offline", "--text", __file__, "--kv", "f16,q9"]) == 1
    assert "kv must be one of f32" in capsys.readouterr().err
