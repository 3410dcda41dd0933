"""Requests of real clients with their tools and two long documents, compressed by a real scorer: outside the documents,
the rendered prompt keeps every byte."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from lucebox import LLM, Sampling
from lucebox.chat import ChatTemplate
from lucebox.chat.conversation import Conversation
from lucebox.chat.conversation_to_request import ChatModel, Limits
from lucebox.compression.policy import CompressionRequest
from test_traffic import WITH_TOOLS, conversation_of, requests_of
from text_data import DATA

SCORER = DATA / "recall" / "recall-scorer.Q4_0.gguf"
RULES = "\nRule: be exact, and name the file." * 54  # makes a message long enough to be cut
WORDS = ("alpha", "beta", "return", "import", "value", "of", "the", "file", "in", "line", "is", "not", "and")


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny-hybrid", prefill_drafter=str(SCORER), draft="none", threads=1) as llm:
        yield llm


@pytest.fixture(scope="module", params=["own", "Qwen3.5-4B", "Qwen-Qwen3-0.6B"])
def model(llm: LLM, request: pytest.FixtureRequest) -> ChatModel:
    if request.param == "own":
        return llm.chat_model()
    return llm.chat_model(ChatTemplate.from_file(DATA / "templates" / f"{request.param}.jinja", llm.tokenizer))


def document(rng: random.Random) -> str:
    """Lines of words and numbers, with the template's own tokens among them."""
    words = [*WORDS, "<|im_end|>", "<tools>", "</tool_response>"]
    lines = (" ".join(rng.choices(words, k=rng.randint(3, 30))) + f" {rng.random():.6f}" for _ in range(30))
    return "\n".join(lines)


def long_conversation(client: str, documents: tuple[str, str]) -> Conversation:
    """The client's last request. It gets an earlier turn with a document, a document as the result of its tool, and a
    system message and a last user message that would be cut if their role did not protect them."""
    *_, last = requests_of(client)
    conversation = conversation_of(last["path"], last["body"])
    messages = conversation.messages
    last_user = max(i for i, message in enumerate(messages) if message["role"] == "user")
    assert messages[0]["role"] in ("system", "developer") and messages[-1]["role"] == "tool"
    messages[0]["content"] += RULES
    messages[last_user]["content"] += RULES
    messages[-1]["content"] = documents[1]
    turn: list[dict[str, Any]] = [
        {"role": "user", "content": documents[0]},
        {"role": "assistant", "content": "I read it."},
    ]
    messages[last_user:last_user] = turn
    return conversation


RATIOS = (0.02, 0.1, 0.2)


def fits_the_test(client: str) -> bool:
    """Whether the last request has instructions first, and the result of a tool last."""
    request = requests_of(client)[-1]
    first, *_, last = conversation_of(request["path"], request["body"]).messages
    return first["role"] != "user" and last["role"] == "tool"


CLIENTS = [client for client in WITH_TOOLS if fits_the_test(client)]


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("client", "seed", "ratio"),
    [
        pytest.param(client, seed, ratio, marks=[] if seed == i % 3 else pytest.mark.slow)  # 0.3 s each
        for i, client in enumerate(CLIENTS)
        for seed, ratio in enumerate(RATIOS)
    ],
)
def test_all_but_the_documents_is_intact(llm: LLM, model: ChatModel, client: str, seed: int, ratio: float) -> None:
    rng = random.Random(seed)
    documents = (document(rng), document(rng))
    conversation = long_conversation(client, documents)
    whole = model.prompt(conversation).text
    conversation.compression = CompressionRequest("always", ratio)
    (request,) = model.requests(conversation, Sampling(), Limits(1))
    rendered = llm.tokenizer.decode(request.ids, skip_special=False)

    before, rest = whole.split(documents[0])
    between, after = rest.split(documents[1])
    assert rendered.startswith(before) and rendered.endswith(after) and rendered.count(between) == 1
    assert request.compression is not None
    short = {one.content for one in request.compression.cut}
    assert len(short) == 2 and rendered in (f"{before}{a}{between}{b}{after}" for a in short for b in short)

    shown = before.split("<tools>\n")[1].split("\n</tools>")[0].splitlines()
    assert [json.loads(line) for line in shown] == [tool.for_template() for tool in conversation.tools]
    system, last_user = conversation.messages[0], [m for m in conversation.messages if m["role"] == "user"][-1]
    assert system["content"].strip() in before and last_user["content"].strip() in between
