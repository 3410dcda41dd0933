"""Whole models on a device, compared with the CPU, whose results other tests compare with other implementations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
import pytest
from engines import Decoder, feed, largest_difference, logits_of, open_engine, path_to, random_ids
from lucebox import _engine, _kernels
from lucebox.errors import OutOfMemoryError, UnsupportedError
from numpy.typing import NDArray
from reference import checkpoints
from reference.gguf_files import Packed, Shape, metadata, tensors, write, write_model
from reference.linear import BLOCK_TYPES, CODEBOOK_TYPES, PLAIN_TYPES, decode, to_bf16
from tolerances import tolerance

EXACT = tolerance("logits", "f32_device")
N_IDS = 70  # more than a chunk of recurrent rows and a KV page

Write = Callable[[Shape], Path]

SHAPES = {
    "qwen35": Shape(
        "qwen35", n_layers=2, recurrent=(True, False), hidden=256, ffn=256, n_heads=4, head_dim=64, d_state=64
    ),
    "qwen3": Shape("qwen3", n_layers=2, hidden=256, ffn=256, n_heads=4, head_dim=64),
    "llama": Shape("llama", n_layers=2, hidden=256, ffn=512, n_heads=4, head_dim=64, tied=True),
}


# The hybrid has the layers of the other families too.
HYBRID_FIRST = [pytest.param(name, marks=[] if name == "qwen35" else pytest.mark.slow) for name in SHAPES]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Writes each shape once."""
    folder = tmp_path_factory.mktemp("models")

    @functools.cache
    def write(shape: Shape) -> Path:
        return write_model(folder / f"{abs(hash(shape))}.gguf", shape)

    return write


def logits_after(engine: _engine.Engine, ids: NDArray[np.int32], first: int, chunk: int) -> NDArray[np.float32]:
    """Logits of every token: the `first` tokens in one append, which is faster than many, then the rest in chunks."""
    session = _engine.Session(engine)
    return np.concatenate([feed(session, ids[:first], first), feed(session, ids[first:], chunk)])


@functools.cache
def on_cpu(path: Path, n: int) -> NDArray[np.float32]:
    engine = open_engine(path)
    return logits_of(engine, random_ids(n, engine.info["vocab"]))


@pytest.mark.parametrize("name", ["qwen35_a", pytest.param("qwen3_a", marks=pytest.mark.slow), "llama_a"])  # 4 s each
def test_golden_logits(pack: _engine.gpu.Pack, data: Path, name: str) -> None:
    arrays = np.load(data / "tiny" / f"{name}.npz")
    engine = open_engine(data / "tiny" / f"{name}.gguf", pack=pack)
    assert largest_difference(logits_of(engine, arrays["ids"]), arrays["logits"]) < EXACT


@pytest.mark.parametrize(
    ("first", "chunk"),
    [(58, 1), pytest.param(49, 7, marks=pytest.mark.slow), (64, 64)],  # 3 s each
)
@pytest.mark.parametrize("family", HYBRID_FIRST)
def test_chunks_agree(pack: _engine.gpu.Pack, written: Write, family: str, first: int, chunk: int) -> None:
    path = written(SHAPES[family])
    engine = open_engine(path, pack=pack)
    ids = random_ids(N_IDS, engine.info["vocab"])
    assert largest_difference(logits_after(engine, ids, first, chunk), on_cpu(path, N_IDS)) < EXACT


@pytest.mark.parametrize(
    "kv",
    ["wht4/q4_0", pytest.param("q5_1/tq3_0", marks=pytest.mark.slow)],  # 5 s each
)
def test_chunks_of_packed_keys_agree(pack: _engine.gpu.Pack, written: Write, kv: str) -> None:
    """Every row reads stored values, its own append included, so different chunks differ only in the order of sums:
    much less than the rounding error of keys and values."""
    path = written(SHAPES["qwen35"])
    engine, ids = open_engine(path, pack=pack, kv=kv), random_ids(N_IDS, SHAPES["qwen35"].vocab)
    one, other = (logits_after(engine, ids, *parts) for parts in ((58, 1), (64, 64)))
    rounding = np.square(one - on_cpu(path, N_IDS)).mean()
    assert np.square(other - one).mean() < tolerance("logits", "chunks_of_packed") * rounding


def test_long_chunk(pack: _engine.gpu.Pack, written: Write) -> None:
    """One append with several chunks of a recurrent layer."""
    path = written(SHAPES["qwen35"])
    ids = random_ids(150, SHAPES["qwen35"].vocab)
    session = _engine.Session(open_engine(path, pack=pack, prefill_chunk=150))
    session.sync(ids)
    assert largest_difference(session.logits(), on_cpu(path, 150)[-1]) < EXACT


@pytest.mark.parametrize("dtype", BLOCK_TYPES + PLAIN_TYPES)
def test_every_tensor_type(pack: _engine.gpu.Pack, written: Write, dtype: str) -> None:
    path = written(replace(SHAPES["qwen35"], dtype=dtype))
    engine = open_engine(path, pack=pack)
    ids = random_ids(5, engine.info["vocab"])
    limit = tolerance("logits", "half_device") if dtype in ("F16", "BF16") else EXACT
    assert largest_difference(logits_of(engine, ids, 4), on_cpu(path, 5)) < limit


@pytest.mark.parametrize("way", ["graph", "megakernel"])
def test_yarn(pack: _engine.gpu.Pack, tmp_path: Path, way: str) -> None:
    """Prompts and decoded tokens have the scaled angles and the attention factor."""
    shape = replace(SHAPES["qwen3"], n_layers=1)
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 16}
    fields = metadata(shape) | {f"rope.scaling.{key}": value for key, value in scaling.items()}
    path = write(tmp_path / "yarn.gguf", fields, tensors(shape))
    on_device, on_cpu = (Decoder(open_engine(path, **options), list(range(20))) for options in
                         ({"pack": pack, "decode_path": way}, {}))  # fmt: skip
    assert largest_difference(on_device.session.logits(), on_cpu.session.logits()) < EXACT
    assert on_device.decode(6) == on_cpu.decode(6)
    assert largest_difference(on_device.session.logits(), on_cpu.session.logits()) < EXACT


# tests/host/test_planes.py has the rounding of every type.
EXPANDED = [
    pytest.param(dtype, marks=[] if dtype in ("IQ2_S", "IQ1_M") else pytest.mark.slow)  # 1.5 s each
    for dtype in CODEBOOK_TYPES
]


@pytest.mark.parametrize("dtype", EXPANDED)
def test_types_without_kernels_are_bf16(pack: _engine.gpu.Pack, tmp_path: Path, dtype: str) -> None:
    """Same bits and same device memory as a file with the rounded values."""
    shape = replace(SHAPES["llama"], dtype=dtype, n_layers=1)
    weights = tensors(shape)
    rounded = {name: as_bf16(tensor) if isinstance(tensor, Packed) else tensor for name, tensor in weights.items()}
    paths = [write(tmp_path / f"{i}.gguf", metadata(shape), each) for i, each in enumerate((weights, rounded))]
    ids = random_ids(5, shape.vocab)
    for way in ("graph", "megakernel"):
        packed, plain = (open_engine(path, pack=pack, decode_path=way) for path in paths)
        assert np.array_equal(logits_of(packed, ids, 4), logits_of(plain, ids, 4))
        assert packed.plan["entries"] == plain.plan["entries"]
        assert packed.info["bytes_per_token"] == plain.info["bytes_per_token"]
        assert Decoder(packed, [3, 1, 4]).decode(4) == Decoder(plain, [3, 1, 4]).decode(4)


def as_bf16(tensor: Packed) -> Packed:
    halves = to_bf16(decode(tensor.rows.reshape(-1), tensor.dtype))
    return Packed("BF16", halves.view(np.uint8).reshape(len(tensor.rows), -1))


@pytest.mark.parametrize(
    "kind",
    ["fp8", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("modelopt", "compressed-tensors", "mixed"))],
)  # 4 s each; test_expanded_weights.py reads all layouts
def test_checkpoints_of_few_bits_stay_packed(pack: _engine.gpu.Pack, tmp_path: Path, kind: str) -> None:
    """Prompts, few rows and single tokens have the CPU's logits; the device holds the codes and scales of the file."""
    gguf = write_model(tmp_path / "m.gguf", replace(SHAPES["qwen3"], vocab=512))
    path, n_bytes = checkpoints.few_bits(tmp_path / kind, gguf, kind)
    engine = open_engine(path, pack=pack)
    planned = {name: size for name, size, *_ in engine.plan["entries"]}["weights"]
    assert n_bytes <= planned <= n_bytes + (24 << 10)  # alignment and vectors
    ids = random_ids(54, 512)
    session = _engine.Session(engine)
    got = np.concatenate([feed(session, ids[:41], 41), feed(session, ids[41:50], 9), feed(session, ids[50:], 1)])
    limit = tolerance("logits", "half_device") if kind == "mixed" else EXACT  # whose head is BF16
    assert largest_difference(got, on_cpu(path, 54)) < limit


@pytest.mark.slow  # 3 s each; every day, the kernels in test_matmul.py
@pytest.mark.parametrize("kind", ["modelopt", "mixed"])
def test_prompts_in_fp4_on_request(pack: _engine.gpu.Pack, pack_folder: Path, tmp_path: Path, kind: str) -> None:
    """Only prompts of NVFP4 weights change, by no more than 4 bits of activations do."""
    gguf = write_model(tmp_path / "m.gguf", replace(SHAPES["qwen3"], vocab=512))
    path, _ = checkpoints.few_bits(tmp_path / kind, gguf, kind)
    options: dict[str, Any] = {"pack": pack, "prefill_chunk": 128}
    if not gpu_packs.has_kernel(gpu_packs.manifest_of(pack_folder), "gemm_sm120_nvfp4_"):
        with pytest.raises(UnsupportedError, match=r"activations = fp4: .* has no products of 4-bit activations"):
            open_engine(path, activations="fp4", **options)
        return
    fp4, int8 = (open_engine(path, activations=activations, **options) for activations in ("fp4", "int8"))
    ids = random_ids(80, 512)
    assert np.array_equal(logits_of(fp4, ids, 40), logits_of(int8, ids, 40))
    exact = on_cpu(path, 80)
    of_fp4, of_int8 = (np.square(logits_of(engine, ids, 80) - exact).mean() for engine in (fp4, int8))
    assert of_int8 < of_fp4 < 0.1 * np.square(exact - exact.mean()).mean()
    with pytest.raises(UnsupportedError, match="activations = fp4 is for prompts of NVFP4 weights, and this model has"):
        open_engine(gguf, activations="fp4", **options)


def test_fp4_needs_a_gpu(written: Write) -> None:
    with pytest.raises(UnsupportedError, match="activations = fp4 needs a GPU of sm_120 or sm_121"):
        open_engine(written(SHAPES["llama"]), activations="fp4")


@pytest.mark.slow  # 3 s
@pytest.mark.parametrize("family", HYBRID_FIRST)
def test_few_rows_make_what_the_next_product_reads(pack: _engine.gpu.Pack, written: Write, family: str) -> None:
    """Norms and gates are fused, without separate launches; the rounding error is no larger than on the CPU."""
    shape = replace(SHAPES[family], n_layers=4, recurrent=(True, True, False, True) if family == "qwen35" else ())
    path = written(replace(shape, dtype="Q4_K"))
    engine = open_engine(path, pack=pack, activations="int8")
    ids = random_ids(22, engine.info["vocab"])
    exact = on_cpu(path, len(ids))
    noise = logits_of(open_engine(path, activations="int8"), ids) - exact
    for rows in (2, 11, 22):
        error = logits_of(engine, ids, rows) - exact
        assert np.square(error).mean() < 2 * np.square(noise).mean(), rows
    times = _kernels.SessionProbe(_engine.Session(engine)).profile_append(ids, 22)
    launches = {kernel: n for kernel, n, _ in times}
    if any(kernel.startswith("gemm_skinny") for kernel in launches):
        assert launches["rms_norm_kernel"] == 2 and "swiglu_kernel" not in launches  # the first and the last


@pytest.mark.parametrize("dtype", ["BF16", pytest.param("F16", marks=pytest.mark.slow)])  # 4 s each
@pytest.mark.parametrize("family", HYBRID_FIRST)
def test_few_rows_of_plain_weights(pack: _engine.gpu.Pack, written: Write, family: str, dtype: str) -> None:
    """Epilogues make the next product's input, as for quantised weights, except norms of f16."""
    shape = replace(SHAPES[family], n_layers=4, recurrent=(True, True, False, True) if family == "qwen35" else ())
    path = written(replace(shape, dtype=dtype))
    engine = open_engine(path, pack=pack, activations="int8")
    ids = random_ids(22, engine.info["vocab"])
    for rows in (2, 11, 22):
        assert largest_difference(logits_of(engine, ids, rows), on_cpu(path, len(ids))) < tolerance(
            "logits", "half_device"
        ), rows
    launches = {kernel: n for kernel, n, _ in _kernels.SessionProbe(_engine.Session(engine)).profile_append(ids, 22)}
    if any(kernel.startswith("gemm_skinny") for kernel in launches):
        assert "swiglu_kernel" not in launches
        assert launches["rms_norm_kernel"] == (2 if dtype == "BF16" else 2 * shape.n_layers + 1)


@pytest.mark.slow  # 2 s
@pytest.mark.parametrize("family", HYBRID_FIRST)
def test_merged_splits_make_what_the_next_product_reads(pack: _engine.gpu.Pack, written: Write, family: str) -> None:
    """In a step only the last norm's rounding has a separate launch. Most of the context's splits are empty here."""
    path = written(replace(SHAPES[family], dtype="Q4_K"))
    engine = open_engine(path, pack=pack, activations="int8", context=1024)
    ids = random_ids(70, engine.info["vocab"])
    exact = on_cpu(path, len(ids))
    noise = logits_of(open_engine(path, activations="int8"), ids) - exact
    for rows in (1, 2, 3):
        error = logits_after(engine, ids, 58, rows) - exact
        assert np.square(error).mean() < 2 * np.square(noise).mean(), rows
        launches = {
            kernel: n
            for kernel, n, _ in _kernels.SessionProbe(_engine.Session(engine)).profile_append(ids[:rows], rows)
        }
        assert launches["attention_merge_kernel"] == launches["attention_prepare_kernel"]
        assert launches.get("round_rows_kernel", 0) <= 1, launches


@pytest.mark.parametrize("family", HYBRID_FIRST)
def test_rewind(pack: _engine.gpu.Pack, written: Write, family: str) -> None:
    """Rewinds to reachable lengths, then continues with other tokens."""
    path = written(SHAPES[family])
    engines = (open_engine(path), open_engine(path, pack=pack))
    ids = random_ids(12, SHAPES[family].vocab, seed=1)
    for n in (5, 0):
        sessions = [_engine.Session(engine) for engine in engines]
        for session in sessions:
            feed(session, ids[:6], 6)
            session.rewind(n)
        want, got = (session.append(ids[6:9])[0] for session in sessions)
        assert largest_difference(got, want) < EXACT, n


@pytest.mark.parametrize("family", HYBRID_FIRST)
def test_tree_rows(pack: _engine.gpu.Pack, written: Write, family: str, seed: int) -> None:
    """Random trees: every row, and every row after an accepted path, equals decoding its path alone."""
    rng = np.random.default_rng(seed)
    path = written(SHAPES[family])
    engine, plain = open_engine(path, pack=pack), open_engine(path)
    vocab = SHAPES[family].vocab
    prefix, ids = random_ids(5, vocab, seed=2), random_ids(9, vocab, seed=3)
    parents = [-1] + [int(rng.integers(-1, i)) for i in range(1, len(ids))]
    session = _engine.Session(engine)
    feed(session, prefix)
    got = session.append(ids, parents=parents)[0]
    for row in range(len(ids)):
        along = np.concatenate([prefix, ids[path_to(row, parents)]])
        assert largest_difference(got[row], logits_of(plain, along)[-1]) < EXACT, (parents, row)
    row = int(rng.integers(len(ids)))
    accepted = path_to(row, parents)
    session.commit(accepted)
    after = np.concatenate([prefix, ids[accepted], ids[:2]])
    assert largest_difference(session.append(ids[:2])[0], logits_of(plain, after)[-2:]) < EXACT, (parents, row)


@pytest.mark.slow  # 7 s
@pytest.mark.parametrize("family", HYBRID_FIRST)
def test_appends_that_come_again(pack: _engine.gpu.Pack, written: Write, family: str, seed: int) -> None:
    """An append is replayed from its second time on. Replays give the same bits as a session whose recordings other
    appends always evict in between."""
    rng = np.random.default_rng(seed)
    engine = open_engine(written(replace(SHAPES[family], dtype="Q4_K")), pack=pack, activations="int8")
    again, anew = _engine.Session(engine), _engine.Session(engine)
    for i in range(6):
        rows = (5, 11, 5, 2)[i % 4]
        ids = random_ids(rows, SHAPES[family].vocab, seed=seed + i)
        parents = [-1] + [int(rng.integers(-1, i)) for i in range(1, rows)] if i % 3 else []
        for others in (1, 3, 4, 6, 7, 8, 9, 10):  # as many as are kept
            anew.append(np.zeros(others, np.int32))
            anew.commit([])
        (got, _), (want, _) = (session.append(ids, parents=parents) for session in (again, anew))
        np.testing.assert_array_equal(got, want, f"append {i} of {rows} rows, {parents}")
        row = int(rng.integers(rows))
        path = path_to(row, parents) if parents else list(range(row + 1))
        again.commit(path)
        anew.commit(path)


def generated(engine: _engine.Engine, n: int, **options: Any) -> tuple[list[int], list[float]]:
    """Generates tokens one by one with the device's sampler; returns them with their log probabilities."""
    session, sampler = _engine.Session(engine), _engine.Sampler(engine.info["vocab"], logprobs=2, **options)
    ids = [3, 1, 4]
    sampler.set_prompt(np.array(ids, np.int32))
    logprobs = []
    for _ in range(n):
        session.sync(np.array(ids, np.int32))
        ids.append(session.sample(sampler))
        logprobs.append(session.logprobs(ids[-1], 2)[0])
    return ids, logprobs


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 7}])
@pytest.mark.parametrize("family", HYBRID_FIRST)
def test_generation(pack: _engine.gpu.Pack, written: Write, family: str, options: dict[str, Any]) -> None:
    path = written(SHAPES[family])
    want, got = (generated(engine, 12, **options) for engine in (open_engine(path), open_engine(path, pack=pack)))
    assert got[0] == want[0]
    assert largest_difference(got[1], want[1]) < EXACT


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "presence_penalty": 0.5, "seed": 7}])
def test_generation_under_masks(pack: _engine.gpu.Pack, written: Write, options: dict[str, Any]) -> None:
    """Masks are set, changed, kept and cleared between tokens: same tokens as on the CPU, all allowed."""
    path = written(SHAPES["qwen35"])
    vocab = SHAPES["qwen35"].vocab
    rng = np.random.default_rng(11)
    masks: list[NDArray[np.uint32] | None] = []
    for kind in "-mm-m=mm--m-":
        new = rng.integers(0, 2**32, (vocab + 31) // 32, np.uint32) if kind == "m" else None
        masks.append(masks[-1] if kind == "=" else new)
    chosen = []
    for engine in (open_engine(path), open_engine(path, pack=pack)):
        session, sampler = _engine.Session(engine), _engine.Sampler(vocab, logprobs=2, **options)
        ids = [3, 1, 4]
        sampler.set_prompt(np.array(ids, np.int32))
        for mask in masks:
            session.sync(np.array(ids, np.int32))
            sampler.set_mask(mask)
            token = session.sample(sampler)
            assert mask is None or mask[token // 32] >> (token % 32) & 1
            session.logprobs(token, 2)
            ids.append(token)
        chosen.append(ids)
    assert chosen[0] == chosen[1]


def test_a_step_on_its_way_may_be_dropped(pack: _engine.gpu.Pack, written: Write) -> None:
    """The caller continues with a token other than the sampled one, saves, rewinds, or uses another sampler."""
    path = written(SHAPES["qwen35"])
    cpu, gpu = (_engine.Session(engine) for engine in (open_engine(path), open_engine(path, pack=pack)))
    vocab = SHAPES["qwen35"].vocab
    ids = [5, 6, 7]
    for turn in range(6):
        for session in (cpu, gpu):
            session.sync(np.array(ids, np.int32))
        tokens = [session.sample(_engine.Sampler(vocab)) for session in (cpu, gpu)]
        assert tokens[0] == tokens[1]
        if turn % 3 == 0:
            ids.append((tokens[0] + 1) % vocab)
        elif turn % 3 == 1:
            ids.append(tokens[0])
            cpu.load(gpu.save())
        else:
            ids.append(tokens[0])
    for session in (cpu, gpu):
        session.sync(np.array(ids, np.int32))
    assert largest_difference(gpu.logits(), cpu.logits()) < EXACT


def test_snapshots_move_between_devices(pack: _engine.gpu.Pack, written: Write) -> None:
    path = written(SHAPES["qwen35"])
    cpu, gpu = (_engine.Session(engine) for engine in (open_engine(path), open_engine(path, pack=pack)))
    ids = random_ids(20, SHAPES["qwen35"].vocab)
    feed(gpu, ids[:15])
    cpu.load(gpu.save())
    assert largest_difference(cpu.append(ids[15:])[0], gpu.append(ids[15:])[0]) < EXACT


def test_two_runs_give_the_same_bits(pack: _engine.gpu.Pack, written: Write) -> None:
    path = written(SHAPES["qwen35"])
    ids = random_ids(27, SHAPES["qwen35"].vocab)
    first, second = (logits_of(open_engine(path, pack=pack, activations="int8"), ids, 13) for _ in range(2))
    assert np.array_equal(first, second)


def test_plan_is_of_the_device(pack: _engine.gpu.Pack, written: Write) -> None:
    plan = open_engine(written(SHAPES["llama"]), pack=pack, decode_path="graph").plan
    assert plan["place"] == pack.name and plan["mapped_bytes"] == 0
    assert {name: per_session for name, _, _, per_session in plan["entries"]} == {
        "weights": False,
        "KV cache": False,
        "page table": True,
        "activations": False,
        "logits": False,
        "kernel scratch": False,
        "sampler": True,
    }


def test_a_plan_without_the_device_is_the_same(pack: _engine.gpu.Pack, pack_folder: Path, written: Write) -> None:
    path, manifest = written(SHAPES["qwen35"]), (pack_folder / "manifest.json").read_text()
    engine = open_engine(path, pack=pack, decode_path="graph", draft="suffix")
    free_bytes = engine.plan["available_bytes"] + (256 << 20)  # what is left to the driver
    options = engine.options | {"memory_limit": None}
    planned, resolved = _engine.plan_memory(str(path), free_bytes, manifest, pack.device.n_sms, pack.name, **options)
    assert planned == engine.plan and resolved == engine.options


def test_a_context_that_does_not_fit(pack: _engine.gpu.Pack, written: Write) -> None:
    path = written(replace(SHAPES["llama"], n_layers=8, n_kv_heads=4, max_context=1 << 24))  # 275 GB
    with pytest.raises(OutOfMemoryError, match=rf"memory of {pack.name} are available"):
        open_engine(path, context=1 << 24, pack=pack)
