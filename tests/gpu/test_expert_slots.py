"""Experts in slots of device memory: which of them are there changes no bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
import pytest
from build_sim import build_sim
from drafts import decode
from engines import logits_of, open_engine, random_ids
from lucebox import LLM, _engine
from lucebox.cli.session import opening_line, summary
from lucebox.errors import InvalidRequestError, UnsupportedError
from lucebox.measure.local_routes import LocalRoutes
from lucebox.measure.synthetic import SHAPES as SHAPES_OF_MODELS
from lucebox.measure.synthetic import write as write_synthetic
from lucebox.models.memory import ExpertPlan, MemoryPlan
from lucebox.serve.metrics import ExpertMetrics
from lucebox.sizes import show_size
from reference import gguf_files
from reference.gguf_files import Shape, write_model
from text_data import small_vocabulary

HYBRID = Shape("qwen35moe", n_layers=2, recurrent=(True, False), head_dim=64, d_state=64)
WIDE: dict[str, Any] = {"hidden": 256, "n_heads": 4, "head_dim": 64, "expert_ffn": 256, "n_layers": 2}
SHAPES = {
    "qwen35moe": HYBRID,
    "joined": replace(HYBRID, joined_experts=True),
    "gpt-oss": Shape("gpt-oss", n_layers=2, n_heads=8, head_dim=64, expert_ffn=40, yarn=32.0),
    "bf16": Shape("qwen3moe", "BF16", **WIDE),
    "q8_0": Shape("qwen3moe", "Q8_0", **WIDE),
    "q6_k": Shape("qwen3moe", "Q6_K", **WIDE),
}
# Rows of an append: a step, a few rows, and many rows, whose experts are grouped; and the rows of all appends.
CHUNKS = ((1, 12), (4, 24), (40, 48))
EVERYDAY = {("qwen35moe", 3), ("gpt-oss", 4)}
INT8 = {"activations": "int8", "kv": "f16"}


def options_of(name: str) -> dict[str, Any]:
    return INT8 if name in ("q8_0", "q6_k") else {}


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("name", "slots"),
    [
        pytest.param(name, slots, marks=[] if (name, slots) in EVERYDAY else pytest.mark.slow)
        for name in SHAPES
        for slots in range(3, 9)
    ],
)
def test_any_share_of_the_experts(pack: _engine.gpu.Pack, tmp_path: Path, name: str, slots: int, seed: int) -> None:
    """From the experts of one token to all; every append fits one group of launches or takes several."""
    shape = SHAPES[name]
    path, ids = write_model(tmp_path / "model.gguf", shape), random_ids(48, shape.vocab, seed)
    resident = open_engine(path, pack=pack, **options_of(name))
    some = open_engine(path, pack=pack, expert_slots=slots, **options_of(name))
    for chunk, n in CHUNKS:
        assert np.array_equal(logits_of(some, ids[:n], chunk), logits_of(resident, ids[:n], chunk)), chunk
    hits, misses, copied = some.expert_counts
    assert (hits > 0) == (misses > 0) == (copied > 0) == (slots < shape.n_experts)  # all experts: no slots
    assert resident.expert_counts == (0, 0, 0)


@pytest.mark.slow  # 3 s
def test_experts_beside_a_dense_network(pack: _engine.gpu.Pack, data: Path) -> None:
    path = data / "tiny" / "gemma4_c"
    ids = np.load(data / "tiny" / "gemma4_c.npz")["ids"][:48]
    resident, some = open_engine(path, pack=pack), open_engine(path, pack=pack, expert_slots=4)
    for chunk, n in CHUNKS:
        assert np.array_equal(logits_of(some, ids[:n], chunk), logits_of(resident, ids[:n], chunk)), chunk
    assert min(some.expert_counts) > 0


MANY_ROWS = 66  # experts stream from 65 on
MANY = Shape("qwen3moe", "BF16", n_experts=40, n_used=4, **WIDE)  # more than a part of the ring


@pytest.mark.slow  # 8 s
@pytest.mark.parametrize(
    ("shape", "all_slots"),
    [
        (MANY, (4,)),
        pytest.param(MANY, (30,), marks=pytest.mark.slow),
        pytest.param(replace(MANY, dtype="Q8_0"), (11,), marks=pytest.mark.slow),
        pytest.param(replace(HYBRID, dtype="F32"), (3,), marks=pytest.mark.slow),  # no kernel groups its types
    ],
)
def test_long_prompts(
    pack: _engine.gpu.Pack, tmp_path: Path, shape: Shape, all_slots: tuple[int, ...], seed: int
) -> None:
    """Experts stream past the slots, also where another session decodes between the layers of a prompt, and changes
    what is in the slots."""
    path = write_model(tmp_path / "model.gguf", shape)
    options: dict[str, Any] = {"context": 192, "prefill_chunk": 128, **INT8}
    ids, short = random_ids(140, shape.vocab, seed), random_ids(9, shape.vocab, seed + 1).tolist()

    def logits(**more: Any) -> list[Any]:
        engine = open_engine(path, pack=pack, **options, **more)
        session, other = _engine.Session(engine), _engine.Session(engine)
        text = list(short)
        sampler = _engine.Sampler(shape.vocab)

        def between() -> None:
            other.sync(np.array(text, np.int32))
            text.append(other.sample(sampler))

        session.sync(ids[:128], between_layers=between)
        first = session.logits()
        session.sync(ids)
        return [first, session.logits(), *decode(session, ids.tolist(), 3), *text]

    wanted = logits()
    for slots in all_slots:
        for got, want in zip(logits(expert_slots=slots), wanted, strict=True):
            assert np.array_equal(got, want), slots


@pytest.mark.slow  # 10 s
def test_prompts_over_layers_of_two_types(pack: _engine.gpu.Pack, tmp_path: Path, seed: int) -> None:
    """Copies of a layer run ahead into the ring while products of another layer, whose experts are laid out
    differently, read it."""
    shape = replace(
        SHAPES_OF_MODELS["qwen35moe-tiny"],
        n_layers=4,
        hidden=256,
        n_key_heads=2,
        n_value_heads=2,
        vocab=256,
        n_experts=40,
    )
    path = tmp_path / "model.gguf"
    write_synthetic(path, shape, "two types", "Q4_K_M", seed)
    ids = random_ids(2 * MANY_ROWS, shape.vocab, seed)
    engines = [open_engine(path, pack=pack, prefill_chunk=MANY_ROWS, **INT8, expert_slots=n) for n in (0, 4)]
    resident, some = (logits_of(engine, ids, MANY_ROWS) for engine in engines)
    assert np.array_equal(some, resident)


@pytest.mark.slow  # 6 s
def test_several_sequences(pack: _engine.gpu.Pack, tmp_path: Path, seed: int) -> None:
    path = write_model(tmp_path / "model.gguf", SHAPES["q8_0"])
    texts = [random_ids(5 + n, 131, seed + n) for n in range(7)]

    def logits(**more: Any) -> list[Any]:
        engine = open_engine(path, pack=pack, context=64, **INT8, **more)
        sessions = [_engine.Session(engine) for _ in texts]
        for session, ids in zip(sessions, texts, strict=True):
            session.sync(ids[:-1])
        _engine.sync_together(sessions[:3], texts[:3])
        _engine.sync_together(sessions[3:], texts[3:])
        fork = _engine.Session(engine)
        fork.fork(sessions[0])
        fork.sync(np.append(texts[0], [1, 2, 3]).astype(np.int32))
        return [session.logits() for session in (*sessions, fork)]

    assert all(np.array_equal(a, b) for a, b in zip(logits(expert_slots=3), logits(), strict=True))


@pytest.mark.slow  # 5 s
@pytest.mark.parametrize("budget", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_drafts(pack: _engine.gpu.Pack, tmp_path: Path, budget: int, seed: int) -> None:
    """The prediction block has experts, too: the same tokens and the same drafts."""
    few = 23  # tokens, of which random weights guess some
    path = write_model(tmp_path / "model.gguf", replace(HYBRID, n_mtp=1, vocab=few))
    prompt = random_ids(9, few, seed).tolist()
    texts, counts = [], []
    for more in ({}, {"expert_slots": 4}):
        engine = open_engine(path, pack=pack, draft="mtp+suffix", draft_budget=budget, context=64, **more)
        session, ids, sampler = _engine.Session(engine), list(prompt), _engine.Sampler(few)
        while len(ids) < 24:
            session.sync(np.array(ids, np.int32))
            ids.append(session.sample(sampler))
        texts.append(ids)
        counts.append(session.draft_counts)
    assert texts[1] == texts[0] and counts[1] == counts[0]
    assert counts[0]["verified"] > 0


@pytest.mark.slow  # 2 s
def test_one_route_for_all_tokens(pack: _engine.gpu.Pack, tmp_path: Path) -> None:
    """A router of zeros chooses the first experts, which are in the slots from the start."""
    shape = SHAPES["q8_0"]
    tensors = gguf_files.tensors(shape)
    for name in [name for name in tensors if name.endswith("ffn_gate_inp.weight")]:
        tensors[name] = np.zeros_like(tensors[name])
    path = gguf_files.write(tmp_path / "model.gguf", gguf_files.metadata(shape), tensors)
    engine, ids = open_engine(path, pack=pack, expert_slots=3, **INT8), random_ids(20, shape.vocab)
    assert np.array_equal(logits_of(engine, ids, 1), logits_of(open_engine(path, pack=pack, **INT8), ids, 1))
    assert engine.expert_counts == (20 * shape.n_layers * shape.n_used, 0, 0)


@pytest.mark.slow  # 4 s
def test_experts_that_are_used_stay(pack: _engine.gpu.Pack, tmp_path: Path, seed: int) -> None:
    """The choice of experts that leave is the same in every run, and one token again and again needs no copies."""
    shape = SHAPES["q8_0"]
    path, ids = write_model(tmp_path / "model.gguf", shape), random_ids(40, shape.vocab, seed)
    counts = []
    for _ in range(2):
        engine = open_engine(path, pack=pack, expert_slots=5, **INT8)
        logits_of(engine, ids, 1)
        counts.append(engine.expert_counts)
    assert counts[0] == counts[1]
    hits, misses, copied = counts[0]
    assert hits + misses == 40 * shape.n_layers * shape.n_used
    assert copied == misses * engine.plan["experts"][4] // shape.n_layers

    session = _engine.Session(engine)
    for _ in range(3):
        before = engine.expert_counts
        session.reset()
        session.sync(ids[:1])
    assert engine.expert_counts[1] == before[1] and engine.expert_counts[0] > before[0]


def test_memory_decides(pack: _engine.gpu.Pack, tmp_path: Path) -> None:
    """Without options, all experts that fit are in device memory."""
    path = write_model(tmp_path / "model.gguf", replace(SHAPES["bf16"], n_experts=64))
    whole = open_engine(path, pack=pack, context=64)
    assert whole.plan["experts"][5] == 0 and not whole.options["expert_slots"]
    total = whole.plan["total_bytes"]
    seen = []
    for percent in (90, 60):
        engine = open_engine(path, pack=pack, context=64, memory_limit=total * percent // 100 + (256 << 20))
        n, used, slots, layers, slot_bytes, host_bytes, is_pinned = engine.plan["experts"]
        assert (n, used, layers, is_pinned) == (64, 3, 2, True) and 3 <= slots < 64 and host_bytes >= 64 * slot_bytes
        assert slots == engine.options["expert_slots"]
        assert engine.plan["total_bytes"] <= total * percent // 100 < engine.plan["total_bytes"] + 2 * slot_bytes
        seen.append(slots)
    assert seen[0] > seen[1]
    by_memory = open_engine(path, pack=pack, context=64, expert_memory=10 * slot_bytes)
    assert by_memory.options["expert_slots"] == 10
    assert not open_engine(path, pack=pack, context=64, expert_slots=64).options["expert_slots"]  # all


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expert_slots": 2}, r"expert_slots = 2: a token of this model chooses 3 experts in each layer"),
        (
            {"expert_memory": 1000},
            r"expert_memory = 1000 bytes, 0 experts of each layer: a token of this model chooses 3",
        ),
        ({"expert_slots": 3, "expert_memory": 1 << 30}, "give one of them"),
    ],
)
def test_wrong_options(pack: _engine.gpu.Pack, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    path = write_model(tmp_path / "model.gguf", HYBRID)
    with pytest.raises(InvalidRequestError, match=message):
        open_engine(path, pack=pack, **options)


@pytest.mark.slow  # 5 s
def test_memory_that_is_not_pinned(tmp_path: Path, seed: int) -> None:
    """A device that pins little: experts are pageable, and a host thread brings those that are missing."""
    folder = build_sim()
    manifest = gpu_packs.manifest_of(folder)
    pinning, refusing = (gpu_packs.load(folder, manifest, index=index) for index in (0, 6))
    shape = Shape("qwen3moe", "F32", **WIDE)
    path, ids = write_model(tmp_path / "model.gguf", shape), random_ids(40, shape.vocab, seed)
    some, resident = open_engine(path, pack=refusing, expert_slots=4), open_engine(path, pack=pinning)
    for chunk in (1, 7):
        assert np.array_equal(logits_of(some, ids[:10], chunk), logits_of(resident, ids[:10], chunk))
    texts = [decode(_engine.Session(engine), ids.tolist(), 3) for engine in (some, resident)]
    assert texts[0] == texts[1]
    assert some.expert_counts[1] > 0
    plan = MemoryPlan.from_engine(some.plan).experts
    assert plan is not None and plan.note is not None
    assert plan.note.startswith(f"the system did not pin {show_size(plan.host_bytes)} for experts")
    assert " of host memory" in str(plan)


@pytest.mark.slow  # 3 s
def test_experts_chosen_most_fill_the_slots(pack: _engine.gpu.Pack, tmp_path: Path, seed: int) -> None:
    """Counts of a run arrange the slots of the next engine, and continue there."""
    shape = replace(HYBRID, n_mtp=1)
    path, ids = write_model(tmp_path / "model.gguf", shape), random_ids(40, shape.vocab, seed)
    first = open_engine(path, pack=pack, draft="mtp", expert_slots=4)
    want = logits_of(first, ids, 1)
    uses = first.expert_uses
    assert [len(layer) for layer in uses] == [shape.n_experts] * 3
    assert [sum(layer) for layer in uses[:2]] == [40 * shape.n_used] * 2

    one = open_engine(path, pack=pack, expert_slots=4)
    logits_of(one, ids[:1], 1)
    assert one.expert_counts[1] > 0
    engine = open_engine(path, pack=pack, expert_slots=4)
    engine.expert_uses = one.expert_uses
    assert engine.expert_uses == one.expert_uses
    logits_of(engine, ids[:1], 1)
    assert engine.expert_counts[1] == 0, "the first token's experts are there"
    assert np.array_equal(logits_of(engine, ids, 1), want)
    first.expert_uses = one.expert_uses  # of the layers without the prediction block
    assert first.expert_uses == [*one.expert_uses, uses[2]]
    first.expert_uses = uses
    assert np.array_equal(logits_of(first, ids, 1), want)
    with pytest.raises(InvalidRequestError, match="uses of 3 experts in layer 0, which has 8"):
        engine.expert_uses = [[1, 2, 3]]
    resident = open_engine(path, pack=pack)
    resident.expert_uses = uses  # nothing to arrange
    assert resident.expert_uses == []


def test_models_and_devices_without_slots(pack: _engine.gpu.Pack, tmp_path: Path) -> None:
    dense = write_model(tmp_path / "dense.gguf", Shape("qwen3", n_layers=1))
    with pytest.raises(InvalidRequestError, match="for mixtures of experts, and this model is none"):
        open_engine(dense, pack=pack, expert_slots=3)
    mixture = write_model(tmp_path / "mixture.gguf", HYBRID)
    with pytest.raises(UnsupportedError, match="on the CPU, all experts stay in the file's mapping"):
        open_engine(mixture, expert_slots=3)


@pytest.mark.slow  # 3 s
def test_a_second_start_knows_the_experts(on_pack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file beside the step costs; one that is damaged is replaced."""
    monkeypatch.setenv("LUCEBOX_CACHE", str(tmp_path / "cache"))
    words: dict[str, Any] = small_vocabulary()
    shape = replace(SHAPES["qwen35moe"], n_experts=16, vocab=len(words["tokenizer.ggml.tokens"]))
    path = gguf_files.write(tmp_path / "model.gguf", gguf_files.metadata(shape) | words, gguf_files.tensors(shape))
    options: dict[str, Any] = {"device": on_pack, "context": 64, "prefill_chunk": 64, "sessions": 1, "draft": "none"}

    def start(prompt: str) -> tuple[list[int], ExpertPlan, list[list[int]]]:
        with LLM(str(path), **options, expert_slots=6) as llm:
            experts = llm.memory_plan.experts
            assert experts is not None
            before = llm.engine.expert_uses
            return list(llm.generate(prompt, max_tokens=4, ignore_eos=True).ids), experts, before

    ids, plan, uses = start("a b")
    assert plan.profile_hits is None and not any(map(any, uses))
    (file,) = (tmp_path / "cache" / "step_costs").glob("experts-*.json")
    again, known, uses = start("a b")
    assert again == ids and json.loads(file.read_text())["uses"] != uses and all(map(sum, uses))
    assert known.profile_hits is not None and 6 / 16 < known.profile_hits <= 1
    assert known.expected_hits == max(plan.expected_hits, known.profile_hits)
    assert f"the experts of {known.profile_hits:.0%} of the choices in earlier runs" in str(known)
    for damage in ("", "[]", '{"key": {}}', file.read_text().replace('"uses": [[', '"uses": [[-1, '),
                   file.read_text().replace('"format": 1', '"format": 0')):  # fmt: skip
        file.write_text(damage)
        assert start("a b")[1].profile_hits is None
        assert start("a b")[1].profile_hits is not None
    with LLM(str(path), **options) as llm:  # all experts in device memory
        llm.generate("a b", max_tokens=2, ignore_eos=True)
        assert llm.memory_plan.experts is not None and llm.memory_plan.experts.profile_hits is None


def test_results_and_metrics(on_pack: str, tmp_path: Path) -> None:
    words: dict[str, Any] = small_vocabulary()
    shape = replace(SHAPES["qwen35moe"], n_experts=16, vocab=len(words["tokenizer.ggml.tokens"]))
    path = gguf_files.write(tmp_path / "model.gguf", gguf_files.metadata(shape) | words, gguf_files.tensors(shape))
    options: dict[str, Any] = {"device": on_pack, "context": 64, "prefill_chunk": 64, "sessions": 1, "draft": "none"}
    with LLM(str(path), **options) as llm:
        want = llm.generate("a b", max_tokens=4, ignore_eos=True)
        assert want.usage.experts is None
    with LLM(str(path), **options, expert_slots=4) as llm:
        first, second = (llm.generate("a b", max_tokens=4, ignore_eos=True) for _ in range(2))
        assert first.ids == second.ids == want.ids
        counts = second.usage.experts
        assert counts is not None and counts.hits > 0 and counts.misses > 0 and counts.link_bytes > 0
        assert counts.hit_rate == counts.hits / (counts.hits + counts.misses)
        assert f"{counts.hit_rate:.1%} of experts on the device" in summary(second)
        assert "4 of 16 experts of each layer" in opening_line(llm)
        metrics = ExpertMetrics()
        metrics.watch(llm, llm.model.engine)
        before = [*metrics.lines()]
        assert f"lucebox_expert_misses_total {llm.model.engine.expert_counts[1]}" in before
        metrics.unwatch(llm)
        assert [*metrics.lines()] == before


@pytest.mark.slow  # 4 s
def test_synthetic_routes_have_the_locality_of_text(pack: _engine.gpu.Pack, tmp_path: Path, seed: int) -> None:
    """With a slot for each expert of a token, a step finds just the experts that the token before chose."""
    shape = replace(
        SHAPES_OF_MODELS["qwen35moe-tiny"],
        n_layers=2,
        attention_interval=2,
        n_experts=64,
        n_used=8,
        expert_ffn=32,
        shared_ffn=32,
    )
    local = LocalRoutes(shape.hidden, shape.vocab, shape.n_experts, shape.n_used, np.random.default_rng(seed))
    path = tmp_path / "model.gguf"
    write_synthetic(path, shape, "local", "Q8_0", seed, local=local)
    first, n = 100, 24
    engine = open_engine(path, pack=pack, expert_slots=shape.n_used, context=64, **INT8)
    session, sampler = _engine.Session(engine), _engine.Sampler(shape.vocab)

    def counts() -> tuple[int, int, int]:
        session.logits()  # waits for the last step, which counts
        return engine.expert_counts

    ids = [first]
    session.sync(np.array(ids, np.int32))
    before = counts()
    for _ in range(n):
        ids.append(session.sample(sampler))
        session.sync(np.array(ids, np.int32))
    assert ids == list(range(first, first + n + 1))
    hits, misses, _ = np.subtract(counts(), before)
    expected = sum(len(set(routes[token]) & set(routes[token - 1])) for routes in local.layers for token in ids[1:])
    assert (hits, hits + misses) == (expected, 2 * n * shape.n_used)
