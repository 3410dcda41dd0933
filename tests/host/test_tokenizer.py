"""Tokenizer: ids against llama.cpp's published cases, token types, special tokens, and refusal of bad vocabularies."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from lucebox.errors import FormatError, InvalidRequestError, UnsupportedError
from lucebox.text import Tokenizer
from lucebox.text.byte_fallback import byte_pieces
from lucebox.text.length import tokens_beyond
from lucebox.text.spellings import MARK
from text_data import DATA, small_vocabulary, tiny_tokenizer, vocab_metadata, vocab_tokenizer

VOCABULARIES = ["gpt-2", "qwen35", "starcoder"]


def cases(name: str) -> list[tuple[str, list[int]]]:
    base = DATA / "vocab" / f"ggml-vocab-{name}.gguf"
    texts = Path(f"{base}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    ids = [[int(i) for i in line.split()] for line in Path(f"{base}.out").read_text().split("\n")]
    # Both files end in a newline, which is not a case.
    assert len(texts) == len(ids) >= 47
    return list(zip(texts, ids, strict=True))


@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_equal_the_published_cases(name: str) -> None:
    tokenizer = vocab_tokenizer(name)
    for text, ids in cases(name):
        assert tokenizer.decode(ids, skip_special=False) == text
        # The cases are llama.cpp's, which does not normalise; Qwen's makers do.
        if name != "qwen35" or unicodedata.is_normalized("NFC", text):
            assert tokenizer.encode(text, special=False) == ids, text


def test_qwen_normalises_to_nfc() -> None:
    qwen, other = vocab_tokenizer("qwen35"), vocab_tokenizer("gpt-2")
    for text in ("Cafe\u0301", "A\u030angstrom \u1100\u1161", "<|im_end|>e\u0301<|im_start|>"):
        composed = unicodedata.normalize("NFC", text)
        assert qwen.encode(text) == qwen.encode(composed) and qwen.decode(qwen.encode(text)) == qwen.decode(
            qwen.encode(composed)
        )
        assert other.encode(text) != other.encode(composed)
    marked = f"e\u0301 <{MARK}|im_end|> e\u0301<|im_end|>"
    plain, end = qwen.encode("\xe9 <|im_end|> \xe9", special=False), qwen.id_of("<|im_end|>")
    assert qwen.encode_marked(marked) == [*plain, end]


SPLIT_CASES = {
    # (pre-tokenizer, text) -> words: the rules that tell the splitters apart.
    ("gpt-2", "I'Ll 1234  x"): ["I", "'", "Ll", " 1234", " ", " x"],
    ("smollm", "a 1234"): ["a", " ", "1", "2", "3", "4"],
    ("qwen2", "I'Ll 1234\n\n x"): ["I", "'Ll", " ", "1", "2", "3", "4", "\n\n", " x"],
    ("llama-bpe", "12345 (x"): ["123", "45", " (", "x"],
    ("qwen2", "नमस्ते"): ["नमस", "्त", "े"],
    ("qwen35", "नमस्ते"): ["नमस्ते"],
    ("tekken", "I'Ll camelCase 12 a/b//\n"): ["I", "'Ll", " camel", "Case", " ", "1", "2", " a", "/b", "//\n"],
    ("dbrx", "12345 (x"): ["123", "45", " (", "x"],
}


@pytest.mark.parametrize(("pre", "text"), SPLIT_CASES)
def test_words(pre: str, text: str) -> None:
    from lucebox.text.byte_level import pieces_to_bytes
    from lucebox.text.pre_tokenizers import byte_level_splitter

    words = byte_level_splitter(pre, "here").pre_tokenize_str(text)
    assert [word.decode() for word in pieces_to_bytes([word for word, _ in words])] == SPLIT_CASES[pre, text]


def test_llama_takes_a_whole_word_without_merges() -> None:
    metadata = small_vocabulary() | {"tokenizer.ggml.merges": [], "tokenizer.ggml.add_bos_token": False}
    whole = small_vocabulary()["tokenizer.ggml.tokens"].index("hello")  # type: ignore[attr-defined]
    assert len(Tokenizer.from_gguf(metadata, "x").encode("hello")) == 5
    llama = Tokenizer.from_gguf(metadata | {"tokenizer.ggml.pre": "llama3"}, "x")
    assert llama.encode("hello") == [whole]


def test_control_tokens_only_when_asked() -> None:
    tokenizer = tiny_tokenizer()
    end, think = tokenizer.id_of("<|im_end|>"), tokenizer.id_of("<think>")
    assert tokenizer.encode("<|im_end|><think>") == [end, think]
    plain = tokenizer.encode("<|im_end|><think>", special=False)
    assert end not in plain and plain[-1] == think
    assert tokenizer.decode(plain) == "<|im_end|><think>"
    assert tokenizer.decode([end, think]) == "<think>"
    assert tokenizer.decode([end, think], skip_special=False) == "<|im_end|><think>"
    assert tokenizer.is_special(end) and not tokenizer.is_special(think)


def test_token_types() -> None:
    tokenizer = Tokenizer.from_gguf(small_vocabulary(), "x")
    bytes_of = {t: tokenizer.token_bytes(tokenizer.id_of(t) or -1) for t in ("Ġhello", "<0x0A>", "<pad0>", "<unk>")}
    assert bytes_of == {"Ġhello": b" hello", "<0x0A>": b"\n", "<pad0>": b"", "<unk>": b"<unk>"}
    assert tokenizer.n_vocab == len(small_vocabulary()["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    assert tokenizer.token(tokenizer.id_of("Ġhello") or -1) == "Ġhello"
    with pytest.raises(InvalidRequestError, match="out of range"):
        tokenizer.decode([-1])
    # Rows that pad the model's embedding beyond the vocabulary have no text.
    assert tokenizer.decode([tokenizer.n_vocab, tokenizer.id_of("Ġhello") or -1, 1 << 40]) == " hello"


@pytest.mark.parametrize(
    ("pre", "flag", "prepended"),
    [("gpt-2", None, False), ("gpt-2", True, True), ("llama-bpe", None, True), ("llama-bpe", False, False)],
)
def test_begin_token(pre: str, flag: bool | None, prepended: bool) -> None:
    metadata = small_vocabulary() | {"tokenizer.ggml.pre": pre}
    if flag is not None:
        metadata["tokenizer.ggml.add_bos_token"] = flag
    tokenizer = Tokenizer.from_gguf(metadata, "x")
    assert (tokenizer.encode("a")[0] == tokenizer.bos_id) is prepended
    assert tokenizer.encode("a", add_bos=True)[0] == tokenizer.bos_id
    assert tokenizer.encode("a", add_bos=False) == [tokenizer.id_of("a")]


def test_end_tokens_are_the_named_one_and_the_well_known_ones() -> None:
    tokenizer = tiny_tokenizer()
    assert tokenizer.eos_ids == (tokenizer.id_of("<|im_end|>"), tokenizer.id_of("<|endoftext|>"))


def test_text_the_vocabulary_cannot_write_is_refused() -> None:
    metadata = small_vocabulary()
    metadata["tokenizer.ggml.tokens"][4] = "instead-of-byte-4"  # type: ignore[index]
    tokenizer = Tokenizer.from_gguf(metadata, "x")
    with pytest.raises(InvalidRequestError, match=r"U\+0004 at character 2"):
        tokenizer.encode("ab\x04")
    with pytest.raises(InvalidRequestError, match="lone surrogate"):
        tokenizer.encode("ab\ud800")


BROKEN = [
    ("model", "llama", UnsupportedError, "gpt2"),
    ("model", None, FormatError, "model is missing"),
    ("pre", "klingon", UnsupportedError, "qwen35"),
    ("pre", 3, FormatError, "pre is int"),
    ("tokens", None, FormatError, "tokens is missing"),
    ("tokens", [], FormatError, "0 entries"),
    ("tokens", "abc", FormatError, "expected an array"),
    ("tokens", {7: 8}, FormatError, r"tokens\[7\] is int"),
    ("tokens", {7: ""}, FormatError, r"tokens\[7\] is empty"),
    ("tokens", {7: "\ud800"}, FormatError, r"tokens\[7\] is not valid UTF-8"),
    ("tokens", {100: "a"}, FormatError, r"tokens\[100\] is 'a', which is already token 97"),
    ("tokens", {65: "not-the-byte"}, FormatError, "no token for byte 0x41"),
    ("token_type", [1], FormatError, "1 entries for"),
    ("token_type", {7: 9}, FormatError, r"token_type\[7\] is 9"),
    ("token_type", {7: 6}, FormatError, "marks"),
    ("merges", None, FormatError, "merges is missing"),
    ("merges", ["he"], FormatError, r"merges\[0\]"),
    ("merges", ["h e l"], FormatError, r"merges\[0\]"),
    ("merges", ["h zz"], FormatError, "'zz' is not a token"),
    ("merges", ["z z"], FormatError, "'zz' is not a token"),
    ("merges", ["h e", "h e"], FormatError, r"merges\[1\] repeats"),
    ("eos_token_id", 99999, FormatError, "99999"),
    ("eos_token_id", -2, FormatError, "-2"),
    ("eos_token_id", "2", FormatError, "eos_token_id is str"),
    ("add_bos_token", 1, FormatError, "expected a bool"),
]


@pytest.mark.parametrize(("key", "value", "error", "message"), BROKEN)
def test_broken_vocabulary(key: str, value: object, error: type[Exception], message: str) -> None:
    metadata = small_vocabulary()
    name = "tokenizer.ggml." + key
    if value is None:
        del metadata[name]
    elif isinstance(value, dict):
        for i, item in value.items():
            metadata[name][i] = item  # type: ignore[index]
    else:
        metadata[name] = value
    with pytest.raises(error, match=message) as caught:
        Tokenizer.from_gguf(metadata, "bad.gguf")
    assert "bad.gguf" in str(caught.value)


def tokenizer_json() -> dict[str, object]:
    metadata = small_vocabulary()
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]  # type: ignore[assignment]
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": 261, "content": "<|end|>", "special": True, "normalized": False,
             "single_word": False, "lstrip": False, "rstrip": False},
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens[:261])},
                  "merges": metadata["tokenizer.ggml.merges"]},
    }  # fmt: skip


def write(folder: Path, root: object) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(root if isinstance(root, str) else json.dumps(root))
    return path


def fallback_vocabulary() -> dict[str, object]:
    """A vocabulary as Gemma's: pieces of text, a piece per byte, and a token of every other type."""
    pieces = ["\u2581", "a", "b", "é", "\n", "ab", "\u2581ab", "\n\n"]
    other = ["<bos>", "<turn|>", "<|turn>"]
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": [*other, *byte_pieces(), *pieces],
        "tokenizer.ggml.token_type": [3, 3, 3, *[6] * 256, *[1] * len(pieces)],
        "tokenizer.ggml.merges": ["a b", "\u2581 ab", "\n \n"],
        "tokenizer.ggml.bos_token_id": 0,
    }


def fallback_json(folder: Path) -> Path:
    metadata = fallback_vocabulary()
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]  # type: ignore[assignment]
    added = [{"id": i, "content": tokens[i], "special": True, "normalized": False, "single_word": False,
              "lstrip": False, "rstrip": False} for i in range(3)]  # fmt: skip
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<bos>", "add_bos_token": true}')
    return write(folder, {
        "version": "1.0", "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                          "invert": False},
        "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "byte_fallback": True, "fuse_unk": True, "unk_token": None,
                  "vocab": {token: i for i, token in enumerate(tokens)}, "merges": metadata["tokenizer.ggml.merges"]},
    })  # fmt: skip


def test_byte_fallback(tmp_path: Path) -> None:
    """Both formats: spaces are pieces, other characters are bytes, and decoding gives the text again."""
    tokenizers = Tokenizer.from_gguf(fallback_vocabulary(), "x"), Tokenizer.from_file(fallback_json(tmp_path))
    for tokenizer in tokenizers:
        names = [tokenizer.token(i) for i in tokenizer.encode(" ab  é\n\n€<turn|>")]
        assert names == ["<bos>", "\u2581ab", "\u2581", "\u2581", "é", "\n\n", "<0xE2>", "<0x82>", "<0xAC>", "<turn|>"]
        for text in (" ab  é\n\n€", "", "  ", "<0x41>", "x\u2581y"):
            shown = tokenizer.decode(tokenizer.encode(text))
            assert shown == text.replace("\u2581", " ")  # the alphabet's only loss
        assert tokenizer.is_special(1) and 1 in tokenizer.eos_ids
        assert tokenizer.encode("<|turn>", special=False, add_bos=False) != [2]


def test_byte_fallback_needs_all_bytes(tmp_path: Path) -> None:
    metadata = fallback_vocabulary()
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]  # type: ignore[assignment]
    tokens[3 + 0x41] = "A"
    metadata["tokenizer.ggml.token_type"][3 + 0x41] = 1  # type: ignore[index]
    with pytest.raises(FormatError, match="no token <0x41>, which byte fallback needs"):
        Tokenizer.from_gguf(metadata, "x")


def test_dropout_is_off(tmp_path: Path) -> None:
    """Files of training runs may leave it on; ids would then be random."""
    root = tokenizer_json()
    root["model"]["dropout"] = 0.9  # type: ignore[index]
    tokenizer = Tokenizer.from_file(write(tmp_path, root))
    text = " hello" * 40
    assert tokenizer.encode(text) == [tokenizer.id_of("Ġhello")] * 40
    assert tokenizer.encode(text, special=False) == tokenizer.encode(text)


def test_special_tokens_map(tmp_path: Path) -> None:
    """It names the tokens that tokenizer_config.json does not."""
    path = write(tmp_path, tokenizer_json())
    older = {"eos_token": "a", "pad_token": {"content": "b"}, "unk_token": "c"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(older))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|end|>", "unk_token": null}')
    tokenizer = Tokenizer.from_file(path)
    assert tokenizer.eos_ids == (261,)
    assert (tokenizer.pad_id, tokenizer.unk_id) == (tokenizer.id_of("b"), tokenizer.id_of("c"))


def test_tokenizer_json(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": {"content": "<|end|>"}, "eos_token": "<|end|>"}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [261, 3]}')
    tokenizer = Tokenizer.from_file(write(tmp_path, tokenizer_json()))
    assert (tokenizer.eos_ids, tokenizer.bos_id, tokenizer.add_bos) == ((261, 3), 261, False)
    ids = tokenizer.encode(" hello<|end|>")
    assert ids == [260, 261]
    assert tokenizer.decode(ids, skip_special=False) == " hello<|end|>"
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")


JSON_EDITS = {
    "model.vocab is missing": lambda r: r["model"].pop("vocab"),
    "model.merges is missing": lambda r: r["model"].pop("merges"),
    "WordPiece": lambda r: r["model"].update(type="WordPiece"),
    "byte_fallback": lambda r: r["model"].update(byte_fallback=True),
    "no ByteLevel": lambda r: r.update(pre_tokenizer=None),
    "gives id 1 to": lambda r: r["model"]["vocab"].update(he=1),
    "expected an id below": lambda r: r["model"]["vocab"].update(he=2**40),
    r"model.merges\[1\] needs 'zz'": lambda r: r["model"].update(merges=["h e", "z z"]),
    r"model.merges\[0\] is": lambda r: r["model"].update(merges=[["h"]]),
    r"added_tokens\[0\].content": lambda r: r["added_tokens"][0].update(content=""),
    r"added_tokens\[0\].id": lambda r: r["added_tokens"][0].update(id="x"),
    r"added_tokens\[0\] gives id 3": lambda r: r["added_tokens"][0].update(id=3),
    "not a tokenizer file": lambda r: r.update(normalizer={"type": "Nothing"}),
    "no token for byte 0x41": lambda r: r["model"]["vocab"].pop("A"),
}


@pytest.mark.parametrize("message", JSON_EDITS)
def test_broken_tokenizer_json(tmp_path: Path, message: str) -> None:
    root = tokenizer_json()
    JSON_EDITS[message](root)
    with pytest.raises((FormatError, UnsupportedError), match=message) as caught:
        Tokenizer.from_file(write(tmp_path, root))
    assert "tokenizer.json" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "[" * 100_000, '{"model": {"vocab": {"a": 1, "a": 2}}}', '{"model": 1e999}']
)
def test_malformed_tokenizer_json(tmp_path: Path, text: str) -> None:
    with pytest.raises(FormatError, match=r"tokenizer\.json"):
        Tokenizer.from_file(write(tmp_path, text))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        Tokenizer.from_file(tmp_path / "tokenizer.json")


def test_published_vocabulary_has_its_end_token() -> None:
    assert vocab_metadata("gpt-2")["tokenizer.ggml.eos_token_id"] == 50256
    assert vocab_tokenizer("gpt-2").eos_ids == (50256,)


# --- length and memory


@pytest.mark.parametrize("text", ["a" * 5000, "<|im_end|>" * 500, "word " * 1000, " " * 5000, "é" * 3000, "\n" * 5000])
def test_a_lower_bound_of_the_length(text: str) -> None:
    """No text that fits is refused, and one that is far too long is."""
    tokenizer = tiny_tokenizer()
    n = len(tokenizer.encode(text, add_bos=False))
    for limit in (n, n + 1, 10 * n):
        assert tokens_beyond(tokenizer, [text], limit) is None
    beyond = tokens_beyond(tokenizer, [text] * 100, max(1, n // 10))
    assert beyond is not None and n // 10 < beyond <= 100 * n


def test_the_length_of_many_short_texts() -> None:
    tokenizer = tiny_tokenizer()
    texts = ["word word word word "] * 20_000
    n = sum(len(tokenizer.encode(text, add_bos=False)) for text in texts)
    assert tokens_beyond(tokenizer, texts, n) is None
    assert tokens_beyond(tokenizer, [" ".join(texts)], n // 100) is not None


LIMITED = """
import resource, sys
from pathlib import Path
from lucebox.errors import OutOfMemoryError
from lucebox.text import Tokenizer
from lucebox.text.length import tokens_beyond
tokenizer = Tokenizer.from_file(sys.argv[1])
text = "<|im_end|>" * 200_000
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (300 << 20),) * 2)
try:
    tokenizer.encode(text, special=False)
except OutOfMemoryError as error:
    print(error)
print(len(tokenizer.encode(text[:20_000], special=False)) > 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit needs /proc")
def test_a_tight_limit_on_memory_is_an_error() -> None:
    """The encoder itself would abort the process."""
    command = [sys.executable, "-c", LIMITED, str(DATA / "tiny-hybrid-hf" / "tokenizer.json")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr[-500:]
    assert "may not use the memory to tokenize a text of 2000000 characters" in ran.stdout
    assert ran.stdout.endswith("True\n")
