"""Compression of conversations: what is never cut, in the prompts that real templates render; what later turns repeat;
when a prompt is compressed at all. Scores are random: none of this depends on them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from lucebox import LLM, Sampling
from lucebox.chat import ChatTemplate
from lucebox.chat.conversation import Conversation, tools_of
from lucebox.chat.conversation_to_request import ChatModel, Limits
from lucebox.compression.compressor import MIN_MESSAGE_TOKENS, Compressor, CutConversation
from lucebox.compression.keep_ratio import KeepRatio
from lucebox.compression.policy import CompressionRequest, Policy
from lucebox.compression.scores import ScoredText
from lucebox.compression.turns import CAPACITY, EarlierTurns
from lucebox.errors import InvalidRequestError, UnsupportedError
from lucebox.results import CutMessage
from text_data import DATA

TEMPLATES = ["own", "Qwen3.5-4B", "Qwen-Qwen3-0.6B"]
SYSTEM = "You answer from the documents.\n" + "Rule: be exact. " * 400
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{i}",
            "description": "Reads a part of a file and returns it. " * 10,
            "parameters": {"type": "object", "properties": {"path": {"type": "string", "description": "p" * 50}}},
        },
    }
    for i in range(12)
]
ALWAYS = Policy("always", 1, KeepRatio.parse(0.1), uses_anchors=False)


class RandomScorer:
    """Scores of a text that only the text decides."""

    name = "random"

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self.questions: list[str] = []

    def score(self, text: str, question: str = "", **_: Any) -> ScoredText:
        self.questions.append(question)
        ids, starts = self._llm.tokenizer.encode_with_starts(text)
        seed = sum(text.encode()) % (1 << 31)
        return ScoredText(text, ids, starts, np.random.default_rng(seed).random(len(ids)))


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny-hybrid", draft="none", threads=1, context=8192) as llm:
        yield llm


def compressor_of(llm: LLM, policy: Policy = ALWAYS) -> Compressor:
    scorer: Any = RandomScorer(llm)
    return Compressor(scorer, llm.tokenizer, policy, context=8192)


def model_of(llm: LLM, template: str) -> ChatModel:
    own = None if template == "own" else ChatTemplate.from_file(DATA / "templates" / f"{template}.jinja", llm.tokenizer)
    return llm.chat_model(own)


def document(seed: int, n_lines: int) -> str:
    rng = random.Random(seed)
    return "\n".join(
        f"{rng.randrange(10**6)}: value {rng.random():.4f} <|im_end|> of item {i}." for i in range(n_lines)
    )


def agent(seed: int) -> list[dict[str, Any]]:
    """A conversation with a short and a long message of every role."""
    call = {"id": "c1", "type": "function", "function": {"name": "tool_1", "arguments": '{"path": "a"}'}}
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Here is a file.\n" + document(seed, 80)},
        {"role": "assistant", "content": "I read it. " * 300 + "Done."},
        {"role": "user", "content": "Short follow-up."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": document(seed + 1, 100)},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        {"role": "user", "content": "And now? " * 100},
    ]


def cut(compressor: Compressor, messages: list[dict[str, Any]], **options: Any) -> CutConversation | None:
    n = sum(len(compressor._tokenizer.encode(message["content"])) for message in messages)
    return compressor.cut(messages, n, lambda others: sum(len(m["content"]) // 3 for m in others), **options)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("seed", range(3))
def test_only_the_contents_of_long_messages_change(llm: LLM, template: str, seed: int) -> None:
    model, messages = model_of(llm, template), agent(seed)
    conversation = Conversation(messages, tools_of(TOOLS))
    before = model.prompt(conversation)
    found = cut(compressor_of(llm), messages)
    assert found is not None and [one.index for one in found.cut] == [1, 2, 5]
    after = model.prompt(Conversation(found.messages, tools_of(TOOLS)))
    expected = before.text
    for one in found.cut:
        old, new = messages[one.index]["content"].strip(), one.content.strip()
        assert expected.count(old) == 1
        expected = expected.replace(old, new)
    assert after.text == expected
    # Tool definitions, the system message and every control token are still there.
    for text in (SYSTEM.strip(), messages[7]["content"].strip(), "Short follow-up."):
        assert text in after.text
    for tool in TOOLS:
        assert json.dumps(tool["function"]["description"]) in after.text
    control = [i for i in before.ids.tolist() if llm.tokenizer.is_special(i)]
    assert [i for i in after.ids.tolist() if llm.tokenizer.is_special(i)] == control
    assert len(after.ids) < len(before.ids)


@pytest.mark.parametrize("ratio", [0.05, 0.2, 0.7])
def test_the_kept_part_is_within_the_budget(llm: LLM, ratio: float) -> None:
    messages = agent(5)
    compressor = compressor_of(llm)
    found = cut(compressor, messages, request=CompressionRequest(keep_ratio=ratio))
    assert found is not None and found.keep_ratio == ratio
    n_before = n_after = 0
    for one in found.cut:
        content = messages[one.index]["content"]
        assert one.n_characters == len(content)
        kept = "".join(content[a:b] for a, b in one.spans)  # these texts have white space at all cuts
        assert one.content == (kept if one.spans[-1][1] == len(content) else kept.rstrip())
        n_before += len(llm.tokenizer.encode(content, special=False))
        n_after += len(llm.tokenizer.encode(one.content, special=False))
    n_heads = 32 * len(found.cut)
    assert ratio * (n_before - n_heads) * 0.9 < n_after <= ratio * n_before + n_heads + 2 * len(found.cut)


def test_a_ratio_of_one_keeps_everything(llm: LLM) -> None:
    assert cut(compressor_of(llm), agent(1), request=CompressionRequest(keep_ratio=1.0)) is None


def test_a_document_and_its_question_in_one_message(llm: LLM) -> None:
    question = "Which item has the value 0.5?"
    compressor = compressor_of(llm)
    found = cut(compressor, [{"role": "user", "content": document(1, 200) + "\n\n" + question}])
    assert found is not None
    assert found.cut[0].content.endswith("\n\n" + question)
    assert compressor.scorer.questions == [""]  # type: ignore[attr-defined]


def test_the_last_user_message_stays_where_it_is_not_most_of_the_prompt(llm: LLM) -> None:
    messages = [{"role": "user", "content": document(1, 100)}, {"role": "assistant", "content": "Yes."},
                {"role": "user", "content": document(2, 60)}]  # fmt: skip
    compressor = compressor_of(llm)
    found = cut(compressor, messages)
    assert found is not None and [one.index for one in found.cut] == [0]
    (question,) = compressor.scorer.questions  # type: ignore[attr-defined]
    assert messages[2]["content"].endswith(question) and 0 < len(question) < len(messages[2]["content"])


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "x " * (MIN_MESSAGE_TOKENS // 2)}],
        [{"role": "system", "content": document(1, 200)}, {"role": "user", "content": "Hi"}],
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": document(1, 200)}],  # to be continued
    ],
)
def test_nothing_to_cut(llm: LLM, messages: list[dict[str, Any]]) -> None:
    compressor = compressor_of(llm)
    assert cut(compressor, messages) is None
    assert compressor.scorer.questions == []  # type: ignore[attr-defined]


def test_later_turns_repeat_the_cuts(llm: LLM) -> None:
    compressor, model = compressor_of(llm), model_of(llm, "own")
    messages = [{"role": "user", "content": document(1, 150) + "\n\nWhat is this?"}]
    first = cut(compressor, messages)
    assert first is not None and first.score_s > 0
    again = cut(compressor, messages)
    assert again is not None and again.messages == first.messages and again.score_s == 0
    longer = [*messages, {"role": "assistant", "content": "A list."}, {"role": "user", "content": "How long?"}]
    second = cut(compressor, longer)
    assert second is not None and second.cut == first.cut and second.score_s == 0
    prefix = model.prompt(Conversation(first.messages)).text.removesuffix("<|im_start|>assistant\n")
    assert model.prompt(Conversation(second.messages)).text.startswith(prefix)
    # A new long message is scored by itself; the old ones stay as they were.
    results = [*longer, {"role": "assistant", "content": "150."}, {"role": "user", "content": document(2, 100)},
               {"role": "assistant", "content": "So?"}, {"role": "user", "content": "And this one?"}]  # fmt: skip
    third = cut(compressor, results)
    assert third is not None and third.cut[0] == first.cut[0] and [one.index for one in third.cut] == [0, 4]
    assert len(compressor.scorer.questions) == 2  # type: ignore[attr-defined]
    # Another question about the same document, another ratio and another sender are scored anew.
    other = [{"role": "user", "content": document(1, 150) + "\n\nWho wrote it?"}]
    for options in ({}, {"request": CompressionRequest(keep_ratio=0.2)}, {"sender": "someone"}):
        fresh = cut(compressor, other if not options else messages, **options)
        assert fresh is not None and fresh.score_s > 0


def test_auto_counts_what_would_be_computed(llm: LLM) -> None:
    messages = [{"role": "user", "content": document(1, 200)}, {"role": "assistant", "content": "Yes."},
                {"role": "user", "content": "Why?"}]  # fmt: skip
    n = sum(len(llm.tokenizer.encode(one["content"])) for one in messages)
    short, long = (Policy("auto", threshold, KeepRatio.parse(0.1), uses_anchors=False) for threshold in (n + 1, n))
    assert cut(compressor_of(llm, short), messages) is None
    compressor = compressor_of(llm, long)
    first = cut(compressor, messages)
    assert first is not None
    # The next turn is short after the cut, so its new message stays.
    second = cut(compressor, [*messages, {"role": "assistant", "content": "No."},
                              {"role": "user", "content": document(2, 50)}, {"role": "assistant", "content": "No."},
                              {"role": "user", "content": "And?"}])  # fmt: skip
    assert second is not None and second.cut == first.cut
    assert cut(compressor, messages, request=CompressionRequest("off")) is None


def test_earlier_turns_are_forgotten_by_age() -> None:
    turns = EarlierTurns()
    one = (CutMessage(0, ((0, 1),), 2, "a"),)
    for i in range(CAPACITY + 1):
        turns.put([{"role": "user", "content": str(i)}], "", one)
    assert turns.find([{"role": "user", "content": "0"}], "") == (0, ())
    assert turns.find([{"role": "user", "content": "1"}, {"role": "user", "content": "x"}], "") == (1, one)
    assert turns.find([{"role": "user", "content": "1"}], "other settings") == (0, ())


def test_chat_reports_what_was_kept(llm: LLM) -> None:
    messages = [{"role": "user", "content": document(3, 150) + "\n\nWhat is this?"}]
    plain = llm.chat(messages, Sampling(max_tokens=4))
    assert plain.usage.compression is None
    with pytest.raises(UnsupportedError, match="prefill_drafter"):
        llm.chat(messages, Sampling(max_tokens=4), compression={"mode": "always"})
    llm.model.compressor = compressor_of(llm, Policy("off", 1, KeepRatio.parse(0.1), uses_anchors=False))
    try:
        assert llm.chat(messages, Sampling(max_tokens=4)).ids == plain.ids
        record = llm.chat(messages, max_tokens=1, compression={"mode": "always", "keep_ratio": 0.2}).usage.compression
        assert record is not None and (record.scorer, record.keep_ratio) == ("random", 0.2)
        assert record.original_tokens == plain.usage.prompt_tokens
        cut_prompt = llm.chat([{"role": "user", "content": record.cut[0].content}], max_tokens=1)
        assert record.kept_tokens == cut_prompt.usage.prompt_tokens < plain.usage.prompt_tokens / 2
        for wrong in ({"mode": "sometimes"}, {"keep": 0.1}, {"keep_ratio": 0}, "always"):
            with pytest.raises(InvalidRequestError):
                llm.chat(messages, compression=wrong)  # type: ignore[arg-type]
    finally:
        llm.model.compressor = None


@pytest.mark.first_case
@pytest.mark.parametrize("is_broken", [True, False])
@pytest.mark.parametrize("before", ["documented", ""])
def test_calls_of_earlier_turns_stay_whole(llm: LLM, is_broken: bool, before: str) -> None:
    """Also one that broke off inside its arguments. The text before a call is cut as any other."""
    arguments = json.dumps({"path": "/a.py", "content": document(5, 60)})
    arguments = arguments[:-30] if is_broken else arguments
    call = {"id": "b", "type": "function", "function": {"name": "tool_0", "arguments": arguments}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "write it"},
        {"role": "assistant", "content": document(6, 60) if before else "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "b", "content": "done"},
        {"role": "user", "content": "And now?"},
    ]
    plain = llm.chat(messages, tools=TOOLS, max_tokens=1).usage
    llm.model.compressor = compressor_of(llm, Policy("always", 1, KeepRatio.parse(0.05), uses_anchors=False))
    try:
        usage = llm.chat(messages, tools=TOOLS, max_tokens=1).usage
    finally:
        llm.model.compressor = None
    if not before:
        assert usage.compression is None and usage.prompt_tokens == plain.prompt_tokens
        return
    assert usage.compression is not None
    (cut,) = usage.compression.cut
    assert (cut.index, cut.n_characters) == (1, len(messages[1]["content"])) and "path" not in cut.content
    messages[1]["content"] = cut.content
    assert usage.prompt_tokens == llm.chat(messages, tools=TOOLS, max_tokens=1).usage.prompt_tokens


def test_a_prompt_may_exceed_the_context_before_it_is_cut(llm: LLM) -> None:
    conversation = Conversation([{"role": "user", "content": document(4, 700) + "\n\nWhat is this?"}])
    model = llm.chat_model()
    with pytest.raises(InvalidRequestError, match="context"):
        model.requests(conversation, Sampling(), Limits(4))
    llm.model.compressor = compressor_of(llm)
    try:
        (request,) = model.requests(conversation, Sampling(), Limits(4))
    finally:
        llm.model.compressor = None
    assert request.compression is not None and len(request.ids) == request.compression.kept_tokens < 8192
    compressor = compressor_of(llm)
    assert compressor.cut(conversation.messages, 8192 * 11, lambda _: 0) is None  # a tenth of it does not fit
    assert compressor.scorer.questions == []  # type: ignore[attr-defined]
