"""Stop strings in streamed text."""

from __future__ import annotations

from collections.abc import Iterable

from lucebox.errors import InvalidRequestError

__all__ = ["StopMatcher"]


class StopMatcher:
    """Passes text on until a stop string appears, holding back only what may be the start of one.

    The stop string that is complete first wins, the longest of those that end together, so the result does not
    depend on how the text is cut into pieces.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self._stops = tuple(dict.fromkeys(strings))
        for stop in self._stops:
            if not isinstance(stop, str) or not stop:
                raise InvalidRequestError(f"a stop string must be non-empty text, got {stop!r}")
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """(text safe to give out, the stop string hit or None). Nothing may be pushed after a hit."""
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, stop = min(found)
            self._held = ""
            return text[:at], stop
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def finish(self) -> str:
        """The text held back, when no more follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop` without completing it."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
