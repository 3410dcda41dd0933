"""The output of a decode loop as items: text parsed to events, and log probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lucebox.results import TokenLogprob
from lucebox.serve.events import Event, Parser, ReasoningDelta, TextDelta
from lucebox.text import StopMatcher

__all__ = ["ParsedText"]


class ParsedText:
    """The output of a decode loop: parses the text into events and passes them on."""

    def __init__(self, parser: Parser, stops: Sequence[str], put: Callable[[Event | TokenLogprob], None]) -> None:
        self._parser = parser
        self._stopper = StopMatcher(stops)
        self._put = put
        self._is_reasoning = False
        self.reasoning_tokens = 0

    def logprob(self, value: TokenLogprob) -> None:
        self._put(value)

    def push(self, text: str) -> str | None:
        stop = self._emit(self._parser.push(text))
        self.reasoning_tokens += self._is_reasoning
        return stop

    def flush(self, text: str) -> str | None:
        stop = self._emit(self._parser.push(text) + self._parser.finish())
        if stop is None and (held := self._stopper.finish()):
            self._put(TextDelta(held))
        return stop

    def _emit(self, events: list[Event]) -> str | None:
        """Puts events; returns the stop string that ends the answer. Reasoning and calls are not searched for one."""
        for event in events:
            self._is_reasoning = isinstance(event, ReasoningDelta)
            if not isinstance(event, TextDelta):
                if held := self._stopper.finish():
                    self._put(TextDelta(held))
                self._put(event)
                continue
            text, stop = self._stopper.push(event.text)
            if text:
                self._put(TextDelta(text))
            if stop is not None:
                return stop
        return None
