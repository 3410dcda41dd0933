"""The tokenizer of a model, from tokenizer.json or from the vocabulary in a GGUF file: BPE, byte-level or with byte
fallback.

The `tokenizers` library encodes. Decoding is a table of every token's bytes, so one-shot and streamed decoding cannot
differ.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, models, normalizers
from tokenizers import Tokenizer as Encoder

from lucebox.errors import InvalidRequestError, OutOfMemoryError
from lucebox.text import byte_fallback
from lucebox.text.byte_level import pieces_to_bytes
from lucebox.text.pre_tokenizers import byte_level_splitter, ignores_merges, normalises
from lucebox.text.process_memory import free_address_space, give_memory_back
from lucebox.text.spellings import MARK, unmarked
from lucebox.text.tokenizer_json import TokenizerFile
from lucebox.text.vocab import TokenType, Vocabulary, missing_bytes

__all__ = ["Tokenizer"]

# Added tokens that vocabularies do not mark as control tokens, but that only a template or an answer writes: <think>,
# </tool_call>, <|fim_prefix|>, [TOOL_CALLS]. Others, such as runs of spaces, belong to ordinary text.
_TAG = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")
_BATCH = 1 << 14  # tokens whose bytes are joined in one step, which holds the GIL


class _Reads(Enum):
    """Which tokens an encoder finds in text."""

    ALL = "all"
    NO_CONTROL = "all but control tokens"
    NO_TAGS = "neither control tokens nor tags"


class Tokenizer:
    """The tokenizer of one model. Safe to share between threads."""

    def __init__(
        self,
        encoder: Encoder,
        token_bytes: Mapping[int, bytes],
        *,
        special_ids: Iterable[int],
        unwritable: frozenset[int] = frozenset(),
        bos_id: int | None = None,
        pad_id: int | None = None,
        unk_id: int | None = None,
        eos_ids: Iterable[int] = (),
        add_bos: bool = False,
        appended: Iterable[int] = (),
    ) -> None:
        self._encoder = encoder
        self._encoders: dict[_Reads, Encoder] = {_Reads.ALL: encoder}
        self._encoders_lock = threading.Lock()
        self._bytes = token_bytes
        self._special = frozenset(special_ids)
        # Tokens that a template writes and a caller's text only quotes.
        self._added: dict[int, AddedToken] = encoder.get_added_tokens_decoder()
        self._marks = self._special | {i for i, token in self._added.items() if _TAG.fullmatch(token.content)}
        # Bytes of valid UTF-8 only: 0xC0, 0xC1 and 0xF5.. never occur in text.
        self._unwritable = unwritable - {0xC0, 0xC1, *range(0xF5, 0x100)}
        self.n_vocab = max(token_bytes) + 1
        """One more than the largest token id."""
        self.longest_token = max(map(len, token_bytes.values()))
        """Bytes of the longest token."""
        self.bos_id = bos_id
        self.pad_id = pad_id
        self.unk_id = unk_id
        self.eos_ids = tuple(eos_ids)
        """End-of-sequence tokens, the model's main one first."""
        self.add_bos = add_bos
        """Whether the model expects its BOS token before every text."""
        self.appended = tuple(appended)
        """Tokens that an embedding model expects after every text."""

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object], where: str) -> Tokenizer:
        """Builds from the metadata of a GGUF file; `where` names the file in errors.

        GGUF has no key for Unicode normalisation. Text is normalised to NFC if the name of the pre-tokenizer implies it
        (Qwen).

        Raises:
            FormatError: the vocabulary is inconsistent.
            UnsupportedError: the vocabulary is of another kind, or its pre-tokenizer is unknown.
        """
        vocab = Vocabulary.from_gguf(metadata, where)
        if vocab.has_fallback:
            encoder = Encoder(models.BPE(vocab.ids, vocab.merges, byte_fallback=True))
            encoder.normalizer = byte_fallback.spaces_escaped()
        else:
            encoder = Encoder(models.BPE(vocab.ids, vocab.merges, ignore_merges=ignores_merges(vocab.pre)))
            encoder.pre_tokenizer = byte_level_splitter(vocab.pre, where)
            if normalises(vocab.pre):
                encoder.normalizer = normalizers.NFC()
        others = _not_normal(vocab)
        control = [i for i, kind in others.items() if kind is TokenType.CONTROL]
        added = [i for i, kind in others.items() if kind is TokenType.USER_DEFINED]
        encoder.add_special_tokens([AddedToken(vocab.tokens[i], normalized=False, special=True) for i in control])
        encoder.add_tokens([AddedToken(vocab.tokens[i], normalized=False) for i in added])
        return cls(
            encoder,
            _gguf_token_bytes(vocab),
            special_ids=control,
            unwritable=frozenset() if vocab.has_fallback else missing_bytes(vocab.ids, where),
            bos_id=vocab.bos_id,
            pad_id=vocab.pad_id,
            unk_id=vocab.unk_id,
            eos_ids=vocab.end_ids,
            add_bos=vocab.add_bos,
            appended=vocab.appended,
        )

    @classmethod
    def from_file(cls, path: str | Path) -> Tokenizer:
        """Reads a tokenizer.json, and the special tokens that the JSON files beside it name.

        Raises:
            FormatError: the file is malformed or inconsistent.
            UnsupportedError: the tokenizer is of another kind.
        """
        file = TokenizerFile.read(Path(path))
        added = {token.id: token for token in file.added}
        pieces = _piece_bytes(list(file.pieces), has_fallback=file.has_fallback)
        table = dict(zip(file.pieces.values(), pieces, strict=True))
        table.update((token.id, token.content.encode()) for token in file.added)
        return cls(
            file.encoder,
            table,
            special_ids=(i for i, token in added.items() if token.special),
            unwritable=frozenset() if file.has_fallback else missing_bytes(file.pieces, str(path)),
            bos_id=file.bos_id,
            pad_id=file.pad_id,
            unk_id=file.unk_id,
            eos_ids=file.end_ids,
            add_bos=file.add_bos,
            appended=file.appended,
        )

    def encode(self, text: str, *, special: bool = True, add_bos: bool | None = None) -> list[int]:
        """Token ids of a text.

        special: parse control tokens spelled in the text (`<|im_end|>`); False encodes them as plain text.
        add_bos: prepend the BOS token; None follows the model's files. Pass False for a rendered chat template, which
        writes the BOS token itself.

        Raises:
            InvalidRequestError: the text has a lone surrogate, or a character the vocabulary cannot encode.
        """
        ids = _ids(self._encoder_for(_Reads.ALL if special else _Reads.NO_CONTROL), self._checked(text))
        if self.add_bos if add_bos is None else add_bos:
            if self.bos_id is None:
                raise InvalidRequestError("add_bos=True, but the model's files name no begin-of-text token")
            ids.insert(0, self.bos_id)
        return ids

    def encode_with_starts(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids [n_tokens] of a plain text without BOS (control tokens are encoded as text), and the character
        [n_tokens] at which each token begins. Tokens within one character share its position.

        Raises:
            InvalidRequestError: as `encode`.
        """
        self._checked(text)
        with _own_errors(), _memory_for(text):
            found = self._encoder_for(_Reads.NO_CONTROL).encode_batch([text], add_special_tokens=False)[0]
        starts = np.fromiter((start for start, _ in found.offsets), np.int64, len(found))
        return np.asarray(found.ids, np.int32), np.maximum.accumulate(starts)

    def encode_marked(self, text: str) -> list[int]:
        """Token ids of a rendered chat template whose callers' texts are marked (spellings.py).

        Marked spellings of control tokens and tags are encoded as plain text. Without marks this is `encode`.

        Raises:
            InvalidRequestError: as `encode`.
        """
        if MARK not in text:
            return self.encode(text, add_bos=False)
        self._checked(unmarked(text))
        with _own_errors(), _memory_for(text):
            found = self._encoder.encode_batch([text], add_special_tokens=False)[0]
        ids: list[int] = []
        end = 0
        # The encoder finds added tokens before it splits, so the text between two of them is encoded separately.
        for token_id, (start, stop) in zip(found.ids, found.offsets, strict=True):
            if token_id in self._marks:
                ids += [*self._plain_ids(text[end:start]), token_id]
                end = stop
        return ids + self._plain_ids(text[end:])

    def _plain_ids(self, marked: str) -> list[int]:
        return _ids(self._encoder_for(_Reads.NO_TAGS), unmarked(marked))

    @property
    def control_tokens(self) -> frozenset[str]:
        """The spellings of all control tokens."""
        return frozenset(self._bytes[i].decode() for i in self._special)

    @property
    def template_tokens(self) -> frozenset[str]:
        """The spellings of all control tokens, and of added tokens that look like a tag: <think>, [TOOL_CALLS]."""
        return frozenset(self._bytes[i].decode() for i in self._marks)

    def separators(self, ids: Iterable[int]) -> dict[int, str]:
        """The control tokens and tags among these tokens that separate texts, with their spelling: the ids of what
        precedes and of what follows one do not depend on each other. Empty if some tokens of the vocabulary depend on
        the characters beside them."""
        if self._depends_on_neighbours:
            return {}
        return {i: self._added[i].content for i in self._marks.intersection(ids) if self._separates(i)}

    @cached_property
    def _depends_on_neighbours(self) -> bool:
        return any(token.single_word or token.lstrip or token.rstrip for token in self._added.values())

    def _separates(self, i: int) -> bool:
        token = self._added[i]
        return not token.normalized and sum(token.content in other.content for other in self._added.values()) == 1

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of token ids; invalid UTF-8 becomes U+FFFD. Control tokens are skipped by default."""
        left = iter(ids)
        batches = iter(lambda: list(islice(left, _BATCH)), [])
        parts = (b"".join(self.token_bytes(i, skip_special=skip_special) for i in batch) for batch in batches)
        return b"".join(parts).decode("utf-8", "replace")

    def token_bytes(self, token_id: int, *, skip_special: bool = False) -> bytes:
        """The bytes of a token, which may be part of a character.

        Ids without a token have no bytes: they pad the model's embedding, within the vocabulary or beyond it.
        """
        if token_id < 0:
            raise InvalidRequestError(f"token id {token_id} is out of range: ids start at 0")
        if skip_special and token_id in self._special:
            return b""
        return self._bytes.get(token_id, b"")

    def id_of(self, token: str) -> int | None:
        """The id of a token by its text in the vocabulary (byte-level form), or None."""
        found: int | None = self._encoder.token_to_id(token)
        return found

    def token(self, token_id: int) -> str:
        """The token's text in the vocabulary (byte-level form); empty if the id has no token."""
        return self._encoder.id_to_token(token_id) or ""

    def is_special(self, token_id: int) -> bool:
        """Whether the id is a control token."""
        return token_id in self._special

    def _encoder_for(self, reads: _Reads) -> Encoder:
        if reads is _Reads.ALL:
            return self._encoder
        if reads is _Reads.NO_TAGS and self._marks == self._special:
            reads = _Reads.NO_CONTROL
        with self._encoders_lock:
            if reads not in self._encoders:
                # Matching special tokens is a setting of the encoder; toggling it would not be thread-safe, so there
                # are several. They are built on first use: few callers need them, and a large vocabulary takes 1 s.
                text = self._encoder.to_str()
                other = Encoder.from_str(text if reads is _Reads.NO_CONTROL else self._without_marks(text))
                other.encode_special_tokens = True
                self._encoders[reads] = other
            return self._encoders[reads]

    def _without_marks(self, encoder: str) -> str:
        root = json.loads(encoder)
        root["added_tokens"] = [token for token in root["added_tokens"] if token["id"] not in self._marks]
        return json.dumps(root)

    def _checked(self, text: str) -> str:
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"the text has a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}"
            ) from None
        if self._unwritable and not self._unwritable.isdisjoint(data):
            # BPE would drop the byte silently.
            for i, char in enumerate(text):
                if not self._unwritable.isdisjoint(char.encode()):
                    raise InvalidRequestError(
                        f"the text has U+{ord(char):04X} at character {i}, which this model's vocabulary cannot write"
                    )
        return text


def _ids(encoder: Encoder, text: str) -> list[int]:
    # A batch of one: encode_batch_fast releases the GIL and computes no offsets.
    with _own_errors(), _memory_for(text):
        ids: list[int] = encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


LARGE = 1 << 18
"""Characters of a text whose tokenization takes much memory."""
BYTES_PER_CHAR = 500
"""Memory of the encoder. Measured: 400 for control tokens that are encoded as text."""
_large = threading.BoundedSemaphore(2)


@contextmanager
def _memory_for(text: str) -> Iterator[None]:
    """Encodes two large texts at a time, refuses one that does not fit in the process's limit on memory, because the
    encoder would abort the process, and gives its memory back to the system."""
    if len(text) < LARGE:
        yield
        return
    with _large:
        if BYTES_PER_CHAR * len(text) > free_address_space():
            raise OutOfMemoryError(f"the process may not use the memory to tokenize a text of {len(text)} characters")
        try:
            yield
        finally:
            give_memory_back()


@contextmanager
def _own_errors() -> Iterator[None]:
    """Converts a panic of the tokenizers library, which is not an Exception, to an InvalidRequestError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise InvalidRequestError(f"the text cannot be tokenized: {str(error)[:200]}") from None


def _piece_bytes(pieces: Sequence[str], *, has_fallback: bool) -> list[bytes]:
    return list(map(byte_fallback.to_bytes, pieces)) if has_fallback else pieces_to_bytes(pieces)


def _not_normal(vocab: Vocabulary) -> dict[int, TokenType]:
    normal = TokenType.NORMAL
    return {i: kind for i, kind in enumerate(vocab.types) if kind is not normal}


def _gguf_token_bytes(vocab: Vocabulary) -> dict[int, bytes]:
    table = dict(enumerate(_piece_bytes(vocab.tokens, has_fallback=vocab.has_fallback)))
    for i, kind in _not_normal(vocab).items():
        token = vocab.tokens[i]
        if kind is TokenType.BYTE:
            table[i] = bytes([int(token[3:5], 16)])
        else:
            table[i] = b"" if kind is TokenType.UNUSED else token.encode()
    return table
