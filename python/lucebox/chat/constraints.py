"""Constrained decoding: token masks that constrain an answer to JSON, a schema, a regex, a grammar or tool calls.

llguidance computes the masks. If the answer may think first, the constraint begins after the closing tag.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from lucebox.chat.dialects import DIALECTS
from lucebox.chat.dialects.hermes_json import JSON_FORM
from lucebox.chat.grammar_check import GrammarCheck
from lucebox.chat.grammar_process import limits
from lucebox.chat.grammar_work import grammar_work
from lucebox.chat.profiles import Profile, Thinking
from lucebox.chat.thinking import AFTER_CLOSE, TagWatch, begins_open
from lucebox.chat.tools import Tool, ToolChoice, callable_tools
from lucebox.errors import InvalidRequestError
from lucebox.generation.mask_ahead import run_within_limit
from lucebox.generation.request import SENDER
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
    """llguidance's token table of a model. Built once per model; a large vocabulary takes seconds.

    vocab: rows of the model's output matrix, which may exceed the tokenizer's vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int, end_ids: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.vocab = vocab
        self.end_ids = tuple(end_ids)
        texts = [AFTER_CLOSE[:n] for n in range(1, len(AFTER_CLOSE) + 1)]
        ids = [tokenizer.encode(text, add_bos=False) for text in texts]
        self.after_close = {found[0]: text for text, found in zip(texts, ids, strict=True) if len(found) == 1}
        """The tokens that begin AFTER_CLOSE, with their text."""
        known = {tag: tokenizer.id_of(tag) for tag in tokenizer.control_tokens}
        rules = [(rule, tag) for dialect in DIALECTS.values() for rule, tag in dialect.tags.items()]
        self.tags = {f"{rule}: {json.dumps(tag)}": known[tag] for rule, tag in rules if tag in known}
        """Rules of grammars for the text of a tag that is a control token here, and the token."""
        self.check = GrammarCheck()
        self.table = LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer, vocab, self.end_ids)), vocab, list(end_ids))


class _Vocabulary:
    """The tokenizer attributes that llguidance reads."""

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
    """A grammar for JSON that matches this schema; without a schema, for any JSON object."""
    return f"start: %json {json.dumps({**(schema or {'type': 'object'}), 'x-guidance': JSON_FORM})}"


def regex_grammar(pattern: str) -> str:
    """A grammar for texts that a regular expression matches in full."""
    escaped = re.sub(r"\\.|/", lambda found: r"\/" if found[0] == "/" else found[0], pattern, flags=re.DOTALL)
    return "start: ANSWER\nANSWER: /" + escaped.replace("\n", r"\n") + "/"


def tools_grammar(profile: Profile, tools: Sequence[Tool], choice: ToolChoice) -> str:
    """A grammar for one or more calls of the allowed tools, in the model's dialect.

    Raises:
        InvalidRequestError: no tool may be called.
    """
    callable_ = callable_tools(tools, choice)
    if not callable_:
        raise InvalidRequestError("a call is required, but no tool may be called")
    grammar = DIALECTS[profile.dialect].grammar
    assert grammar is not None  # conversation_to_request.py refuses the others
    return "start: calls\n" + grammar(callable_, parallel=choice.parallel)


def json_or_tools_grammar(
    profile: Profile, tools: Sequence[Tool], choice: ToolChoice, schema: Mapping[str, Any] | None = None
) -> str:
    """A grammar for either json_grammar's answer or tool calls: structured output while tools may be called.

    Raises:
        InvalidRequestError: no tool may be called.
    """
    calls = tools_grammar(profile, tools, choice).removeprefix("start: calls\n")
    return f"start: calls | answer\n{json_grammar(schema).replace('start', 'answer', 1)}\n{calls}"


class TokenConstraint:
    """Constrains one answer to a grammar (events.Constraint).

    grammar: llguidance's Lark dialect; its first rule is `start`.
    thinking: the model's tags if the answer may think first; None constrains from the first token.
    prompt_text: the rendered prompt up to the answer.
    begun: the part of the answer that the prompt has; the rest completes it.

    Raises:
        InvalidRequestError: llguidance rejects the grammar or schema, or the begun part; the message says why.
    """

    def __init__(
        self,
        tokens: GrammarTokens,
        grammar: str,
        *,
        thinking: Thinking | None = None,
        prompt_text: str = "",
        begun: str = "",
    ) -> None:
        self._tokens = tokens
        self._mask = _no_tokens(tokens)
        self._matcher = _matcher(tokens, grammar, begun)
        if begun:
            _consume(self._matcher, tokens.table.tokenize_bytes(begun.encode()))
        self._close = thinking.close if thinking else ""
        self._watch: TagWatch | None = None
        self._before = ""  # the part of AFTER_CLOSE that may still come between thinking and the answer
        self._open_id: int | None = None  # the opening tag's token, while the model may still begin to think
        self._after = AFTER_CLOSE
        if thinking and thinking.answer:
            self._after = ""
            if not prompt_text.endswith(thinking.answer):
                self._watch = TagWatch(thinking.answer)
        elif thinking and begins_open(thinking, prompt_text):
            self._watch = TagWatch(thinking.close)
        elif thinking and not prompt_text.rstrip().endswith(thinking.close):
            self._open_id = tokens.tokenizer.id_of(thinking.open)

    @property
    def done(self) -> bool:
        """The grammar allows no further token."""
        return self._watch is None and self._matcher.is_stopped()

    def mask(self) -> NDArray[np.uint32] | None:
        """[vocab / 32] bits, one per token, valid until the next call; None allows all tokens."""
        if self._watch is not None:
            return None
        _compute(self._matcher, self._mask)
        for token in self._space if self._open_id is None else (self._open_id,):
            self._mask[token // 32] |= np.uint32(1 << token % 32)
        return self._mask

    @property
    def _space(self) -> list[int]:
        return [token for token, text in self._tokens.after_close.items() if self._before.startswith(text)]

    def accept(self, token: int) -> None:
        """Advances by the token that was appended.

        Raises:
            InvalidRequestError: the mask does not allow the token.
        """
        if self._watch is not None:
            after = self._watch.push(self._tokens.tokenizer.token_bytes(token))
            if after is not None:
                self._watch = None
                if answer := after.lstrip():  # the token that closes the tag also begins the answer
                    _consume(self._matcher, self._tokens.table.tokenize_bytes(answer))
                else:
                    self._before = self._after[len(after) :]
        elif token == self._open_id:
            self._watch, self._open_id = TagWatch(self._close), None
        elif self._open_id is None and token in self._space:
            self._before = self._before[len(self._tokens.after_close[token]) :]
        elif not (self.done and token in self._tokens.end_ids):
            self._open_id, self._before = None, ""
            _consume(self._matcher, [token])


class StrictCalls:
    """For tool_choice auto: leaves text unconstrained, and constrains calls of strict tools to their schemas
    (events.Constraint). Calls of other tools are unconstrained after the tool's name."""

    def __init__(self, tokens: GrammarTokens, profile: Profile, tools: Sequence[Tool]) -> None:
        self._tokens = tokens
        self._mask = _no_tokens(tokens)
        self._opener = next(iter(DIALECTS[profile.dialect].openers))
        self._watch = TagWatch(self._opener)
        self._call = _matcher(tokens, _strict_grammar(profile, tools))
        self._matcher: LLMatcher | None = None  # set inside a call

    @property
    def done(self) -> bool:
        return False

    def mask(self) -> NDArray[np.uint32] | None:
        """As TokenConstraint.mask."""
        if self._matcher is None:
            return None
        _compute(self._matcher, self._mask)
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
            is_tag = token in self._tokens.tags.values()
            opening = [token] if is_tag else self._tokens.table.tokenize_bytes(self._opener.encode() + after)
            if not matcher.consume_tokens(opening):
                return  # the token that completes the tag goes on with text that is not a call
            self._matcher = matcher
        if self._matcher.is_stopped():
            self._matcher = None


def _strict_grammar(profile: Profile, tools: Sequence[Tool]) -> str:
    """A grammar for one call: constrained to its schema if the tool is strict, else unconstrained up to a closing
    tag, or any object where the dialect has none."""
    dialect = DIALECTS[profile.dialect]
    strict, free = [tool for tool in tools if tool.strict], [tool for tool in tools if not tool.strict]
    assert dialect.grammar is not None
    if not dialect.close:
        strict, free = [*strict, *(replace(tool, parameters={}) for tool in free)], []
    grammar = dialect.grammar(strict, parallel=False)
    if not free:
        return f"start: calls\n{grammar}"
    begun = " | ".join(json.dumps(dialect.render_begun(tool.name), ensure_ascii=False) for tool in free)
    rest = f"rest[suffix={json.dumps(dialect.close)}]: /(?s:.*)/"
    return f"start: calls | free\n{grammar}\nfree: ({begun}) rest\n{rest}"


def _no_tokens(tokens: GrammarTokens) -> NDArray[np.uint32]:
    return np.zeros((tokens.vocab + 31) // 32, np.uint32)


def _matcher(tokens: GrammarTokens, grammar: str, begun: str = "") -> LLMatcher:
    """A matcher of its own. A copy would share a lock with the original, and a token of one answer would wait for the
    mask of another, with the GIL."""
    tokens.check.check(grammar, begun)
    with grammar_work() as work:
        work.check_compilation(grammar)
        seconds = 0.0

        def compiled() -> LLMatcher:
            nonlocal seconds
            start = time.thread_time()
            matcher = LLMatcher(tokens.table, _with_control_tokens(tokens, grammar), log_level=0, limits=limits())
            seconds = time.thread_time() - start
            return matcher

        matcher = run_within_limit(compiled, SENDER.get())
        work.add_compilation(grammar, seconds)
    assert isinstance(matcher, LLMatcher)
    if error := " ".join(matcher.get_error().split()):
        raise InvalidRequestError(f"the constraint cannot be compiled: {error[:300]}")
    return matcher


def _with_control_tokens(tokens: GrammarTokens, grammar: str) -> str:
    """The check's vocabulary has no control tokens, so a grammar has their text until it was checked. A text that ends
    with such a tag cannot contain it."""
    for rule, token in tokens.tags.items():
        name, _, tag = rule.partition(": ")
        if f"\n{rule}\n" in f"\n{grammar}\n":
            grammar = f"\n{grammar}\n".replace(f"\n{rule}\n", f"\n{name}: <[{token}]>\n")
            grammar = re.sub(rf"\[suffix={re.escape(tag)}\](: .*)", rf"\1 {name}", grammar)
    return grammar


def _compute(matcher: LLMatcher, mask: NDArray[np.uint32]) -> None:
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    if matcher.is_error():
        error = " ".join(matcher.get_error().partition("<state>")[0].split())
        raise InvalidRequestError(f"the constraint is too complex: {error[:300]}")


def _consume(matcher: LLMatcher, tokens: list[int]) -> None:
    if not matcher.consume_tokens(tokens):
        raise InvalidRequestError(f"the constraint does not allow this token: {matcher.get_error()[:300]}")
