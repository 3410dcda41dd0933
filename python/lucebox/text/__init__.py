"""Text to token ids and back: tokenizers, streaming detokenization, stop strings."""

from lucebox.text.ids import NO_IDS, Ids
from lucebox.text.stop import StopMatcher
from lucebox.text.stream import StreamDecoder
from lucebox.text.tokenizer import Tokenizer

__all__ = ["NO_IDS", "Ids", "StopMatcher", "StreamDecoder", "Tokenizer"]
