"""The sampler on a device: the same tokens as the CPU's from the same logits and seed, whatever the options."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from lucebox import _engine
from lucebox.errors import InvalidRequestError
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference.sampler import Options
from tolerances import check

F32 = NDArray[np.float32]
PROMPT = np.array([0, 1, 1, 0, 1], np.int32)
FILTERS = {
    "greedy": Options(temperature=0),
    "all": Options(),
    "temperature": Options(temperature=0.4),
    "top-k": Options(temperature=2.0, top_k=4),
    "top-k, then nearly all": Options(top_k=4, top_p=0.99),
    "top-p": Options(top_p=0.6),
    "tiny top-p": Options(top_p=1e-12),
    "min-p": Options(min_p=0.3),
    "typical": Options(typical_p=0.5),
    "every filter": Options(temperature=1.3, top_k=9, typical_p=0.9, top_p=0.9, min_p=0.1),
}
PENALTIES = {
    "repetition": Options(repetition_penalty=1.7),
    "repetition, whole history": Options(temperature=0, repetition_penalty=1.7, penalty_window=-1),
    "repetition, window of 3": Options(temperature=0, repetition_penalty=0.6, penalty_window=3),
    "repetition, no window": Options(temperature=0, repetition_penalty=1.7, penalty_window=0),
    "frequency": Options(temperature=0, frequency_penalty=0.3),
    "presence": Options(presence_penalty=0.9),
    "negative frequency": Options(temperature=0, frequency_penalty=-0.2),
    "all with bias and filters": Options(
        temperature=0.9, repetition_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.1, penalty_window=6, top_k=7,
        top_p=0.8, logit_bias={0: 0.5, 1: -100.0},
    ),
}  # fmt: skip


def fields(options: Options) -> dict[str, Any]:
    return asdict(options) | {"logit_bias": list(options.logit_bias.items())}


def on_device(pack: _engine.gpu.Pack, logits: F32, options: Options, seed: int, **more: Any) -> dict[str, Any]:
    vocab = logits.shape[1]
    return ops.sample(logits, PROMPT[:vocab] % vocab, pack=pack, seed=seed, **fields(options), **more)


def on_cpu(logits: F32, options: Options, seed: int) -> list[int]:
    vocab = logits.shape[1]
    sampler = _engine.Sampler(vocab, seed=seed, **fields(options))
    sampler.set_prompt(PROMPT[:vocab] % vocab)
    return [sampler.sample(row) for row in logits]


def compare(pack: _engine.gpu.Pack, logits: F32, options: Options, seed: int) -> None:
    got = on_device(pack, logits, options, seed)
    assert not got["problems"].any()
    assert got["tokens"].tolist() == on_cpu(logits, options, seed)


def normal(rng: np.random.Generator, *shape: int, spread: float = 1) -> F32:
    return rng.normal(0, spread, shape).astype(np.float32)


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("name", FILTERS)
def test_thousand_draws(pack: _engine.gpu.Pack, name: str, ties: bool, seed: int) -> None:
    logits = normal(np.random.default_rng(seed), 1000, 13)
    compare(pack, np.round(logits) if ties else logits, FILTERS[name], seed)


@pytest.mark.parametrize("name", PENALTIES)
def test_penalties(pack: _engine.gpu.Pack, name: str, seed: int) -> None:
    """Counts follow what was drawn, on the device alone."""
    options = PENALTIES[name]
    logits = normal(np.random.default_rng(seed), 60, 9)
    compare(pack, logits, options, seed)
    got = on_device(pack, logits, options, seed)
    history = np.concatenate([PROMPT, got["tokens"]])
    assert np.array_equal(got["history"], history)
    window = history[max(0, len(history) - options.penalty_window) :] if options.penalty_window >= 0 else history
    assert np.array_equal(got["counts"][:, 0], np.bincount(window, minlength=9))
    assert np.array_equal(got["counts"][:, 1], np.bincount(got["tokens"], minlength=9))


@pytest.mark.parametrize("vocab", [1, 2, 31, 1000, 32768 + 13])
@pytest.mark.parametrize("name", ["greedy", "all", "top-k", "top-p", "typical", "every filter"])
def test_vocabularies(pack: _engine.gpu.Pack, vocab: int, name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    compare(pack, normal(rng, 2, vocab, spread=3), FILTERS[name], seed)
    compare(pack, np.round(normal(rng, 1, vocab)), FILTERS[name], seed)


def test_a_large_vocabulary(pack: _engine.gpu.Pack, seed: int) -> None:
    logits = normal(np.random.default_rng(seed), 1, 262144, spread=2.5)
    for options in (Options(temperature=0), Options(top_k=40, top_p=0.95)):
        compare(pack, logits, options, seed)


@pytest.mark.parametrize("name", ["greedy", "all", "every filter"])
@pytest.mark.parametrize("rows, vocab", [(1, 7), (2, 1), (33, 2), (64, 3), (64, 5000)])
def test_a_walk_down_a_tree(pack: _engine.gpu.Pack, name: str, rows: int, vocab: int, seed: int) -> None:
    """The device follows the tokens it draws as the host would, and stops where the tree does not hold one."""
    rng = np.random.default_rng(seed)
    for _ in range(5):
        tokens = rng.integers(0, vocab, rows).astype(np.int32)
        parents = np.array([-1, *(rng.integers(max(0, i - 3), i) for i in range(1, rows))], np.int32)
        logits, options = normal(rng, rows, vocab, spread=2), FILTERS[name]
        sampler = _engine.Sampler(vocab, seed=seed, **fields(options))
        sampler.set_prompt(PROMPT[:vocab] % vocab)
        first = int(rng.integers(rows)) if rng.random() < 0.5 else 0
        row, path, expected = first, [], []
        while row >= 0:
            path.append(row)
            expected.append(sampler.sample(logits[row]))
            children = np.flatnonzero((parents == row) & (tokens == expected[-1]))
            row = int(children[0]) if len(children) else -1
        got = on_device(
            pack, logits, options, seed, tree=(tokens, parents), first=first, ring_capacity=64, with_append=first == 0
        )
        assert got["tokens"].tolist() == expected
        assert got["numbers"][0] == expected[-1]  # the input of the next step
        accept = got["accept"]
        if first > 0:  # the host accepts
            assert (accept == -1).all() and not got["numbers"][1:4].any()
            continue
        assert got["numbers"][1:4].tolist() == [len(path), 1, len(path)]  # n_past, key_buffer, n_accepted
        assert accept[:2].tolist() == [0, expected[-1]]  # n_before, root
        assert accept[2 : 2 + len(path)].tolist() == path and (accept[2 + len(path) : 66] == -1).all()
        assert np.array_equal(accept[66:-1].reshape(3, 37), np.tile(len(path) + np.arange(37), (3, 1)))
        assert accept[-1] == len(path) - 1  # last_slot


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_walk_ends_at_a_problem(pack: _engine.gpu.Pack, bad: float) -> None:
    logits = np.full((3, 40), -1.0, np.float32)
    logits[0, 7] = 5
    logits[1, 20] = bad
    tokens, parents = np.array([3, 7, 0], np.int32), np.array([-1, 0, 1], np.int32)
    got = on_device(pack, logits, FILTERS["greedy"], 0, tree=(tokens, parents), ring_capacity=64)
    assert got["tokens"].tolist() == [7, 0] and got["problems"].tolist() == [0, 1]


@pytest.mark.parametrize("depth", [0, 1, 3, 63])
def test_a_replayed_walk_takes_first_children(pack: _engine.gpu.Pack, depth: int, seed: int) -> None:
    """The walk ignores draws down to its depth. The token after it is the drawn one, even if a child holds it."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 5, 64).astype(np.int32)
    parents = np.array([-1, *(rng.integers(max(0, i - 3), i) for i in range(1, 64))], np.int32)
    logits = normal(rng, 64, 5)
    row, expected = 0, []
    for _ in range(depth):
        children = np.flatnonzero(parents == row)
        if len(children) == 0:
            break
        row = int(children[0])
        expected.append(int(tokens[row]))
    got = on_device(
        pack, logits, FILTERS["greedy"], seed, tree=(tokens, parents), ring_capacity=64, replay_length=depth
    )
    assert got["tokens"].tolist() == [*expected, int(logits[row].argmax())]
    assert got["numbers"][0] == got["tokens"][-1]  # the input of the next step


def test_random_combinations(pack: _engine.gpu.Pack, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for i in range(60):
        options = Options(
            temperature=float(rng.choice([0, 0.1, 0.7, 1, 5])),
            top_k=int(rng.choice([0, 1, 5, 60, 200])),
            typical_p=float(rng.choice([1, rng.uniform(0.1, 1)])),
            top_p=float(rng.choice([1, rng.uniform(0.1, 1)])),
            min_p=float(rng.choice([0, 1e-6, 0.1, 1])),
            repetition_penalty=float(rng.choice([1, 1.2])),
            frequency_penalty=float(rng.choice([0, 0.5])),
            presence_penalty=float(rng.choice([0, -0.5])),
            penalty_window=int(rng.choice([-1, 2, 64])),
            logit_bias={int(rng.integers(70)): float(rng.choice([-100, 3.0]))},
        )
        logits = normal(rng, 6, 70, spread=float(rng.choice([0.01, 1, 20])))
        compare(pack, np.round(logits) if i % 3 == 0 else logits, options, seed + i)


@pytest.mark.parametrize("name", ["greedy", "all", "top-k", "top-p", "typical", "every filter"])
@pytest.mark.parametrize(
    "values",
    [
        [0.0, -0.0],  # equal
        [1e-9, 2e-9, 3e-9, -1e-9, -2e-9],  # of one distance
        [1e-42, -1e-42, 0.0],  # subnormal
        [3e38, -3e38, 2.9e38, 0.0],
        [50.0, 50.0, 10.0, 9.0, -3e38],  # what is too far weighs nothing
    ],
    ids=["zeros", "close", "subnormal", "huge", "far"],
)
def test_unusual_values(pack: _engine.gpu.Pack, name: str, values: list[float], seed: int) -> None:
    logits = np.random.default_rng(seed).choice(np.array(values, np.float32), (20, 67))
    compare(pack, logits, FILTERS[name], seed)


@pytest.mark.parametrize("top_k", [3, 4, 5])
def test_equals_beside_neighbours(pack: _engine.gpu.Pack, top_k: int, seed: int) -> None:
    """Four equal logits, one fp32 step above the others: filters choose among equals by id."""
    low = np.float32(1e-9)
    logits = np.full((30, 67), low, np.float32)
    logits[:, [5, 17, 40, 66]] = np.nextafter(low, np.float32(1))
    compare(pack, logits, Options(top_k=top_k), seed)
    kept = [5, 17, 40, 66, 0][:top_k]
    assert set(on_device(pack, logits, Options(top_k=top_k), seed)["tokens"].tolist()) <= set(kept)


@pytest.mark.parametrize("temperature", [2e-5, 1e-6, 1e-30, 1e-40])
def test_temperatures_towards_0(pack: _engine.gpu.Pack, temperature: float, seed: int) -> None:
    """Below 1e-5 the likeliest token, where the logits' quotients would overflow too."""
    logits = normal(np.random.default_rng(seed), 20, 40, spread=50)
    options = Options(temperature=temperature, top_k=20)
    compare(pack, logits, options, seed)
    if temperature < 1e-5:
        assert on_device(pack, logits, options, seed)["tokens"].tolist() == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite(pack: _engine.gpu.Pack, bad: float, temperature: float, seed: int) -> None:
    """The result reports the problem, nothing is recorded, and the next step is unaffected."""
    options = Options(temperature=temperature, top_k=30, frequency_penalty=0.5)
    for vocab, at in ((50, 49), (9000, 8999)):
        logits = normal(np.random.default_rng(seed), 3, vocab)
        logits[1, at] = bad
        got = on_device(pack, logits, options, seed)
        assert got["problems"].tolist() == [0, 1, 0] and got["tokens"][1] == 0
        assert got["tokens"][[0, 2]].tolist() == on_cpu(logits[[0, 2]], options, seed)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forbidding_every_token(pack: _engine.gpu.Pack, temperature: float) -> None:
    options = Options(temperature=temperature, logit_bias=dict.fromkeys(range(4), -100.0))
    got = on_device(pack, np.zeros((1, 4), np.float32), options, 0)
    assert got["problems"].tolist() == [2] and got["tokens"].tolist() == [0]


def bits(allowed: NDArray[np.bool_]) -> NDArray[np.uint32]:
    words = np.zeros((len(allowed) + 31) // 32 * 4, np.uint8)
    packed = np.packbits(allowed, bitorder="little")
    words[: len(packed)] = packed
    return words.view(np.uint32)


# Several blocks share a large vocabulary; every filter there is slow: 5 s.
MASKED = [*FILTERS, "all with bias and filters"]
MASKS = [
    *product(MASKED, (1, 31, 32, 33, 70)),
    ("all with bias and filters", 9001),
    *(pytest.param(name, 9001, marks=pytest.mark.slow) for name in FILTERS),
]


@pytest.mark.parametrize(("name", "vocab"), MASKS)
def test_a_mask(pack: _engine.gpu.Pack, name: str, vocab: int, seed: int) -> None:
    """A mask gives the same tokens as on the CPU, and as a bias of -infinity."""
    rng = np.random.default_rng(seed)
    options = {**FILTERS, **PENALTIES}[name]
    if vocab == 1:
        options = replace(options, logit_bias={})
    for share in (0.02, 0.5, 1.0):
        allowed = rng.random(vocab) < share
        allowed[rng.integers(0, vocab, 3)] = True  # of which a bias forbids two at most
        logits = normal(rng, 8, vocab, spread=3)
        sampler = _engine.Sampler(vocab, seed=seed, **fields(options))
        sampler.set_prompt(PROMPT[:vocab] % vocab)
        sampler.set_mask(bits(allowed))
        want = [sampler.sample(row) for row in logits]
        got = on_device(pack, logits, options, seed, mask=bits(allowed) | tail(vocab))
        assert got["tokens"].tolist() == want
        if vocab < 100:
            forbidden = dict.fromkeys(np.flatnonzero(~allowed).tolist(), -100.0)
            assert want == on_cpu(logits, replace(options, logit_bias={**options.logit_bias, **forbidden}), seed)


def tail(vocab: int) -> NDArray[np.uint32]:
    """Bits beyond the vocabulary, which mean nothing."""
    return ~bits(np.ones(vocab, np.bool_))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_that_leaves_nothing(pack: _engine.gpu.Pack, temperature: float, seed: int) -> None:
    logits = normal(np.random.default_rng(seed), 1, 40)
    got = on_device(pack, logits, Options(temperature=temperature), seed, mask=tail(40))
    assert got["problems"].tolist() == [2] and got["tokens"].tolist() == [0]


@pytest.mark.parametrize("name", ["greedy", "every filter"])
@pytest.mark.parametrize(("vocab", "n_top"), [(1, 5), (40, 0), (40, 20), (40, 7), (5000, 20)])
def test_logprobs(pack: _engine.gpu.Pack, name: str, vocab: int, n_top: int, seed: int) -> None:
    """Log probabilities come from the raw logits, whatever the filters; ties go by id."""
    rng = np.random.default_rng(seed)
    for logits in (normal(rng, 3, vocab, spread=4), np.round(normal(rng, 3, vocab, spread=2))):
        got = on_device(pack, logits, FILTERS[name], seed, logprobs=n_top)
        assert got["tokens"].tolist() == on_cpu(logits, FILTERS[name], seed)
        x = logits.astype(np.float64)
        logprobs = x - x.max(axis=1, keepdims=True)
        logprobs -= np.log(np.exp(logprobs).sum(axis=1, keepdims=True))
        order = np.argsort(-x, axis=1, kind="stable")[:, :n_top]
        assert np.array_equal(got["top_ids"], order)
        unit = np.abs(x).max() + 1
        check("logprob", got["top_logprobs"], np.take_along_axis(logprobs, order, 1), unit)
        drawn = (np.arange(len(x)), got["tokens"])
        check("logprob", x[drawn] - got["logprobs"], x[drawn] - logprobs[drawn], unit)  # else all may be near 0


@pytest.mark.parametrize("ring_capacity", [1, 2, 8])
def test_the_step_ends_on_the_device(pack: _engine.gpu.Pack, ring_capacity: int, seed: int) -> None:
    """Ring, input token, n_past, key_buffer, n_accepted, accepted[0] and three positions."""
    logits = normal(np.random.default_rng(seed), 5, 11)
    got = on_device(pack, logits, Options(temperature=0), seed, ring_capacity=ring_capacity)
    assert got["tokens"].tolist() == logits.argmax(axis=1).tolist()
    last = int(got["tokens"][-1])
    assert got["numbers"].tolist() == [last, 5, 1, 1, 0, 5, 5, 5]
    got = on_device(pack, logits, Options(temperature=0), seed, ring_capacity=ring_capacity, with_append=False)
    assert got["numbers"].tolist() == [last, 0, 0, 0, 7, 5, 5, 5]


def test_a_ring_that_is_not_a_power_of_two(pack: _engine.gpu.Pack) -> None:
    with pytest.raises(InvalidRequestError, match=r"\[next_token\] ring of 3: the capacity must be a power of two"):
        on_device(pack, np.zeros((1, 4), np.float32), Options(), 0, ring_capacity=3)
