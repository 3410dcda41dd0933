"""How long a model may think: plans of requests, and the closing tag forced when the budget is spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lucebox.errors import InvalidRequestError
from lucebox.serve.profiles import Profile, Thinking
from lucebox.text import Tokenizer

__all__ = ["EFFORTS", "TagWatch", "ThinkingBudget", "ThinkingRequest", "begins_open", "thinking_limit"]

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
_SHARES = {"minimal": 1 / 32, "low": 1 / 8, "medium": 1 / 2, "high": 1.0}  # of max_tokens
_GRACE = 32  # tokens before the limit in which thinking ends at the end of a line


@dataclass(frozen=True, slots=True)
class ThinkingRequest:
    """What a request says of thinking, whatever its protocol calls it."""

    mode: Literal["default", "off", "on", "adaptive"] = "default"
    """adaptive: the model thinks as long as it likes within the effort's limit."""
    effort: str | None = None
    budget_tokens: int | None = None
    """Most tokens to think; goes before effort."""


def begins_open(tags: Thinking, prompt: str) -> bool:
    """Whether the answer to a rendered prompt begins within reasoning.

    Only the end of the prompt says so: a user may have written the tags too.
    """
    tail = prompt.rstrip()[-len(tags.open) :]
    return tail == tags.open


def thinking_limit(profile: Profile, request: ThinkingRequest, max_tokens: int) -> int:
    """Most tokens to think in an answer of max_tokens, of which some are kept for the reply.

    Raises:
        InvalidRequestError: the effort is unknown, or the budget not positive.
    """
    if request.budget_tokens is not None:
        if request.budget_tokens < 1:
            raise InvalidRequestError(f"budget_tokens is {request.budget_tokens}, expected a positive number")
        wanted = request.budget_tokens
    else:
        wanted = effort_tokens(profile, request.effort or "high")
    reserve = min(profile.reply_tokens, max_tokens // 2)
    return max(1, min(wanted, max_tokens - reserve))


def effort_tokens(profile: Profile, effort: str) -> int:
    """Thinking tokens of a tier."""
    name = "xhigh" if effort == "x-high" else effort
    if name not in EFFORTS:
        raise InvalidRequestError(f"effort is {effort!r}, expected one of {', '.join(EFFORTS)}")
    if name in profile.effort:
        return profile.effort[name]
    if name in _SHARES:
        return max(1, int(profile.max_tokens * _SHARES[name]))
    return profile.most_tokens if name == "max" else (profile.max_tokens + profile.most_tokens) // 2


class TagWatch:
    """Finds a tag in the bytes of tokens, however they cut it."""

    def __init__(self, tag: str) -> None:
        self._tag = tag.encode()
        self._tail = b""

    def push(self, data: bytes) -> bytes | None:
        """What follows the tag, once it is whole; None before."""
        text = self._tail + data
        at = text.find(self._tag)
        if at >= 0:
            self._tail = b""
            return text[at + len(self._tag) :]
        self._tail = text[len(text) - min(len(text), len(self._tag) - 1) :]
        return None


class ThinkingBudget:
    """Says after each token which tokens to append next in place of sampled ones.

    While the model thinks, these are none until the budget is spent: then they close the thinking, at the end of a
    line where one comes shortly before the limit. Where the model ends its whole answer while thinking, they take the
    place of the token that ends it.
    """

    def __init__(
        self, tags: Thinking, tokenizer: Tokenizer, prompt_text: str, *, limit: int, end_ids: Sequence[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._tags = tags
        self._limit = limit
        self._ends = frozenset(end_ids)
        self._start = b""
        self._watch = TagWatch(tags.close)
        self._is_open = begins_open(tags, prompt_text)
        self._may_open = not self._is_open
        self._to_force = 0
        self.n_tokens = 0
        """Tokens of reasoning so far."""

    @property
    def is_thinking(self) -> bool:
        return self._is_open

    def push(self, token: int) -> list[int]:
        """Tokens to append now; of those, the ones pushed here too give none.

        Where `token` is one of the end ids and the result is not empty, the result takes its place.
        """
        if self._to_force:
            self._to_force -= 1
            self._read(self._tokenizer.token_bytes(token))
            return []
        data = self._tokenizer.token_bytes(token)
        if token in self._ends:
            return self._close(self._tags.close + "\n\n") if self._is_open else []
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
