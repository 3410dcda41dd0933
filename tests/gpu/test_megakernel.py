"""The megakernel: decode steps as one launch give the same tokens as one launch per op, and as the CPU."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
import pytest
from engines import F32, Decoder, largest_difference, open_engine
from lucebox import _engine, _kernels
from lucebox.errors import LuceboxError
from lucebox.selftest import ops
from reference import checkpoints
from reference.gguf_files import Shape, write_model
from reference.linear import FP8, random_weights
from tolerances import tolerance

SHAPES = {
    "qwen35": Shape(
        "qwen35", n_layers=2, recurrent=(True, False), hidden=256, ffn=256, n_heads=4, head_dim=64, d_state=64
    ),
    "qwen3": Shape("qwen3", n_layers=2, hidden=256, ffn=256, n_heads=4, head_dim=64),
    "llama": Shape("llama", n_layers=2, hidden=256, ffn=512, n_heads=4, head_dim=64, tied=True),
}
# Eight queries per KV head, in two tiles; three value heads per key head; the largest head_dim.
WIDE = Shape(
    "qwen35",
    n_layers=2,
    recurrent=(True, False),
    hidden=256,
    ffn=256,
    n_heads=8,
    n_kv_heads=1,
    head_dim=256,
    n_k_heads=2,
    n_v_heads=6,
    d_state=128,
)
MIDDLE = Shape("qwen3", n_layers=2, hidden=256, ffn=256, n_heads=8, n_kv_heads=4, head_dim=128)
PENALISED = {"repetition_penalty": 1.3}
SAMPLED = {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 7, "logprobs": 2}

Write = Callable[[Shape], Path]


@pytest.fixture(scope="module", params=gpu_packs.MEGAKERNELS)
def pack(request: pytest.FixtureRequest, pack_folder: Path) -> _engine.gpu.Pack:
    return gpu_packs.with_megakernels(pack_folder, request.param)


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    folder = tmp_path_factory.mktemp("models")
    return lambda shape: write_model(folder / f"{abs(hash(shape))}.gguf", shape)


def decode(engine: _engine.Engine, n: int, prompt: list[int], **options: Any) -> tuple[list[int], str]:
    session, sampler = _engine.Session(engine), _engine.Sampler(engine.info["vocab"], **options)
    ids = list(prompt)
    sampler.set_prompt(np.array(ids, np.int32))
    for _ in range(n):
        session.sync(np.array(ids, np.int32))
        ids.append(session.sample(sampler))
    return ids, session.decode_path


def some(*, everyday: tuple[tuple[object, ...], ...], every: Iterable[tuple[object, ...]]) -> list[Any]:
    """All cases; those not in `everyday` are marked slow, with a second or two each on the simulator."""
    return [pytest.param(*case, marks=[] if case in everyday else pytest.mark.slow) for case in every]


OPTIONS: dict[str, dict[str, Any]] = {"greedy": {}, "penalised": PENALISED, "sampled": SAMPLED}


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("family", "sampling"),
    some(
        everyday=(("qwen35", "penalised"), ("qwen3", "greedy"), ("llama", "sampled")),
        every=product(SHAPES, OPTIONS),
    ),
)
def test_tokens(pack: _engine.gpu.Pack, write: Write, family: str, sampling: str) -> None:
    path, options = write(SHAPES[family]), OPTIONS[sampling]
    engines = [open_engine(path), *(open_engine(path, pack=pack, decode_path=way) for way in ("graph", "megakernel"))]
    (cpu, _), (graph, _), (mega, how) = (decode(engine, 6, [3, 1, 4], **options) for engine in engines)
    assert cpu == graph == mega
    assert how.startswith("megakernel_plain_")


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("shape", "n_prompt", "kv"),
    [
        pytest.param(SHAPES["qwen35"], 15, "f32", marks=pytest.mark.slow),
        pytest.param(SHAPES["qwen35"], 33, "f32", marks=pytest.mark.slow),  # 4 s each
        (SHAPES["qwen35"], 79, "f32"),
        (WIDE, 37, "f16"),
        pytest.param(WIDE, 79, "f16", marks=pytest.mark.slow),
        pytest.param(MIDDLE, 83, "f16", marks=pytest.mark.slow),
        pytest.param(MIDDLE, 127, "f16", marks=pytest.mark.slow),
    ],
)
def test_context(pack: _engine.gpu.Pack, write: Write, shape: Shape, n_prompt: int, kv: str) -> None:
    """Splits of one and of several tiles, across a page boundary, with the new row's slot in any split."""
    path, prompt = write(shape), [7 * i % 61 for i in range(n_prompt)]
    ids, logits = [], []
    for engine in (open_engine(path, kv=kv), open_engine(path, kv=kv, pack=pack, decode_path="megakernel")):
        session, sampler = _engine.Session(engine), _engine.Sampler(engine.info["vocab"])
        tokens = list(prompt)
        sampler.set_prompt(np.array(tokens, np.int32))
        for _ in range(4):
            session.sync(np.array(tokens, np.int32))
            tokens.append(session.sample(sampler))
        session.sync(np.array(tokens, np.int32))
        ids.append(tokens)
        logits.append(session.logits())
    assert ids[0] == ids[1]
    assert largest_difference(logits[1], logits[0]) < tolerance("logits", "f32_device")


def test_tiles_that_do_not_fit(pack_folder: Path, write: Write) -> None:
    """K and V in F32 with the largest head_dim exceed the smallest shared memory."""
    manifest = gpu_packs.manifest_of(pack_folder)
    if not gpu_packs.has_kernel(manifest, "megakernel_"):
        pytest.skip(f"the pack of {pack_folder.name} has no megakernel")
    manifest["capabilities"]["shared_block_bytes"] = gpu_packs.MIN_SHARED_BYTES
    pack = gpu_packs.load(pack_folder, manifest)
    with pytest.raises(LuceboxError, match="needs more shared memory for a row than a block has"):
        open_engine(write(WIDE), kv="f32", pack=pack, decode_path="megakernel")


def logits_behind_a_token(pack: _engine.gpu.Pack, path: Path, way: str, activations: str = "int8") -> F32:
    engine = open_engine(path, pack=pack, activations=activations, decode_path=way)
    session, sampler = _engine.Session(engine), _engine.Sampler(engine.info["vocab"])
    ids = np.array([3, 1, 4], np.int32)
    sampler.set_prompt(ids)
    session.sync(ids)
    session.sync(np.append(ids, np.int32(session.sample(sampler))))
    return session.logits()


def check_logits(pack: _engine.gpu.Pack, path: Path) -> None:
    """Logits after a token that the megakernel has decoded equal the graph's."""
    graph, mega = (logits_behind_a_token(pack, path, way) for way in ("graph", "megakernel"))
    assert largest_difference(mega, graph) < tolerance("logits", "f32_device")


@pytest.mark.parametrize("dtype", ["F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "Q5_K", "NVFP4"])
def test_weight_types(pack: _engine.gpu.Pack, write: Write, dtype: str) -> None:
    """Megakernel and graph both quantise x to 8 bits; attention differs in its last bits."""
    check_logits(pack, write(replace(SHAPES["qwen35"], dtype=dtype)))


@pytest.mark.parametrize("kind", ["fp8", "mixed"])
def test_checkpoints_of_few_bits(pack: _engine.gpu.Pack, write: Write, tmp_path: Path, kind: str) -> None:
    """FP8 alone; NVFP4, FP8 and BF16 in one launch."""
    path, _ = checkpoints.few_bits(tmp_path / kind, write(SHAPES["qwen3"]), kind)
    check_logits(pack, path)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("dtype", "d_state"),
    some(
        everyday=(("F16", 32), ("Q8_0", 64), ("Q8_0", 128), ("Q4_K", 32), ("Q4_K", 128)),
        every=product(("F16", "Q8_0", "Q4_K"), (32, 64, 128)),
    ),
)
def test_heads_that_their_makers_gate(pack: _engine.gpu.Pack, write: Write, dtype: str, d_state: int) -> None:
    """A recurrent step hands o to the output projection, in eight, four and two slices of a head; quantised weights get
    codes, whose scale spans two slices. Codes are of values before the head's norm, so a value between two codes may
    fall to the other side. That costs a part of what rounding costs."""
    path = write(replace(SHAPES["qwen35"], n_k_heads=2, n_v_heads=8, d_state=d_state, dtype=dtype))
    graph, mega = (logits_behind_a_token(pack, path, way) for way in ("graph", "megakernel"))
    most = tolerance("logits", "f32_device")
    if dtype != "F16":
        exact = logits_behind_a_token(pack, path, "auto", "f32")
        most = tolerance("logits", "rounded_share") * largest_difference(exact, graph)
    assert largest_difference(mega, graph) < most


@pytest.mark.first_case
@pytest.mark.parametrize(("dtype", "ffn"), [("Q8_0", 1056), ("Q4_K", 2560), ("Q6_K", 2304), ("F16", 2112)])
def test_rows_of_several_pieces_a_thread(pack: _engine.gpu.Pack, write: Write, dtype: str, ffn: int) -> None:
    """Fewer threads than pieces share a row of the down projection, and the last pass is not whole; gate and up take
    several passes."""
    check_logits(pack, write(replace(SHAPES["qwen3"], ffn=ffn, dtype=dtype)))


@pytest.mark.parametrize("dtype", ["F32", "Q8_0"])
def test_vectors_that_end_within_a_group(pack: _engine.gpu.Pack, write: Write, dtype: str) -> None:
    """Mailboxes come in groups of 128. Tests lengths that are not a multiple (hidden 160, o 576, v and z 192, ffn 224),
    and gates that start inside a group, 192 values after their queries."""
    odd = {"hidden": 160, "ffn": 224, "n_heads": 3, "n_kv_heads": 1, "head_dim": 192}
    check_logits(pack, write(replace(SHAPES["qwen35"], **odd, n_v_heads=6, d_state=32, dtype=dtype)))


def test_phases(pack: _engine.gpu.Pack, write: Write) -> None:
    """A recurrent layer has 5 phases, one with attention 6; embedding, head and sampler have one each."""
    for family, n in (("qwen35", 5 + 6), ("qwen3", 6 + 6)):
        _, how = decode(open_engine(write(SHAPES[family]), pack=pack, decode_path="megakernel"), 1, [3])
        found = re.search(r"(\d+) phases", how)
        assert found is not None and int(found[1]) == n + 3, how


def test_weights_in_parts(pack: _engine.gpu.Pack, write: Write) -> None:
    """A ring that holds the weights of several phases is filled in parts, so test_weight_types covers parts too."""
    path = write(replace(SHAPES["qwen35"], dtype="Q8_0"))
    _, how = decode(open_engine(path, pack=pack, decode_path="megakernel", activations="int8"), 1, [3])
    assert ("in parts of 5 KB" in how) == ("a ring of" in how), how


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("family", "ahead", "sampling"),
    some(
        everyday=(("qwen35", 1, "greedy"), ("qwen35", 3, "sampled"), ("qwen3", 3, "greedy"), ("llama", 3, "sampled")),
        every=product(SHAPES, (1, 3), ("greedy", "sampled")),
    ),
)
def test_steps_asked_for_ahead(pack: _engine.gpu.Pack, write: Write, family: str, ahead: int, sampling: str) -> None:
    """Launches of several tokens, each of which folds the one before, make the tokens of single launches."""
    path, options = write(SHAPES[family]), OPTIONS[sampling]
    graph, mega = (open_engine(path, pack=pack, decode_path=way) for way in ("graph", "megakernel"))
    vocab, ids = graph.info["vocab"], []
    for engine, n in ((graph, 1), (mega, ahead)):
        sampler = _engine.Sampler(vocab, **options)
        ids.append(_kernels.ops.decode_ahead(engine, np.linspace(-2, 2, vocab, dtype=np.float32), sampler, 9, n))
    assert ids[0] == ids[1]


@pytest.mark.parametrize(("most", "allowed"), [(1, 1), (5, 1), (5, 3), (4, 4)])
def test_tokens_of_a_launch(pack: _engine.gpu.Pack, seed: int, most: int, allowed: int) -> None:
    """A launch ends with the last token that the host allows, reports the end, and leaves that token's logits."""
    rng = np.random.default_rng(seed)
    x, norm, w = (rng.standard_normal(n).astype(np.float32) for n in (256, 256, 517 * 256))
    arguments = (x, norm, 1e-6, w.astype(np.float16).view(np.uint8), "F16", 517)
    once = ops.megakernel(*arguments, pack=pack)
    several = ops.megakernel(*arguments, pack=pack, most=most, allowed=allowed)
    assert np.array_equal(several, once)


@pytest.mark.slow  # 2 to 6 s each
@pytest.mark.parametrize(
    ("dtype", "n_in", "block_rows", "chunk_bytes"),
    [
        ("F16", 32, 512, 4096),
        ("Q8_0", 32, 1024, 4352),
        ("F16", 256, 512, 32768),
        ("F32", 2048, 64, 32768),
        ("Q8_0", 1056, 256, 0),
        ("Q4_K", 2560, 256, 0),
        ("NVFP4", 320, 256, 0),
        (FP8, 640, 256, 0),
    ],
)
def test_the_end_of_the_ring(
    pack_folder: Path, seed: int, dtype: str, n_in: int, block_rows: int, chunk_bytes: int
) -> None:
    """Chunks that end before or at the ring's end, or would end 16 bytes beyond it, one or two to a batch; chunks of
    several planes in rings of any size. The smallest ring has room for two batches and up to 16 bytes per chunk."""
    manifest = gpu_packs.manifest_without(pack_folder, gpu_packs.MEGAKERNELS["stream"])
    if not gpu_packs.has_kernel(manifest, "megakernel_"):
        pytest.skip(f"the pack of {pack_folder.name} has no megakernel whose weights come through a ring")
    rng = np.random.default_rng(seed)
    max_bytes = manifest["capabilities"]["shared_block_bytes"]
    n_out = block_rows * gpu_packs.load(pack_folder, manifest).device.n_sms - 3
    x = rng.standard_normal(n_in).astype(np.float32)
    w = random_weights(dtype, n_in * n_out, rng)

    def logits(shared_bytes: int) -> F32:
        manifest["capabilities"]["shared_block_bytes"] = shared_bytes
        pack = gpu_packs.load(pack_folder, manifest)
        return ops.megakernel(x, np.ones_like(x), 1e-6, w, dtype, n_out, most=3, allowed=3, pack=pack)

    def has_room(shared_bytes: int) -> bool:
        try:
            logits(shared_bytes)
        except LuceboxError as error:
            assert "shared memory" in str(error)
            return False
        return True

    want = logits(max_bytes)
    sizes = range(0, max_bytes, 16)
    larger = sizes[bisect_left(sizes, True, key=has_room) :]
    one_more = chunk_bytes // 16
    for shared_bytes in [*larger[max(one_more - 12, 0) : one_more + 4], *rng.choice(larger, 6)]:
        assert np.array_equal(logits(int(shared_bytes)), want), f"{shared_bytes} bytes of shared memory"


@pytest.mark.parametrize(
    ("options", "phase"),
    [({"missing": 1, "most": 2, "allowed": 2}, 2), ({"is_lost": True}, 1)],
    ids=["barrier", "mailboxes"],
)
def test_timeouts(pack: _engine.gpu.Pack, options: dict[str, Any], phase: int) -> None:
    """A wait times out at the barrier before a second token, or at the mailboxes of the likeliest token."""
    x = np.ones(256, np.float32)
    with pytest.raises(LuceboxError, match=f"gave up waiting for phase {phase}"):
        ops.megakernel(x, x, 1e-6, np.zeros(256 * 8, np.uint8), "F16", 4, **options, pack=pack)


# Heads of 64, 128, 192 and 256; the row's own slot at the ends of tiles and of pages; one and two tiles of queries.
PACKED = [
    ("wht4", SHAPES["qwen35"], 14, False),
    ("q8_0/q4_0", SHAPES["qwen35"], 63, True),
    ("wht3/f16", MIDDLE, 65, True),
    ("f16/tq3_0", WIDE, 37, True),
    ("bf16/f16", SHAPES["llama"], 17, True),
    ("f32/q5_1", MIDDLE, 130, True),
    ("q4_1/wht4", replace(MIDDLE, head_dim=192, n_heads=3, n_kv_heads=1), 47, True),
    ("fp8/q5_0", WIDE, 128, True),
]


@pytest.mark.parametrize(
    ("kv", "shape", "n_prompt"),
    [
        pytest.param(kv, *rest, marks=pytest.mark.slow if is_slow else (), id=kv)  # 6 s each on the simulator
        for kv, *rest, is_slow in PACKED
    ],
)
def test_packed_keys_and_values(pack: _engine.gpu.Pack, write: Write, kv: str, shape: Shape, n_prompt: int) -> None:
    """The logits equal the graph's, also if the new row's slot is the last or first of a tile."""
    path, prompt = write(shape), [7 * i % 61 for i in range(n_prompt)]
    graph, mega = (
        Decoder(open_engine(path, kv=kv, pack=pack, decode_path=way), prompt) for way in ("graph", "megakernel")
    )
    for _ in range(4):
        token = graph.choose()
        assert mega.choose() == token
        for decoder in (graph, mega):
            decoder.ids.append(token)
            decoder.sync()
        difference = largest_difference(mega.session.logits(), graph.session.logits())
        assert difference < tolerance("logits", "packed_device")
    assert mega.session.decode_path.startswith("megakernel_")
