"""Log probabilities belong to the tokens of the answer's text, in every stream of tokens and every form of answer."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import httpx
import pytest
from answers import parser
from lucebox.generation.events import TextDelta
from lucebox.generation.parsed_text import ParsedText
from lucebox.generation.request import Item
from lucebox.results import TokenLogprob
from running import ASK, Running


def content_tokens(texts: Sequence[str], prompt: str = "", stops: Sequence[str] = ()) -> tuple[list[int], str]:
    """The tokens with a log probability, and the text; token i has texts[i], and an end token follows."""
    items: list[Item] = []
    output = ParsedText(parser("hermes_json", prompt=prompt), stops, items.append)
    for i, text in enumerate(texts):
        output.logprob(TokenLogprob(i, -1.0, ()))
        if output.push(text) is not None:
            break
    else:
        output.logprob(TokenLogprob(99, -1.0, ()))
        output.flush("")
    found = [item.id for item in items if isinstance(item, TokenLogprob)]
    return found, "".join(item.text for item in items if isinstance(item, TextDelta))


CALL = ["<tool_call>", "\n", '{"name": "nothing", ', '"arguments": {}}', "\n</tool_call>"]


@pytest.mark.parametrize(
    ("texts", "prompt", "expected"),
    [
        (["He", "llo ", "wor", "ld"], "", [0, 1, 2, 3]),
        (["foo", "</", "think", ">", "\n\n", "Hi", " you"], "<think>\n", [5, 6]),
        (["<think>", "o", "</think>", "\n\no", "o"], "", [3, 4]),
        (["a", "", "é", "b"], "", [0, 1, 2, 3]),  # two tokens are one character
        (["x<", "y"], "", [0, 1]),
        (["Sure", *CALL], "", [0]),
        (CALL, "", []),
        (["a <", "tool_call", " is", " a", " tag"], "", [0, 1, 2, 3, 4]),
    ],
)
def test_tokens_of_the_text(texts: list[str], prompt: str, expected: list[int]) -> None:
    assert content_tokens(texts, prompt)[0] == expected


def test_text_and_tokens_agree_in_an_answer(server: Running) -> None:
    ask = {"messages": ASK, "max_tokens": 12, "logprobs": True, "seed": 3}
    with server.client() as client:
        choice = client.post("/v1/chat/completions", json=ask).json()["choices"][0]
    data = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
    assert data.decode("utf-8", "replace").strip() == choice["message"]["content"].strip()


@pytest.mark.parametrize("echo", [False, True])
def test_offsets_of_a_completion(server: Running, echo: bool) -> None:
    ask = {"prompt": "Grüße, 世界", "max_tokens": 8, "logprobs": 1, "echo": echo, "seed": 1}
    with server.client() as client:
        choice = client.post("/v1/completions", json=ask).json()["choices"][0]
        streamed = client.post("/v1/completions", json=ask | {"stream": True})
    starts, tokens = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
    assert len(starts) == len(tokens) and starts[0] == 0 and starts == sorted(starts)
    for start, token in zip(starts, tokens, strict=True):
        assert "\ufffd" in token or choice["text"][start:].startswith(token)
    assert list(itertools.chain(*streamed_offsets(streamed))) == starts


def streamed_offsets(streamed: httpx.Response) -> list[list[int]]:
    chunks = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: {")]
    return [json.loads(chunk)["choices"][0]["logprobs"]["text_offset"] for chunk in chunks]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_counts_once(server: Running, stream: bool) -> None:
    """n answers share their prompt."""

    def usage(n: int) -> tuple[int, int]:
        ask = {"messages": ASK, "max_tokens": 3, "n": n, "extra_body": {"ignore_eos": True}, "model": "tiny-hybrid"}
        if not stream:
            found = server.openai().chat.completions.create(**ask).usage
        else:
            chunks = server.openai().chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
            found = list(chunks)[-1].usage
        assert found is not None
        return found.prompt_tokens, found.completion_tokens

    (one, three), (both, six) = usage(1), usage(2)
    assert (both, three, six) == (one, 3, 6)


def test_prompts_of_a_completion_count_each(server: Running) -> None:
    with server.client() as client:
        single = [client.post("/v1/completions", json={"prompt": p, "max_tokens": 1}).json() for p in ("a", "b c d")]
        both = client.post("/v1/completions", json={"prompt": ["a", "b c d"], "n": 2, "max_tokens": 1}).json()
    assert both["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in single)
