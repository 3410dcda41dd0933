"""Pre-tokenizers: the regular expressions that split text before BPE, by GGUF's tokenizer.ggml.pre.

Each entry is a list of patterns applied in order. Every match, and every stretch between matches, is a word.
"""

from __future__ import annotations

from tokenizers import Regex, pre_tokenizers

from lucebox.errors import UnsupportedError

__all__ = ["SPLITS", "byte_level_splitter", "ignores_merges", "normalises"]

_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _modern(letters: str, digits: str, not_symbols: str) -> str:
    """The pattern family of GPT-4: a word takes one leading symbol; newlines are split from spaces."""
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}"
        rf"| ?[^\s{not_symbols}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_QWEN2 = [_modern(r"\p{L}", r"\p{N}", r"\p{L}\p{N}")]
_LLAMA3 = [_modern(r"\p{L}", r"\p{N}{1,3}", r"\p{L}\p{N}")]
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = f"{_CONTRACTIONS}?"
# o200k: a word begins where a lower-case letter is followed by an upper-case one, and keeps its contraction.
_O200K = [
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
]
# tekken: o200k without contractions, digits one by one.
_TEKKEN = [
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
]
_DIGITS_THEN_GPT2 = [r"\p{N}", _GPT2]

SPLITS: dict[str, list[str]] = {
    "gpt-2": [_GPT2],
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": [_modern(r"[\p{L}\p{M}]", r"\p{N}", r"\p{L}\p{M}\p{N}")],
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "gpt-4o": _O200K,
    "tekken": _TEKKEN,
    "dbrx": _LLAMA3,
}


def byte_level_splitter(pre: str, where: str) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer of this name, followed by the byte-level alphabet.

    Raises:
        UnsupportedError: the name is unknown. A guess would produce tokens the model was not trained on.
    """
    if pre not in SPLITS:
        raise UnsupportedError(
            f"{where}: tokenizer.ggml.pre is {pre[:60]!a}; supported are {', '.join(SPLITS)}. "
            "If the file is old, convert the model again with a current converter"
        )
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in SPLITS[pre]
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(steps)


def normalises(pre: str) -> bool:
    """Whether this vocabulary expects text in Unicode NFC before it is split (Qwen)."""
    return pre in ("qwen2", "qwen35")


def ignores_merges(pre: str) -> bool:
    """Whether a word that is itself a token skips the merges (Llama 3, tekken)."""
    return pre in ("llama-bpe", "llama3", "llama-v3", "tekken")
