"""Compresses conversations: cuts long messages before the chat template renders them, so tokens of the template, the
tools and the system message are never cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from lucebox.compression.anchors import anchored
from lucebox.compression.pieces import TokenCounts
from lucebox.compression.policy import CompressionRequest, Policy
from lucebox.compression.regions import cuttable
from lucebox.compression.scorer import Scorer
from lucebox.compression.selection import joined, merged, select
from lucebox.compression.turns import EarlierTurns
from lucebox.results import CutMessage
from lucebox.text import Tokenizer

__all__ = ["MIN_MESSAGE_TOKENS", "Compressor", "CutConversation"]

Messages = Sequence[dict[str, Any]]
# The tokens of a text in the target's vocabulary.
Count = Callable[[str], TokenCounts]

# Shorter messages are never cut.
MIN_MESSAGE_TOKENS = 512
SEPARATOR = "\n\n"  # between the messages that are scored together


@dataclass(frozen=True, slots=True)
class CutConversation:
    messages: list[dict[str, Any]]
    cut: tuple[CutMessage, ...]
    scorer: str
    keep_ratio: float
    score_s: float
    """Seconds spent in the scorer; 0 if earlier turns had scored everything."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A message that may be cut."""

    index: int
    content: str
    has_question: bool


class Compressor:
    """Cuts the long messages of conversations with one model. Safe to share between threads."""

    def __init__(
        self, scorer: Scorer, tokenizer: Tokenizer, policy: Policy, *, context: int, owns_scorer: bool = True
    ) -> None:
        """tokenizer, context: the target's. owns_scorer: close() closes the scorer."""
        self.scorer = scorer
        self.owns_scorer = owns_scorer
        self.policy = policy
        self._tokenizer = tokenizer
        self._context = context
        self._turns = EarlierTurns()

    def close(self) -> None:
        """Frees the scorer, unless other models use it."""
        if self.owns_scorer:
            self.scorer.close()

    @property
    def max_tokens(self) -> int:
        """No longer prompt is scored, whatever a request asks for."""
        return int(self._context / min(share for _, share in self.policy.keep.points))

    def cut(
        self,
        messages: Messages,
        n_tokens: int,
        count_prompt: Callable[[list[dict[str, Any]]], int],
        request: CompressionRequest | None = None,
        sender: str = "",
        check: Callable[[], None] | None = None,
    ) -> CutConversation | None:
        """The compressed conversation; None if nothing is cut. A prompt is not scored if the share that the
        options keep would exceed the context: scoring takes the device, and a request may ask for any smaller share.

        n_tokens: length of the prompt of these messages; count_prompt: counts the tokens of other messages' prompt.
        sender: cuts are remembered per sender; no sender reuses the cuts of another.
        check: called often while the scorer computes; ends it by raising.
        """
        policy = self.policy.of(request)
        if policy.mode == "off":
            return None
        ratio = policy.keep.at(n_tokens)
        if max(ratio, self.policy.keep.at(n_tokens)) * n_tokens > self._context:
            return None
        settings = repr((sender, self.scorer.name, policy.keep, policy.uses_anchors))
        n_known, cut = self._turns.find(messages, settings)
        replayed = _replaced(messages, cut)
        score_s = 0.0

        @cache  # the text of a single message is counted twice: as a candidate and as the scored text
        def count(text: str) -> TokenCounts:
            return TokenCounts(self._tokenizer.encode_with_starts(text)[1])

        is_long = policy.mode == "always" or (count_prompt(replayed) if cut else n_tokens) >= policy.threshold
        candidates = _candidates(messages, n_known, n_tokens, count) if is_long else []
        if candidates:
            began = time.perf_counter()
            cut = (*cut, *self._cut(candidates, _question(messages, count), ratio, count, policy.uses_anchors, check))
            score_s = time.perf_counter() - began
            self._turns.put(messages, settings, cut)
        if not cut:
            return None
        return CutConversation(_replaced(messages, cut), cut, self.scorer.name, ratio, score_s)

    def _cut(
        self,
        candidates: Sequence[_Candidate],
        question: str,
        ratio: float,
        count_of: Count,
        uses_anchors: bool,
        check: Callable[[], None] | None,
    ) -> list[CutMessage]:
        """The candidates that became shorter. All share one token budget."""
        text = SEPARATOR.join(one.content for one in candidates)
        count = count_of(text)
        places, regions, start = [], [], 0
        for one in candidates:
            place = (start, start + len(one.content))
            places.append(place)
            regions.append(cuttable(text, place, count, has_question=one.has_question))
            start = place[1] + len(SEPARATOR)
        if candidates[-1].has_question:
            question = ""  # the scorer takes the end of the text
        scored = self.scorer.score(text, question, check=check)
        if uses_anchors:
            scored = anchored(scored, *self.scorer.body_and_question(scored, question))
        kept = select(scored, regions, count, int(ratio * sum(map(count, regions))))
        found = []
        for one, (begin, end), region in zip(candidates, places, regions, strict=True):
            inside = [span for span in kept if begin <= span[0] < end]
            stays = merged(sorted([(begin, region[0]), *inside, (region[1], end)]))
            if stays != [(begin, end)]:
                spans = tuple((a - begin, b - begin) for a, b in stays)
                found.append(CutMessage(one.index, spans, len(one.content), joined(one.content, spans)))
        return found


def _candidates(messages: Messages, first: int, n_tokens: int, count: Count) -> list[_Candidate]:
    """The messages from `first` on that may be cut. The last user message qualifies only if it is most of the prompt: a
    document with its question. A final assistant message, which the answer continues, never qualifies."""
    last_user = _last_user(messages)
    found = []
    for i, message in enumerate(messages[first:], first):
        is_continued = i == len(messages) - 1 and message["role"] == "assistant"
        if message["role"] in ("system", "developer") or is_continued:
            continue
        n = count(message["content"]).total
        if n >= MIN_MESSAGE_TOKENS and (i != last_user or 2 * n > n_tokens):
            found.append(_Candidate(i, message["content"], i == last_user))
    return found


def _question(messages: Messages, count: Count) -> str:
    """The last user message, or its end if it is long."""
    last_user = _last_user(messages)
    content = messages[last_user]["content"] if last_user is not None else ""
    if count(content).total < MIN_MESSAGE_TOKENS:
        return str(content)
    whole = (0, len(content))
    return str(content[cuttable(content, whole, count(content), has_question=True)[1] :])


def _last_user(messages: Messages) -> int | None:
    return max((i for i, message in enumerate(messages) if message["role"] == "user"), default=None)


def _replaced(messages: Messages, cut: Sequence[CutMessage]) -> list[dict[str, Any]]:
    """The messages with the contents of the cut ones."""
    contents = {one.index: one.content for one in cut}
    return [
        {**message, "content": contents[i]} if i in contents else dict(message) for i, message in enumerate(messages)
    ]
