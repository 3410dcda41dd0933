"""Stop strings: finds them in streamed text."""

from __future__ import annotations

from collections.abc import Iterable

from lucebox.errors import InvalidRequestError

__all__ = ["StopMatcher"]


class StopMatcher:
    """Passes text through until a stop string appears; withholds only text that may begin one.

    The stop string that ends first wins; ties go to the longest. The result therefore does not depend on how the text
    is split.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self._stops = tuple(dict.fromkeys(strings))
        for stop in self._stops:
            if not isinstance(stop, str) or not stop:
                raise InvalidRequestError(f"a stop string must be non-empty text, got {stop!r}")
        self._withheld = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """(text safe to emit, the stop string found or None). Push nothing after a stop string."""
        text = self._withheld + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, stop = min(found)
            self._withheld = ""
            return text[:at], stop
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._withheld = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def finish(self) -> str:
        """The withheld text, once no more text follows."""
        withheld, self._withheld = self._withheld, ""
        return withheld


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `stop`."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
