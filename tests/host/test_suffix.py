"""The suffix drafter against its definition, whatever was pushed, cut off or dropped before, and unions of trees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lucebox import InvalidRequestError, _engine, _kernels
from reference import suffix as reference
from repeating_text import code_like

speculation = _kernels.speculation

Proposal = tuple[reference.Tree, float, int, str]


def ids(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


def drafter_of(tokens: list[int], context: int = 4096) -> _kernels.speculation.SuffixDrafter:
    drafter = speculation.SuffixDrafter(context)
    drafter.push(ids(tokens))
    return drafter


def agree(got: Proposal, expected: Proposal) -> None:
    assert got[0][:2] == expected[0][:2]
    assert got[0][2] == pytest.approx(expected[0][2], abs=1e-5)
    assert got[1] == pytest.approx(expected[1], abs=1e-9)
    assert got[2:] == expected[2:]


SHORT = st.lists(st.integers(0, 3), max_size=40)


@given(SHORT, st.integers(1, 64))
def test_proposes_what_followed_the_longest_suffix(tokens: list[int], max_rows: int) -> None:
    agree(drafter_of(tokens).propose(max_rows), reference.propose(tokens, max_rows=max_rows))


def test_follows_a_long_text_token_by_token() -> None:
    rng = np.random.default_rng(1)
    tokens = code_like(700, rng)
    drafter = drafter_of([])
    for n, token in enumerate(tokens, start=1):
        drafter.push(ids([token]))
        if n % 7 == 0:
            agree(drafter.propose(), reference.propose(tokens[:n]))


@pytest.mark.parametrize("period", [1, 2, 3, 70])
def test_periods_longer_and_shorter_than_the_longest_context(period: int) -> None:
    tokens = [i % period for i in range(300)]
    agree(drafter_of(tokens).propose(), reference.propose(tokens))
    tree, accepted, match, source = drafter_of(tokens).propose()
    assert (match, source, len(tree[0])) == (64, "sequence", 64)
    assert tree[0] == [(299 + i) % period for i in range(64)], "it repeats beyond the end of the text"
    assert accepted > 40


@given(st.lists(st.tuples(st.integers(0, 30), SHORT), max_size=8))
def test_truncation_leaves_what_a_fresh_drafter_has(edits: list[tuple[int, list[int]]]) -> None:
    drafter, tokens = drafter_of([]), list[int]()
    for dropped, added in edits:
        tokens = tokens[: max(0, len(tokens) - dropped)]
        drafter.truncate(len(tokens))
        tokens += added
        drafter.push(ids(added))
        agree(drafter.propose(), reference.propose(tokens))
        assert drafter.n_tokens == len(tokens)


def test_truncation_of_a_long_text_leaves_what_a_fresh_drafter_has() -> None:
    rng = np.random.default_rng(2)
    drafter, tokens = drafter_of([], 8192), list[int]()
    for _ in range(40):
        tokens = tokens[: int(rng.integers(0, len(tokens) + 1))]
        drafter.truncate(len(tokens))
        added = code_like(min(int(rng.integers(1, 3000)), 8192 - len(tokens)), rng)
        for part in np.split(ids(added), [len(added) // 2]):
            tokens += part.tolist()
            drafter.push(part)
            fresh = drafter_of(tokens, 8192)
            for _ in range(5):  # the order of occurrences is right far back, too
                assert drafter.propose() == fresh.propose()
                token = int(rng.choice(tokens))
                for of in (drafter, fresh):
                    if of.n_tokens < 8192:
                        of.push(ids([token]))
            drafter.truncate(len(tokens))


@given(st.lists(SHORT, max_size=12), SHORT)
def test_earlier_outputs_are_dropped_from_the_oldest(outputs: list[list[int]], tokens: list[int]) -> None:
    capacity = 300  # 64 for each output, besides its tokens
    shared = _engine.speculation.EarlierOutputs(capacity)
    kept: list[list[int]] = []
    for output in outputs:
        shared.add(ids(output))
        kept += [output] if output else []
        while sum(64 + len(part) for part in kept) > capacity:
            kept.pop(0)
    assert shared.n_tokens == sum(64 + len(part) for part in kept)
    drafter = speculation.SuffixDrafter(100, 0, shared)
    drafter.push(ids(tokens))
    agree(drafter.propose(), reference.propose(tokens, [("outputs", kept)]))


def test_earlier_outputs_after_many_turns_of_the_ring() -> None:
    rng = np.random.default_rng(3)
    shared, kept = _engine.speculation.EarlierOutputs(1500), list[list[int]]()
    text = code_like(20_000, rng, vocab=40)
    for at in range(0, 20_000, 250):
        output = text[at : at + int(rng.integers(1, 250))]
        shared.add(ids(output))
        kept.append(output)
        while sum(64 + len(part) for part in kept) > 1500:
            kept.pop(0)
        drafter = speculation.SuffixDrafter(100, 0, shared)
        drafter.push(ids(kept[0][:5]))
        agree(drafter.propose(), reference.propose(kept[0][:5], [("outputs", kept)]))


def test_an_output_longer_than_the_capacity_is_kept_from_its_end() -> None:
    shared = _engine.speculation.EarlierOutputs(128)
    shared.add(ids(list(range(100))))
    drafter = speculation.SuffixDrafter(100, 0, shared)
    drafter.push(ids([35]))
    assert drafter.propose()[3] == "none"
    drafter.push(ids([36]))
    assert drafter.propose()[0][0][:3] == [36, 37, 38]


@given(SHORT, SHORT, SHORT)
def test_an_expected_text_is_proposed_where_it_is_the_better_one(
    expected: list[int], replaced: list[int], tokens: list[int]
) -> None:
    drafter = speculation.SuffixDrafter(100, 40)
    drafter.expect(ids(replaced))
    drafter.expect(ids(expected))
    drafter.push(ids(tokens))
    agree(drafter.propose(), reference.propose(tokens, [("expected", [expected])]))


def test_an_expected_text_is_cut_to_its_capacity() -> None:
    drafter = speculation.SuffixDrafter(10, 4)
    drafter.expect(ids([1, 2, 3, 4, 5, 6]))
    drafter.push(ids([3]))
    assert drafter.propose()[0][0] == [3, 4]


def test_what_does_not_fit_is_refused() -> None:
    drafter = speculation.SuffixDrafter(3)
    drafter.push(ids([1, 2]))
    with pytest.raises(InvalidRequestError, match=r"room for 3 tokens; it holds 2 and 2 more"):
        drafter.push(ids([3, 4]))
    with pytest.raises(InvalidRequestError, match=r"holds 2 tokens; it cannot be cut to 3"):
        drafter.truncate(3)
    with pytest.raises(InvalidRequestError, match=r"at least 128 tokens, not 127"):
        _engine.speculation.EarlierOutputs(127)


def test_memory_per_token_is_what_the_plan_counts() -> None:
    small, large = (speculation.SuffixDrafter.planned_bytes(n, 0) for n in (10_000, 110_000))
    assert (large - small) / 100_000 == pytest.approx(60, abs=0.1)


# --- unions


@st.composite
def trees(draw: st.DrawFn, root: int = 0) -> reference.Tree:
    """A tree without two children of one token; scores fall along each path."""
    tokens, parents, scores = [root], [-1], [0.0]
    for _ in range(draw(st.integers(0, 30))):
        parent = draw(st.integers(0, len(tokens) - 1))
        token = draw(st.integers(0, 4))
        if (parent, token) not in zip(parents, tokens, strict=True):
            tokens.append(token)
            parents.append(parent)
            scores.append(scores[parent] - draw(st.sampled_from([0.0, 0.25, 0.5, 1.0])))
    return tokens, parents, scores


def paths_of(tree: reference.Tree) -> dict[tuple[int, ...], float]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(*tree[:2], strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return dict(zip(paths, tree[2], strict=True))


@given(trees(), trees(), st.integers(1, 64))
def test_a_union_has_the_best_paths_of_both(a: reference.Tree, b: reference.Tree, max_rows: int) -> None:
    both = paths_of(b)
    for path, score in paths_of(a).items():
        both[path] = max(score, both.get(path, score))
    merged = speculation.merge(a, b, max_rows)
    paths = paths_of(merged)
    assert len(merged[0]) == len(paths) == min(max_rows, len(both)), "no path twice, none missing"
    assert all(both[path] == score for path, score in paths.items())
    assert all(parent < row for row, parent in enumerate(merged[1]))
    assert list(paths.values()) == sorted(both.values(), reverse=True)[: len(paths)]


@given(trees())
def test_a_union_with_nothing_or_itself_only_sorts(a: reference.Tree) -> None:
    nothing: reference.Tree = ([], [], [])
    assert paths_of(speculation.merge(a, nothing)) == paths_of(speculation.merge(nothing, a)) == paths_of(a)
    assert speculation.merge(a, a) == speculation.merge(a, nothing)
    assert speculation.merge(nothing, nothing) == nothing


def test_ties_in_a_union_go_to_the_lower_parent_and_then_to_the_first_tree() -> None:
    a = ([9, 1, 2], [-1, 0, 1], [0.0, -1.0, -2.0])
    b = ([9, 3, 4, 2], [-1, 0, 1, 0], [0.0, -1.0, -2.0, -2.0])
    assert speculation.merge(a, b) == (
        [9, 1, 3, 2, 2, 4],
        [-1, 0, 0, 0, 1, 2],
        [0.0, -1.0, -1.0, -2.0, -2.0, -2.0],
    )


def test_expected_tokens_add_the_probabilities_of_rows() -> None:
    half = float(np.log(0.5))
    tree = ([0, 1, 2, 3], [-1, 0, 1, 0], [0.0, half, 2 * half, half])
    assert speculation.expected_tokens(tree) == pytest.approx([0, 0.5, 0.75, 1.25])
    sure = ([0, 1, 2], [-1, 0, 0], [0.0, float(np.log(0.8)), half])
    assert speculation.expected_tokens(sure) == pytest.approx([0, 0.8, 1.0]), "children exclude each other"
