"""Reads and validates the vocabulary of a GGUF file. Defines the meaning of the metadata keys; does not encode.

The file is untrusted. A Vocabulary has unique tokens, known token types, and merges whose pieces are tokens, so the
tokenizer built from it checks nothing again.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NoReturn

from lucebox.errors import FormatError, UnsupportedError
from lucebox.text.byte_fallback import check_bytes
from lucebox.text.byte_level import BYTE_TO_CHAR

__all__ = ["MAX_TOKENS", "TokenType", "Vocabulary", "all_end_ids", "missing_bytes"]

# The largest published vocabularies have about 2^18 entries.
MAX_TOKENS = 1 << 22

_KEY = "tokenizer.ggml."
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
# Bytes of ordinary text. Real vocabularies lack some of the other bytes (SmolLM2: 0x04, ...).
_ESSENTIAL_BYTES = (0x09, 0x0A, *range(0x20, 0x7F))
# A model may have several end-of-generation tokens, and its files often name only one of them. Tokens with these texts
# end an answer in every model that has them, whatever type the file gives them, because they never occur as ordinary
# text.
_END_TEXTS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "<|return|>", "<|call|>",
    "<end_of_turn>", "<end_of_utterance>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
    # Tokens after which a fill-in-the-middle code model continues with padding, another file or another repository.
    "<|fim_pad|>", "<|fim_repo|>", "<|repo_name|>", "<|file_sep|>", "<fim-pad>", "<fim_pad>", "<fim-repo>",
)  # fmt: skip
# These may also be ordinary text, so only control tokens count.
_END_CONTROLS = (
    "</s>", "<eos>", "<turn|>", "<|tool_response>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<PAD>", "[PAD]", "<REPO>",
    "<reponame>",
)  # fmt: skip
# GGUF keys of tokens that end an answer.
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id", "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id")


_NO_TOKEN = (-1, (1 << 32) - 1)  # how files write that there is no such token


class TokenType(IntEnum):
    """GGUF's tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_TYPES: dict[object, TokenType] = {kind.value: kind for kind in TokenType}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """tokens[i] and types[i] belong to id i, and ids[tokens[i]] is i; merges are in rank order."""

    tokens: list[str]
    ids: dict[str, int]
    types: list[TokenType]
    merges: list[tuple[str, str]]
    has_fallback: bool
    """Whether the tokens are written in the alphabet of byte_fallback.py, else of byte_level.py."""
    pre: str
    bos_id: int | None
    pad_id: int | None
    unk_id: int | None
    end_ids: tuple[int, ...]
    add_bos: bool
    appended: tuple[int, ...]
    """Tokens that an embedding model expects after every text."""

    @staticmethod
    def from_gguf(metadata: Mapping[str, object], where: str) -> Vocabulary:
        """Read and check the `tokenizer.ggml.*` keys.

        Raises:
            FormatError: a key is missing, of the wrong kind, or inconsistent.
            UnsupportedError: the vocabulary is neither byte-level BPE nor BPE with byte fallback.
        """
        return _Reader(metadata, where).read()


def all_end_ids(
    named: Sequence[int | None], ids: Mapping[str, int], is_control: Callable[[int], bool]
) -> tuple[int, ...]:
    """The tokens that end an answer: those that the file names, and those with a known text."""
    found = [i for i in named if i is not None]
    found += [ids[text] for text in _END_TEXTS if text in ids]
    found += [ids[text] for text in _END_CONTROLS if text in ids and is_control(ids[text])]
    if "<|return|>" in ids and "<|call|>" in ids:  # harmony, where <|end|> ends a message of several in an answer
        found = [i for i in found if i != ids.get("<|end|>")]
    return tuple(dict.fromkeys(found))


def missing_bytes(pieces: Mapping[str, int], where: str) -> frozenset[int]:
    """Bytes that no single token represents; text with such a byte cannot be encoded.

    Raises:
        FormatError: a byte of ordinary text is missing.
    """
    missing = frozenset(byte for byte in range(256) if BYTE_TO_CHAR[byte] not in pieces)
    for byte in _ESSENTIAL_BYTES:
        if byte in missing:
            raise FormatError(
                f"{where}: the vocabulary has no token for byte 0x{byte:02X}, {BYTE_TO_CHAR[byte]!r} in byte-level form"
            )
    return missing


class _Reader:
    """Reads typed values from one file's metadata; every error names the file and the key."""

    def __init__(self, metadata: Mapping[str, object], where: str) -> None:
        self.metadata = metadata
        self.where = where

    def read(self) -> Vocabulary:
        model = self.string("model")
        if model not in ("gpt2", "gemma4"):
            raise UnsupportedError(
                f"{self.where}: {_KEY}model is {model!r}; supported are 'gpt2' (byte-level BPE), found in Llama 3, "
                "Qwen, SmolLM2 and similar models, and 'gemma4'"
            )
        has_fallback = model == "gemma4"
        ids = self.ids()
        tokens = list(ids)
        types = self.types(tokens)
        if has_fallback:
            check_bytes(ids, self.where)
        pre = "" if has_fallback else self.string("pre")  # Gemma 4 does not split text
        bos_id = self.token_id("bos_token_id", len(tokens))
        # Files of Llama 3 omit the key although the models expect BOS. For every other pre-tokenizer, absent means no.
        expects_bos = has_fallback or pre in ("llama-bpe", "llama3", "llama-v3")
        add_bos = self.flag("add_bos_token", default=expects_bos) and bos_id is not None
        ends = [self.token_id(key, len(tokens)) for key in _END_KEYS]
        ends += self.token_ids("eos_token_ids", len(tokens))
        return Vocabulary(
            tokens=tokens,
            ids=ids,
            types=types,
            merges=self.merges(ids),
            has_fallback=has_fallback,
            pre=pre,
            bos_id=bos_id,
            pad_id=self.optional_token_id("padding_token_id", len(tokens)),
            unk_id=self.optional_token_id("unknown_token_id", len(tokens)),
            end_ids=all_end_ids(ends, ids, lambda i: types[i] is TokenType.CONTROL),
            add_bos=add_bos,
            appended=(ends[0],) if self.flag("add_eos_token", default=False) and ends[0] is not None else (),
        )

    # Checks of whole lists in C come first: vocabularies have up to 2^18 entries. Loops find the entry at fault.

    def ids(self) -> dict[str, int]:
        tokens = self.texts("tokens")
        if not 0 < len(tokens) <= MAX_TOKENS:
            self.fail("tokens", f"has {len(tokens)} entries, expected 1 to {MAX_TOKENS}")
        ids = dict(zip(tokens, range(len(tokens)), strict=True))
        if len(ids) == len(tokens) and "" not in ids:
            return ids
        first: dict[str, int] = {}
        for i, token in enumerate(tokens):
            if not token:
                self.fail(f"tokens[{i}]", "is empty")
            if first.setdefault(token, i) != i:
                self.fail(f"tokens[{i}]", f"is {_shown(token)}, which is already token {first[token]}")
        return first

    def types(self, tokens: list[str]) -> list[TokenType]:
        if _KEY + "token_type" not in self.metadata:
            return [TokenType.NORMAL] * len(tokens)
        items = self.array("token_type")
        if len(items) != len(tokens):
            self.fail("token_type", f"has {len(items)} entries for {len(tokens)} tokens")
        is_plain = set(map(type, items)) == {int}
        values = items if is_plain else [self.integer(f"token_type[{i}]", item) for i, item in enumerate(items)]
        if not set(values) <= _TYPES.keys():
            i, value = next((i, value) for i, value in enumerate(values) if value not in _TYPES)
            self.fail(f"token_type[{i}]", f"is {value}, expected 1 to 6")
        types = list(map(_TYPES.__getitem__, values))
        byte = TokenType.BYTE
        for i in [i for i, kind in enumerate(types) if kind is byte]:
            if not _BYTE_TOKEN.fullmatch(tokens[i]):
                self.fail(f"token_type[{i}]", f"marks {_shown(tokens[i])} as a byte, whose form is <0x00> to <0xFF>")
        return types

    def merges(self, ids: Mapping[str, int]) -> list[tuple[str, str]]:
        merges: dict[tuple[str, str], None] = {}
        for i, rule in enumerate(self.texts("merges")):
            left, _, right = rule.partition(" ")
            if not left or not right or " " in right:
                self.fail(f"merges[{i}]", f"is {_shown(rule)}, expected two pieces with one space between")
            if left not in ids or right not in ids or left + right not in ids:
                piece = next(piece for piece in (left, right, left + right) if piece not in ids)
                self.fail(f"merges[{i}]", f"is {_shown(rule)}, but {_shown(piece)} is not a token")
            if (left, right) in merges:
                self.fail(f"merges[{i}]", f"repeats {_shown(rule)}")
            merges[left, right] = None
        return list(merges)

    def value(self, key: str) -> object:
        if _KEY + key not in self.metadata:
            self.fail(key, "is missing")
        return self.metadata[_KEY + key]

    def string(self, key: str) -> str:
        value = self.value(key)
        if not isinstance(value, str):
            self.fail(key, f"is {type(value).__name__}, expected a string")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.metadata.get(_KEY + key, default)
        if not isinstance(value, bool):
            self.fail(key, f"is {type(value).__name__}, expected a bool")
        return value

    def array(self, key: str) -> list[object]:
        value = self.value(key)
        if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
            self.fail(key, f"is {type(value).__name__}, expected an array")
        return list(value)

    def texts(self, key: str) -> list[str]:
        items = self.array(key)
        try:
            "".join(items).encode()  # type: ignore[arg-type]
        except (TypeError, UnicodeEncodeError):
            for i, item in enumerate(items):
                self.check_text(f"{key}[{i}]", item)
        return items  # type: ignore[return-value]

    def check_text(self, key: str, item: object) -> None:
        if not isinstance(item, str):
            self.fail(key, f"is {type(item).__name__}, expected a string")
        try:
            item.encode()
        except UnicodeEncodeError:
            self.fail(key, f"is not valid UTF-8: {_shown(item)}")

    def integer(self, key: str, item: object) -> int:
        try:
            return operator.index(item)  # type: ignore[arg-type]
        except TypeError:
            self.fail(key, f"is {type(item).__name__}, expected an integer")

    def token_id(self, key: str, n_tokens: int) -> int | None:
        value = self.metadata.get(_KEY + key)
        if value is None or value in _NO_TOKEN:
            return None
        return self.checked_id(key, value, n_tokens)

    def token_ids(self, key: str, n_tokens: int) -> list[int]:
        """The ids of an optional key of newer files; accepts a single id instead of an array."""
        value = self.metadata.get(_KEY + key)
        if value is None:
            return []
        items = [item for item in (value if isinstance(value, list) else [value]) if item not in _NO_TOKEN]
        return [self.checked_id(key, item, n_tokens) for item in items]

    def optional_token_id(self, key: str, n_tokens: int) -> int | None:
        """The id of a token used only by templates; None if it is out of range, because files often write -1 for
        none."""
        value = self.metadata.get(_KEY + key)
        return value if isinstance(value, int) and 0 <= value < n_tokens else None

    def checked_id(self, key: str, item: object, n_tokens: int) -> int:
        value = self.integer(key, item)
        if not 0 <= value < n_tokens:
            self.fail(key, f"is {value}, but the vocabulary has {n_tokens} tokens")
        return value

    def fail(self, key: str, problem: str) -> NoReturn:
        raise FormatError(f"{self.where}: {_KEY}{key} {problem}")


def _shown(token: str) -> str:
    return ascii(token if len(token) <= 60 else token[:60] + "...")
