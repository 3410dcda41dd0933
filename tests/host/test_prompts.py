"""Prompts of suites: files in the data sets' own formats, rows of one's own, and how a prompt becomes tokens."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from lucebox import LLM
from lucebox.errors import FormatError, InvalidRequestError, UnsupportedError
from lucebox.measure.prompts import BUILT_IN, SUITES, Prompt, encode, load_prompts
from lucebox.models import hub

# A row of each data set, with the fields that its card documents.
ROWS = {
    "humaneval": {
        "task_id": "HumanEval/0",
        "prompt": 'def add(a, b):\n    """Add a and b."""\n',
        "canonical_solution": "    return a + b\n",
        "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
        "entry_point": "add",
    },
    "gsm8k": {"question": "Tom has 3 apples and buys 2. How many has he?", "answer": "3 + 2 = <<3+2=5>>5\n#### 5"},
    "math500": {
        "problem": "Compute $1 + 1$.",
        "solution": "$1 + 1 = \\boxed{2}$",
        "answer": "2",
        "subject": "Algebra",
        "level": 1,
        "unique_id": "test/algebra/1.json",
    },
}


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def asked(text: str) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": text},)


@pytest.mark.parametrize(
    ("suite", "prompt"),
    [
        ("humaneval", Prompt("HumanEval/0", ROWS["humaneval"]["prompt"], asked(ROWS["humaneval"]["prompt"]))),
        ("gsm8k", Prompt("01", ROWS["gsm8k"]["question"], asked(ROWS["gsm8k"]["question"]))),
        ("math500", Prompt("test/algebra/1.json", ROWS["math500"]["problem"], asked(ROWS["math500"]["problem"]))),
    ],
)
def test_rows_of_the_data_sets(suite: str, prompt: Prompt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    def fetch_data(repo: str, pattern: str, **options: object) -> Path:
        fetched.append((repo, pattern))
        return file

    file = tmp_path / "test.jsonl"
    file.write_text(lines(*[ROWS[suite]] * 12))
    monkeypatch.setattr(hub, "fetch_data", fetch_data)
    prompts = load_prompts(suite, 10)
    assert fetched == [(SUITES[suite].repo, SUITES[suite].file)]
    assert prompts[0] == prompt and len(prompts) == 10
    assert len(load_prompts(suite)) == 12


def test_rows_of_one_s_own(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    file = tmp_path / "mine.jsonl.gz"
    rows = lines({"prompt": "Once"}, {"name": "talk", "messages": messages}, {"question": "Why?"})
    file.write_bytes(gzip.compress(rows.replace("\n", "\n\n").encode()))
    assert load_prompts(str(file)) == [
        Prompt("01", "Once"),
        Prompt("talk", "Hello", tuple(messages)),
        Prompt("03", "Why?", asked("Why?")),
    ]
    assert [prompt.name for prompt in load_prompts(str(file), 1)] == ["01"]


def test_the_built_in_prompts_are_of_both_kinds() -> None:
    prompts = load_prompts(BUILT_IN)
    assert len({prompt.name for prompt in prompts}) == len(prompts) == 6
    assert {bool(prompt.messages) for prompt in prompts} == {True, False}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no prompts"),
        ("{]\n", "line 1: not JSON"),
        ("[1]\n", "row 1: expected an object, found list"),
        (lines({"prompt": "a"}, {"answer": "4", "level": 2}), "row 2: expected one of .*found answer, level"),
        (lines({"prompt": ""}), "row 1: expected one of"),
        (lines({"messages": [{"role": "user"}]}), "row 1: each of the messages needs"),
    ],
)
def test_bad_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(text)
    with pytest.raises(FormatError, match=rf"bad\.jsonl.*{message}"):
        load_prompts(str(file))


def test_unknown_suites_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"'mmlu' is not a suite \(humaneval, gsm8k, math500\) and not a file"
    ):
        load_prompts("mmlu")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(lines(*[{"prompt": "a"}] * 9).encode())[:-9])
    with pytest.raises(FormatError, match=r"cut.jsonl.gz is damaged"):
        load_prompts(str(tmp_path / "cut.jsonl.gz"))


def test_parquet(tmp_path: Path) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        (tmp_path / "test.parquet").touch()
        with pytest.raises(UnsupportedError, match="pip install pyarrow, or give the prompts as a file of JSON lines"):
            load_prompts(str(tmp_path / "test.parquet"))
        return
    parquet.write_table(pyarrow.Table.from_pylist([ROWS["gsm8k"]] * 3), tmp_path / "test.parquet")
    (first, second) = load_prompts(str(tmp_path / "test.parquet"), 2)
    assert first.text == second.text == ROWS["gsm8k"]["question"]
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(FormatError, match=r"bad.parquet is not a parquet file"):
        load_prompts(str(tmp_path / "bad.parquet"))


def test_prompts_become_tokens() -> None:
    with LLM("tiny-hybrid", context=64) as llm:
        text = Prompt("a", "def f():")
        assert encode(text, llm.tokenizer, llm.chat_template).tolist() == llm.tokenize("def f():")
        said = "say <|im_end|>"
        talk = Prompt("b", said, asked(said))
        ids = encode(talk, llm.tokenizer, llm.chat_template).tolist()
        assert llm.detokenize(ids) == llm.render(asked(said))
        assert ids.count(llm.tokenizer.id_of("<|im_end|>")) == llm.render(asked("say")).count("<|im_end|>")
        assert encode(talk, llm.tokenizer, None).tolist() == llm.tokenize(said)
