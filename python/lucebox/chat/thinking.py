"""Thinking budgets: the limit of a request, and the closing tag forced when the budget is spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from lucebox.chat.profiles import EFFORTS as WORDS
from lucebox.chat.profiles import Profile, Thinking
from lucebox.errors import InvalidRequestError
from lucebox.text import Tokenizer

__all__ = [
    "AFTER_CLOSE",
    "EFFORTS",
    "TagWatch",
    "ThinkingBudget",
    "ThinkingRequest",
    "begins_open",
    "closing_text",
    "template_effort",
    "thinking_limit",
]

EFFORTS = WORDS[1:]  # without "none", which switches thinking off
_SHARES = {"minimal": 1 / 32, "low": 1 / 8, "medium": 1 / 2, "high": 1.0}  # fractions of max_tokens
_GRACE = 32  # tokens before the limit in which a line end also ends the thinking

AFTER_CLOSE = "\n\n"
"""What templates write after the closing tag."""


@dataclass(frozen=True, slots=True)
class ThinkingRequest:
    """The thinking settings of a request, independent of the protocol."""

    mode: Literal["default", "off", "on", "adaptive"] = "default"
    """adaptive: the model decides how long to think, within the effort's limit."""
    effort: str | None = None
    budget_tokens: int | None = None
    """Maximum thinking tokens; overrides effort."""


def begins_open(tags: Thinking, prompt: str) -> bool:
    """Whether the rendered prompt ends with the opening tag, so that the answer begins inside reasoning.

    Only the end of the prompt counts, because a user's text may also contain the tags.
    """
    tail = prompt.rstrip()[-len(tags.open) :]
    return tail == tags.open


def closing_text(tags: Thinking, tokenizer: Tokenizer, max_tokens: int) -> str:
    """The text that ends thinking at its limit: the profile's, or the bare tag if the answer is shorter than four times
    that text."""
    is_short = len(tokenizer.encode(tags.stop, add_bos=False)) <= max_tokens // 4
    return tags.stop if is_short else tags.close + tags.after


def thinking_limit(profile: Profile, request: ThinkingRequest, max_tokens: int, n_closing: int = 0) -> int:
    """Maximum thinking tokens in an answer of max_tokens, with some reserved for the reply and n_closing for the text
    that ends the thinking.

    Raises:
        InvalidRequestError: the effort is unknown, or the budget is not positive.
    """
    if request.budget_tokens is not None:
        if request.budget_tokens < 1:
            raise InvalidRequestError(f"budget_tokens is {request.budget_tokens}, expected a positive number")
        wanted = request.budget_tokens
    else:
        wanted = effort_tokens(profile, request.effort or "high")
    reserve = min(profile.reply_tokens, max_tokens // 2)
    return max(1, min(wanted, max_tokens - reserve - n_closing))


def effort_tokens(profile: Profile, effort: str) -> int:
    """Thinking tokens of an effort tier."""
    name = _effort_name(effort)
    if name in profile.effort:
        return profile.effort[name]
    if name in _SHARES:
        return max(1, int(profile.max_tokens * _SHARES[name]))
    return profile.most_tokens if name == "max" else (profile.max_tokens + profile.most_tokens) // 2


def template_effort(profile: Profile, request: ThinkingRequest) -> str | None:
    """The value of the template's own variable reasoning_effort: the request's effort, else the next higher level that
    the template has, else its highest. None leaves the variable unset.

    Raises:
        InvalidRequestError: the effort is unknown.
    """
    levels = profile.effort_levels
    if not levels:
        return None
    if request.mode == "off":
        return "none" if "none" in levels else None
    if request.effort is None:
        return None
    wanted = WORDS.index(_effort_name(request.effort))
    at_least = [level for level in levels if level in WORDS and WORDS.index(level) >= wanted]
    return at_least[0] if at_least else levels[-1]


def _effort_name(effort: str) -> str:
    name = "xhigh" if effort == "x-high" else effort
    if name not in EFFORTS:
        raise InvalidRequestError(f"effort is {effort!r}, expected one of {', '.join(EFFORTS)}")
    return name


class TagWatch:
    """Finds a tag in a stream of token bytes, even across token boundaries."""

    def __init__(self, tag: str) -> None:
        self._tag = tag.encode()
        self._tail = b""

    def push(self, data: bytes) -> bytes | None:
        """The bytes after the tag once it is complete; None before."""
        text = self._tail + data
        at = text.find(self._tag)
        if at >= 0:
            self._tail = b""
            return text[at + len(self._tag) :]
        self._tail = text[len(text) - min(len(text), len(self._tag) - 1) :]
        return None


class ThinkingBudget:
    """Forces the end of thinking when the budget is spent (events.Budget).

    The forced tokens close the thinking at the limit, or at a line end shortly before. If the model ends its answer
    while thinking, they replace the end token.

    may_end: whether the answer may end while thinking, after a complete call; the call is then the answer.
    """

    def __init__(
        self,
        tags: Thinking,
        tokenizer: Tokenizer,
        prompt_text: str,
        *,
        limit: int,
        end_ids: Sequence[int],
        may_end: Callable[[], bool] = lambda: False,
    ) -> None:
        self._tokenizer = tokenizer
        self._tags = tags
        self._limit = limit
        self._ends = frozenset(end_ids)
        self._may_end = may_end
        self._start = b""
        self._watch = TagWatch(tags.close)
        self._is_open = begins_open(tags, prompt_text)
        self._may_open = not self._is_open
        self._to_force = 0  # forced tokens that were returned but not yet pushed
        self.n_tokens = 0
        """Thinking tokens so far."""

    def push(self, token: int) -> list[int]:
        """Tokens to append after `token`. Forced tokens are pushed here too and force nothing further.

        If `token` is an end token and the result is not empty, the result replaces it.
        """
        if self._to_force:
            self._to_force -= 1
            self._read(self._tokenizer.token_bytes(token))
            return []
        data = self._tokenizer.token_bytes(token)
        if token in self._ends:
            return self._close(self._tags.close + self._tags.after) if self._is_open and not self._may_end() else []
        self._read(data)
        if not self._is_open:
            return []
        self.n_tokens += 1
        ends_line = self.n_tokens >= self._limit - _GRACE and b"\n" in data
        if self.n_tokens >= self._limit or ends_line:
            return self._close(self._tags.stop)
        return []

    def _close(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text, add_bos=False)
        self._to_force = len(ids)
        return ids

    def _read(self, data: bytes) -> None:
        if self._may_open:
            self._start += data
            start, tag = self._start.lstrip(), self._tags.open.encode()
            self._is_open = start.startswith(tag)
            self._may_open = not self._is_open and tag.startswith(start)
            if self._is_open:
                self._watch.push(start[len(tag) :])
        elif self._is_open:
            self._is_open = self._watch.push(data) is None
