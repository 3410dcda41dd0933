"""The alphabet of BPE with byte fallback (Gemma): text as it is, ▁ for a space, and <0x0A> for a byte of a character
that no token has."""

from __future__ import annotations

from collections.abc import Mapping

from tokenizers import normalizers

from lucebox.errors import FormatError

__all__ = ["byte_pieces", "check_bytes", "escapes_spaces", "spaces_escaped", "to_bytes"]

_SPACE = "\u2581"
_BYTES = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


def to_bytes(piece: str) -> bytes:
    """The bytes of a vocabulary piece."""
    return _BYTES.get(piece) or piece.replace(_SPACE, " ").encode()


def byte_pieces() -> list[str]:
    """The pieces of all bytes."""
    return list(_BYTES)


def check_bytes(pieces: Mapping[str, int], where: str) -> None:
    """
    Raises:
        FormatError: a byte has no piece, so some text could not be encoded.
    """
    for piece in byte_pieces():
        if piece not in pieces:
            raise FormatError(f"{where}: the vocabulary has no token {piece}, which byte fallback needs")


def spaces_escaped() -> normalizers.Normalizer:
    return normalizers.Replace(" ", _SPACE)


def escapes_spaces(step: object) -> bool:
    """Whether a normalizer of a tokenizer.json only writes ▁ for each space, so that decoding can undo it."""
    if not isinstance(step, Mapping):
        return False
    return step == {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
