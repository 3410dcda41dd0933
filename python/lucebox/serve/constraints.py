"""What an answer must be: JSON, a schema, a regular expression, a grammar or calls of tools, as masks of tokens.

The grammars are llguidance's; where the answer may think first, its constraint begins after the closing tag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from lucebox.errors import InvalidRequestError
from lucebox.serve.dialects import DIALECTS
from lucebox.serve.dialects.hermes_json import JSON_FORM
from lucebox.serve.profiles import Profile, Thinking
from lucebox.serve.thinking import TagWatch, begins_open
from lucebox.serve.tools import Tool, ToolChoice, callable_tools
from lucebox.text import Tokenizer

__all__ = [
    "GrammarTokens",
    "StrictCalls",
    "TokenConstraint",
    "json_grammar",
    "json_or_tools_grammar",
    "regex_grammar",
    "tools_grammar",
]


class GrammarTokens:
    """A model's tokens as the grammars see them. Made once for a model; takes a second for a large vocabulary.

    vocab: of the model, whose table may be larger than the tokenizer's.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int, end_ids: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.vocab = vocab
        self.end_ids = tuple(end_ids)
        self.line_ends = frozenset(
            i for text in ("\n", "\n\n") if len(ids := tokenizer.encode(text, add_bos=False)) == 1 for i in ids
        )
        self.table = LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer, vocab, self.end_ids)), vocab, list(end_ids))


class _Vocabulary:
    """The attributes that llguidance reads of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, end_ids: Sequence[int]) -> None:
        n = min(vocab, tokenizer.n_vocab)
        self.eos_token_id = end_ids[0]
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(i) for i in range(n)] + [b""] * (vocab - n)
        self.special_token_ids = [i for i in range(n) if tokenizer.is_special(i)]
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=False, add_bos=False)


def json_grammar(schema: Mapping[str, Any] | None = None) -> str:
    """A grammar of any JSON object, or of JSON of this schema."""
    return f"start: %json {json.dumps({**(schema or {'type': 'object'}), 'x-guidance': JSON_FORM})}"


def regex_grammar(pattern: str) -> str:
    """A grammar of text that the whole of a regular expression matches."""
    escaped = re.sub(r"\\.|/", lambda found: r"\/" if found[0] == "/" else found[0], pattern, flags=re.DOTALL)
    return "start: ANSWER\nANSWER: /" + escaped.replace("\n", r"\n") + "/"


def tools_grammar(profile: Profile, tools: Sequence[Tool], choice: ToolChoice) -> str:
    """A grammar of one call or more, in the model's own dialect, of tools that may be called.

    Raises:
        InvalidRequestError: there is none to call.
    """
    callable_ = callable_tools(tools, choice)
    if not callable_:
        raise InvalidRequestError("a call is required, but no tool may be called")
    return "start: calls\n" + DIALECTS[profile.dialect].grammar(callable_, parallel=choice.parallel)


def json_or_tools_grammar(
    profile: Profile, tools: Sequence[Tool], choice: ToolChoice, schema: Mapping[str, Any] | None = None
) -> str:
    """A grammar of what json_grammar allows, or of calls: an answer of a form while tools may be called.

    Raises:
        InvalidRequestError: there is none to call.
    """
    calls = tools_grammar(profile, tools, choice).removeprefix("start: calls\n")
    return f"start: calls | answer\n{json_grammar(schema).replace('start', 'answer', 1)}\n{calls}"


class TokenConstraint:
    """One answer's constraint (events.Constraint).

    grammar: in llguidance's form of Lark; its first rule is `start`.
    thinking: the model's tags where the answer may think first; None: the constraint holds from the first token.

    Raises:
        InvalidRequestError: the grammar or schema is not one that can be held to; the message says why.
    """

    def __init__(
        self, tokens: GrammarTokens, grammar: str, *, thinking: Thinking | None = None, prompt_text: str = ""
    ) -> None:
        self._tokens = tokens
        self._mask = _no_tokens(tokens)
        self._matcher = _matcher(tokens, grammar)
        self._close = thinking.close if thinking else ""
        self._watch: TagWatch | None = None
        self._before: frozenset[int] = frozenset()  # tokens that may stand before the answer
        self._open_id: int | None = None  # with which the model may still begin to think
        if thinking and begins_open(thinking, prompt_text):
            self._watch = TagWatch(thinking.close)
        elif thinking and not prompt_text.rstrip().endswith(thinking.close):
            self._open_id = tokens.tokenizer.id_of(thinking.open)

    @property
    def done(self) -> bool:
        """Nothing may follow: the answer ends here."""
        return self._watch is None and self._matcher.is_stopped()

    def mask(self) -> NDArray[np.uint32] | None:
        """A bit for each token of the vocabulary; None allows all. Valid until the next call."""
        if self._watch is not None:
            return None
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        for token in self._before if self._open_id is None else (self._open_id,):
            self._mask[token // 32] |= np.uint32(1 << token % 32)
        return self._mask

    def accept(self, token: int) -> None:
        """The token that was appended.

        Raises:
            InvalidRequestError: the mask did not allow it.
        """
        if self._watch is not None:
            after = self._watch.push(self._tokens.tokenizer.token_bytes(token))
            if after is not None:
                self._watch, self._before = None, self._tokens.line_ends
                if after := after.lstrip():  # the token that closes the tag goes on
                    _consume(self._matcher, self._tokens.table.tokenize_bytes(after))
        elif token == self._open_id:
            self._watch, self._open_id = TagWatch(self._close), None
        elif token not in self._before and not (self.done and token in self._tokens.end_ids):
            self._open_id, self._before = None, frozenset()
            _consume(self._matcher, [token])


class StrictCalls:
    """Free text in which every call follows the schema of its tool (events.Constraint): strict tools that the model
    need not call."""

    def __init__(self, tokens: GrammarTokens, profile: Profile, tools: Sequence[Tool]) -> None:
        self._tokens = tokens
        self._mask = _no_tokens(tokens)
        self._opener = next(iter(DIALECTS[profile.dialect].openers))
        self._watch = TagWatch(self._opener)
        self._call = _matcher(tokens, tools_grammar(profile, tools, ToolChoice("required", parallel=False)))
        self._matcher: LLMatcher | None = None  # within a call

    @property
    def done(self) -> bool:
        return False

    def mask(self) -> NDArray[np.uint32] | None:
        """As TokenConstraint.mask."""
        if self._matcher is None:
            return None
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        return self._mask

    def accept(self, token: int) -> None:
        """As TokenConstraint.accept."""
        if self._matcher is not None:
            _consume(self._matcher, [token])
        else:
            after = self._watch.push(self._tokens.tokenizer.token_bytes(token))
            if after is None:
                return
            matcher = self._call.deep_copy()
            opening = self._tokens.table.tokenize_bytes(self._opener.encode() + after)
            if not matcher.consume_tokens(opening):
                return  # the tag's own token went on with something else: no call
            self._matcher = matcher
        if self._matcher.is_stopped():
            self._matcher = None


def _no_tokens(tokens: GrammarTokens) -> NDArray[np.uint32]:
    return np.zeros((tokens.vocab + 31) // 32, np.uint32)


def _matcher(tokens: GrammarTokens, grammar: str) -> LLMatcher:
    matcher = LLMatcher(tokens.table, grammar)
    if error := " ".join(matcher.get_error().split()):
        raise InvalidRequestError(f"the constraint cannot be held to: {error[:300]}")
    return matcher


def _consume(matcher: LLMatcher, tokens: list[int]) -> None:
    if not matcher.consume_tokens(tokens):
        raise InvalidRequestError(f"the constraint does not go on like this: {matcher.get_error()[:300]}")
