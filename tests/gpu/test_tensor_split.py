"""A model of which every device has a part of every layer: logits within a device's tolerance of one device's logits,
and the same tokens.

With --pack the tests run on the devices 0, 1, ... of the pack's vendor, as many as the machine has."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
import pytest
from drafts import SAMPLINGS
from engines import largest_difference, logits_of, logits_of_steps, open_engine, random_ids
from lucebox import _engine
from lucebox._kernels.driver import delay_sim_device
from lucebox.errors import InvalidRequestError, UnsupportedError
from reference import checkpoints, convert
from reference.gguf_files import Shape, write_model
from tolerances import tolerance

VOCAB = 131
HEADS = {"n_heads": 8, "n_kv_heads": 4, "head_dim": 64, "vocab": VOCAB, "ffn": 160}
RECURRENT = {"recurrent": (True, False, True), "d_state": 64, "n_k_heads": 4, "n_v_heads": 8}
QUANTISED = {"hidden": 256, "ffn": 1024, "n_heads": 8, "n_kv_heads": 4, "head_dim": 64, "vocab": 160}
EXPERTS = {"expert_ffn": 128, "shared_ffn": 128}
SHAPES = {
    "qwen35": Shape("qwen35", n_layers=3, **RECURRENT, **HEADS),
    "qwen3": Shape("qwen3", "Q8_0", n_layers=2, **QUANTISED),
    "packed": Shape("qwen3", "Q4_K", n_layers=2, **QUANTISED),
    "llama": Shape("llama", n_layers=2, tied=True, **HEADS),
    "qwen3moe": Shape("qwen3moe", n_layers=2, **HEADS, **EXPERTS),
    "qwen35moe": Shape("qwen35moe", n_layers=3, **RECURRENT, **HEADS, **EXPERTS),
    "gpt-oss": Shape("gpt-oss", n_layers=2, **HEADS, **EXPERTS),
}
EXACT = tolerance("logits", "f32_device")


@pytest.fixture(scope="module")
def packs(pack_folder: Path) -> list[_engine.gpu.Pack]:
    """The pack on up to four devices."""
    return gpu_packs.load_on_devices(pack_folder, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tensors")


@cache
def written(folder: Path, name: str) -> Path:
    return write_model(folder / f"{name}.gguf", SHAPES[name])


def open_alone(packs: list[_engine.gpu.Pack], path: Path, **options: Any) -> _engine.Engine:
    return open_engine(path, pack=packs[0], decode_path="graph", **options)


def open_split(packs: list[_engine.gpu.Pack], path: Path, n: int = 2, **options: Any) -> _engine.Engine:
    if n > len(packs):
        pytest.skip(f"{len(packs)} devices are here")
    split = open_engine(path, pack=packs[0], others=packs[1:n], split="tensor", **options)
    assert len(split.plan["parts"]) == n
    return split


FAMILIES = [pytest.param(name, marks=[] if name == "qwen35" else pytest.mark.slow) for name in SHAPES]  # 3 s each


@pytest.mark.parametrize("family", FAMILIES)
def test_logits(packs: list[_engine.gpu.Pack], folder: Path, family: str) -> None:
    """Prompts in chunks of every kind of product: GEMM, skinny GEMM, GEMV."""
    options = {"activations": "int8", "kv": "f16"} if family == "packed" else {}
    path = written(folder, family)
    alone, split = open_alone(packs, path, **options), open_split(packs, path, **options)
    limit = tolerance("logits", "half_device") if family == "packed" else EXACT
    for chunk, n in ((64, 70), (7, 14), (1, 4)):
        ids = random_ids(n, VOCAB, n)
        assert largest_difference(logits_of(alone, ids, chunk), logits_of(split, ids, chunk)) < limit, f"chunk {chunk}"


def widened(folder: Path, to: Path, ffn: int) -> Path:
    """The same model with zeros in feed-forward networks of more columns, which have whole blocks for every rank."""
    config, tensors = json.loads((folder / "config.json").read_text()), convert.values_of(folder / "model.safetensors")
    n_more, of_experts = ffn - config["intermediate_size"], config.get("moe_intermediate_size")
    n_more_of_experts = 0 if of_experts is None else ffn - of_experts
    if of_experts is not None:
        config["moe_intermediate_size"] = ffn
    for name, value in tensors.items():
        if ".experts.down_proj" in name:
            tensors[name] = np.pad(value, ((0, 0), (0, 0), (0, n_more_of_experts)))
        elif ".experts.gate_up_proj" in name:
            halves = [np.pad(half, ((0, 0), (0, n_more_of_experts), (0, 0))) for half in np.split(value, 2, axis=1)]
            tensors[name] = np.concatenate(halves, axis=1)
        elif ".mlp.down_proj" in name:
            tensors[name] = np.pad(value, ((0, 0), (0, n_more)))
        elif ".mlp." in name:
            halves = np.split(value, 2) if "gate_up" in name else [value]
            tensors[name] = np.concatenate([np.pad(half, ((0, n_more), (0, 0))) for half in halves])
    return checkpoints.write(to, config | {"intermediate_size": ffn}, tensors)


@pytest.mark.first_case
@pytest.mark.parametrize(
    "name", ["gemma4_a", "phi3_a", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma4_c", "mistral3_a"))]
)
def test_families_of_transformers(packs: list[_engine.gpu.Pack], data: Path, tmp_path: Path, name: str) -> None:
    """Transformers' logits: joined projections, norms after the sums, two ropes, values that are keys, a soft cap."""
    arrays = np.load(data / "tiny" / f"{name}.npz")
    path = convert.to_gguf(widened(data / "tiny" / name, tmp_path / "wide", 128), tmp_path / "model.gguf")
    ids, wanted = arrays["ids"][:70], arrays["logits"][:70]
    got = logits_of(open_split(packs, path, prefill_chunk=128), ids, 70)
    assert largest_difference(got, wanted) < EXACT
    # Steps begin before the windows and the first range of rope are full, at 64 tokens, and end after.
    got = logits_of_steps(open_split(packs, path, prefill_chunk=128), ids, prompt=56)
    assert largest_difference(got, wanted) < EXACT


@pytest.mark.first_case
@pytest.mark.parametrize("n", [3, 4])
def test_uneven_shares(packs: list[_engine.gpu.Pack], folder: Path, n: int) -> None:
    path, ids = written(folder, "qwen35"), random_ids(20, VOCAB)
    split = open_split(packs, path, n)
    assert largest_difference(logits_of(open_alone(packs, path), ids), logits_of(split, ids)) < EXACT


def kv_bytes(plan: dict[str, Any]) -> int:
    return sum(size for entry, size, *_ in plan["entries"] if entry == "KV cache")


@pytest.mark.parametrize("split, kv", [("3,1", (3, 1)), pytest.param("1,2,1", (1, 2, 1), marks=pytest.mark.slow)])
def test_shares_that_the_user_names(
    packs: list[_engine.gpu.Pack], folder: Path, split: str, kv: tuple[int, ...]
) -> None:
    """The model has four KV heads, four key heads and five blocks of the feed-forward network to share."""
    path, ids, n = written(folder, "qwen35"), random_ids(20, VOCAB), len(kv)
    if n > len(packs):
        pytest.skip(f"{len(packs)} devices are here")
    alone = open_alone(packs, path)
    engine = open_engine(path, pack=packs[0], others=packs[1:n], split=split, decode_path="graph")
    assert engine.options["split"] == split
    each = kv_bytes(alone.plan) // sum(kv)
    assert [kv_bytes(part) for part in engine.plan["parts"]] == [each * share for share in kv]
    assert largest_difference(logits_of(alone, ids), logits_of(engine, ids)) < EXACT
    texts = [write(_engine.Session(one), ids.tolist(), 4) for one in (alone, engine)]
    assert texts[0] == texts[1]


def write(session: _engine.Session, ids: list[int], n: int, **sampling: Any) -> list[int]:
    """ids, continued by n tokens."""
    sampler = _engine.Sampler(VOCAB, **sampling)
    sampler.set_prompt(np.array(ids, np.int32))
    for _ in range(n):
        session.sync(np.array(ids, np.int32))
        ids = [*ids, session.sample(sampler)]
    return ids


@pytest.mark.slow  # 5 s; every day, the logits
def test_tokens(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    """Steps of the token loop, which samples on every rank, greedy and drawn; the same in every run."""
    path = written(folder, "qwen35")
    alone, split = open_alone(packs, path), open_split(packs, path)
    prompt = random_ids(30, VOCAB).tolist()
    for sampling in ("greedy", "drawn"):
        sessions = [_engine.Session(engine) for engine in (alone, split, split)]
        texts = [write(session, prompt, 8, **SAMPLINGS[sampling]) for session in sessions]
        assert texts[0] == texts[1] == texts[2]
        assert [session.decode_path for session in sessions] == ["graph"] * 3


def test_passes_over_several_sequences(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    """Recorded and not, the logits of one device."""
    prompts = [random_ids(n, VOCAB, n).tolist() for n in (21, 3, 1)]
    path, logits = written(folder, "qwen35"), []
    for engine in (open_alone(packs, path, context=64), open_split(packs, path, context=64)):
        sessions, texts, own = [_engine.Session(engine) for _ in prompts], [list(ids) for ids in prompts], []
        for step in range(4):
            _engine.sync_together(sessions, [np.array(ids, np.int32) for ids in texts])
            for session, ids in zip(sessions, texts, strict=True):
                own.append(session.logits())
                ids.append(5 + step)
        logits.append(np.stack(own))
    assert largest_difference(*logits) < EXACT


@pytest.mark.first_case
@pytest.mark.parametrize("kv", ["f16", "q8_0"])
def test_kv_types(packs: list[_engine.gpu.Pack], folder: Path, kv: str) -> None:
    path, ids = written(folder, "qwen3"), random_ids(24, VOCAB)
    alone, split = open_alone(packs, path, kv=kv), open_split(packs, path, kv=kv)
    assert largest_difference(logits_of(alone, ids), logits_of(split, ids)) < tolerance("logits", "half_device")


@pytest.mark.slow  # 6 s
def test_state_is_saved_forked_swapped_and_rewound(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    split = open_split(packs, written(folder, "qwen35"))
    prompt = random_ids(70, VOCAB).tolist()
    source = _engine.Session(split)
    started = write(source, prompt, 2)
    fork = _engine.Session(split)
    fork.fork(source)
    expected = write(source, started, 3)
    fork.swap_out()
    assert fork.is_swapped_out
    assert write(fork, started, 3) == expected
    assert write(fork, prompt, 5) == expected

    source.reset()
    source.sync(np.array(prompt, np.int32))
    taken = _engine.Session(split)
    taken.load(source.save())
    assert write(taken, prompt, 5) == expected
    source.reset()
    source.sync(np.array(prompt[:64], np.int32))
    built = _engine.Session(split)
    states = source.read_recurrent(), source.read_windows()
    built.assemble(np.array(prompt[:64], np.int32), [64], 0, [source.read_pages(0, 1)], *states)
    assert write(built, prompt, 5) == expected


def delayed_rank(packs: list[_engine.gpu.Pack]) -> int:
    if packs[0].target != "sim":
        pytest.skip("only the simulator delays a device")
    return packs[1].device.index


def test_a_late_rank_changes_nothing(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    rank, split = delayed_rank(packs), open_split(packs, written(folder, "qwen3"))
    ids = random_ids(12, VOCAB)
    expected = logits_of(split, ids)
    delay_sim_device(rank, 0.3)
    assert np.array_equal(logits_of(split, ids), expected)


def test_the_plan_has_every_device(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    path = written(folder, "packed")
    alone, split = open_alone(packs, path), open_split(packs, path)
    parts = split.plan["parts"]
    assert [part["place"] for part in parts] == [pack.name for pack in packs[:2]]
    assert split.links == ["peer"] or (packs[0].target != "sim" and split.links[0].startswith("host: "))

    def bytes_of(plan: dict[str, Any], name: str) -> int:
        return sum(size for entry, size, *_ in plan["entries"] if entry == name)

    for part in parts:
        assert kv_bytes(part) * 2 == kv_bytes(alone.plan)
        assert bytes_of(part, "weights") < 0.7 * bytes_of(alone.plan, "weights")  # norms and the embedding are copies


def test_sums_go_through_host_memory_if_the_user_says_so(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    """With the same bits, in a prompt and in steps."""
    ids, results = random_ids(20, VOCAB), []
    for link in ("auto", "host"):
        split = open_split(packs, written(folder, "qwen3"), link=link)
        assert link == "auto" or split.links == ["host: link = host"]
        assert split.link_us[0] > 0
        results.append((logits_of(split, ids).tolist(), write(_engine.Session(split), ids.tolist(), 3)))
    assert results[0] == results[1]


def test_refusals(packs: list[_engine.gpu.Pack], folder: Path, data: Path) -> None:
    path = written(folder, "qwen35")
    both: dict[str, Any] = {"pack": packs[0], "others": packs[1:2], "split": "tensor"}
    with pytest.raises(InvalidRequestError, match="a device is named twice"):
        open_engine(path, pack=packs[0], others=packs[:1], split="tensor")
    with pytest.raises(InvalidRequestError, match=r"split = 3,1,1 has 3 shares for 2 devices .* Give one share for"):
        open_engine(path, **both | {"split": "3,1,1"})
    for wrong in ("3,0", "3,", "3", "3,1x", "thirds", "1001,1"):
        with pytest.raises(InvalidRequestError, match="split must be auto, layer, tensor, or a share from 1 to 1000"):
            open_engine(path, **both | {"split": wrong})
    odd = write_model(folder / "odd.gguf", Shape("qwen3", n_layers=1, **{**HEADS, "n_heads": 3, "n_kv_heads": 1}))
    with pytest.raises(
        UnsupportedError, match=r"blk\.0\.attn_q\.weight: 2 shards cannot divide 1 groups of 3 heads\. Use"
    ):
        open_engine(odd, **both)
    narrow = write_model(folder / "narrow.gguf", Shape("qwen3", "Q4_K", n_layers=1, **{**QUANTISED, "ffn": 256}))
    with pytest.raises(UnsupportedError, match=r"blk\.0\.ffn_down\.weight .* 2 ranks cannot divide 256 columns"):
        open_engine(narrow, **both)
    with pytest.raises(UnsupportedError, match="expert_slots and expert_memory are for a model on one device"):
        open_engine(written(folder, "qwen3moe"), expert_slots=4, **both)
    with pytest.raises(UnsupportedError, match=r"the layers of gemma4 .* Name one device"):
        open_engine(data / "tiny" / "gemma4_b", **both)


def test_the_assistant_of_gemma(packs: list[_engine.gpu.Pack], data: Path, tmp_path: Path) -> None:
    target = widened(data / "tiny" / "gemma4_a", tmp_path / "wide", 128)
    with pytest.raises(UnsupportedError, match=r"which split = tensor divides\. Name one device"):
        open_split(packs, target, draft=str(data / "tiny" / "gemma4_assistant_a"))
