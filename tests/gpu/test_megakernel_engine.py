"""The engine around the megakernel: the plan at load, the choice of path, and steps that never end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
import pytest
import sim_pack
from engines import Decoder, largest_difference, open_engine
from lucebox import _engine, _kernels
from lucebox.errors import InternalError, LuceboxError
from reference.gguf_files import Shape, write_model
from tolerances import tolerance

SHAPES = {
    "qwen35": Shape(
        "qwen35", n_layers=2, recurrent=(True, False), hidden=256, ffn=256, n_heads=4, head_dim=64, d_state=64
    ),
    "llama": Shape("llama", n_layers=2, hidden=256, ffn=512, n_heads=4, head_dim=64, tied=True),
}
# Sixteen tokens have half a MiB of K and V in fp32.
MUCH_KV = Shape(
    "qwen35", n_layers=3, recurrent=(True, False, False), n_heads=16, n_kv_heads=16, head_dim=128, d_state=64
)
CHOSEN = {"megakernel_max_mib": 64, "megakernel_max_kv_mib": 1}  # with these, the engine takes it for these models
N_GOOD = 2  # steps before tests/sim_kernels/late/megakernel.cpp goes wrong
PROMPT = [3, 1, 4]

Write = Callable[[Shape], Path]


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    folder = tmp_path_factory.mktemp("models")
    return lambda shape: write_model(folder / f"{abs(hash(shape))}.gguf", shape)


@pytest.fixture(scope="module")
def late_pack(pack_folder: Path) -> _engine.gpu.Pack:
    """A pack whose megakernel hangs after some steps; the engine chooses the megakernel by default."""
    manifest: dict[str, Any] = gpu_packs.manifest_of(pack_folder)
    if manifest["vendor"] != "sim":
        pytest.skip("a kernel that waits in vain is built for the simulator alone")
    library = sim_pack.build(sim_pack.address_sanitizer_runs(), "tests/sim_kernels/late")
    manifest["tuning"] |= CHOSEN
    for kernel in manifest["generations"][0]["kernels"]:
        if kernel["name"] == "megakernel_plain_kernel":
            kernel["file"] = "late.so"
    return gpu_packs.load(pack_folder, manifest, **{"late.so": library.read_bytes()})


def bytes_of_step(engine: _engine.Engine) -> int:
    return sum(n_bytes for name, n_bytes, *_ in engine.plan["entries"] if name == "decode step")


@pytest.mark.first_case
@pytest.mark.parametrize("family", SHAPES)
def test_memory_is_planned_and_none_is_added(pack: _engine.gpu.Pack, write: Write, family: str) -> None:
    device = _engine.gpu.Device(pack.device.vendor)
    tries = 1 if pack.target == "sim" else 8  # other processes allocate and free memory of a GPU meanwhile

    def adds_nothing(decoder: Decoder) -> bool:
        before = device.memory()[0]
        decoder.decode(5)
        return device.memory()[0] == before

    def used(way: str) -> tuple[int, int]:
        """Bytes that a session uses, and bytes that the plan has for its steps."""
        engine = open_engine(write(SHAPES[family]), pack=pack, decode_path=way)
        before = device.memory()[0]
        decoder = Decoder(engine, PROMPT)
        decoder.decode(1)
        after = device.memory()[0]
        assert any(adds_nothing(decoder) for _ in range(tries))
        return before - after, bytes_of_step(engine)

    (of_graph, none), (of_megakernel, planned) = used("graph"), used("megakernel")
    assert none == 0 and planned > 0
    if pack.target == "sim":  # on GPUs memory is allocated in pages, and the driver allocates some for graphs
        assert of_megakernel - of_graph == planned


def test_a_pack_without_the_kernel(pack_folder: Path, write: Write) -> None:
    """Requesting the megakernel is an error at load; by default the graph decodes, and its name gives the reason."""
    manifest = gpu_packs.manifest_without(pack_folder, "megakernel_.*")
    manifest["tuning"] |= CHOSEN
    pack = gpu_packs.load(pack_folder, manifest)
    with pytest.raises(LuceboxError, match=rf"the pack of {pack.target} has no megakernel_"):
        open_engine(write(SHAPES["llama"]), pack=pack, decode_path="megakernel")
    engine = open_engine(write(SHAPES["llama"]), pack=pack)
    decoder = Decoder(engine, PROMPT)
    decoder.decode(2)
    assert bytes_of_step(engine) == 0
    why = f"graph, because [megakernel] the pack of {pack.target} has no megakernel_"
    assert decoder.session.decode_path.startswith(why)


@pytest.mark.slow  # 11 s: a context of 32768
def test_a_long_context_is_left_to_the_graph(pack_folder: Path, write: Write) -> None:
    """In the middle of a sequence, with steps requested ahead; the next, shorter sequence is the megakernel's again."""
    manifest = gpu_packs.manifest_of(pack_folder)
    if not gpu_packs.has_kernel(manifest, "megakernel_"):
        pytest.skip(f"the pack of {pack_folder.name} has no megakernel")
    manifest["tuning"] |= CHOSEN
    pack = gpu_packs.load(pack_folder, manifest)
    path = write(MUCH_KV)
    engines = [open_engine(path, pack=pack, decode_path=way) for way in ("graph", "auto")]
    vocab = engines[0].info["vocab"]
    logits = np.linspace(-2, 2, vocab, dtype=np.float32)

    def ahead(engine: _engine.Engine, n: int) -> list[int]:
        return _kernels.ops.decode_ahead(engine, logits, _engine.Sampler(vocab), 24, n)

    expected = ahead(engines[0], 1)
    for n in (2, 3):  # tokens that a launch owes are made before the graph's step
        assert ahead(engines[1], n) == expected
    graph, mixed = (Decoder(engine, PROMPT) for engine in engines)
    for n, way in ((8, "megakernel_plain_"), (8, "graph, because it decodes faster after more than 16 tokens")):
        assert mixed.decode(n) == graph.decode(n)
        assert mixed.session.decode_path.startswith(way)
        assert largest_difference(mixed.session.logits(), graph.session.logits()) < tolerance("logits", "f32_device")
    mixed.start(PROMPT)
    assert mixed.decode(2) == graph.ids[len(PROMPT) :][:2]
    assert mixed.session.decode_path.startswith("megakernel_plain_")


@pytest.mark.slow  # 10 s; every day, the test below
@pytest.mark.parametrize(
    ("family", "when"),
    [
        ("qwen35", "sample"),
        pytest.param("llama", "another prompt", marks=pytest.mark.slow),
        pytest.param("qwen35", "logits", marks=pytest.mark.slow),  # 3 s each, of which 2 are the wait
        pytest.param("qwen35", "another prompt", marks=pytest.mark.slow),
        pytest.param("llama", "sample", marks=pytest.mark.slow),
        pytest.param("llama", "logits", marks=pytest.mark.slow),
    ],
)
def test_a_step_that_never_ends(late_pack: _engine.gpu.Pack, write: Write, family: str, when: str) -> None:
    """The first call that reads the step's result raises, once; then the session starts again, with the graph."""
    engine, graph = (open_engine(write(SHAPES[family]), pack=late_pack, decode_path=way) for way in ("auto", "graph"))
    expected = Decoder(graph, PROMPT)
    expected.decode(7)
    decoder = Decoder(engine, PROMPT)
    assert decoder.decode(N_GOOD) == expected.ids[len(PROMPT) :][:N_GOOD]
    assert decoder.session.decode_path.startswith("megakernel_plain_kernel")
    decoder.ids.append(decoder.choose())
    with pytest.raises(InternalError, match="a block of the megakernel waited 2 s"):
        if when == "another prompt":
            decoder.start(PROMPT)
        decoder.sync()
        decoder.session.logits() if when == "logits" else decoder.choose()
    assert decoder.session.tokens == []
    assert decoder.session.decode_path.startswith("graph, because a block of the megakernel waited")

    decoder.start(PROMPT)
    decoder.decode(7)
    assert decoder.ids == expected.ids
    assert largest_difference(decoder.session.logits(), expected.session.logits()) < tolerance("logits", "f32_device")
    other = Decoder(engine, PROMPT)  # another session is not affected
    assert other.decode(N_GOOD) == expected.ids[len(PROMPT) :][:N_GOOD]


@pytest.mark.slow  # 3 s
def test_a_step_that_never_ends_before_one_of_a_graph(late_pack: _engine.gpu.Pack, write: Write) -> None:
    """The third step hangs, at 16 tokens of context; the graph's step after it raises."""
    path, prompt = write(MUCH_KV), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]
    decoder, expected = (
        Decoder(open_engine(path, pack=late_pack, decode_path=way), prompt) for way in ("auto", "graph")
    )
    expected.decode(7)
    decoder.decode(N_GOOD + 1)
    with pytest.raises(InternalError, match="a block of the megakernel waited 2 s"):
        decoder.choose()
    assert decoder.session.tokens == []
    decoder.start(prompt)
    decoder.decode(7)
    assert decoder.ids == expected.ids
