"""Where appends end: close enough for reuse, far enough apart for speed, and never moved by what comes after."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lucebox.generation.prefix_cache.plan import PAGE, Plan, append_ends

CHUNKS = st.sampled_from([1, 16, 48, 64, 100, 512, 2048])
POSITIONS = st.lists(st.integers(0, 5000), max_size=40)


@pytest.mark.parametrize(
    ("n", "boundaries", "ends"),
    [
        (0, [], []),
        (1, [], [1]),
        (512, [], [512]),
        (1300, [], [512, 1024, 1300]),
        (1300, [300], [256, 512, 1024, 1300]),
        (1300, [127], [512, 1024, 1300]),  # half a page short of a quarter of a chunk
        (1300, [128, 200, 256], [128, 256, 512, 1024, 1300]),
        (1300, [600, 1280], [512, 1024, 1280, 1300]),  # 600 is too near to 512
        (1300, [5000, 1300], [512, 1024, 1280, 1300]),
    ],
)
def test_ends(n: int, boundaries: list[int], ends: list[int]) -> None:
    assert list(append_ends(n, boundaries, 512)) == ends


@given(st.integers(0, 5000), POSITIONS, CHUNKS)
def test_appends_are_those_of_sync(n: int, boundaries: list[int], chunk: int) -> None:
    """sync() to each of the ends makes one append each: a multiple of the chunk is never passed over."""
    ends = append_ends(n, boundaries, chunk)
    assert set(range(chunk, n, chunk)) <= set(ends)
    assert list(ends) == sorted(set(ends)) and (not n or ends[-1] == n)
    for start, end in itertools.pairwise((0, *ends)):
        assert end % chunk == 0 or end == n or (end % PAGE == 0 and end - start >= max(PAGE, chunk // 4))


@given(st.integers(1, 5000), POSITIONS, CHUNKS, st.booleans())
def test_syncs_have_the_same_appends(n: int, boundaries: list[int], chunk: int, keeps_states: bool) -> None:
    """A sync over several appends cuts them at multiples of the chunk, and stops at each stored state."""
    plan = Plan(np.zeros(n, np.int32), boundaries, chunk)
    ends, syncs = list(plan.ends), list(plan.sync_ends(0, 8, keeps_states=keeps_states))
    assert list(plan.sync_ends(0, 1, keeps_states=keeps_states)) == ends
    appends = []
    for start, end in itertools.pairwise((0, *syncs)):
        appends += [*range((start // chunk + 1) * chunk, end, chunk), end]
        assert sum(start < one <= end for one in ends) <= 8
    assert appends == ends
    states = {one.end for one in plan.segments(n) if one.keeps_state}
    assert not keeps_states or states <= set(syncs)


@given(st.integers(0, 5000), st.integers(0, 5000), POSITIONS, CHUNKS)
def test_what_follows_moves_nothing(n: int, more: int, boundaries: list[int], chunk: int) -> None:
    longer = append_ends(n + more, boundaries, chunk)
    ends = append_ends(n, [b for b in boundaries if b <= n], chunk)
    assert set(ends[:-1]) <= set(longer)
    assert [end for end in longer if end < n and end not in ends] == []


@given(st.integers(1, 5000), POSITIONS, CHUNKS)
def test_segments_are_whole_pages_in_order(n: int, boundaries: list[int], chunk: int) -> None:
    ids = np.arange(n, dtype=np.int32)
    plan = Plan(ids, boundaries, chunk)
    segments = list(plan.segments(n))
    at = 0
    for segment in segments:
        assert segment.start == at and segment.start % PAGE == segment.end % PAGE == 0
        assert segment.ids == ids[segment.start : segment.end].tobytes()
        assert segment.ends == tuple(end for end in plan.ends if segment.start < end <= segment.end)
        at = segment.end
    assert not any(end % PAGE == 0 for end in plan.ends if end > at)
    assert list(plan.segments(n - 1)) == [segment for segment in segments if segment.end < n]


@pytest.mark.parametrize(
    ("boundaries", "want"),
    [([], [4096, 8192, 9216, 9728]), ([100, 700, 1000, 9990], [640, 4096, 8192, 9728, 9984])],
)
def test_states_are_kept_at_the_first_boundary_and_behind_the_newest_position(
    boundaries: list[int], want: list[int]
) -> None:
    plan = Plan(np.zeros(10000, np.int32), boundaries, 512)
    assert [segment.end for segment in plan.segments(9999) if segment.keeps_state] == want
