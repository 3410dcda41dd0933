"""Streaming detokenization: token ids in, whole characters out."""

from __future__ import annotations

import codecs

from lucebox.text.tokenizer import Tokenizer

__all__ = ["StreamDecoder"]


class StreamDecoder:
    """Converts token ids to text as they arrive.

    The joined pieces equal `tokenizer.decode` of all ids. Bytes of an incomplete character are withheld; invalid bytes
    become U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text this token completes; empty inside a multi-byte character."""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id, skip_special=self._skip_special))

    def finish(self) -> str:
        """The withheld bytes as text, once no token follows. The decoder can be reused."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest
