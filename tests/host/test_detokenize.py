"""StreamDecoder: pieces joined equal one-shot decoding, and nothing given out is taken back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from lucebox.text import StreamDecoder, Tokenizer
from text_data import small_vocabulary, vocab_tokenizer

BYTES = Tokenizer.from_gguf(small_vocabulary(), "bytes")


def byte_ids(data: bytes) -> list[int]:
    from lucebox.text.byte_level import BYTE_TO_CHAR

    return [BYTES.id_of(BYTE_TO_CHAR[b]) or 0 for b in data]


def streamed(tokenizer: Tokenizer, ids: list[int], *, skip_special: bool) -> list[str]:
    decoder = StreamDecoder(tokenizer, skip_special=skip_special)
    return [*map(decoder.push, ids), decoder.finish()]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, BYTES.n_vocab - 1), max_size=40), st.booleans())
def test_any_bytes(ids: list[int], skip: bool) -> None:
    whole = BYTES.decode(ids, skip_special=skip)
    pieces = streamed(BYTES, ids, skip_special=skip)
    assert "".join(pieces) == whole
    for n in range(len(ids) + 1):
        assert whole.startswith("".join(pieces[:n]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 151_935), max_size=30), st.booleans())
def test_any_tokens_of_a_real_vocabulary(ids: list[int], skip: bool) -> None:
    tokenizer = vocab_tokenizer("qwen35")
    assert "".join(streamed(tokenizer, ids, skip_special=skip)) == tokenizer.decode(ids, skip_special=skip)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_text_comes_back(text: str) -> None:
    tokenizer = vocab_tokenizer("qwen35")
    ids = tokenizer.encode(text, special=False)
    pieces = streamed(tokenizer, ids, skip_special=False)
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(pieces)


def test_a_character_comes_with_its_last_byte() -> None:
    decoder = StreamDecoder(BYTES)
    assert [decoder.push(i) for i in byte_ids("é🙂".encode())] == ["", "é", "", "", "", "🙂"]
    assert decoder.finish() == ""


def test_bytes_that_can_become_nothing_are_replaced_at_once() -> None:
    decoder = StreamDecoder(BYTES)
    assert [decoder.push(i) for i in byte_ids(b"\xff\xe2\x82a")] == ["\ufffd", "", "", "\ufffda"]


def test_a_cut_character_is_replaced_at_the_end_and_the_decoder_starts_afresh() -> None:
    decoder = StreamDecoder(BYTES)
    assert "".join(decoder.push(i) for i in byte_ids(b"a\xf0\x9f")) == "a"
    assert decoder.finish() == "\ufffd"
    assert "".join(decoder.push(i) for i in byte_ids(b"b")) + decoder.finish() == "b"
