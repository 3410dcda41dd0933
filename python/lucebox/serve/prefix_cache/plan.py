"""Where the appends end in which a prompt is computed. State at an end can be used again, with the bits of a cold run,
by every prompt that is computed in the same appends up to there: docs/prefix_cache.md says why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["PAGE", "Plan", "Segment", "append_ends"]

PAGE = 64  # tokens of a KV page
# Recurrent states are large (of a 27B model 151 MB; a page of KV has 4), so they are kept where prompts part most:
# at the first boundary (the end of the system prompt), at the newest ends, and now and then between.
RING = 2  # ends
STRIDE = 8  # chunks

Ids = NDArray[np.int32]


def append_ends(n_tokens: int, boundaries: Iterable[int], chunk: int) -> tuple[int, ...]:
    """Ends of the appends of a prompt: multiples of `chunk`, the pages in which boundaries lie, and the prompt's own.

    A boundary within a quarter of a chunk after another end is passed over: a short append costs as much as a long one.
    What comes after a position never moves the ends before it.
    """
    ends = [0]
    cuts = sorted({boundary // PAGE * PAGE for boundary in boundaries})
    for cut in [*(cut for cut in cuts if 0 < cut < n_tokens), n_tokens]:
        grid = range((ends[-1] // chunk + 1) * chunk, cut, chunk)
        last = grid[-1] if grid else ends[-1]
        if cut == n_tokens or cut - last >= max(PAGE, chunk // 4):
            ends += [*grid, cut]
    return tuple(ends[1:]) if n_tokens else ()


@dataclass(frozen=True, slots=True)
class Segment:
    """The least that is kept: appends from one page's start to another's."""

    start: int
    end: int
    ends: tuple[int, ...]
    """Of its appends."""
    ids: bytes
    """Its tokens."""
    keeps_state: bool
    """The recurrent state at its end is worth keeping."""

    @property
    def n_pages(self) -> int:
        return (self.end - self.start) // PAGE

    @property
    def key(self) -> tuple[bytes, tuple[int, ...]]:
        """What tells it from other segments behind the same prefix: all of its tokens, and how they are computed."""
        return self.ids, self.ends


class Plan:
    """How one prompt is computed, and what of it can be kept."""

    def __init__(self, ids: ArrayLike, boundaries: Iterable[int], chunk: int) -> None:
        self.ids: Ids = np.ascontiguousarray(ids, np.int32)
        self._boundaries = {boundary // PAGE * PAGE for boundary in boundaries}
        self._chunk = chunk
        self.ends = append_ends(len(self.ids), self._boundaries, chunk)

    def ends_to(self, n_tokens: int) -> list[int]:
        return [end for end in self.ends if end <= n_tokens]

    def segments(self, n_tokens: int) -> Iterator[Segment]:
        """Those that lie within the first n_tokens, in order."""
        last = [end for end in self.ends if end % PAGE == 0 and end < len(self.ids)][-RING:]
        first = next((end for end in self.ends if end in self._boundaries), 0)
        start = 0
        ends: list[int] = []
        for end in self.ends:
            if end > n_tokens:
                return
            ends.append(end)
            if end % PAGE:
                continue
            stride = STRIDE * self._chunk
            keeps_state = end == first or end in last or start // stride != end // stride
            yield Segment(start, end, tuple(ends), self.ids[start:end].tobytes(), keeps_state)
            start, ends = end, []
