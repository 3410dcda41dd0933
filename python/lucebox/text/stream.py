"""Streaming detokenization: the text that each new token settles, and no more."""

from __future__ import annotations

import codecs

from lucebox.text.tokenizer import Tokenizer

__all__ = ["StreamDecoder"]


class StreamDecoder:
    """Turns token ids into text as they come.

    The pieces joined equal `tokenizer.decode` of all ids. A character whose bytes are not all there is held back;
    bytes that can no longer become a character are given out as U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text settled by this token; often empty inside a multi-byte character."""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id, skip_special=self._skip_special))

    def finish(self) -> str:
        """What is left when no token follows; the decoder can be used again."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest
