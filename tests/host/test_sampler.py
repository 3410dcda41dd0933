"""The sampler against its definition: each filter, their order, the draws, the penalties, and what is refused."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import open_engine, random_ids
from lucebox import _engine
from lucebox.errors import FormatError, InvalidRequestError
from numpy.typing import NDArray
from reference import sampler as reference
from reference.gguf_files import Shape, metadata, tensors, write
from reference.sampler import Options

F32 = NDArray[np.float32]


def make(options: Options, vocab: int, seed: int = 0) -> _engine.Sampler:
    fields = asdict(options) | {"logit_bias": list(options.logit_bias.items())}
    return _engine.Sampler(vocab, seed=seed, **fields)


def draws(options: Options, logits: F32, n: int, seed: int = 0) -> list[int]:
    sampler = make(options, len(logits), seed)
    return [sampler.sample(logits) for _ in range(n)]


def random_logits(vocab: int, seed: int, ties: bool = False) -> F32:
    logits = np.random.default_rng(seed).normal(0, 1, vocab)
    return (np.round(logits) if ties else logits).astype(np.float32)


def chi_square_limit(freedom: int) -> float:
    """Passed by one in a million (Wilson and Hilferty 1931)."""
    a = 2 / (9 * freedom)
    return freedom * (1 - a + 4.75 * math.sqrt(a)) ** 3


def check_distribution(tokens: list[int], want: dict[int, float]) -> None:
    seen = Counter(tokens)
    assert set(seen) <= set(want)
    often = {i for i, p in want.items() if p * len(tokens) > 25}  # unseen once in e^25
    assert often <= set(seen)
    if len(often) > 1:
        n = len(tokens)
        statistic = sum((seen[i] - n * want[i]) ** 2 / (n * want[i]) for i in often)
        assert statistic < chi_square_limit(len(often))


# --- filters

FILTERS = {
    "none": Options(),
    "temperature below one": Options(temperature=0.4),
    "temperature above one": Options(temperature=3.0),
    "top-k": Options(top_k=5),
    "top-k of one": Options(top_k=1),
    "top-k beyond the vocabulary": Options(top_k=99),
    "top-p": Options(top_p=0.6),
    "tiny top-p": Options(top_p=1e-6),
    "min-p": Options(min_p=0.3),
    "min-p of one": Options(min_p=1.0),
    "typical": Options(typical_p=0.5),
    "tiny typical": Options(typical_p=1e-6),
    "all": Options(temperature=0.8, top_k=9, typical_p=0.9, top_p=0.9, min_p=0.05),
}


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("name", FILTERS)
def test_filter(name: str, ties: bool) -> None:
    for seed in range(4):
        logits = random_logits(13, seed, ties)
        check_distribution(draws(FILTERS[name], logits, 5000, seed), reference.distribution(logits, FILTERS[name]))


def test_random_combinations() -> None:
    rng = np.random.default_rng(0)
    for seed in range(60):
        options = Options(
            temperature=float(rng.uniform(0.3, 2)),
            top_k=int(rng.integers(0, 12)),
            typical_p=float(rng.uniform(0.3, 1)),
            top_p=float(rng.uniform(0.3, 1)),
            min_p=float(rng.choice([0, 0.1, 0.4])),
        )
        logits = random_logits(16, seed, ties=seed % 3 == 0)
        check_distribution(draws(options, logits, 2000), reference.distribution(logits, options))


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        # probabilities 0.4 0.3 0.2 0.1
        (Options(top_k=2, top_p=0.5), {0}),  # top-p first would keep 0 and 1
        (Options(temperature=0.5, top_p=0.5), {0}),  # the same without the temperature
        (Options(typical_p=0.25, top_p=0.6), {1}),  # top-p first would leave 0 as the most typical
        (Options(top_k=3, min_p=0.6), {0, 1}),
        (Options(logit_bias={0: -100}, top_k=2), {1, 2}),  # a forbidden token takes no place
    ],
)
def test_order_of_filters(options: Options, kept: set[int]) -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1])).astype(np.float32)
    assert set(reference.distribution(logits, options)) == kept
    assert set(draws(options, logits, 1000)) == kept


def test_large_vocabulary() -> None:
    """More candidates than the first front of top-p, nearly flat."""
    logits = np.random.default_rng(0).normal(0, 0.1, 3000).astype(np.float32)
    for options in (Options(top_p=0.5), Options(top_k=700, top_p=0.9), Options(typical_p=0.4)):
        assert set(draws(options, logits, 300)) <= set(reference.distribution(logits, options))


# --- draws


def test_uniform_draw() -> None:
    for seed in (0, 1, 42, 2**64 - 1):
        for draw in (0, 1, 2, 1000, 2**40):
            u = _engine.uniform_draw(seed, draw)
            assert u == reference.uniform_draw(seed, draw)
            assert 0 <= u < 1


@pytest.mark.parametrize("options", [Options(), Options(top_k=4), Options(temperature=2.0, top_p=0.7)])
def test_one_draw_a_token(options: Options) -> None:
    """The n-th token is where the n-th draw falls, by id."""
    logits = random_logits(9, seed=5)
    p = reference.distribution(logits, options)
    bounds = np.cumsum(list(p.values()))
    want = [list(p)[int(np.searchsorted(bounds, reference.uniform_draw(3, n), side="right"))] for n in range(200)]
    assert draws(options, logits, 200, seed=3) == want


def test_seed_decides() -> None:
    logits = random_logits(50, seed=1)
    assert draws(Options(), logits, 50, seed=8) == draws(Options(), logits, 50, seed=8)
    assert draws(Options(), logits, 50, seed=8) != draws(Options(), logits, 50, seed=9)


def test_first_draws_of_many_seeds_follow_the_distribution() -> None:
    logits = random_logits(6, seed=2)
    tokens = [make(Options(), 6, seed).sample(logits) for seed in range(5000)]
    check_distribution(tokens, reference.distribution(logits, Options()))


def test_a_new_prompt_starts_over() -> None:
    logits = random_logits(50, seed=1)
    sampler = make(Options(frequency_penalty=0.5), 50)
    first = [sampler.sample(logits) for _ in range(20)]
    sampler.set_prompt(np.array([1, 2, 3], np.int32))
    assert [sampler.sample(logits) for _ in range(20)] == first


# --- greedy


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = np.array([0, 3, 1, 3, 3], np.float32)
    assert draws(Options(temperature=0), logits, 3) == [1, 1, 1]
    assert draws(Options(temperature=0, logit_bias={2: 2.0}), logits, 1) == [1]
    assert draws(Options(temperature=0, logit_bias={0: 3.0}), logits, 1) == [0]


def test_greedy_ignores_filters_and_seed() -> None:
    logits = random_logits(30, seed=0)
    options = Options(temperature=0, top_k=3, top_p=0.1, min_p=0.9, typical_p=0.1)
    assert draws(options, logits, 5, seed=4) == [int(logits.argmax())] * 5


def test_logits_are_left_alone() -> None:
    logits = random_logits(30, seed=0)
    before = logits.copy()
    draws(Options(logit_bias={1: 5.0}, repetition_penalty=2.0, temperature=0.5, top_k=3), logits, 10)
    assert np.array_equal(logits, before)


# --- bias and penalties


def test_bias_of_minus_100_forbids() -> None:
    logits = np.array([1000, 0, 0, 0], np.float32)
    forbid = Options(logit_bias={0: -100.0})
    assert 0 not in draws(forbid, logits, 500)
    assert draws(Options(temperature=0, logit_bias={0: -100.0}), logits, 1) == [1]
    assert draws(Options(temperature=0, logit_bias={0: -99.0}), logits, 1) == [0]  # only -100 forbids
    check_distribution(draws(forbid, logits, 3000), reference.distribution(logits, forbid))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forbidding_every_token_is_refused(temperature: float) -> None:
    sampler = make(Options(temperature=temperature, logit_bias=dict.fromkeys(range(4), -100.0)), 4)
    with pytest.raises(InvalidRequestError, match="logit_bias and mask forbid every token"):
        sampler.sample(random_logits(4, seed=0))


# --- masks


def mask_of(allowed: NDArray[np.bool_]) -> NDArray[np.uint32]:
    bits = np.zeros((len(allowed) + 31) // 32 * 32, np.uint8)
    bits[: len(allowed)] = allowed
    return np.packbits(bits, bitorder="little").view(np.uint32)


@pytest.mark.parametrize("options", [Options(temperature=0), *FILTERS.values()])
@pytest.mark.parametrize("vocab", [1, 13, 32, 45])
def test_a_mask_is_logits_of_minus_infinity(options: Options, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    for seed in range(4):
        allowed = rng.random(vocab) < 0.4
        allowed[seed % vocab] = True
        logits = random_logits(vocab, seed, ties=seed == 3)
        sampler = make(options, vocab, seed)
        sampler.set_mask(mask_of(allowed))
        got = [sampler.sample(logits) for _ in range(50)]
        masked = np.where(allowed, logits, -np.inf).astype(np.float32)
        if options.temperature == 0:
            assert got == [int(masked.argmax())] * 50
        else:
            assert got == draws(options, masked, 50, seed)


def test_masks_change_and_go() -> None:
    logits = random_logits(70, seed=3)
    sampler = make(Options(temperature=0), 70)
    for id in (0, 31, 32, 69):
        sampler.set_mask(mask_of(np.arange(70) == id))
        assert [sampler.sample(logits) for _ in range(2)] == [id, id]
    sampler.set_mask(None)
    assert sampler.sample(logits) == logits.argmax()


def test_masks_that_are_refused() -> None:
    sampler = make(Options(), 40)
    nothing = np.array([0, 0xFFFFFF00], np.uint32)  # all set bits are beyond the vocabulary
    with pytest.raises(InvalidRequestError, match="the mask forbids every token"):
        sampler.set_mask(nothing)
    with pytest.raises(InvalidRequestError, match="a mask of 3 words; a vocabulary of 40 has 2"):
        sampler.set_mask(np.ones(3, np.uint32))
    sampler = make(Options(logit_bias={5: -100.0}), 40)
    sampler.set_mask(mask_of(np.arange(40) == 5))
    with pytest.raises(InvalidRequestError, match="logit_bias and mask forbid every token"):
        sampler.sample(random_logits(40, seed=0))


PENALTIES = {
    "repetition, whole history": Options(temperature=0, repetition_penalty=1.7, penalty_window=-1),
    "repetition, window of 3": Options(temperature=0, repetition_penalty=1.7, penalty_window=3),
    "repetition, no window": Options(temperature=0, repetition_penalty=1.7, penalty_window=0),
    "repetition below one": Options(temperature=0, repetition_penalty=0.8, penalty_window=5),
    "frequency": Options(temperature=0, frequency_penalty=0.3),
    "presence": Options(temperature=0, presence_penalty=0.9),
    "negative frequency": Options(temperature=0, frequency_penalty=-0.2),
    "all with bias": Options(
        temperature=0, repetition_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.1, penalty_window=6,
        logit_bias={2: 0.5, 4: -100.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_step_by_step(name: str) -> None:
    """Greedy, so that every step shows the penalised order."""
    options = PENALTIES[name]
    rng = np.random.default_rng(1)
    prompt = [3, 1, 4, 1, 5]
    sampler = make(options, 8)
    sampler.set_prompt(np.array(prompt, np.int32))
    generated: list[int] = []
    for _ in range(60):
        logits = rng.normal(0, 1, 8).astype(np.float32)
        want = reference.penalised(reference.biased(logits, options), options, prompt, generated)
        token = sampler.sample(logits)
        assert token == int(want.argmax()), len(generated)
        generated.append(token)


@pytest.mark.parametrize("name", PENALTIES)
def test_forced_and_replaced_tokens(name: str) -> None:
    """Penalties count a forced token and not a dropped one. Draws go on as if neither had been."""
    options = PENALTIES[name]
    rng = np.random.default_rng(2)
    sampler = make(options, 8)
    sampler.set_prompt(np.array([3, 1], np.int32))
    generated: list[int] = []
    for step in range(60):
        logits = rng.normal(0, 1, 8).astype(np.float32)
        want = reference.penalised(reference.biased(logits, options), options, [3, 1], generated)
        token = sampler.sample(logits)
        assert token == int(want.argmax()), step
        if step % 3 == 0:
            sampler.drop_last()
        else:
            generated.append(token)
        if step % 3 != 1:
            sampler.record_forced(step % 8)
            generated.append(step % 8)


def test_forced_tokens_take_no_draw() -> None:
    logits = random_logits(50, seed=4)
    plain, forced = make(Options(), 50, seed=6), make(Options(), 50, seed=6)
    for _ in range(20):
        forced.record_forced(3)
        assert forced.sample(logits) == plain.sample(logits)


def test_tokens_that_cannot_be_forced_or_dropped() -> None:
    sampler = make(Options(), 8)
    sampler.set_prompt(np.array([3, 1], np.int32))
    with pytest.raises(InvalidRequestError, match="the forced token is 8; the vocabulary has 8 tokens"):
        sampler.record_forced(8)
    with pytest.raises(InvalidRequestError, match="there is no token to drop"):
        sampler.drop_last()


def test_penalties_change_the_distribution() -> None:
    options = Options(repetition_penalty=2.0, presence_penalty=0.7, penalty_window=2)
    logits = random_logits(6, seed=3)
    prompt = [0, 1, 2]
    tokens = []
    for seed in range(4000):
        sampler = make(options, 6, seed)
        sampler.set_prompt(np.array(prompt, np.int32))
        tokens.append(sampler.sample(logits))
    check_distribution(tokens, reference.distribution(logits, options, prompt))


# --- what is refused


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", 101.0), ("temperature", math.nan), ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0), ("top_p", 1.01), ("top_p", math.nan), ("top_p", -1.0),
        ("min_p", -0.1), ("min_p", 1.1), ("min_p", math.nan),
        ("typical_p", 0.0), ("typical_p", 1.1), ("typical_p", math.nan),
        ("repetition_penalty", 0.0), ("repetition_penalty", -1.0), ("repetition_penalty", 101.0),
        ("repetition_penalty", math.nan),
        ("frequency_penalty", 101.0), ("frequency_penalty", -101.0), ("frequency_penalty", math.nan),
        ("presence_penalty", 101.0), ("presence_penalty", -101.0), ("presence_penalty", math.nan),
        ("penalty_window", -2),
        ("logit_bias", [(10, 1.0)]), ("logit_bias", [(-1, 1.0)]), ("logit_bias", [(0, 101.0)]),
        ("logit_bias", [(0, -101.0)]), ("logit_bias", [(0, math.nan)]), ("logit_bias", [(0, math.inf)]),
    ],
)  # fmt: skip
def test_options_out_of_range_are_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        _engine.Sampler(10, **{name: value})


def test_prompt_tokens_outside_the_vocabulary() -> None:
    sampler = _engine.Sampler(10, temperature=1.0, repetition_penalty=1.1)
    for bad in (-1, 10, 2**31 - 1):
        with pytest.raises(InvalidRequestError, match=f"token 1 .*{bad}"):
            sampler.set_prompt(np.array([0, bad], np.int32))


def test_logits_of_another_vocabulary() -> None:
    with pytest.raises(InvalidRequestError, match=r"9 logits.*vocabulary of 10"):
        _engine.Sampler(10).sample(np.zeros(9, np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite(tmp_path: Path, bad: float) -> None:
    """Damaged weights must not turn into a token."""
    shape = Shape("llama", n_layers=1)
    weights = tensors(shape)
    head = weights["output.weight"]
    assert isinstance(head, np.ndarray)
    head[5] = bad
    session = _engine.Session(open_engine(write(tmp_path / "bad.gguf", metadata(shape), weights)))
    session.sync(random_ids(5, shape.vocab))
    for temperature in (0.0, 1.0):
        with pytest.raises(FormatError, match=r"bad\.gguf.*not finite"):
            session.sample(_engine.Sampler(shape.vocab, temperature=temperature))


def test_nothing_to_sample_from(tmp_path: Path) -> None:
    shape = Shape("llama", n_layers=1)
    session = _engine.Session(open_engine(write(tmp_path / "model.gguf", metadata(shape), tensors(shape))))
    with pytest.raises(InvalidRequestError, match=r"call sync\(\) first"):
        session.sample(_engine.Sampler(shape.vocab))
