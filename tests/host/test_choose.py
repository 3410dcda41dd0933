"""`LLM.choose`: log probabilities of labels after one prompt, against the log probabilities of whole texts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from lucebox import LLM, InvalidRequestError
from lucebox.chat.template import ChatTemplate
from lucebox.generation.labels import Labels
from lucebox.generation.log_softmax import log_softmax

MODELS = {"tiny-hybrid": {}, "small chunks": {"prefill_chunk": 5}, "with drafts": {"draft": "suffix"}}


@pytest.fixture(scope="module", params=MODELS)
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM("tiny-hybrid", context=256, sessions=2, **MODELS[request.param]) as loaded:
        yield loaded


def want(llm: LLM, prompt: list[int], label: list[int]) -> float:
    rows = log_softmax(llm.logits([*prompt, *label[:-1]]))[len(prompt) - 1 :]
    return float(sum(row[token] for row, token in zip(rows, label, strict=True)))


@pytest.mark.first_case
def test_labels_have_the_scores_of_whole_texts(llm: LLM, seed: int) -> None:
    random = np.random.default_rng(seed)
    chunk = llm.options.prefill_chunk
    for n_prompt in (1, 7, 66):
        prompt = random.integers(0, llm.info.vocab, n_prompt).tolist()
        beginnings = random.integers(0, llm.info.vocab, (3, 4)).tolist()
        # Common beginnings share rows, and thirty labels need several trees.
        labels = [
            beginnings[i % 3][: i % 5]
            + random.integers(0, llm.info.vocab, int(random.integers(1, min(chunk, 20)))).tolist()
            for i in range(30)
        ]
        labels = [label[: chunk + 1] for label in labels]
        choice = llm.choose(prompt, labels)
        found = [label.logprob for label in choice.labels]
        assert [list(label.ids) for label in choice.labels] == labels
        np.testing.assert_allclose(found, [want(llm, prompt, label) for label in labels], rtol=1e-6, atol=1e-5)
        assert choice.best.logprob == max(found)
        shares = np.exp(np.array(found) - max(found))
        np.testing.assert_allclose([label.probability for label in choice.labels], shares / shares.sum(), rtol=1e-9)


def test_nothing_of_a_label_stays(llm: LLM) -> None:
    prompt = "import os\n" * 40 + "def add(a, b):\n    return"
    text = llm.generate(prompt, max_tokens=8).text
    first = llm.choose(prompt, [" a + b", " a - b", " b"])
    assert llm.generate(prompt, max_tokens=8).text == text
    again = llm.choose(prompt, [" a + b", " a - b", " b"])
    assert [label.logprob for label in again.labels] == [label.logprob for label in first.labels]
    assert again.usage.completion_tokens == 0
    assert again.usage.prompt_tokens == first.usage.prompt_tokens > len(llm.tokenize(prompt))


def test_texts_and_ids_are_the_same_labels(llm: LLM) -> None:
    texts = ["import os", "import re", "x"]
    ids = [llm.model.tokenizer.encode(text, add_bos=False) for text in texts]
    by_text, by_ids = llm.choose("# a file\n", texts), llm.choose(llm.tokenize("# a file\n"), ids)
    assert by_text.labels == by_ids.labels
    assert [label.text for label in by_text.labels] == texts
    assert by_text.text in texts


def test_a_conversation_is_answered_with_a_label(llm: LLM) -> None:
    messages = [{"role": "user", "content": "write function add: adds two numbers"}]
    prompt = llm.tokenize(llm.render(messages, enable_thinking=False))
    choice = llm.choose(messages, ["def", "class"])
    assert [label.logprob for label in choice.labels] == [
        label.logprob for label in llm.choose(prompt, ["def", "class"]).labels
    ]


def test_a_template_that_always_thinks_thinks_nothing() -> None:
    opens = ChatTemplate("{# ends with </think> #}{{ messages[0].content }}<think>{{ '\\n' }}", where="a test")
    with LLM("tiny-hybrid", context=256) as llm:
        choice = llm.choose([{"role": "user", "content": "one"}], ["a", "b"], template=opens)
        closed = llm.choose(
            llm.tokenize("one<think>\n") + llm.model.tokenizer.encode("\n</think>\n\n", add_bos=False),
            ["a", "b"],
        )
    assert choice.labels == closed.labels


def test_the_last_place_of_the_context(llm: LLM) -> None:
    prompt = llm.tokenize("x = 1\n" * 200)[:256]
    assert len(llm.choose(prompt, [[5], [6]]).labels) == 2
    with pytest.raises(InvalidRequestError, match="label 1 has 2 tokens, expected 1 to 1"):
        llm.choose(prompt, [[5], [6, 7]])
    one, two = llm.choose(prompt[:255], [[5], [6, 7]]).labels
    assert two.logprob == pytest.approx(want(llm, prompt[:255], [6, 7]), rel=1e-6) and one.ids == (5,)


@pytest.mark.parametrize(
    ("prompt", "labels", "reason"),
    [
        ("", ["a"], "no tokens"),
        ("x", [], "0 labels"),
        ("x", ["a"] * 1025, "1025 labels"),
        ("x", ["a", ""], "label 1 has 0 tokens"),
        ("x", [[1] * 80], "label 0 has 80 tokens"),
        ("x", [[10**9]], "between 0 and"),
        ("x " * 4000, ["a"], "context"),
    ],
)
def test_what_is_refused(llm: LLM, prompt: str, labels: list, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        llm.choose(prompt, labels)


def test_common_beginnings_are_computed_once() -> None:
    ids = [np.array(label, np.int32) for label in ([1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6], [7], [1, 8, 9])]
    assert Labels(ids, 64).n_rows == 4  # 1, 2, 3 and 8
    assert Labels(ids, 3).n_rows == 3 + 2  # a second tree repeats the 1
