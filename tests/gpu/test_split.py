"""A model whose layers are on several devices has the bits of the same model on one device: no sum changes.

With --pack the tests run on the devices 0, 1, ... of the pack's vendor, as many as the machine has."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
import pytest
from build_sim import build_sim
from drafts import SAMPLINGS
from engines import F32, logits_of, open_engine, random_ids
from lucebox import LLM, _engine
from lucebox._kernels.driver import delay_sim_device
from lucebox.errors import InvalidRequestError, OutOfMemoryError, UnsupportedError
from lucebox.generation import loading
from lucebox.packs import Selection
from reference.gguf_files import Shape, write_model
from text_data import TINY_HYBRID

VOCAB = 96
HEADS = {"n_heads": 2, "n_kv_heads": 1, "head_dim": 64, "vocab": VOCAB}
RECURRENT = {"recurrent": (True, False, True, False), "d_state": 64, "n_v_heads": 2}
QUANTISED = {"hidden": 256, "ffn": 512, "n_heads": 4, "n_kv_heads": 2, "head_dim": 64, "vocab": VOCAB}
SHAPES = {
    "qwen35": Shape("qwen35", n_layers=4, n_mtp=1, **RECURRENT, **HEADS),
    "qwen3": Shape("qwen3", "Q4_K", n_layers=4, **QUANTISED),
    "llama": Shape("llama", n_layers=3, tied=True, **HEADS),
    "qwen3moe": Shape("qwen3moe", n_layers=4, **HEADS),
    "qwen35moe": Shape("qwen35moe", n_layers=4, **RECURRENT, **HEADS),
    "gpt-oss": Shape("gpt-oss", n_layers=4, **HEADS),
}
MAX_DEVICES = 3
MASK = np.array([0xFFFF0FF7] * (VOCAB // 32), np.uint32)
RESERVED = 256 << 20  # bytes that plans leave to the driver


@pytest.fixture(scope="module")
def packs(pack_folder: Path) -> list[_engine.gpu.Pack]:
    """The pack on up to three devices."""
    return gpu_packs.load_on_devices(pack_folder, MAX_DEVICES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("split")


@cache
def written(folder: Path, name: str) -> Path:
    return write_model(folder / f"{name}.gguf", SHAPES[name])


def pair(
    packs: list[_engine.gpu.Pack], path: Path, n: int = 2, **options: Any
) -> tuple[_engine.Engine, _engine.Engine]:
    """The model on one device and by layers on n devices."""
    n = min(n, len(packs))
    alone = open_engine(path, pack=packs[0], decode_path="graph", **options)
    split = open_engine(path, pack=packs[0], others=packs[1:n], split="layer", **options)
    assert len(split.plan["parts"]) == n
    return alone, split


FAMILIES = [pytest.param(name, marks=[] if name == "qwen35" else pytest.mark.slow) for name in SHAPES]  # 3 s each


@pytest.mark.parametrize("family", FAMILIES)
def test_logits(packs: list[_engine.gpu.Pack], folder: Path, family: str) -> None:
    """Prompts in chunks of every kind of product: GEMM, skinny GEMM, GEMV."""
    options = {"activations": "int8", "kv": "f16"} if family == "qwen3" else {}
    alone, split = pair(packs, written(folder, family), MAX_DEVICES, **options)
    for chunk, n in ((64, 100), (7, 21), (1, 10)):
        ids = random_ids(n, VOCAB, n)
        assert np.array_equal(logits_of(alone, ids, chunk), logits_of(split, ids, chunk)), f"chunk {chunk}"


def write(session: _engine.Session, ids: list[int], n: int, *, masks: bool = False, **sampling: Any) -> list[int]:
    """ids, continued by n tokens. masks: every third token is chosen under a mask."""
    sampler = _engine.Sampler(VOCAB, **sampling)
    sampler.set_prompt(np.array(ids, np.int32))
    for i in range(n):
        session.sync(np.array(ids, np.int32))
        if masks:
            sampler.set_mask(MASK if i % 3 == 1 else np.zeros(0, np.uint32))
        ids = [*ids, session.sample(sampler)]
    return ids


@pytest.mark.slow  # 3 s each: tests/gpu/test_batch_invariant.py decodes on layers of two devices every day
@pytest.mark.parametrize("family", SHAPES)
@pytest.mark.parametrize("draft", ["none", "suffix"])
def test_tokens(packs: list[_engine.gpu.Pack], folder: Path, family: str, draft: str) -> None:
    """Steps, whose tokens the last device chooses."""
    alone, split = pair(packs, written(folder, family), MAX_DEVICES, draft=draft)
    prompt = random_ids(35, VOCAB).tolist() * 2
    sessions = [_engine.Session(engine) for engine in (alone, split)]
    for sampling in ("greedy", "drawn"):  # the second text rewinds to the prompt
        masks = sampling == "drawn"
        texts = [write(session, prompt, 12, masks=masks, **SAMPLINGS[sampling]) for session in sessions]
        assert texts[0] == texts[1]
    assert all(session.decode_path == "graph" for session in sessions)


@pytest.mark.first_case
@pytest.mark.parametrize("draft", ["none", "suffix"])
def test_batches(packs: list[_engine.gpu.Pack], folder: Path, draft: str) -> None:
    """Passes over several sequences, some of them with a draft. In every second one the device chooses the tokens."""
    prompts = [random_ids(n, VOCAB, n).tolist() for n in (61, 3, 1)]
    logits = []
    for engine in pair(packs, written(folder, "qwen35"), draft=draft, context=96):
        sessions, texts, own = [_engine.Session(engine) for _ in prompts], [list(ids) for ids in prompts], []
        samplers = [_engine.Sampler(VOCAB, **SAMPLINGS["greedy"]) for _ in prompts]
        for step in range(6):
            if draft != "none":
                sessions[step % 3].suggest(np.array([5, 6, 7], np.int32), [-1, 0, -1])
            _engine.sync_together(sessions, [np.array(ids, np.int32) for ids in texts])
            if step % 2:
                _engine.start_samples(sessions, samplers)
            for session, sampler, ids in zip(sessions, samplers, texts, strict=True):
                own.append(session.logits())
                ids.append(session.sample(sampler) if step % 2 else int(own[-1].argmax()))
        logits.append(own)
    assert all(np.array_equal(a, b) for a, b in zip(*logits, strict=True))


def texts_of_groups(engine: _engine.Engine, groups: list[list[int]]) -> list[list[int]]:
    """Texts of sequences, whose passes are of these groups, all of which are in flight."""
    texts = [random_ids(n, VOCAB, n).tolist() for n in (30, 3, 1, 12)]
    sessions = [_engine.Session(engine) for _ in texts]
    samplers = [_engine.Sampler(VOCAB, **SAMPLINGS["drawn"]) for _ in texts]

    def send(group: list[int]) -> None:
        _engine.sync_together([sessions[i] for i in group], [np.array(texts[i], np.int32) for i in group])
        _engine.start_samples([sessions[i] for i in group], [samplers[i] for i in group])

    for group in groups:
        send(group)
    for _ in range(6):
        for group in groups:
            for i in group:
                sessions[i].wait_for_choice()
                texts[i].append(sessions[i].sample(samplers[i]))
            send(group)
    return texts


@pytest.mark.slow  # 3 s
def test_passes_in_flight(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    """A pass of two sequences is sent while another one of two is in flight: the tokens of one pass of all."""
    alone, split = pair(packs, written(folder, "qwen35"), context=96)
    assert texts_of_groups(split, [[0, 1], [2, 3]]) == texts_of_groups(alone, [[0, 1, 2, 3]])


class Enough(Exception):
    pass


@pytest.mark.parametrize(
    "family, n_devices, n_chunks",
    [
        pytest.param("llama", 2, 2, marks=pytest.mark.slow),  # 7 s: chunks of 257 rows
        pytest.param("qwen35", 3, 3, marks=pytest.mark.slow),  # 17 s: three chunks of 257 rows
    ],
)
def test_chunks_of_a_prompt_in_stages(
    packs: list[_engine.gpu.Pack], folder: Path, family: str, n_devices: int, n_chunks: int
) -> None:
    """Each device computes another chunk of a prompt. Between its layers another session decodes."""
    chunk = 257  # one row more than a step has
    options = {"context": (n_chunks + 1) * chunk, "prefill_chunk": chunk}
    alone, split = pair(packs, written(folder, family), n_devices, **options)
    long, short = random_ids(n_chunks * chunk + 3, VOCAB, 1), random_ids(9, VOCAB, 2).tolist()
    want = _engine.Session(alone)
    want.sync(long)
    text = write(_engine.Session(alone), short, 4)
    session, other = _engine.Session(split), _engine.Session(split)
    sampler, ids, n_called = _engine.Sampler(VOCAB), list(short), 0

    def between() -> None:
        nonlocal n_called
        n_called += 1
        if len(ids) < len(text):
            other.sync(np.array(ids, np.int32))
            ids.append(other.sample(sampler))

    def stop() -> None:
        nonlocal n_called
        n_called += 1
        if n_called == 3:
            raise Enough

    with pytest.raises(Enough):
        session.sync(long, between_layers=stop)
    assert session.n_tokens == 0
    done: list[int] = []
    session.sync(long, between_layers=between, progress=lambda n, _: done.append(n))
    assert done == [*range(chunk, len(long), chunk), len(long)]
    assert ids == text
    assert np.array_equal(session.logits(), want.logits())
    assert session.matched_prefix(long, done) == len(long)
    assert write(session, long.tolist(), 4) == write(want, long.tolist(), 4)


def test_trees(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    """An append of a tree of which a path is kept, and one that is dropped."""
    logits = []
    for engine in pair(packs, written(folder, "qwen35")):
        session = _engine.Session(engine)
        own = []
        for ids, parents, path in (
            (random_ids(50, VOCAB), [], list(range(50))),
            (random_ids(6, VOCAB, 1), [-1, 0, 0, 1, 2, 4], [0, 2, 4, 5]),
            (random_ids(3, VOCAB, 2), [-1, 0, 0], []),
            (random_ids(4, VOCAB, 3), [], list(range(4))),
        ):
            own.append(session.append(ids, parents)[0])
            session.commit(path)
        logits.append(own)
    assert all(np.array_equal(a, b) for a, b in zip(*logits, strict=True))


@pytest.mark.slow  # 4 s
@pytest.mark.parametrize("family", ["qwen35", pytest.param("gpt-oss", marks=pytest.mark.slow)])
def test_state_moves_between_one_device_and_several(packs: list[_engine.gpu.Pack], folder: Path, family: str) -> None:
    """Snapshots and pieces have the same bytes on any number of devices, and each continues the other's."""
    prompt = random_ids(128, VOCAB)
    engines = pair(packs, written(folder, family), MAX_DEVICES)
    sessions = [_engine.Session(engine) for engine in engines]
    for session in sessions:
        session.sync(prompt)
    snapshots = [session.save() for session in sessions]
    assert snapshots[0] == snapshots[1]
    pages = [[session.read_pages(page, 1) for page in (0, 1)] for session in sessions]
    states = [(session.read_recurrent(), session.read_windows()) for session in sessions]
    assert np.array_equal(*pages) and all(map(np.array_equal, *states))

    expected = write(sessions[0], prompt.tolist(), 6)
    taken = _engine.Session(engines[1])
    taken.load(snapshots[0])
    assert write(taken, prompt.tolist(), 6) == expected
    built = _engine.Session(engines[1])
    built.assemble(prompt, [64, 128], 0, pages[0], *states[0])
    assert write(built, prompt.tolist(), 6) == expected


@pytest.mark.slow  # 4 s: tests/gpu/test_page_pool.py forks and swaps every day
def test_fork_swap_and_rewind(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    alone, split = pair(packs, written(folder, "qwen35"))
    prompt = random_ids(100, VOCAB).tolist()
    expected = write(_engine.Session(alone), prompt, 8)
    source = _engine.Session(split)
    started = write(source, prompt, 3)
    fork = _engine.Session(split)
    fork.fork(source)
    assert write(source, started, 5) == expected
    fork.swap_out()
    assert fork.is_swapped_out
    source.reset()
    assert write(fork, started, 5) == expected
    assert write(fork, prompt, 8) == expected  # a step back within the recurrent layers' rows


@pytest.fixture(scope="module")
def alone(packs: list[_engine.gpu.Pack], folder: Path) -> F32:
    """Logits of qwen3's 40 tokens on one device."""
    engine = open_engine(written(folder, "qwen3"), pack=packs[0], decode_path="graph")
    return logits_of(engine, random_ids(40, VOCAB))


@pytest.mark.parametrize(
    "devices, link",
    [
        ((0, 1), "peer"),
        ((3, 4), 'host: device 4 "lucebox simulator" (sim) has no peer access to device 3 "lucebox simulator" (sim)'),
        ((6, 7), 'host: device 6 "lucebox simulator" (sim) copies wrong data to its peer'),
    ],
)
def test_links(packs: list[_engine.gpu.Pack], folder: Path, alone: F32, devices: tuple[int, int], link: str) -> None:
    """Rows go through host memory where the driver allows no peer access, or allows it and copies wrong data."""
    if packs[0].target != "sim":
        pytest.skip("only the links of the simulator are known")
    manifest = gpu_packs.manifest_of(build_sim())
    first, second = (gpu_packs.load(build_sim(), manifest, index=index) for index in devices)
    split = open_engine(written(folder, "qwen3"), pack=first, others=[second], split="layer")
    assert split.links == [link]
    assert np.array_equal(logits_of(split, random_ids(40, VOCAB)), alone)


def test_rows_go_through_host_memory_if_the_user_says_so(
    packs: list[_engine.gpu.Pack], folder: Path, alone: F32
) -> None:
    split = open_engine(written(folder, "qwen3"), pack=packs[0], others=packs[1:2], split="layer", link="host")
    assert split.links == ["host: link = host"] and split.link_us[0] > 0
    assert np.array_equal(logits_of(split, random_ids(40, VOCAB)), alone)


def test_no_peers_and_no_host_memory(folder: Path) -> None:
    manifest = gpu_packs.manifest_of(build_sim())
    for first, second, why in ((3, 4, "has no peer access to device 3"), (6, 7, "copies wrong data to its peer")):
        one, other = (gpu_packs.load(build_sim(), manifest, index=index) for index in (first, second))
        with pytest.raises(UnsupportedError, match=rf"link = peer: device .* {why}.*\. Use link = auto or host"):
            open_engine(written(folder, "qwen3"), pack=one, others=[other], split="layer", link="peer")


def test_the_plan_divides_by_free_memory(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    split = pair(packs, written(folder, "qwen3"), MAX_DEVICES)[1]
    parts = split.plan["parts"]
    assert [part["place"] for part in parts] == [pack.name for pack in packs[: len(parts)]]
    assert split.plan["place"] == ",".join(part["place"] for part in parts)
    assert split.plan["total_bytes"] == sum(part["total_bytes"] for part in parts)
    layers = [next(entry[2] for entry in part["entries"] if entry[0] == "weights") for part in parts]
    assert layers[0].startswith("layers 0 to ")
    assert f"to {SHAPES['qwen3'].n_layers - 1}:" in layers[-1]
    assert len(split.links) == len(parts) - 1


def test_what_fits_on_one_device_stays_there(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    """split = auto takes more devices only if the model with its context needs them."""
    path = written(folder, "qwen3")
    alone = open_engine(path, pack=packs[0], others=packs[1:2])
    assert not alone.plan["parts"]
    options = {"kv_tokens": 256, "sessions": 1}
    need = open_engine(path, pack=packs[0], **options).plan["total_bytes"]
    limit = RESERVED + need - 1
    with pytest.raises(OutOfMemoryError):
        open_engine(path, pack=packs[0], memory_limit=limit, **options)
    split = open_engine(path, pack=packs[0], others=packs[1:2], memory_limit=limit, **options)
    assert len(split.plan["parts"]) == 2
    ids = random_ids(20, VOCAB)
    assert np.array_equal(logits_of(alone, ids), logits_of(split, ids))


@pytest.mark.slow  # 8 s of waiting
def test_a_wait_for_a_group_is_none_for_the_next(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    """The tokens of one group are there, although the pass of the other one, which is held up, follows in the queue."""
    if packs[0].target != "sim":
        pytest.skip("only the simulator delays a device")
    _, split = pair(packs, written(folder, "qwen35"))
    groups = [[(_engine.Session(split), _engine.Sampler(VOCAB), [1, 2, 3 + n]) for n in range(2)] for _ in range(2)]

    def send(number: int) -> None:
        sessions, samplers, texts = zip(*groups[number], strict=True)
        _engine.sync_together([*sessions], [np.array(text, np.int32) for text in texts])
        _engine.start_samples([*sessions], [*samplers])

    def end(number: int) -> float:
        for session, sampler, text in groups[number]:
            text.append(session.sample(sampler))
        return time.perf_counter()

    for _ in range(4):  # the first passes allocate and record, which waits
        for number in range(2):
            send(number)
            end(number)
    delay_sim_device(packs[1].device.index, 2)  # of the first group, longer than a wait that only polls
    send(0)
    time.sleep(1)  # the first device ends the first group's layers
    delay_sim_device(packs[0].device.index, 6)
    send(1)
    first, second = end(0), end(1)
    assert second - first > 2


@pytest.mark.slow  # 10 s: a real model on the simulator
@pytest.mark.parametrize(("split", "where"), [("layer", "layers on "), ("tensor", "a part of every layer on ")])
def test_llm(packs: list[_engine.gpu.Pack], monkeypatch: pytest.MonkeyPatch, split: str, where: str) -> None:
    """By name, with the prefix cache, several sequences and automatic drafts."""
    selections = {pack.name: Selection(pack.name, pack.device, None, ()) for pack in packs}
    monkeypatch.setattr(
        loading, "resolve_devices", lambda device, *_, **__: tuple(selections[one] for one in device.split(","))
    )
    by_index = {pack.device.index: pack for pack in packs}
    monkeypatch.setattr(loading, "open_pack", lambda selection: by_index[selection.info.index])
    both, results = f"{packs[0].name},{packs[1].name}", []
    long = "The small dog sat by the sea. " * 10
    for device in (packs[0].name, both):
        with LLM(str(TINY_HYBRID), device=device, split=split, context=256, prefill_chunk=64, sessions=2) as llm:
            assert llm.options.device == device
            first, again = (llm.generate(long, max_tokens=4) for _ in range(2))
            assert again.ids == first.ids and again.usage.cached_tokens >= 64
            results.append((first.ids, [one.ids for one in llm.generate(["x = 1", long], max_tokens=4)]))
            if device == both:
                assert llm.draft_label == "suffix"
                assert where + both in llm.device_reason
                assert str(llm.memory_plan).count("of ") >= 2
    assert results[0] == results[1]


def test_refusals(packs: list[_engine.gpu.Pack], folder: Path, data: Path) -> None:
    path = written(folder, "qwen35")
    both: dict[str, Any] = {"pack": packs[0], "others": packs[1:2], "split": "layer"}
    with pytest.raises(UnsupportedError, match="the megakernel runs on one device only"):
        open_engine(path, decode_path="megakernel", **both)
    with pytest.raises(InvalidRequestError, match="a device is named twice"):
        open_engine(path, pack=packs[0], others=packs[:1], split="layer")
    with pytest.raises(UnsupportedError, match="needs GPUs, got cpu and"):
        open_engine(path, others=packs[:1])
    with pytest.raises(UnsupportedError, match=r"the layers of gemma4 .* Name one device"):
        open_engine(data / "tiny" / "gemma4_b", **both)
