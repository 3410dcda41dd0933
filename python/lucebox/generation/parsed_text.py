"""The output of a decode loop as items: events parsed from the text, and log probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lucebox.generation.events import Event, Parser, ReasoningDelta, TextDelta
from lucebox.results import TokenLogprob
from lucebox.text import StopMatcher

__all__ = ["ParsedText"]


class ParsedText:
    """The output of a decode loop: parses the text into events and passes them on.

    Log probabilities precede the text of their tokens. Tokens without text in the answer (tags, reasoning, calls, the
    end token) lose theirs.
    """

    def __init__(self, parser: Parser, stops: Sequence[str], put: Callable[[Event | TokenLogprob], None]) -> None:
        self._parser = parser
        self._stopper = StopMatcher(stops)
        self._put = put
        self._is_reasoning = False
        self._newest: TokenLogprob | None = None  # log probability of the token whose text comes next
        self._waiting: list[tuple[TokenLogprob | None, str]] = []  # tokens whose text is not in an event yet
        self.reasoning_tokens = 0

    def logprob(self, value: TokenLogprob) -> None:
        self._newest = value

    def push(self, text: str) -> str | None:
        self._await(text)
        stop = self._emit(self._parser.push(text))
        self.reasoning_tokens += self._is_reasoning
        return stop

    def flush(self, text: str) -> str | None:
        self._await(text)
        stop = self._emit(self._parser.push(text) + self._parser.finish())
        if stop is None and (held := self._stopper.finish()):
            self._put(TextDelta(held))
        return stop

    def _emit(self, events: list[Event]) -> str | None:
        """Puts events; returns the stop string that ends the answer. Only answer text is searched for stop strings."""
        for i, event in enumerate(events):
            self._is_reasoning = isinstance(event, ReasoningDelta)
            if not isinstance(event, TextDelta):
                if held := self._stopper.finish():
                    self._put(TextDelta(held))
                self._put(event)
                continue
            self._put_logprobs(event.text, is_last=i + 1 == len(events))
            text, stop = self._stopper.push(event.text)
            if text:
                self._put(TextDelta(text))
            if stop is not None:
                return stop
        if events and not isinstance(events[-1], TextDelta):
            self._waiting.clear()
        return None

    def _await(self, text: str) -> None:
        if self._newest is not None or self._waiting:
            self._waiting.append((self._newest, text))
            self._newest = None

    def _put_logprobs(self, text: str, *, is_last: bool) -> None:
        """Puts the log probabilities of the waiting tokens that make up this text, and drops the ones of earlier
        tokens."""
        joined = "".join(part for _, part in self._waiting)
        start = joined.rfind(text) if is_last else joined.find(text)
        end = start + len(text)
        at, kept = 0, []
        for value, part in self._waiting:
            overlaps = start <= at < end or (at < start < at + len(part))
            if start >= 0 and value is not None and overlaps:
                self._put(value)
                value = None
            if at >= end:
                kept.append((value, part))
            elif at + len(part) > end:
                kept.append((value, part[end - at :]))  # the parser or the stop matcher withholds the rest
            at += len(part)
        self._waiting = kept
