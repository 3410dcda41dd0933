"""JSON in steps: the same values as Python's json, and the same texts are refused."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from gil import longest_gap
from lucebox.errors import InvalidRequestError
from lucebox.text import large_json
from lucebox.text.json_shape import MAX_ITEMS, MAX_MEMBERS, SLICE, check_shape
from lucebox.text.large_json import dump_large, load_json


@pytest.fixture(autouse=True)
def _all_texts_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_json, "SMALL", 0)
    monkeypatch.setattr(large_json, "PART", 13)


def value(rng: random.Random, depth: int) -> Any:
    kind = rng.random()
    if depth == 0 or kind < 0.4:
        text = 'a"\\\n\u2028é😀' * rng.randint(0, 9)
        return rng.choice([None, True, False, rng.random() * 1e9, rng.randint(-(10**20), 10**20), text, -0.0, 1e300])
    if kind < 0.7:
        return [value(rng, depth - 1) for _ in range(rng.randint(0, 30))]
    ends = ["", '"', "\n"]
    return {f"k{i}" + rng.choice(ends): value(rng, depth - 1) for i in range(rng.randint(0, 8))}


@pytest.mark.parametrize(
    "seed", [pytest.param(i, marks=[pytest.mark.slow] if i > 1 else []) for i in range(20)]
)  # 0.6 s each
def test_the_values_of_json(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        made = value(rng, 4)
        data = json.dumps(made, indent=rng.choice([None, 1]), ensure_ascii=rng.random() < 0.5).encode()
        assert load_json(data, "it") == made
        assert json.loads(dump_large(made)) == made
        for _ in range(20):
            at = rng.randrange(len(data))
            damaged = data[:at] + bytes([rng.choice(b'[]{},:"\\x1 \n')]) + data[at + 1 :]
            try:
                expected = json.loads(damaged)
            except ValueError:
                with pytest.raises(ValueError):
                    load_json(damaged, "it")
            else:
                assert load_json(damaged, "it") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[" * 200 + b"]" * 200, "more than 128 objects and lists"),
        (b"[" + b"{}," * MAX_MEMBERS + b"{}]", "members"),
        (b"[" + b"1," * (MAX_ITEMS + 1) + b"1]", "items"),
        (b"\0", "NUL byte"),
    ],
)
def test_texts_with_too_many_values(text: bytes, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        load_json(text, "it")


@pytest.mark.parametrize("shift", range(8))
def test_slices_divide_no_escape(shift: int) -> None:
    """Strings full of brackets and escaped quotes, at every position of a slice's end."""
    text = json.dumps(["x" * shift + '[{":,\\\\"' * (SLICE // 4), [1]]).encode()
    shape = check_shape(text, "it")
    assert (shape.n_members, shape.n_items) == (2, 1)


@pytest.mark.parametrize(
    "text", ["\\ud83d", "\\ud83dx", "\\ude00", "\\ud83d\\ude00", "\\u00e9", "\\\\", "\\", "\\x", "\\u12"]
)
@pytest.mark.parametrize("shift", range(14))
def test_parts_of_strings_divide_no_escape(text: str, shift: int) -> None:
    data = ('"' + "a" * shift + text * 3 + 'b"').encode()
    try:
        expected = json.loads(data)
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error).partition(":")[0])):
            load_json(data, "it")
    else:
        assert load_json(data, "it") == expected


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["numbers", "escapes"])
def test_other_threads_run_meanwhile(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own function holds the GIL for the whole text."""
    data = {
        "numbers": b"[" + b"1.2345678901234567e300," * 1_000_000 + b"1]",
        "escapes": b'"' + b"\\n" * 8_000_000 + b'"',
    }[kind]
    monkeypatch.setattr(large_json, "PART", 1 << 16)
    assert any(longest_gap(lambda: load_json(data, "it")) < 1 / 4 for _ in range(10))
