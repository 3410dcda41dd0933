"""The width of a step in simulated decoding: how often drafts are accepted is known to the simulation only."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lucebox import InvalidRequestError, _kernels
from reference.suffix import Tree
from repeating_text import code_like

DraftPlanner = _kernels.speculation.DraftPlanner
NOTHING: Tree = ([], [], [])


@dataclass(frozen=True)
class Costs:
    """In plain tokens."""

    append: tuple[tuple[int, float], ...]
    draft: float

    def of(self, rows: int) -> float:
        return next(time for tile, time in self.append if rows <= tile)

    def width(self, *, has_model: bool = True, draft_budget: int = 0) -> _kernels.speculation.DraftPlanner:
        ms = 7.0  # of a plain token
        append = [(rows, time * ms) for rows, time in self.append]
        return DraftPlanner(append, ms, self.draft * ms, has_model, draft_budget)


COSTS = {
    "bandwidth": Costs(((8, 1.04), (16, 1.10), (24, 1.18), (32, 1.26), (48, 1.45), (64, 1.65)), 0.12),
    "arithmetic": Costs(((8, 1.2), (16, 1.5), (24, 2.0), (32, 2.5), (48, 3.5), (64, 4.5)), 0.3),
    "cpu": Costs(((8, 3.0), (16, 5.5), (24, 8.0), (32, 10.5), (48, 15.5), (64, 20.5)), 0.5),
    "free": Costs(((8, 1.005), (16, 1.01), (32, 1.02), (64, 1.04)), 0.0),
}


def chain(stated: float, rows: int = 64) -> Tree:
    """A path whose every token has the probability `stated` after the one before."""
    return list(range(rows)), [row - 1 for row in range(rows)], [row * math.log(stated) for row in range(rows)]


def bush(chances: list[float], depth: int) -> Tree:
    """The best 64 rows of a tree whose every node has children with these probabilities."""
    tokens, parents, scores, depths = [0], [-1], [0.0], [0]
    candidates = [(math.log(chance), 0, token) for token, chance in enumerate(chances)]
    while len(tokens) < 64 and candidates:
        best = max(candidates, key=lambda candidate: (candidate[0], -candidate[1], -candidate[2]))
        candidates.remove(best)
        score, parent, token = best
        row = len(tokens)
        tokens.append(token)
        parents.append(parent)
        scores.append(score)
        depths.append(depths[parent] + 1)
        if depths[row] < depth:
            candidates += [(score + math.log(chance), row, token) for token, chance in enumerate(chances)]
    return tokens, parents, scores


@dataclass
class Run:
    """Decodes and counts time in plain tokens."""

    costs: Costs
    width: _kernels.speculation.DraftPlanner
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    time: float = 0
    tokens: int = 0
    kinds: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    ahead: bool = False
    """Rows of the model's trees are chosen before the trees are known."""

    def step(self, model: Tree, accepts: Callable[[int, int], float], suffix: Tree = NOTHING) -> int:
        """accepts: probability of a token at a depth below the root, its parent being accepted."""
        kind = self.width.choose(suffix)
        if self.ahead and self.width.rows_ahead:
            assert kind == "model" and len(suffix[0]) < 2
            rows = min(self.width.rows_ahead, len(model[0]))
            self.width.set_model_tree(model, rows)
            tree: Tree = (model[0][:rows], model[1][:rows], model[2][:rows])
        else:
            tree = NOTHING if kind == "plain" else self.width.tree(model if kind == "model" else None)
        path = self.accepted(tree, accepts)
        self.width.add_accepted(path)
        rows = len(tree[0])
        self.time += (self.costs.draft if kind == "model" else 0) + (self.costs.of(rows) if rows else 1)
        self.tokens += max(1, len(path))
        self.kinds.append(kind)
        self.rows.append(rows)
        return max(1, len(path))

    def accepted(self, tree: Tree, accepts: Callable[[int, int], float]) -> list[int]:
        path = [0] if tree[0] else []
        while path:
            draw = self.rng.random()
            for row in range(path[-1] + 1, len(tree[0])):
                if tree[1][row] == path[-1]:
                    draw -= accepts(tree[0][row], len(path))
                    if draw < 0:
                        path.append(row)
                        break
            else:
                break
        return path

    def until(self, tokens: int, model: Tree, accepts: Callable[[int, int], float]) -> Run:
        while self.tokens < tokens:
            self.step(model, accepts)
        return self

    @property
    def time_per_token(self) -> float:
        return self.time / self.tokens


def best_fixed(costs: Costs, model: Tree, accepts: Callable[[int, int], float], tokens: int) -> float:
    """Time per token at the best width, plain decoding included."""
    times = [1.0]
    for rows, time in costs.append:
        run = Run(costs, costs.width(draft_budget=min(rows, 64) - 1)).until(tokens, model, accepts)
        assert set(run.rows) == {min(rows, len(model[0]))}
        times.append(len(run.rows) * (costs.draft + time) / run.tokens)
    return min(times)


# --- the loss is bounded


@pytest.mark.parametrize("stated", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("name", COSTS)
def test_a_worthless_drafter_costs_less_than_one_percent(name: str, stated: float) -> None:
    run = Run(COSTS[name], COSTS[name].width()).until(10_000, chain(stated), lambda *_: 0)
    assert run.time_per_token < 1.01
    assert run.kinds[-2000:].count("model") > 0, "it is tried again now and then"


@pytest.mark.parametrize("stated", [0.5, 0.99])
@pytest.mark.parametrize("name", COSTS)
def test_rows_chosen_ahead_lose_no_more(name: str, stated: float) -> None:
    run = Run(COSTS[name], COSTS[name].width(), ahead=True).until(10_000, chain(stated), lambda *_: 0)
    assert run.time_per_token < 1.01


@pytest.mark.parametrize("chance", [0.5, 0.8])
@pytest.mark.parametrize("name", COSTS)
def test_rows_chosen_ahead_are_those_of_steady_trees(name: str, chance: float) -> None:
    """The simulation accepts what the trees state, so a look at the tree tells nothing new."""
    model = bush([chance, (1 - chance) / 2], 12)

    def accepts(token: int, depth: int) -> float:
        return chance if token == 0 else (1 - chance) / 2

    known, ahead = (
        Run(COSTS[name], COSTS[name].width(), ahead=ahead).until(3000, model, accepts) for ahead in (False, True)
    )
    assert ahead.time_per_token < 1.04 * known.time_per_token


def test_a_trial_or_a_suffix_draft_waits_for_the_tree() -> None:
    run = Run(COSTS["cpu"], COSTS["cpu"].width())
    while run.kinds[-1:] != ["model"]:
        assert run.width.rows_ahead == 0
        run.step(chain(0.5), lambda *_: 0)
    assert run.width.rows_ahead == 0, "the first is a trial"
    fixed = COSTS["bandwidth"].width(draft_budget=22)
    assert fixed.choose() == "model" and fixed.rows_ahead == 23
    assert fixed.choose(max_rows=9) == "model" and fixed.rows_ahead == 9
    assert fixed.choose(chain(0.9, 4)) == "model" and fixed.rows_ahead == 0


@pytest.mark.slow  # 7 s
@settings(max_examples=30)
@given(
    append=st.lists(st.floats(0.5, 30), min_size=6, max_size=6).map(sorted),
    draft=st.floats(0, 5),
    chances=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=6),
    stated=st.floats(0.05, 0.999),
    seed=st.integers(0, 99),
)
def test_no_history_loses_more_than_the_account(
    append: list[float], draft: float, chances: list[tuple[float, float]], stated: float, seed: int
) -> None:
    costs = Costs(tuple(zip((8, 16, 24, 32, 48, 64), append, strict=True)), draft)
    run = Run(costs, costs.width(), random.Random(seed))
    first = run.width.credit
    for step in range(600):
        by_model, by_suffix = chances[step // 100 % len(chances)]
        suffix = chain(stated, 1 + step % 64)
        by_token = (by_model / 2, by_suffix / 2)
        run.step(bush([stated / 2, stated / 3], 5), lambda token, _, by_token=by_token: by_token[token % 2], suffix)
        assert run.time <= 1.0075 * run.tokens + first + 1e-6
        assert 0 <= run.width.credit <= 64


@pytest.mark.parametrize("name", COSTS)
def test_short_answers_lose_next_to_nothing(name: str) -> None:
    """Without a draft model: each draft states 0.9 and is wrong."""
    run = Run(COSTS[name], COSTS[name].width(has_model=False))
    for n in range(1, 400):
        run.step(NOTHING, lambda *_: 0, copied())
        assert run.time <= 1.0075 * n + 0.25 + 1e-6
    assert "text" in run.kinds


@pytest.mark.parametrize("name", COSTS)
def test_a_draft_model_drafts_at_once_where_trained_drafters_pay(name: str) -> None:
    costs = COSTS[name]
    run = Run(costs, costs.width())
    pays = name != "cpu"  # 2.5 tokens for the time of 3.5 are expected
    assert run.width.model_may_pay == pays
    assert run.width.credit == 0.25 if not pays else 1 < run.width.credit < 7
    run.step(chain(0.9), lambda *_: 0.9)
    assert run.kinds == ["model" if pays else "plain"]
    bad = Run(costs, costs.width()).until(100, chain(0.9), lambda *_: 0)
    assert bad.time - bad.tokens < 7 if pays else bad.kinds.count("model") == 0


@pytest.mark.parametrize(("context_ms", "kind"), [(0.0, "model"), (0.4, "plain")])
def test_a_draft_after_a_plain_token_costs_its_context_too(context_ms: float, kind: str) -> None:
    """1.6 tokens are expected of a draft and an append that take 1.3."""
    width = DraftPlanner([(2, 1.1)], 1.0, 0.2, True, context_ms=context_ms)
    assert width.choose() == "model"
    assert width.choose(max_rows=1) == "plain"
    width.add_accepted([])
    assert width.choose() == kind


def test_a_sequence_inherits_no_gains() -> None:
    run = Run(COSTS["bandwidth"], COSTS["bandwidth"].width())
    first = run.width.credit
    run.until(200, chain(0.9), lambda *_: 0.9)
    assert run.width.credit == 64
    run.width.start_sequence(False)
    assert run.width.credit == first


def test_a_sequential_drafter_drafts_as_deep_as_its_rows() -> None:
    """A draft of depth 8 takes 1.8 plain tokens, one of depth 1 takes 0.2: verifies of 2 rows pay, and deeper ones
    where nearly all tokens are right."""
    append = [(2, 1.05), (3, 1.8), (4, 2.0), (8, 2.5)]

    def width(draft_depth: int) -> _kernels.speculation.DraftPlanner:
        return DraftPlanner(append, 1.0, 1.8, True, draft_depth=draft_depth, first_ms=0.2)

    assert width(8).model_may_pay and not width(0).model_may_pay
    depths: dict[float, list[int]] = {}
    for chance in (0.7, 0.99):
        chosen, rng = width(8), random.Random(3)
        run = Run(Costs(tuple(append), 0), chosen, rng)
        depths[chance] = []
        for _ in range(600):
            if chosen.choose() != "model":
                chosen.add_accepted([])
                continue
            depths[chance].append(chosen.draft_depth)
            tree = chosen.tree(chain(chance, chosen.draft_depth + 1))
            chosen.add_accepted(run.accepted(tree, lambda *_, chance=chance: chance))
    assert sorted(depths[0.7])[len(depths[0.7]) // 2] == 1
    assert sorted(depths[0.99][-100:])[50] == 7  # 8 rows


# --- near the best width


@pytest.mark.first_case
@pytest.mark.parametrize(
    "accepted",
    [0.3, 0.6, 0.85, 0.95, *(pytest.param(chance, marks=pytest.mark.slow) for chance in (0.45, 0.75, 0.9))],  # 5 s
)
@pytest.mark.parametrize("name", COSTS)
def test_within_three_percent_of_the_best_fixed_width(name: str, accepted: float) -> None:
    best = best_fixed(COSTS[name], chain(accepted), lambda *_: accepted, 10_000)
    for stated in (accepted, min(0.99, 2 * accepted), accepted / 2):  # right, too sure by 2, too unsure by 2
        run = Run(COSTS[name], COSTS[name].width()).until(1_000, chain(stated), lambda *_: accepted)
        time, tokens = run.time, run.tokens  # the account may hold up the first drafts
        run.until(10_000, chain(stated), lambda *_: accepted)
        assert run.time - time < 1.03 * best * (run.tokens - tokens)


@pytest.mark.first_case
@pytest.mark.parametrize("name", COSTS)
def test_trees_with_branches_are_within_three_percent_of_the_best_fixed_width(name: str) -> None:
    chances = [0.55, 0.2, 0.08]
    tree = bush(chances, 12)
    best = best_fixed(COSTS[name], tree, lambda token, _: chances[token], 5_000)
    run = Run(COSTS[name], COSTS[name].width()).until(5_000, tree, lambda token, _: chances[token])
    assert run.time_per_token < 1.03 * best


def test_depths_that_are_rarely_right_are_left_out() -> None:
    """The drafter states the same probability everywhere; from depth 4 on it is mostly wrong."""
    costs = COSTS["bandwidth"]

    def accepts(_: int, depth: int) -> float:
        return 0.99 if depth < 4 else 0.3

    run = Run(costs, costs.width()).until(10_000, chain(0.95), accepts)
    assert run.time_per_token < 1.03 * best_fixed(costs, chain(0.95), accepts, 10_000)
    assert run.rows[-500:].count(8) > 450


def test_rows_are_chosen_for_each_step() -> None:
    """Every other draft is confident and correct, the rest are neither: each kind gets a suitable width."""
    costs = COSTS["arithmetic"]
    run = Run(costs, costs.width())
    rows: dict[float, list[int]] = {0.95: [], 0.6: []}
    for step in range(600):
        accepted = (0.95, 0.6)[step % 2]
        run.step(chain(accepted), lambda *_, accepted=accepted: accepted)
        rows[accepted].append(run.rows[-1])
    assert sorted(rows[0.95])[len(rows[0.95]) // 2] == 16
    assert sorted(rows[0.6])[len(rows[0.6]) // 2] == 8


@pytest.mark.first_case
@pytest.mark.parametrize("chance", [0.6, 0.85, 0.95])
@pytest.mark.parametrize("name", ["bandwidth", "arithmetic", "free"])
def test_with_experience_the_first_150_tokens_take_the_best_width(name: str, chance: float) -> None:
    """Mean of 100 sequences, beside the same sequences with fixed widths and without experience."""
    costs, model = COSTS[name], chain(0.9)
    learned = Run(costs, costs.width()).until(3_000, model, lambda *_: chance).width.experience

    def mean(budget: int = 0, experience: list[float] | None = None) -> float:
        runs = [Run(costs, costs.width(draft_budget=budget), random.Random(seed)) for seed in range(100)]
        for run in runs:
            if experience:
                run.width.experience = experience
            run.until(150, model, lambda *_: chance)
        return sum(run.time for run in runs) / sum(run.tokens for run in runs)

    best = min(mean(min(rows, 64) - 1) for rows, _ in costs.append)
    assert mean(experience=learned) < 1.03 * best
    assert mean(experience=learned) < 1.01 * mean()


def test_experience_of_another_text_loses_no_more() -> None:
    """Drafts were good, and are worthless now."""
    costs = COSTS["arithmetic"]
    learned = Run(costs, costs.width()).until(3_000, chain(0.9), lambda *_: 0.9).width.experience
    run = Run(costs, costs.width())
    first = run.width.credit
    run.width.experience = learned
    assert run.width.credit == first
    run.until(1_000, chain(0.9), lambda *_: 0)
    assert run.time <= 1.0075 * run.tokens + first


# --- changes


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("after", [0.0, 0.3])
def test_drafts_that_go_bad_lose_at_most_the_credit(name: str, after: float) -> None:
    run = Run(COSTS[name], COSTS[name].width()).until(3_000, chain(0.8), lambda *_: 0.9)
    time, tokens = run.time, run.tokens
    run.until(6_000, chain(0.8), lambda *_: after)
    assert run.time - time <= 1.0075 * (run.tokens - tokens) + 64


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["bandwidth", "arithmetic"])
def test_drafts_that_become_good_are_used_within_400_tokens(name: str, seed: int) -> None:
    """A trial comes after 200 times its expected loss: of 0.5 tokens where arithmetic limits, so every 100 tokens."""
    run = Run(COSTS[name], COSTS[name].width(), random.Random(seed)).until(3_000, chain(0.8), lambda *_: 0)
    run.until(3_400, chain(0.8), lambda *_: 0.9)
    time, tokens = run.time, run.tokens
    run.until(5_000, chain(0.8), lambda *_: 0.9)
    best = best_fixed(COSTS[name], chain(0.8), lambda *_: 0.9, 10_000)
    assert run.time - time < 1.1 * best * (run.tokens - tokens)


@pytest.mark.parametrize("name", ["bandwidth", "arithmetic"])
def test_drafts_that_become_better_get_more_rows_within_300_steps(name: str) -> None:
    run = Run(COSTS[name], COSTS[name].width()).until(3_000, chain(0.6), lambda *_: 0.6)
    assert sorted(run.rows[-100:])[50] == 8
    for _ in range(300):
        run.step(chain(0.6), lambda *_: 0.95)
    assert sorted(run.rows[-100:])[50] >= 16


def test_new_costs_hold_at_once() -> None:
    cheap, dear = COSTS["bandwidth"], COSTS["cpu"]
    run = Run(cheap, cheap.width()).until(2_000, chain(0.5), lambda *_: 0.5)
    assert run.kinds[-1] == "model"
    run.width.set_costs(list(dear.append), 1.0, dear.draft)
    run.costs = dear
    run.step(chain(0.5), lambda *_: 0.5)
    assert run.kinds[-1] == "plain"


# --- suffix drafts and the draft model


def test_a_sure_suffix_draft_needs_no_draft_model() -> None:
    costs = COSTS["arithmetic"]
    run = Run(costs, costs.width())
    for step in range(400):
        run.step(chain(0.7), lambda token, _: 0.7 if token < 100 else 0.97, copied() if step % 2 else NOTHING)
    assert set(run.kinds[-100::2]) == {"model"}
    assert run.kinds[-99::2].count("text") == 50


def copied() -> Tree:
    """The suffix draft of a copy: tokens that the model does not draft."""
    tokens, parents, scores = chain(0.97, 40)
    return [0, *(100 + token for token in tokens[1:])], parents, scores


def test_the_union_has_the_best_rows_of_both() -> None:
    costs = COSTS["bandwidth"]
    width = costs.width()
    suffix = ([0, 101, 102], [-1, 0, 1], [0.0, math.log(0.5), math.log(0.4)])
    while width.choose(suffix) != "model":
        width.tree()
        width.add_accepted([0])
    tokens, parents, scores = width.tree(chain(0.8))
    assert {1, 2, 101, 102} <= set(tokens)
    assert len(tokens) in {rows for rows, _ in costs.append}
    assert scores == sorted(scores, reverse=True)
    assert all(parent < row for row, parent in enumerate(parents))


@pytest.mark.parametrize("worthless", ["text", "model"])
def test_a_worthless_source_does_not_spoil_the_other_one(worthless: str) -> None:
    costs = COSTS["arithmetic"]

    def accepts(token: int, _: int) -> float:
        return 0 if (token >= 100) == (worthless == "text") else 0.9

    run = Run(costs, costs.width())
    while run.tokens < 10_000:
        run.step(chain(0.9), accepts, copied())
    alone = Costs(costs.append, costs.draft if worthless == "text" else 0)
    best = best_fixed(alone, chain(0.9, 64 if worthless == "text" else 40), lambda *_: 0.9, 10_000)
    assert run.time_per_token < 1.03 * best
    if worthless == "model":
        assert run.kinds.count("model") < 0.1 * len(run.kinds)


def test_without_a_draft_model_there_are_suffix_drafts_and_plain_tokens() -> None:
    costs = COSTS["arithmetic"]
    run = Run(costs, costs.width(has_model=False))
    for step in range(300):
        run.step(NOTHING, lambda *_: 0.97, copied() if step % 3 == 0 else NOTHING)
    assert run.kinds == ["text", "plain", "plain"] * 100


@pytest.mark.parametrize("text", ["code", "noise"])
def test_suffix_drafts_gain_on_code_and_lose_nothing_on_noise(text: str) -> None:
    rng = np.random.default_rng(5)
    tokens = code_like(8000, rng) if text == "code" else rng.integers(0, 20, 8000).tolist()
    costs, at = COSTS["arithmetic"], 2000
    drafter = _kernels.speculation.SuffixDrafter(8000)
    drafter.push(np.array(tokens[: at + 1], np.int32))
    run = Run(costs, costs.width(has_model=False))
    while at < 7900:
        new = run.step(NOTHING, lambda token, depth, at=at: token == tokens[at + depth], drafter.propose()[0])
        drafter.push(np.array(tokens[at + 1 : at + 1 + new], np.int32))
        at += new
    assert run.time_per_token < (0.8 if text == "code" else 1.01)


# --- the interface


@given(max_rows=st.integers(0, 64), n_text=st.integers(0, 64), has_model=st.booleans(), budget=st.integers(0, 63))
def test_rows_are_tiles_and_have_room(max_rows: int, n_text: int, has_model: bool, budget: int) -> None:
    costs = COSTS["bandwidth"]
    width = costs.width(has_model=has_model, draft_budget=budget)
    suffix = chain(0.9, n_text) if n_text else NOTHING
    for _ in range(5):
        kind = width.choose(suffix, max_rows)
        assert kind != "model" or has_model
        if kind == "plain":
            width.add_accepted([])
            continue
        tokens = width.tree(chain(0.95) if kind == "model" else None)[0]
        room = min(max_rows, 64 if kind == "model" else n_text)
        if budget:
            assert len(tokens) == min(budget + 1, room)
        else:
            assert len(tokens) in {min(rows, room) for rows, _ in costs.append}
        width.add_accepted(list(range(len(tokens))))


def test_scores_become_what_is_accepted() -> None:
    run = Run(COSTS["free"], COSTS["free"].width()).until(10_000, chain(0.9), lambda *_: 0.45)
    assert run.width.choose(None) == "model"
    scores = run.width.tree(chain(0.9))[2]
    assert scores[1] == pytest.approx(math.log(0.45), abs=0.25)


def test_the_same_inputs_give_the_same_choices() -> None:
    first, second = (
        Run(COSTS["bandwidth"], COSTS["bandwidth"].width()).until(2_000, chain(0.7), lambda *_: 0.7) for _ in range(2)
    )
    assert (first.kinds, first.rows) == (second.kinds, second.rows)


def test_costs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no append was measured"):
        DraftPlanner([], 1.0)
    with pytest.raises(InvalidRequestError, match="ascending rows from 2 to 64"):
        DraftPlanner([(16, 1.0), (8, 1.0)], 1.0)
    with pytest.raises(InvalidRequestError, match="a plain token takes time"):
        DraftPlanner([(8, 1.0)], 0.0)
    with pytest.raises(InvalidRequestError, match="draft_budget must be 0 to 63, not 64"):
        DraftPlanner([(8, 1.0)], 1.0, draft_budget=64)


# --- real times


@pytest.mark.parametrize("growth", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("wrong", ["plain", "append"])
def test_real_times_replace_wrong_costs(wrong: str, growth: float) -> None:
    """A plain token or an append that was held up when it was measured; `growth`: of all times with the context.
    Appends that look dear are run once the account pays for one."""
    real = COSTS["cpu"]
    held_up = 5.0
    append = [(rows, time * (held_up if wrong == "append" else 1)) for rows, time in real.append]
    width = DraftPlanner(append, held_up if wrong == "plain" else 1.0, real.draft, True)
    width.start_sequence(is_timed=True)
    rng, time, tokens, before = random.Random(2), 0.0, 0, 0
    right = 0.0 if wrong == "plain" else 0.95
    first = 6000 if wrong == "append" else 0
    while tokens < first + 5000:
        if tokens < first:
            time, before = 0.0, tokens
        kind = width.choose()
        tree = NOTHING if kind == "plain" else width.tree(chain(0.9))
        path = Run(real, width, rng).accepted(tree, lambda *_: right)
        rows = len(tree[0])
        took = real.of(rows) if rows else 1.0
        width.add_step_time(max(1, rows), took * growth)
        width.add_accepted(path)
        time += took + (real.draft if kind == "model" else 0)
        tokens += max(1, len(path))
    best = best_fixed(real, chain(0.9), lambda *_: right, 2000)
    assert time / (tokens - before) < best * 1.1 + 0.01
