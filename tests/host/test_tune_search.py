"""From measurements to constants: the search of `lucebox tune`, without a device."""

from __future__ import annotations

import pytest
from lucebox.tune.search import (
    ALL_TESTS,
    MIB,
    Choice,
    Model,
    Sample,
    Trial,
    choose,
    choose_limit,
    choose_value,
    compare,
    is_better,
)

CURRENT = {
    "matvec_threads_per_sm": 512,
    "speculation_budget": 22,
    "prefill_chunk": 512,
    "megakernel_max_mib": 0,
    "megakernel_max_kv_mib": 0,
}
# 500 MiB of weights; 1000 tokens have 125 MiB of K and V, counted as 250 because heads have half of 256 columns.
SMALL = Model("small", "Q4_K", 500 * MIB, MIB // 8, head_dim=128, context=40000)
LARGE = Model("large", "Q4_K", 16000 * MIB, MIB // 8, head_dim=128, context=40000)


def sample(trial: Trial, test: str, tok_s: float, *, model: Model = SMALL, depth: int = 0) -> Sample:
    n = {"decode": 1000, "prefill": 4096, "append": 16}[test]
    return Sample(model.name, trial, test, n, depth, (n / tok_s,))


def chosen(*samples: Sample, models: tuple[Model, ...] = (SMALL,), current: dict[str, int] = CURRENT) -> Choice:
    return choose(current, {}, models, samples)


def test_without_samples_nothing_changes() -> None:
    choice = chosen()
    assert not choice.is_change
    assert [one.name for one in choice.constants] == [
        "matvec_threads_per_sm",
        "prefill_chunk",
        "megakernel_max_mib",
        "megakernel_max_kv_mib",
    ]  # speculation_budget is read by nothing, so it is not measured
    assert all(not one.has_changed for one in choice.constants)


@pytest.mark.parametrize(
    "gains, value",
    [
        ({}, 512),
        ({256: 0.9, 768: 1.0}, 512),
        ({256: 0.9, 768: 1.019}, 512),  # within the noise
        ({256: 0.9, 768: 1.05}, 768),
        ({768: 1.05, 1024: 1.30}, 1024),
        ({768: 1.05, 1024: 1.055}, 768),  # equally fast: the smaller
        ({768: 1.015, 1024: 1.021}, 1024),  # the smaller one is within the noise of the current one
    ],
)
def test_a_value_changes_where_another_is_clearly_faster(gains: dict[int, float], value: int) -> None:
    assert choose_value(512, gains)[0] == value


@pytest.mark.parametrize(
    "current, ratios, limit",
    [
        (0, [], 0),
        (77, [(100, 1.005)], 77),  # equal: no reason to change
        (0, [(100, 0.8)], 0),
        (200, [(100, 1.5), (300, 0.8)], 200),  # the limit agrees with both
        (100, [(100, 1.5)], 100),
        (0, [(99.2, 1.5)], 100),  # faster at the largest size that was measured
        (1000, [(100, 0.9), (200, 0.8)], 0),
        (1000, [(100, 2.0), (400, 0.5)], 200),  # the same factor both ways: in the middle of 100 and 400
        (1000, [(100, 1.1), (200, 0.9), (300, 1.1)], 138),  # never past the first size at which the graph is faster
    ],
)
def test_the_limit_of_the_megakernel(current: int, ratios: list[tuple[float, float]], limit: int) -> None:
    assert choose_limit(current, ratios)[0] == limit
    assert choose_limit(current, reversed(ratios))[0] == limit


def test_constants_of_two_trials_at_once_are_kept_apart() -> None:
    both = Trial(tuning={"matvec_threads_per_sm": 768, "prefill_chunk": 1024})
    choice = chosen(
        sample(Trial(), "decode", 100),
        sample(Trial(), "prefill", 5000),
        sample(both, "decode", 90),
        sample(both, "prefill", 6000),
    )
    assert choice.tuning == {"prefill_chunk": 1024}


def test_a_value_is_judged_over_all_models() -> None:
    wide = Trial(tuning={"matvec_threads_per_sm": 768})
    samples = [
        sample(Trial(), "decode", 100),
        sample(wide, "decode", 110),
        sample(Trial(), "decode", 50, model=LARGE),
        sample(wide, "decode", 44, model=LARGE),
    ]
    assert not chosen(*samples, models=(SMALL, LARGE)).is_change
    assert chosen(*samples[:2]).tuning == {"matvec_threads_per_sm": 768}


def test_the_megakernel_by_size_and_depth() -> None:
    mega = Trial(path="megakernel")
    choice = chosen(
        sample(Trial(), "decode", 100),
        sample(mega, "decode", 150),
        sample(Trial(), "decode", 100, depth=7000),
        sample(mega, "decode", 100 / 1.5, depth=7000),  # as much slower as it was faster
        sample(Trial(), "decode", 20, model=LARGE),
        sample(mega, "decode", 10, model=LARGE),
        sample(Trial(), "decode", 20, model=LARGE, depth=1),
        sample(mega, "decode", 40, model=LARGE, depth=1),  # behind a loss: says nothing about K and V
        models=(SMALL, LARGE),
    )
    assert SMALL.kv_mib(1000) == pytest.approx(250)
    low, high = SMALL.kv_mib(1000), SMALL.kv_mib(8000)
    assert choice.tuning["megakernel_max_kv_mib"] == int((low * high) ** 0.5)
    assert 500 < choice.tuning["megakernel_max_mib"] < 16000


def test_a_kernel_file_is_left_out_where_its_alternative_is_faster() -> None:
    out = Trial(without=("gemv_ring_sm90",))
    plain = [sample(Trial(), "decode", 100), sample(Trial(), "append", 100)]
    assert chosen(*plain, sample(out, "decode", 105)).without == ("gemv_ring_sm90",)
    assert chosen(*plain, sample(out, "decode", 101)).without == ()
    assert chosen(*plain, sample(out, "decode", 120), sample(out, "append", 90)).without == ()
    (row,) = [one for one in chosen(*plain, sample(out, "decode", 105)).constants if one.name == "gemv_ring_sm90"]
    assert (row.before, row.after) == ("in the pack", "left out") and "+5.0 %" in row.reason


def test_only_the_tests_that_depend_on_a_change_are_run_again() -> None:
    assert Choice((), {"prefill_chunk": 1024}, (), {}).tests == ("prefill",)
    assert Choice((), {"prefill_chunk": 1024, "megakernel_max_mib": 9}, (), {}).tests == ("decode", "prefill", "deep")
    for choice in (Choice((), {}, (), {}), Choice((), {"prefill_chunk": 1024}, ("rope",), {})):
        assert choice.tests == ALL_TESTS


def test_the_whole_is_compared_once_more() -> None:
    before = [sample(Trial(path="auto"), "decode", 100), sample(Trial(path="auto"), "prefill", 1000)]
    auto = Trial(path="auto", tuning={"prefill_chunk": 1024})

    def after(decode: float, prefill: float) -> bool:
        return is_better(compare(before, [sample(auto, "decode", decode), sample(auto, "prefill", prefill)]))

    assert after(100, 1050)
    assert after(99, 1050)
    assert not after(97, 1050)  # one test loses more than noise
    assert not after(99, 1000)
    assert not is_better([])
