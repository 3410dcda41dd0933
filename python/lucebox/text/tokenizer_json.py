"""Reads and validates tokenizer.json and the JSON files in its folder. Defines the meaning of their keys; does not
encode.

The `tokenizers` library trusts its input. Files that would make it panic or silently drop text are refused here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tokenizers import Tokenizer as Encoder

from lucebox.errors import FormatError, UnsupportedError
from lucebox.regular_files import foreign_content, read_regular
from lucebox.text import byte_fallback
from lucebox.text.vocab import MAX_TOKENS, all_end_ids

__all__ = [
    "AddedPiece",
    "TokenizerFile",
    "optional_problem",
    "parse_json",
    "read_json",
    "read_optional_json",
    "special_tokens_settings",
]

_MAX_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class AddedPiece:
    """An entry of added_tokens; matched before pre-tokenization."""

    id: int
    content: str
    special: bool


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """The content of a tokenizer.json, and the special tokens named by the other files in its folder."""

    encoder: Encoder
    has_fallback: bool
    """Whether the pieces are written in the alphabet of byte_fallback.py, else of byte_level.py."""
    pieces: dict[str, int]
    added: list[AddedPiece]
    bos_id: int | None
    pad_id: int | None
    unk_id: int | None
    end_ids: tuple[int, ...]
    add_bos: bool
    appended: tuple[int, ...]
    """Tokens that the post-processor appends to a text."""

    @staticmethod
    def read(path: Path) -> TokenizerFile:
        where = str(path)
        root = read_json(path)
        model = _mapping(root.get("model"), where, "model")
        has_fallback = bool(model.get("byte_fallback")) and byte_fallback.escapes_spaces(root.get("normalizer"))
        if model.get("type", "BPE") != "BPE" or (model.get("byte_fallback") and not has_fallback):
            raise UnsupportedError(
                f"{where}: the model is {_kind(model)}; supported are byte-level BPE (Llama 3, Qwen, SmolLM2) and BPE "
                "with byte fallback whose normalizer only replaces spaces (Gemma 4)"
            )
        if not has_fallback and not _mentions_byte_level(root.get("pre_tokenizer")):
            raise UnsupportedError(f"{where}: pre_tokenizer has no ByteLevel step; supported is byte-level BPE")
        pieces = _pieces(model, where)
        if has_fallback:
            byte_fallback.check_bytes(pieces, where)
        added = _added(root.get("added_tokens"), pieces, where)
        ids = pieces | {token.content: token.id for token in added}
        encoder = _encoder(path, where)
        settings = special_tokens_settings(path.parent)
        prefix, suffix = _around_text(encoder)
        bos_id = _named_id(settings.get("bos_token"), ids)
        if bos_id is None and prefix:
            bos_id = prefix[0]  # only the post-processor names it
        return TokenizerFile(
            encoder=encoder,
            has_fallback=has_fallback,
            pieces=pieces,
            added=added,
            bos_id=bos_id,
            pad_id=_named_id(settings.get("pad_token"), ids),
            unk_id=_named_id(settings.get("unk_token"), ids),
            end_ids=_end_ids(path, settings, ids, {token.id for token in added if token.special}),
            add_bos=bos_id is not None and (settings.get("add_bos_token") is True or prefix[:1] == [bos_id]),
            appended=tuple(suffix),
        )


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file; duplicate keys are an error.

    Raises:
        FormatError: the file cannot be read, or is not a JSON object.
    """
    try:
        data = read_regular(path, _MAX_BYTES)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from error
    return _mapping(parse_json(data, str(path)), str(path), "the file")


def parse_json(data: bytes, where: str) -> object:
    """The value of a JSON file; duplicate keys are an error.

    Raises:
        FormatError: the bytes are not JSON; the text says what they are instead.
    """

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        result = dict(pairs)
        if len(result) != len(pairs):
            seen: set[str] = set()
            repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise FormatError(f"{where}: key {repeated[:60]!a} occurs twice in one object")
        return result

    if other := foreign_content(data):
        raise FormatError(f"{where}: not valid JSON: {other}")
    try:
        return cast(object, json.loads(data.decode("utf-8-sig"), object_pairs_hook=unique))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: not valid JSON: {error}") from error


def _pieces(model: Mapping[str, object], where: str) -> dict[str, int]:
    pieces = _mapping(model.get("vocab"), where, "model.vocab")
    if not 0 < len(pieces) <= MAX_TOKENS:
        raise FormatError(f"{where}: model.vocab has {len(pieces)} entries, expected 1 to {MAX_TOKENS}")
    owner: dict[int, str] = {}
    for piece, i in pieces.items():
        _check_id(i, where, f"model.vocab[{piece[:60]!a}]")
        _check_text(piece, where, f"model.vocab key of id {i}")
        if owner.setdefault(cast(int, i), piece) != piece:
            raise FormatError(f"{where}: model.vocab gives id {i} to {owner[cast(int, i)][:60]!a} and {piece[:60]!a}")
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise FormatError(f"{where}: model.merges is {_kind(merges)}, expected a list")
    for i, rule in enumerate(merges):
        pair = rule.split(" ") if isinstance(rule, str) else rule
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(piece, str) for piece in pair):
            raise FormatError(f"{where}: model.merges[{i}] is {ascii(rule)[:80]}, expected two pieces")
        for piece in (pair[0], pair[1], pair[0] + pair[1]):
            if piece not in pieces:
                raise FormatError(f"{where}: model.merges[{i}] needs {piece[:60]!a}, which is not in model.vocab")
    return cast("dict[str, int]", pieces)


def _added(value: object, pieces: Mapping[str, int], where: str) -> list[AddedPiece]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise FormatError(f"{where}: added_tokens is {_kind(value)}, expected a list")
    owner = {i: piece for piece, i in pieces.items()}
    added = []
    for i, item in enumerate(value):
        name = f"added_tokens[{i}]"
        entry = _mapping(item, where, name)
        content, token_id = entry.get("content"), entry.get("id")
        if not isinstance(content, str) or not content:
            raise FormatError(f"{where}: {name}.content is {_kind(content)}, expected a non-empty string")
        _check_text(content, where, f"{name}.content")
        _check_id(token_id, where, f"{name}.id")
        if owner.setdefault(cast(int, token_id), content) != content:
            taken = owner[cast(int, token_id)]
            raise FormatError(f"{where}: {name} gives id {token_id} to {content[:60]!a}, but it is {taken[:60]!a}")
        added.append(AddedPiece(cast(int, token_id), content, entry.get("special") is True))
    return added


def _encoder(path: Path, where: str) -> Encoder:
    try:
        encoder = Encoder.from_file(str(path))
        encoder.no_truncation()
        encoder.no_padding()
        if encoder.model.dropout is not None:
            encoder.model.dropout = None  # dropout makes merges random, for training only
    except BaseException as error:
        # The library raises a plain Exception for a bad file; a panic of its Rust code is only a BaseException.
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise FormatError(f"{where}: not a tokenizer file: {error}") from None
    return encoder


def _around_text(encoder: Encoder) -> tuple[list[int], list[int]]:
    """The tokens that the post-processor puts before and after a text."""
    whole: list[int] = encoder.encode("a", add_special_tokens=True).ids
    text: list[int] = encoder.encode("a", add_special_tokens=False).ids
    for at in range(len(whole) - len(text) + 1):
        if whole[at : at + len(text)] == text:
            return whole[:at], whole[at + len(text) :]
    return [], []


def _end_ids(path: Path, settings: Mapping[str, object], ids: Mapping[str, int], special: set[int]) -> tuple[int, ...]:
    found = [_named_id(settings.get("eos_token"), ids)]
    for name in ("generation_config.json", "config.json"):
        root = read_optional_json(path.with_name(name))
        inner = root.get("text_config")  # in a multimodal checkpoint's config
        for config in (root, inner) if isinstance(inner, dict) else (root,):
            value = config.get("eos_token_id")
            for item in value if isinstance(value, list) else [value]:
                if item is not None and not (isinstance(item, int) and item < 0):  # files write -1 for none
                    _check_id(item, str(path.with_name(name)), "eos_token_id")
                    found.append(cast(int, item))
    return all_end_ids(found, ids, special.__contains__)


def special_tokens_settings(folder: Path) -> dict[str, object]:
    """The keys of tokenizer_config.json; special_tokens_map.json supplies missing keys."""
    older = read_optional_json(folder / "special_tokens_map.json")
    settings = read_optional_json(folder / "tokenizer_config.json")
    return older | {key: value for key, value in settings.items() if value is not None}


def read_optional_json(path: Path) -> dict[str, object]:
    """A JSON object from an optional file; empty if the file is missing or damaged (`optional_problem` says why)."""
    return {} if not path.is_file() or optional_problem(path) else read_json(path)


def optional_problem(path: Path) -> str | None:
    """Why an optional file is ignored; None if it is valid or missing."""
    try:
        if path.is_file():
            read_json(path)
    except FormatError as error:
        return str(error)
    return None


def _named_id(token: object, ids: Mapping[str, int]) -> int | None:
    """The id of a special token; tokenizer_config.json has its text, or an object with the text."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return ids.get(text) if isinstance(text, str) else None


def _mentions_byte_level(step: object) -> bool:
    if not isinstance(step, Mapping):
        return False
    inner = step.get("pretokenizers")
    return step.get("type") == "ByteLevel" or (isinstance(inner, list) and any(map(_mentions_byte_level, inner)))


def _mapping(value: object, where: str, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise FormatError(f"{where}: {name} is {_kind(value)}, expected an object")
    return value


def _check_id(value: object, where: str, name: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MAX_TOKENS:
        raise FormatError(f"{where}: {name} is {ascii(value)[:40]}, expected an id below {MAX_TOKENS}")


def _check_text(value: str, where: str, name: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise FormatError(f"{where}: {name} has a lone surrogate: {value[:60]!a}") from None


def _kind(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{value.get('type', 'an object')}" + (" with byte_fallback" if value.get("byte_fallback") else "")
    return "missing" if value is None else type(value).__name__
