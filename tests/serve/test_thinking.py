"""Thinking budgets: where thinking begins, its limit, and the tokens forced at the limit."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from answers import parser, simple
from hypothesis import given
from hypothesis import strategies as st
from lucebox.chat import ChatTemplate
from lucebox.chat.profiles import Profile, Thinking, profile_for
from lucebox.chat.thinking import EFFORTS, TagWatch, ThinkingBudget, ThinkingRequest, begins_open, thinking_limit
from lucebox.errors import InvalidRequestError
from lucebox.text import Tokenizer
from text_data import DATA, tiny_tokenizer, vocab_tokenizer

TAGS = Thinking()
OPENED, CLOSED = "<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"


def budget(prompt: str, limit: int) -> ThinkingBudget:
    tokenizer = tiny_tokenizer()
    return ThinkingBudget(TAGS, tokenizer, prompt, limit=limit, end_ids=tokenizer.eos_ids)


def run(prompt: str, limit: int, text: str, *, end: bool = True) -> tuple[str, ThinkingBudget]:
    """The scheduler's answer of a model that says `text` and ends."""
    tokenizer, thinking = tiny_tokenizer(), budget(prompt, limit)
    said = tokenizer.encode(text, add_bos=False) + ([tokenizer.eos_ids[0]] if end else [])
    out: list[int] = []
    for token in said:
        forced = thinking.push(token)
        if token not in tokenizer.eos_ids:
            out.append(token)
        for other in forced:
            out.append(other)
            assert thinking.push(other) == []
        if forced:
            break
    return tokenizer.decode(out, skip_special=False), thinking


def thinks_on(thinking: ThinkingBudget, tokenizer: Tokenizer | None = None) -> bool:
    """Whether one token more counts as thinking."""
    before = thinking.n_tokens
    thinking.push((tokenizer or tiny_tokenizer()).encode("word", add_bos=False)[0])
    return thinking.n_tokens > before


@pytest.mark.parametrize(
    ("prompt", "open"),
    [(OPENED, True), (CLOSED, False), ("<|im_start|>assistant\n", False), ("<think>?<|im_end|>\n", False), ("", False)],
)
def test_where_thinking_begins(prompt: str, open: bool) -> None:
    assert begins_open(TAGS, prompt) is open
    assert thinks_on(budget(prompt, 10)) is open


def test_within_the_budget_nothing_is_forced() -> None:
    for prompt, start in ((OPENED, ""), ("<|im_start|>assistant\n", "<think>\n")):
        text = f"{start}short\n</think>\n\n" + "a long answer " * 50
        got, thinking = run(prompt, 100, text)
        assert got == text and 0 < thinking.n_tokens < 20 and not thinks_on(thinking)


def test_the_budget_ends_thinking() -> None:
    got, thinking = run(OPENED, 40, "on and on " * 50)
    assert thinking.n_tokens == 40 and not thinks_on(thinking)
    assert got.endswith(TAGS.stop) and got.startswith("on and on ")


def test_near_the_limit_thinking_ends_with_its_line() -> None:
    got, thinking = run(OPENED, 40, "one two\n" * 50)
    assert thinking.n_tokens < 40
    assert got == "one two\n" * (got.count("one two")) + TAGS.stop


def test_without_thinking_nothing_is_counted() -> None:
    text = "an answer " * 30
    for prompt in (CLOSED, "<|im_start|>assistant\n"):
        got, thinking = run(prompt, 5, text)
        assert got == text and thinking.n_tokens == 0


def test_an_answer_that_ends_while_thinking_is_continued() -> None:
    got, thinking = run(OPENED, 100, "hm")
    assert got == "hm</think>\n\n" and not thinks_on(thinking)


CALL = "<tool_call>\n<function=write>\n<parameter=path>\n/a\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (f"I write.\n{CALL}", True),
        (f"I write.\n{CALL}\n", True),
        (f"I write.\n{CALL}\n{CALL}", True),
        (CALL.removesuffix("\n</tool_call>"), True),
        (f"I write.\n{CALL}\nOr do I?", False),
        (f"I write.\n{CALL[:-40]}", False),
        (f"I write.\n{CALL}\n{CALL[:-40]}", False),
        (CALL.replace("write", "unknown"), False),
        ("I write.", False),
    ],
)
def test_an_answer_that_ends_after_a_call_while_thinking(text: str, counts: bool) -> None:
    """The end is not replaced by the closing tag, and the call counts."""
    reader, tokenizer = parser("qwen_xml", prompt=OPENED), tiny_tokenizer()
    limit = ThinkingBudget(
        TAGS, tokenizer, OPENED, limit=500, end_ids=tokenizer.eos_ids, may_end=lambda: reader.ends_with_call
    )
    events = []
    for token in tokenizer.encode(text, add_bos=False):
        assert limit.push(token) == []
        events += reader.push(tokenizer.decode([token], skip_special=False))
    forced = limit.push(tokenizer.eos_ids[0])
    assert (forced == []) is counts
    calls = [event[1:] for event in simple(events + reader.finish()) if event[0] == "call"]
    assert calls == ([("write", '{"path": "/a"}')] * text.count("<function=") if counts else [])


@given(st.lists(st.sampled_from(["</think>", "</th", "<", "ink>", "x", "é"])), st.data())
def test_a_tag_is_found_however_it_is_cut(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts).encode()
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text))))})
    watch, after = TagWatch("</think>"), None
    for start, end in itertools.pairwise(cuts):
        after = watch.push(text[start:end])
        if after is not None:
            after += text[end:]
            break
    at = text.find(b"</think>")
    assert after == (None if at < 0 else text[at + 8 :])


# --- limits

CARD = Profile("card", max_tokens=1000, most_tokens=3000, reply_tokens=100)


@pytest.mark.parametrize(
    ("effort", "tokens"),
    [("minimal", 31), ("low", 125), ("medium", 500), ("high", 1000), (None, 1000), ("xhigh", 2000), ("x-high", 2000),
     ("max", 3000)],
)  # fmt: skip
def test_efforts(effort: str | None, tokens: int) -> None:
    assert thinking_limit(CARD, ThinkingRequest("on", effort), 10000) == tokens
    assert thinking_limit(CARD, ThinkingRequest("adaptive", effort), 10000) == tokens


def test_efforts_of_a_card_ascend() -> None:
    template = ChatTemplate.from_file(DATA / "templates" / "Qwen3.5-4B.jinja")
    card = profile_for("qwen35", template, tiny_tokenizer())
    limits = [thinking_limit(card, ThinkingRequest("on", effort), 200_000) for effort in EFFORTS]
    assert limits == sorted(limits) and (limits[1], limits[-1]) == (4096, 81920)


def test_tokens_are_reserved_for_the_reply() -> None:
    assert thinking_limit(CARD, ThinkingRequest("on", budget_tokens=5000), 600) == 500
    assert thinking_limit(CARD, ThinkingRequest("on", budget_tokens=5000), 60) == 30
    assert thinking_limit(CARD, ThinkingRequest("on", budget_tokens=7), 600) == 7
    assert thinking_limit(CARD, ThinkingRequest("on"), 1) == 1


def test_invalid_limits() -> None:
    with pytest.raises(InvalidRequestError, match="effort is 'most', expected one of minimal, low"):
        thinking_limit(CARD, ThinkingRequest("on", "most"), 10)
    with pytest.raises(InvalidRequestError, match="budget_tokens is 0"):
        thinking_limit(CARD, ThinkingRequest("on", budget_tokens=0), 10)


def test_the_tags_of_a_real_vocabulary_need_not_be_tokens() -> None:
    tokenizer = vocab_tokenizer("gpt-2")
    thinking = ThinkingBudget(TAGS, tokenizer, OPENED, limit=1000, end_ids=())
    for token in tokenizer.encode("let me\n</think>yes"):
        assert thinking.push(token) == []
    assert not thinks_on(thinking, tokenizer)


def test_a_users_file_sets_the_end_of_thinking(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text(json.dumps({"thinking": {"stop": "Enough.</think>"}}))
    template = ChatTemplate.from_file(DATA / "templates" / "Qwen3.5-4B.jinja")
    card = profile_for("qwen35", template, tiny_tokenizer(), override=file)
    assert card.thinking is not None and card.thinking.stop == "Enough.</think>"
    assert card.thinking.variable == "enable_thinking"
