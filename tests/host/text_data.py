"""Vocabularies the text tests share. The engine reads them: the `gguf` package takes seconds for a large one."""

from __future__ import annotations

import functools
import gzip
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lucebox import _engine
from lucebox.text import Tokenizer
from lucebox.text.byte_level import BYTE_TO_CHAR

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
TINY_HYBRID = ROOT / "models" / "tiny-hybrid" / "lucebox_tiny" / "tiny-hybrid.Q8_0.gguf"


def read_metadata(path: Path) -> dict[str, object]:
    return dict(_engine.open_model_file(str(path)).metadata)


@functools.cache
def vocab_metadata(name: str) -> Mapping[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vocab.gguf")
        path.write_bytes(gzip.decompress((DATA / "vocab" / f"ggml-vocab-{name}.gguf.gz").read_bytes()))
        return read_metadata(path)


@functools.cache
def vocab_tokenizer(name: str) -> Tokenizer:
    return Tokenizer.from_gguf(vocab_metadata(name), name)


@functools.cache
def tiny_tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(read_metadata(TINY_HYBRID), TINY_HYBRID.name)


def small_vocabulary() -> dict[str, object]:
    """All bytes, a few merges, and one token of every other type: quick to build, for tests that break it."""
    merged = ["he", "ll", "hell", "hello", "Ġhello"]
    other = {"<|end|>": 3, "<tool>": 4, "<unk>": 2, "<pad0>": 5, "<0x0A>": 6}
    tokens = [*BYTE_TO_CHAR, *merged, *other]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (256 + len(merged)) + list(other.values()),
        "tokenizer.ggml.merges": ["h e", "l l", "he ll", "hell o", "Ġ hello"],
        "tokenizer.ggml.eos_token_id": tokens.index("<|end|>"),
        "tokenizer.ggml.bos_token_id": tokens.index("<|end|>"),
    }
