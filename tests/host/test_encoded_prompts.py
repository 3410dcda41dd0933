"""Prompts that begin like earlier ones: they have the ids of the whole text, and only the rest is encoded."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from lucebox.errors import InvalidRequestError
from lucebox.text import Tokenizer, encoded_prompts
from lucebox.text.byte_level import BYTE_TO_CHAR
from lucebox.text.encoded_prompts import EncodedPrompts
from lucebox.text.spellings import MARK, Spellings
from text_data import tiny_tokenizer, vocab_tokenizer

# <|end|> is no separator, because the next one contains it. The one that follows overlaps separators.
ODD = ("<|end|>", "<|end|>x", "<|sep|>", "|><|", "   ")


def odd_tokenizer(folder: Path, **flags: bool) -> Tokenizer:
    """Bytes, and added tokens that contain or overlap each other. flags: of the last one."""
    tokens = {token: i for i, token in enumerate([*BYTE_TO_CHAR, "Ġa", *ODD])}
    added = [
        {"id": tokens[content], "content": content, "special": content.startswith("<"), "normalized": False,
         "single_word": False, "lstrip": False, "rstrip": False} | (flags if content == ODD[-1] else {})
        for content in ODD
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    vocabulary = {token: i for token, i in tokens.items() if token not in ODD}
    root = {
        "version": "1.0", "added_tokens": added, "normalizer": {"type": "NFC"}, "post_processor": None,
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": ["Ġ a"]},
    }  # fmt: skip
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(root))
    return Tokenizer.from_file(path)


CASES: dict[str, Callable[[Path], Tokenizer]] = {
    "qwen35": lambda _: vocab_tokenizer("qwen35"),
    "tiny-hybrid": lambda _: tiny_tokenizer(),
    "starcoder": lambda _: vocab_tokenizer("starcoder"),
    "odd": odd_tokenizer,
}


def test_separators(tmp_path: Path) -> None:
    tiny = tiny_tokenizer()
    assert set(tiny.separators(range(tiny.n_vocab)).values()) == tiny.template_tokens
    tokenizer = odd_tokenizer(tmp_path)
    found = tokenizer.separators(range(tokenizer.n_vocab))
    assert found == {tokenizer.id_of(token): token for token in ("<|end|>x", "<|sep|>")}
    for flag in ("lstrip", "rstrip", "single_word"):
        other = odd_tokenizer(tmp_path, **{flag: True})
        assert other.separators(range(other.n_vocab)) == {}


@pytest.mark.parametrize("name", CASES)
def test_ids_are_those_of_the_whole_text(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversations that grow, are edited, cut and forked, of pieces that meet in every way."""
    monkeypatch.setattr(encoded_prompts, "MIN_CHARS", 0)
    tokenizer = CASES[name](tmp_path)
    spell = Spellings(tokenizer.template_tokens).marked
    tokens = sorted(tokenizer.template_tokens)
    rng = random.Random()
    others = [" ", "  ", "\n", "a", " a", "x", "é", "e\u0301", "\u0301", MARK * 2, "<|"]
    for _ in range(60):
        prompts = EncodedPrompts(tokenizer)
        pieces = [*rng.choices(tokens, k=3), spell(rng.choice(tokens)), *rng.choices(others, k=3)]  # which meet often
        text: list[str] = []
        for _ in range(8):
            text = text[: rng.randint(len(text) // 2, len(text))] + rng.choices(pieces, k=rng.randint(0, 8))
            if text and rng.random() < 0.2:
                text[rng.randrange(len(text))] = rng.choice(pieces)
            whole = "".join(text)
            assert prompts.ids(whole).tolist() == tokenizer.encode_marked(whole), whole


def conversation(n_turns: int) -> str:
    turns = (
        f"<|im_start|>user\nquestion {i} of {'many ' * 50}<|im_end|>\n<|im_start|>assistant\n" for i in range(n_turns)
    )
    return "".join(turns)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    original = Tokenizer.encode_marked

    def encode_marked(self: Tokenizer, text: str) -> list[int]:
        texts.append(text)
        return original(self, text)

    monkeypatch.setattr(Tokenizer, "encode_marked", encode_marked)
    return texts


def test_a_turn_encodes_its_own_text(encoded: list[str]) -> None:
    prompts = EncodedPrompts(tiny_tokenizer())
    for n in (40, 41, 42, 41, 60):
        prompts.ids(conversation(n))
    lengths = [len(text) for text in encoded]
    assert lengths[0] == len(conversation(40))
    assert all(0 < length < len(conversation(2)) for length in lengths[1:4])
    assert len(conversation(18)) < lengths[4] < len(conversation(20)), "42 turns are replaced by 41"


def test_senders_share_nothing(encoded: list[str]) -> None:
    prompts = EncodedPrompts(tiny_tokenizer())
    for sender in ("a", "b", "a"):
        prompts.ids(conversation(40), sender)
    assert [len(text) > 1000 for text in encoded] == [True, True, False]


def test_memory_is_bounded(encoded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded_prompts, "MAX_CHARS", 3 * len(conversation(40)) + 100)
    prompts = EncodedPrompts(tiny_tokenizer())
    for first in "abcdab":
        prompts.ids(first + conversation(40))
    assert all(len(text) > 1000 for text in encoded), "of four conversations in turn the oldest is forgotten"
    prompts.ids("a" + conversation(40))
    assert len(encoded[-1]) < 1000


def test_an_error_has_its_place_in_the_whole_text() -> None:
    prompts = EncodedPrompts(tiny_tokenizer())
    text = conversation(40)
    prompts.ids(text)
    with pytest.raises(InvalidRequestError, match=f"U\\+D800\\) at character {len(text)}"):
        prompts.ids(text + "\ud800")
