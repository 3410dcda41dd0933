"""Divides a prompt into appends. A prompt can reuse the state at the end of an append, bit-identical to a cold run, if
its appends up to there are the same (docs/prefix_cache.md explains why)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lucebox import _engine

__all__ = [
    "PAGE",
    "Plan",
    "Segment",
    "append_ends",
    "around_images",
    "chunks_together",
    "min_append",
    "state_bytes",
    "turn_ends",
]

PAGE = 64  # tokens per KV page
# Recurrent states are large (151 MB for a 27B model; a KV page is 4 MB). They are stored where prompts diverge: at the
# first boundary (the end of the system prompt), at the newest append ends, at a fixed stride, and where this prompt was
# seen to diverge from a cached one.
NEWEST_ENDS = 2  # append ends before the prompt's last append
STATE_STRIDE = 8  # prefill chunks

Ids = NDArray[np.int32]


def chunks_together(session: _engine.Session) -> int:
    """Chunks that one sync computes: several where devices compute one after the other, because each may then compute
    another chunk at the same time. n chunks take as long as n + n_stages - 1 chunks of one device's layers."""
    return STATE_STRIDE if session.n_stages > 1 else 1


def state_bytes(session: _engine.Session) -> int:
    """Maximum bytes of the state that a sequence needs, beside the pages, to continue at a length: recurrent layers and
    windows."""
    return session.recurrent_bytes + session.window_bytes


def turn_ends(ids: Ids, end_ids: Sequence[int]) -> list[int]:
    """Positions after the end tokens of a prompt: turns end there, and other prompts may diverge."""
    found: list[int] = (np.flatnonzero(np.isin(ids, end_ids)) + 1).tolist()
    return found


def min_append(chunk: int) -> int:
    """The shortest append, in tokens, that a boundary makes: a short append costs as much as a long one."""
    return max(PAGE, chunk // 4)


def append_ends(n_tokens: int, boundaries: Iterable[int], chunk: int, start: int = 0) -> tuple[int, ...]:
    """Ends of the appends of a prompt after its first `start` tokens: multiples of `chunk`, the page starts of
    boundaries, and the prompt's end.

    A boundary less than min_append() after another end is skipped. The ends before a position do not depend on the
    tokens after it.
    """
    ends = [start]
    cuts = sorted({boundary // PAGE * PAGE for boundary in boundaries})
    for cut in [*(cut for cut in cuts if start < cut < n_tokens), n_tokens]:
        grid = range((ends[-1] // chunk + 1) * chunk, cut, chunk)
        last = grid[-1] if grid else ends[-1]
        if cut == n_tokens or cut - last >= min_append(chunk):
            ends += [*grid, cut]
    return tuple(ends[1:]) if n_tokens else ()


def around_images(ends: Sequence[int], ids: Ids, start: int = 0) -> tuple[int, ...]:
    """Append ends of a model whose images are whole: an end within an image gives way to the image's start, unless the
    prompt begins there, and to its end."""
    is_image = np.concatenate([[False], ids >= _engine.FIRST_IMAGE_ID, [False]])
    edges = np.flatnonzero(is_image[1:] != is_image[:-1]).tolist()
    found: dict[int, None] = {}
    for end in ends:
        image = next(((a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < end < b), None)
        found |= dict.fromkeys([end] if image is None else [at for at in image if at > start])
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class Segment:
    """The smallest unit of reuse: the appends between two append ends on page boundaries."""

    start: int
    end: int
    ends: tuple[int, ...]
    """Append ends within the segment."""
    ids: bytes
    """Its tokens: int32 [end - start]."""
    keeps_state: bool
    """Whether to store the state at its end: recurrent layers and windows."""

    @property
    def n_pages(self) -> int:
        return (self.end - self.start) // PAGE

    @property
    def key(self) -> tuple[bytes, tuple[int, ...]]:
        """Identifies the segment among the continuations of a prefix: its tokens and append ends."""
        return self.ids, self.ends


class Plan:
    """The append ends and the reusable segments of one prompt. Only prompts of the same owner reuse them."""

    def __init__(
        self,
        ids: ArrayLike,
        boundaries: Iterable[int],
        chunk: int,
        owner: str = "",
        *,
        known: Sequence[int] = (),
        parting: int | None = None,
        images_are_whole: bool = False,
    ) -> None:
        """known: append ends of a cached prefix, which this prompt adopts; only where rows are invariant. parting: the
        position, at a page start, where other prompts diverge from this one. images_are_whole: no append ends within an
        image."""
        self.owner = owner
        self.ids: Ids = np.ascontiguousarray(ids, np.int32)
        self._boundaries = {boundary // PAGE * PAGE for boundary in boundaries}
        self._chunk = chunk
        self._parting = parting
        start = known[-1] if known else 0
        cuts = self._boundaries if parting is None else self._boundaries | {parting}
        ends = append_ends(len(self.ids), cuts, chunk, start)
        self.ends = (*known, *(around_images(ends, self.ids, start) if images_are_whole else ends))

    def ends_to(self, n_tokens: int) -> list[int]:
        return [end for end in self.ends if end <= n_tokens]

    def sync_ends(self, start: int, n_together: int, *, keeps_states: bool) -> Iterator[int]:
        """Ends of the prompt's syncs after its first `start` tokens. A sync computes up to n_together appends. It ends
        earlier at an end that is no multiple of the chunk, which it would not stop at, and, with keeps_states, where a
        recurrent state is stored."""
        states = {one.end for one in self.segments(len(self.ids)) if one.keeps_state} if keeps_states else set()
        n_appends = 0
        for end in self.ends:
            if end <= start:
                continue
            n_appends += 1
            if n_appends == n_together or end % self._chunk or end in states or end == len(self.ids):
                yield end
                n_appends = 0

    def segments(self, n_tokens: int) -> Iterator[Segment]:
        """The segments within the first n_tokens, in order."""
        last = [end for end in self.ends if end % PAGE == 0 and end < len(self.ids)][-NEWEST_ENDS:]
        first = next((end for end in self.ends if end in self._boundaries), 0)
        start = 0
        ends: list[int] = []
        for end in self.ends:
            if end > n_tokens:
                return
            ends.append(end)
            if end % PAGE:
                continue
            stride = STATE_STRIDE * self._chunk
            keeps_state = end in (first, self._parting) or end in last or start // stride != end // stride
            yield Segment(start, end, tuple(ends), self.ids[start:end].tobytes(), keeps_state)
            start, ends = end, []
