"""The megakernel over many tokens: against the graph, after prompts of any length, and when the host continues with
other tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from engines import Decoder, largest_difference, open_engine
from lucebox import _engine
from lucebox.errors import LuceboxError
from numpy.typing import NDArray
from reference.gguf_files import Shape, write_model
from tolerances import tolerance

SHAPE = Shape("qwen35", n_layers=2, recurrent=(True, False), hidden=256, ffn=256, n_heads=4, head_dim=64, d_state=64)
DEEP = replace(SHAPE, n_layers=4, recurrent=(True, True, True, False), vocab=509)
CLOSE = tolerance("logits", "f32_device")
N_TOKENS = {"sim": 80}  # on GPUs ALL_TOKENS
ALL_TOKENS = 10_000

Logits = NDArray[np.float32]
Open = Callable[..., _engine.Engine]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = replace(SHAPE, max_context=ALL_TOKENS + 8)
    return write_model(tmp_path_factory.mktemp("models") / "small.gguf", shape)


def margin(logits: Logits) -> float:
    likeliest = np.sort(logits)[-2:]
    return float(likeliest[1] - likeliest[0])


@pytest.fixture(scope="module")
def engine(pack: _engine.gpu.Pack, model: Path) -> _engine.Engine:
    return open_engine(model, pack=pack, decode_path="megakernel")


@pytest.mark.slow  # 8 s: 80 tokens twice
def test_many_tokens_as_by_the_graph(pack: _engine.gpu.Pack, model: Path) -> None:
    """The tokens may differ where the two likeliest are almost equal; both go on with the graph's token."""
    n = N_TOKENS.get(pack.target, ALL_TOKENS)
    graph, mega = (
        Decoder(open_engine(model, pack=pack, decode_path=way, context=n + 8), [3, 1, 4])
        for way in ("graph", "megakernel")
    )
    for _ in range(n):
        gap = margin(graph.session.logits())
        token, other = graph.choose(), mega.choose()
        assert token == other or gap < CLOSE
        for decoder in (graph, mega):
            decoder.ids.append(token)
            decoder.sync()
    assert largest_difference(mega.session.logits(), graph.session.logits()) < CLOSE
    assert mega.session.decode_path.startswith("megakernel_plain_")


@pytest.mark.slow  # 3 s each
@pytest.mark.parametrize(
    "lengths",
    [
        (2, 16, 17),
        (64, 65),
        pytest.param((128, 129), marks=pytest.mark.slow),  # 3 s
        pytest.param((15, 16, 63), marks=pytest.mark.slow),  # 5 to 9 s
        pytest.param((127, 128), marks=pytest.mark.slow),
    ],
)
def test_a_prompt_as_what_was_decoded(engine: _engine.Engine, lengths: tuple[int, ...]) -> None:
    """Decoded tokens as a prompt give the same next tokens: lengths around attention tiles, pages, recurrent chunks."""
    start = [7 * i % 61 for i in range(lengths[0] - 1)]
    decoded = [*start, *Decoder(engine, start).decode(lengths[-1] + 4 - len(start))]
    for n in lengths:
        assert Decoder(engine, decoded[:n]).decode(4) == decoded[n:][:4], n


def test_two_runs_are_equal_in_every_bit(engine: _engine.Engine) -> None:
    runs = [Decoder(engine, [5, 9, 2]) for _ in range(2)]
    assert runs[0].decode(9) == runs[1].decode(9)
    assert np.array_equal(runs[0].session.logits(), runs[1].session.logits())


@pytest.mark.first_case
@pytest.mark.parametrize("n_kept", [6, 5, 2])
def test_steps_ahead_are_dropped(engine: _engine.Engine, n_kept: int) -> None:
    """The host continues with another token, or from an earlier point, after the next step has started."""
    decoder = Decoder(engine, [3, 1, 4])
    decoder.decode(3)
    unwanted = decoder.choose()
    decoder.ids = [*decoder.ids[:n_kept], (unwanted + 1) % SHAPE.vocab]
    decoder.sync()
    fresh = Decoder(engine, decoder.ids)
    assert largest_difference(decoder.session.logits(), fresh.session.logits()) < CLOSE
    assert decoder.decode(5) == fresh.decode(5)
    assert largest_difference(decoder.session.logits(), fresh.session.logits()) < CLOSE


@pytest.mark.first_case
@pytest.mark.parametrize("way", ["graph", "megakernel"])
def test_tokens_that_nobody_chose(pack: _engine.gpu.Pack, model: Path, way: str) -> None:
    """The host continues with its tokens after the device has started to sample the next one."""
    engine = open_engine(model, pack=pack, decode_path=way)
    decoder = Decoder(engine, [3, 1, 4])
    decoder.decode(3)
    for token in (7, 11):
        decoder.ids.append(token)
        decoder.sync()
    fresh = Decoder(engine, decoder.ids)
    assert largest_difference(decoder.session.logits(), fresh.session.logits()) < CLOSE
    assert decoder.decode(5) == fresh.decode(5)


@pytest.mark.slow  # 2 s: sessions of tests/gpu/test_together.py take turns, too
def test_sessions_take_turns(engine: _engine.Engine) -> None:
    """Each session has a step in flight while the other computes."""
    alone = [Decoder(engine, [n, 1]).decode(4) for n in (3, 8)]
    both = [Decoder(engine, [n, 1]) for n in (3, 8)]
    for _ in range(4):
        for decoder in both:
            decoder.decode(1)
    assert [decoder.ids[2:] for decoder in both] == alone


def test_the_context_ends(pack: _engine.gpu.Pack, model: Path) -> None:
    """The last token is beyond the context: no step follows, and no step has to be dropped."""
    small = open_engine(model, pack=pack, decode_path="megakernel", context=9)
    decoder = Decoder(small, [3, 1, 4])
    expected = [*decoder.decode(6), decoder.choose()]
    again = Decoder(small, [3, 1])
    again.ids.append(4)
    assert again.sync() == 2
    assert [*again.decode(6), again.choose()] == expected


@pytest.mark.slow  # 3 s
@pytest.mark.parametrize("dtype", [pytest.param("Q8_0", marks=pytest.mark.slow), "Q4_K"])
def test_rounded_rows_of_sums_in_another_order(pack: _engine.gpu.Pack, tmp_path: Path, dtype: str) -> None:
    """Sums that differ in their last bit now and then move a code of rounded x by one. For each token that must cost
    less than the rounding itself, and on average a part of it; where no code moved, the logits are the graph's."""
    path, ids = write_model(tmp_path / "deep.gguf", replace(DEEP, dtype=dtype)), [7 * i % 61 for i in range(24)]
    ways = {"graph": "int8", "megakernel": "int8", "auto": "f32"}
    decoders = [
        Decoder(open_engine(path, pack=pack, decode_path=way, activations=how), ids) for way, how in ways.items()
    ]
    logits = []
    for _ in range(8):
        token, *_ = (decoder.choose() for decoder in decoders)
        for decoder in decoders:
            decoder.ids.append(token)
            decoder.sync()
        logits.append([decoder.session.logits() for decoder in decoders])
    graph, mega, exact = np.swapaxes(np.array(logits), 0, 1)
    order_difference, rounding_difference = (np.abs(other - graph).max(axis=1) for other in (mega, exact))
    assert order_difference.min() < CLOSE
    assert np.all(order_difference < rounding_difference)
    assert order_difference.mean() < tolerance("logits", "rounded_share") * rounding_difference.mean()


@pytest.mark.first_case
@pytest.mark.parametrize("way", ["graph", "megakernel"])
def test_a_token_that_cannot_be_chosen(pack: _engine.gpu.Pack, tmp_path: Path, way: str) -> None:
    """The host notices non-finite logits after the next step has started; the session starts again."""
    path, poison = write_model(tmp_path / "damaged.gguf", SHAPE), 60
    embedding = next(t for t in gguf.GGUFReader(path, "r+").tensors if t.name == "token_embd.weight")
    embedding.data[poison] = np.nan
    engine = open_engine(path, pack=pack, decode_path=way)
    decoder = Decoder(engine, [3, 1, 4])
    decoder.sampler = _engine.Sampler(SHAPE.vocab, logit_bias=[(poison, 100.0)])
    assert decoder.decode(1) == [poison]
    with pytest.raises(LuceboxError, match="not finite"):
        decoder.choose()
    with pytest.raises(LuceboxError, match="nothing to sample from"):
        decoder.choose()
    decoder.ids, decoder.sampler = [3, 1, 4], _engine.Sampler(SHAPE.vocab)
    assert decoder.sync() == 0
    assert decoder.decode(5) == Decoder(engine, [3, 1, 4]).decode(5)
