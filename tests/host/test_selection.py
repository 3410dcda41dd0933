"""Selection of a prompt's parts: smoothing and chunk means, pieces and their borders, the budget, anchors."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lucebox.compression.anchors import anchored
from lucebox.compression.keep_ratio import KeepRatio
from lucebox.compression.pieces import MAX_PIECE, Span, TokenCounts, pieces
from lucebox.compression.regions import HEAD_TOKENS, TAIL_TOKENS, cuttable
from lucebox.compression.scores import ScoredText, smoothed
from lucebox.compression.selection import joined, merged, select
from lucebox.errors import InvalidRequestError
from text_data import tiny_tokenizer

WORDS = (
    "def", "return", "Alpha", "beta", "gamma,", "delta.", "Why?", "x", "=", "1", "'quoted.'", "e.g.", "3.14", "Ünïcode",
    "漢字です。", "👩\u200d🔬", "ﬁ", "http://a.b/c?d=e",
)  # fmt: skip
BREAKS = (" ", "\n", "\n\n", "  ", "\n    ", "", ". ", "\t", "\r\n", "\u2028")


def random_text(rng: random.Random, n: int) -> str:
    parts = [part for _ in range(n) for part in (rng.choice(WORDS), rng.choice(BREAKS))]
    if rng.random() < 0.3:
        parts.insert(rng.randrange(len(parts)), "x0Z9" * rng.randrange(1, 200))  # a word longer than a piece
    return "".join(parts)


texts = st.builds(lambda seed, n: random_text(random.Random(seed), n), st.integers(0, 1 << 30), st.integers(1, 300))


def counts_of(text: str) -> TokenCounts:
    return TokenCounts(tiny_tokenizer().encode_with_starts(text)[1])


def scored(text: str, seed: int = 0) -> ScoredText:
    ids, starts = tiny_tokenizer().encode_with_starts(text)
    return ScoredText(text, ids, starts, np.random.default_rng(seed).random(len(ids)))


def test_smoothing_and_chunk_means_are_the_definitions() -> None:
    for n in (1, 2, 6, 7, 13, 31, 32, 33, 100):
        raw = np.random.default_rng(n).random(n).astype(np.float32)
        wanted = [np.mean(raw[max(0, i - 6) : i + 7], dtype=np.float64) for i in range(n)]
        np.testing.assert_allclose(smoothed(raw), wanted, rtol=1e-12)
        text = "ab" * n
        chunks = ScoredText(text, np.zeros(n, np.int32), np.arange(0, 2 * n, 2), smoothed(raw)).chunks()
        assert [chunk.score for chunk in chunks] == pytest.approx(
            [np.mean(wanted[at : at + 32]) for at in range(0, n, 32)]
        )
        assert [chunk.start for chunk in chunks] == list(range(0, 2 * n, 64))
        assert [chunk.stop for chunk in chunks] == [*range(64, 2 * n, 64), 2 * n]


def test_starts_are_where_the_tokens_begin() -> None:
    """The bytes of the tokens up to each start, as in the text; a token within a character begins at it."""
    tokenizer = tiny_tokenizer()
    for seed in range(20):
        text = random_text(random.Random(seed), 60) + " <|im_end|> end"
        ids, starts = tokenizer.encode_with_starts(text)
        assert ids.tolist() == tokenizer.encode(text, special=False, add_bos=False)
        done = 0
        for token, start in zip(ids.tolist(), starts.tolist(), strict=True):
            assert len(text[:start].encode()) <= done < len(text[: start + 1].encode())
            done += len(tokenizer.token_bytes(token))
        assert done == len(text.encode())
    ids, starts = tokenizer.encode_with_starts("cafe\u0301 au lait")  # two characters that NFC makes one
    assert tokenizer.decode(ids) == "caf\u00e9 au lait"
    assert [int(start) for start in starts][-1] > 5 and {4, 5} & {int(start) for start in starts} <= {5}


def is_border(text: str, at: int, span: Span) -> bool:
    """Whether a line, a sentence or the span itself ends at a position."""
    before, ends = text[span[0] : at], ("\n", "。")
    return at in span or before.endswith(ends) or re.search(r"[.!?][\"')\]]*\s+$|\n\s+$", before) is not None


@given(texts, st.data())
def test_pieces_cover_a_span_and_end_at_borders(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    span = (start, data.draw(st.integers(start, len(text))))
    count = counts_of(text)
    units = pieces(text, span, count)
    assert [a for a, _ in units] == [span[0], *(b for _, b in units)][: len(units)]
    assert not units or units[-1][1] == span[1]
    assert all(b > a for a, b in units) and sum(map(count, units)) == count(span)
    for a, b in units:
        assert count((a, b)) <= MAX_PIECE
        if not is_border(text, b, span):  # within a long sentence: at a word, or at a token of a long word
            line = text[text.rfind("\n", 0, a) + 1 :].partition("\n")[0]
            assert len(line.encode()) > MAX_PIECE // 2
            assert text[b - 1].isspace() or count((a, b + 1)) >= 1


@pytest.mark.parametrize("unit", [" ", "\n", ". ", ".)", "a", "\n ", '!"', "a\t", "\u3000", "é"])
def test_pieces_take_linear_time(unit: str) -> None:
    """Texts that make regular expressions backtrack, of 300,000 characters; quadratic time is minutes."""
    text = unit * (300_000 // len(unit))
    units = pieces(text, (0, len(text)), TokenCounts(np.arange(0, len(text), 4)))
    assert (units[0][0], units[-1][1]) == (0, len(text))


@settings(max_examples=40)
@given(texts, st.integers(0, 200), st.integers(0, 99), st.booleans())
def test_selection_stays_in_its_bounds(text: str, budget: int, seed: int, has_question: bool) -> None:
    one, count = scored(text, seed), counts_of(text)
    region = cuttable(text, (0, len(text)), count, has_question=has_question)
    kept = select(one, [region], count, budget)
    assert sum(map(count, kept)) <= budget
    assert kept == merged(sorted(kept)) == select(scored(text, seed), [region], counts_of(text), budget)
    ends = {end for piece in pieces(text, region, count) for end in piece}
    assert all(region[0] <= a < b <= region[1] and {a, b} <= ends for a, b in kept)
    assert merged(select(one, [region], count, count(region))) == merged([region])
    # Nothing that would still fit is left out.
    inside = [unit for unit in pieces(text, region, count) if not any(a <= unit[0] < b for a, b in kept)]
    assert all(count(unit) > budget - sum(map(count, kept)) for unit in inside)


@given(texts, st.booleans())
def test_head_and_tail_stay(text: str, has_question: bool) -> None:
    count, whole = counts_of(text), (0, len(text))
    start, stop = cuttable(text, whole, count, has_question=has_question)
    assert 0 <= start <= stop <= len(text)
    assert count((0, start)) <= HEAD_TOKENS
    if not has_question:
        assert stop == len(text)
    else:
        assert count((stop, len(text))) >= min(TAIL_TOKENS, count((start, len(text))))


def test_a_question_in_its_own_paragraph_is_never_cut() -> None:
    question = "Which of these functions opens the file? " * 15
    text = "value = compute(a, b)\n" * 300 + "\n" + question
    region = cuttable(text, (0, len(text)), counts_of(text), has_question=True)
    assert text[region[1] :] == question


@given(texts, st.integers(0, 99))
def test_cuts_do_not_join_words(text: str, seed: int) -> None:
    units = pieces(text, (0, len(text)), counts_of(text))
    kept = merged(unit for unit in units if random.Random(f"{seed} {unit}").random() < 0.5)
    wanted = ""
    for start, stop in kept:
        is_apart = not wanted or wanted[-1].isspace() or text[start].isspace()
        wanted += ("" if is_apart else " ") + text[start:stop]
    assert joined(text, kept) == (wanted if kept and kept[-1][1] == len(text) else wanted.rstrip())
    assert set(joined(text, kept).split()) <= {word for a, b in kept for word in text[a:b].split()}


def test_the_best_pieces_are_kept() -> None:
    lines = [f"line number {i} of the text\n" for i in range(60)]
    text = "".join(lines)
    one, count = scored(text), counts_of(text)
    wanted = (17, 40, 41)
    for i in wanted:
        start = sum(map(len, lines[:i]))
        first, last = np.searchsorted(one.starts, (start, start + len(lines[i])))
        one.scores[first:last] += 10
    n_tokens = sum(count((text.index(lines[i]), text.index(lines[i]) + len(lines[i]))) for i in wanted)
    kept = select(one, [(0, len(text))], count, n_tokens)
    assert joined(text, kept) == "".join(lines[i] for i in wanted).rstrip()


def test_anchors_come_first() -> None:
    rng = np.random.default_rng(3)
    ids = rng.integers(10, 50, 32 * 20).astype(np.int32)
    text = "x" * len(ids)
    one = ScoredText(text, ids, np.arange(len(ids)), rng.random(len(ids)))
    question = np.array([7, 101, 102, 103, 104, 9], np.int32)
    ids[32 * 11 + 5 :][:4] = question[1:5]
    found = anchored(one, ids, question)
    near = slice(32 * 9, 32 * 14)  # two chunks on either side
    np.testing.assert_array_equal(found.scores[near], one.scores[near] + 1)
    assert (found.scores >= 1).sum() == 32 * 5
    for at in range(0, 32 * 9, 32):  # too frequent to tell anything
        ids[at : at + 4] = question[1:5]
    np.testing.assert_array_equal(anchored(one, ids, question).scores, one.scores)
    np.testing.assert_array_equal(anchored(one, ids[:3], question).scores, one.scores)


def test_keep_ratios() -> None:
    assert KeepRatio.parse(0.1).at(5) == KeepRatio.parse("0.1").at(10**6) == 0.1
    curve = KeepRatio.parse("8000:0.5,32000:0.1,128000:0.05")
    assert [curve.at(n) for n in (0, 8000, 20000, 32000, 80000, 10**6)] == pytest.approx(
        [0.5, 0.5, 0.3, 0.1, 0.075, 0.05]
    )
    for wrong in ("", "0", "1.5", "-1", "nan", "a:0.1", "10:0.1,5:0.2", "10:0.1,10:0.2", "0.1,0.2", "1:2:0.1", "10:"):
        with pytest.raises(InvalidRequestError):
            KeepRatio.parse(wrong)
