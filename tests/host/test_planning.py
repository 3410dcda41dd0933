"""Memory plans without loading: sizes, boards, and the plan of a 27B that exists as a header alone."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from draft_pairs import FIRST, TARGET
from engines import open_engine
from kernel_sources import kernels_of_sources
from lucebox import LLM, _engine
from lucebox.cli import main
from lucebox.errors import InvalidRequestError, OutOfMemoryError, PackError, UnsupportedError
from lucebox.measure import synthetic
from lucebox.models.drafters import Drafters
from lucebox.models.memory import ExpertPlan, MemoryPlan
from lucebox.models.planning import Plan, plan_memory
from lucebox.models.split_modes import Mode, plan_modes
from lucebox.options import EngineOptions, engine_fields
from lucebox.packs import Selection, targets
from lucebox.packs.devices import resolve_vision_device
from lucebox.packs.planned import manifest_json
from pack_data import install, manifest, on_path
from reference import draft_files
from reference.gguf_files import Shape, metadata, tensors, write, write_model
from text_data import DATA, TINY_HYBRID, small_vocabulary

import targets as families

GIB = 2**30


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("GeForce RTX 3090", "GeForce RTX 3090"),
        ("rtx 3090", "GeForce RTX 3090"),
        ("3090 Ti", "GeForce RTX 3090 Ti"),
        ("RTX 3060", "GeForce RTX 3060 12GB"),
        ("H200", "H200 SXM"),
    ],
)
def test_boards_by_their_words(words: str, name: str) -> None:
    target, board = targets.find_board(words)
    assert board.name == name and board in target.boards


@pytest.mark.parametrize("words", ["", "3091", "Voodoo 2"])
def test_no_board(words: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"there is no board '{words}'; `lucebox targets` lists them"):
        targets.find_board(words)


def test_several_boards() -> None:
    with pytest.raises(InvalidRequestError, match="3 boards have the words 'A100': A100 PCIe 40GB, A100 PCIe 80GB, "):
        targets.find_board("A100")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Headers of a 27B in Q4_K_M and of its DFlash drafter in Q8_0, with a small vocabulary."""
    folder = tmp_path_factory.mktemp("large")
    files = folder / "27b.gguf", folder / "27b-dflash.gguf"
    for file, shape, preset in zip(files, ("qwen35-27b", "qwen35-27b-dflash"), ("Q4_K_M", "Q8_0"), strict=True):
        synthetic.write_sparse(file, replace(synthetic.SHAPES[shape], vocab=2048), shape, preset)
    assert files[0].stat().st_size > 13 * GIB and files[0].stat().st_blocks * 512 < 2**20
    return files


def entry(plan: MemoryPlan, name: str) -> int:
    return next(one.bytes for one in plan.entries if one.name == name)


def test_a_plan_for_a_memory_that_is_not_here(large: tuple[Path, Path]) -> None:
    model, drafter = large
    flags = {"device": "cpu", "draft": str(drafter), "draft_budget": 22, "memory_limit": "24GiB", "threads": 1}
    plan = plan_memory(model, **flags)
    memory = plan.memory
    assert (plan.draft, memory.available_bytes) == ("27b-dflash.gguf", 24 * GIB)
    assert memory.mapped_bytes + memory.total_bytes <= 24 * GIB
    assert memory.context == memory.largest_context and memory.context % 64 == 0 and memory.context > 64000
    # 16 layers with 4 heads of 256; 5 with 8 of 128; F16.
    assert 0 <= entry(memory, "KV cache") - memory.context * 16 * 2 * 4 * 256 * 2 < 2**16
    assert entry(memory, "draft KV cache") == memory.context * 5 * 2 * 8 * 128 * 2
    assert "20.0 KiB a token" in str(memory) and "64.0 KiB a token" in str(memory)
    # 48 layers with 48 states of 128 x 128, and 64 rows of 10240 convolved channels, 2 x 16 keys and 48 deltas of 128.
    assert 0 <= entry(memory, "recurrent state") - 48 * (48 * 128 * 128 + 3 * 10240) * 4 < 2**16
    assert 0 <= entry(memory, "pending rows") - 48 * 64 * (10240 + 2 * 16 * 128 + 2 * 48 + 48 * 128) * 4 < 2**16
    with pytest.raises(OutOfMemoryError, match=rf"context = {memory.context} would fit") as refused:
        plan_memory(model, **flags | {"context": memory.context + 64})
    assert "of free memory would suffice" in str(refused.value)
    fixed = plan_memory(model, **flags | {"context": 8192}).memory
    assert (fixed.context, fixed.largest_context) == (8192, memory.context)


def test_a_memory_too_small_for_any_context(large: tuple[Path, Path]) -> None:
    model, drafter = large
    with pytest.raises(OutOfMemoryError, match=r"are the draft model's.*draft without a draft model") as refused:
        plan_memory(model, device="cpu", draft=str(drafter), memory_limit="15GiB")
    enough = float(str(refused.value).split("available, and ")[1].split(" MiB")[0])  # rounded to 0.1
    plan = plan_memory(model, device="cpu", draft=str(drafter), memory_limit=f"{enough + 1}MiB")
    assert plan.memory.context >= 64


def test_contexts_by_type(large: tuple[Path, Path]) -> None:
    """The table tells what a plan with each type finds; a refusal names those that would do."""
    flags = {"device": "cpu", "memory_limit": "24GiB", "threads": 1}
    memory = plan_memory(large[0], **flags).memory
    by_type = {fit.kv: fit for fit in memory.kv_fits}
    assert list(by_type)[:2] == ["f32", "f16"] and len(by_type) == 12
    values = 16 * 2 * 4 * 256  # of a token
    bits = {"f16": 16, "q8_0": 8.5, "q4_0": 4.5, "tq3_0": 3.5, "wht4": 4.125, "wht3": 3.125}
    assert all(by_type[kv].token_bytes == values * n / 8 for kv, n in bits.items())
    assert by_type["f16"].largest_context == memory.largest_context
    assert by_type["wht4"].largest_context == plan_memory(large[0], kv="wht4", **flags).memory.largest_context
    with pytest.raises(OutOfMemoryError, match=r"\n  kv     KiB a token  largest context\n") as refused:
        plan_memory(large[0], context=262144, **flags)
    lines = [line.split() for line in str(refused.value).splitlines()[2:]]
    assert [kv for kv, _, _ in lines] == [fit.kv for fit in memory.kv_fits if fit.token_bytes < values * 2]
    assert ["wht4", "16.50", str(by_type["wht4"].largest_context)] in lines


def test_a_type_that_the_heads_cannot_have(tmp_path: Path) -> None:
    path = write_model(tmp_path / "odd.gguf", Shape("qwen3", n_layers=1, head_dim=40))
    wanted = r"kv = f16/q4_0: q4_0 stores groups of 32 values, and the model has heads of 40\. Use kv = f16, "
    for make in (plan_memory, LLM):
        with pytest.raises(UnsupportedError, match=wanted):
            make(str(path), device="cpu", threads=1, kv="f16/q4_0")
    shape = replace(FIRST, head_dim=40)
    target = write_model(tmp_path / "target.gguf", TARGET)
    named = draft_files.tensors(shape)
    draft = draft_files.write_hf(tmp_path / "draft", draft_files.hf_config(shape), named)
    with pytest.raises(UnsupportedError, match=r"kv = wht4: wht4 .* and the draft model has heads of 40"):
        open_engine(target, kv="wht4", draft=str(draft))
    assert open_engine(target, kv="bf16/f16", draft=str(draft)).options["kv"] == "bf16/f16"


def full_manifest(name: str) -> dict[str, Any]:
    """The manifest of a pack with every kernel that the sources have for a target."""
    target, files = families.load(name), kernels_of_sources()
    value = manifest(name, capabilities=asdict(target.capabilities), tuning=asdict(target.tuning))
    code = value["generations"][0]
    kernels = [(kernel, n) for source in target.sources() for kernel, n in files[source].items()]
    code["kernels"] = [code["kernels"][0] | {"name": kernel, "max_threads": n} for kernel, n in kernels]
    return value


def test_a_plan_for_a_board(large: tuple[Path, Path], tmp_path: Path) -> None:
    install(tmp_path, content=full_manifest("sm_86"))
    with on_path(tmp_path):
        plan = plan_memory(large[0], board="RTX 3090")
        assert plan.kernels == "GeForce RTX 3090, pack sm_86 by nvcc 13.0.88"
        assert plan.memory.available_bytes == 24 * GIB - 256 * 2**20  # the driver's share
        assert plan.memory.mapped_bytes == 0 and entry(plan.memory, "weights") > 13 * GIB
        limited = plan_memory(large[0], board="RTX 3090", memory_limit="20GiB")
        assert limited.memory.available_bytes == 20 * GIB - 256 * 2**20
        assert limited.memory.context < plan.memory.context
        with pytest.raises(InvalidRequestError, match="for the board GeForce RTX 3090 or for the device cpu, not both"):
            plan_memory(large[0], board="RTX 3090", device="cpu")
        other = plan_memory(large[0], board="H200")
        assert other.kernels == "H200 SXM, pack sm_90, which is not installed"
        with pytest.raises(PackError, match="the pack sm_90_mine is not installed; without --pack the plan is for the"):
            plan_memory(large[0], board="H200", pack="sm_90_mine")


def test_batch_invariant_on_a_card_without_kernels_for_exact_trees() -> None:
    """Not even the suffix drafter is left."""
    plan = plan_memory(TINY_HYBRID, board="RTX 2080 Ti", batch_invariant=True)
    assert plan.draft == "none" and plan_memory(TINY_HYBRID, board="RTX 2080 Ti").draft == "mtp+suffix"
    with pytest.raises(UnsupportedError, match=r"has no kernels for it, .* Use draft = none"):
        plan_memory(TINY_HYBRID, board="RTX 2080 Ti", batch_invariant=True, draft="suffix")


@pytest.mark.slow  # 4 s: a vocabulary of 248,320
def test_exact_drafts_of_a_27b(tmp_path: Path) -> None:
    """With its whole vocabulary: 32 rows of a head of 248,320 outputs fit, though not beside a norm."""
    files = tmp_path / "27b.gguf", tmp_path / "27b-dflash.gguf"
    for file, shape, preset in zip(files, ("qwen35-27b", "qwen35-27b-dflash"), ("Q4_K_M", "Q8_0"), strict=True):
        synthetic.write_sparse(file, synthetic.SHAPES[shape], shape, preset)
    options = {"draft": str(files[1]), "batch_invariant": True, "context": 1024, "memory_limit": "64GiB"}
    for board in ("RTX 3060", "RTX 4090", "H200", "RTX 5090"):  # 28, 128, 132 and 170 multiprocessors
        assert plan_memory(files[0], board=board, **options).draft == "27b-dflash.gguf"


def plan_of_cards(model: Path, *gib: float, **options: Any) -> MemoryPlan:
    """The plan on cards of one kind with that much free memory."""
    text = manifest_json(targets.find_board("RTX 3090")[0])
    first, *others = [(int(n * GIB), text, 82, f"cuda:{i}") for i, n in enumerate(gib)]
    fields = {**engine_fields(EngineOptions(sessions=1, **options)), **engine_fields(Drafters())}
    return MemoryPlan.from_engine(_engine.plan_memory(str(model), *first, others, **fields)[0])


def layers_of(plan: MemoryPlan) -> list[tuple[int, int]]:
    """The first and last layer of each card."""
    details = [next(one.detail for one in part.entries if one.name == "weights") for part in plan.parts]
    return [(int(words[1]), int(words[3].rstrip(":"))) for words in map(str.split, details)]


@pytest.mark.parametrize(
    "gib",
    [pytest.param((12, 12), marks=pytest.mark.slow), (24, 8), pytest.param((8, 24), marks=pytest.mark.slow), (8, 8, 8)],
)
def test_layers_on_several_cards(large: tuple[Path, Path], gib: tuple[float, ...]) -> None:
    """No card alone has room for the 27B, but for 24 GiB, whose context is longer with another card's help."""
    plan = plan_of_cards(large[0], *gib)
    assert plan.place == ",".join(part.place for part in plan.parts)
    layers = layers_of(plan)
    assert layers[0][0] == 0 and layers[-1][1] == 63
    assert all(before[1] + 1 == after[0] for before, after in pairwise(layers))
    shares = [part.total_bytes / part.available_bytes for part in plan.parts]
    assert max(shares) <= 1 and max(shares) - min(shares) < 0.2  # K and V of one layer may be 15 % of 8 GiB
    assert {part.context for part in plan.parts} == {plan.context}
    assert sum(entry(part, "weights") for part in plan.parts) == pytest.approx(13.3 * GIB, rel=0.05)
    assert plan.total_bytes == sum(part.total_bytes for part in plan.parts)
    if max(gib) < 24:
        with pytest.raises(OutOfMemoryError, match="memory of cuda:0 are available"):
            plan_of_cards(large[0], gib[0])
    else:
        assert plan_of_cards(large[0], max(gib)).context < plan.context


def test_one_card_of_several_if_all_fits_there(large: tuple[Path, Path]) -> None:
    assert not plan_of_cards(large[0], 24, 24, context=8192).parts
    assert len(plan_of_cards(large[0], 24, 24, context=8192, split="layer").parts) == 2
    assert len(plan_of_cards(large[0], 24, 24).parts) == 2  # the model's longest context
    with pytest.raises(OutOfMemoryError, match=r"memory of cuda:. are available"):
        plan_of_cards(large[0], 6, 6)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_part_of_every_layer_on_each_card(large: tuple[Path, Path], n: int) -> None:
    """All but the embedding, norms and buffers is divided; eight cards get 8 or 9 of the 68 blocks of a down matrix."""
    plan = plan_of_cards(large[0], *[24] * n, context=8192, split="tensor")
    weights = [entry(part, "weights") for part in plan.parts]
    assert len(weights) == n and max(weights) - min(weights) < 0.1 * max(weights)
    assert max(weights) == pytest.approx((13.3 / n + 0.2) * GIB, rel=0.1)
    assert {part.context for part in plan.parts} == {8192}


def modes_of(model: Path, board: str, **options: Any) -> dict[tuple[str, str | None], Mode]:
    modes = plan_modes(model, {"context": 4096, "draft": "none", **options}, board=board)
    return {(mode.mode, mode.link): mode for mode in modes}


@pytest.mark.slow  # 5 s each: headers with whole vocabularies
@pytest.mark.parametrize(
    ("name", "preset", "measured"),
    [
        ("qwen35-27b", "Q4_K_M", {("one", None): 187, ("layer", None): 186, ("tensor", "peer"): 235}),
        ("qwen35-9b", "Q8_0", {("one", None): 382, ("tensor", "peer"): 556, ("tensor", "host"): 526}),
        ("qwen35moe-35b-a3b", "Q4_K_M", {("one", None): 549, ("layer", None): 527, ("tensor", "peer"): 549}),
    ],
)
def test_predictions(tmp_path: Path, name: str, preset: str, measured: dict[tuple[str, str | None], float]) -> None:
    """Speeds of two H200, as docs/several_devices.md has them."""
    synthetic.write_sparse(tmp_path / "model.gguf", synthetic.SHAPES[name], name, preset)
    modes = modes_of(tmp_path / "model.gguf", "H200,H200")
    for way, tokens_s in measured.items():
        assert modes[way].tokens_s == pytest.approx(tokens_s, rel=0.12), way
    assert modes["replicas", None].tokens_s == pytest.approx(2 * (modes["one", None].tokens_s or 0))


def test_modes_of_unequal_cards(large: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """The first card alone has room; a tensor split ends with the slower card."""
    modes = modes_of(large[0], "RTX 3090,RTX 3060")
    assert "of memory of GeForce RTX 3060 12GB" in (modes["replicas", None].error or "")
    one, layer, tensor = (modes[way].tokens_s or 0 for way in (("one", None), ("layer", None), ("tensor", "host")))
    assert 0 < layer < one and 0 < tensor < one
    assert plan_modes(large[0], {}, board="RTX 3090") == ()
    assert main(["inspect", str(large[0]), "--board", "RTX 3090,RTX 3060", "--context", "4096", "--draft", "none"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("--split")]
    assert [row[1:4] for row in rows] == [
        ["layer", f"{layer:,.0f}", f"{modes['layer', None].largest_context:,}"],
        ["tensor", "peer", f"{modes['tensor', 'peer'].tokens_s:,.0f}"],
        ["tensor", "host", f"{tensor:,.0f}"],
    ]


def token_bytes(shape: synthetic.Shape, preset: str) -> int:
    """Bytes of the weights that a decoded token reads: of each layer's experts, only the chosen ones."""
    tensors = [tensor for tensor in synthetic.tensors_of(shape, preset) if tensor.name != "token_embd.weight"]
    experts = sum(tensor.n_bytes for tensor in tensors if "_exps.weight" in tensor.name)
    return sum(tensor.n_bytes for tensor in tensors) - experts + experts * shape.n_used // shape.n_experts


@pytest.mark.parametrize(
    ("name", "preset", "board", "gb_s", "share"),
    [
        ("qwen35moe-35b-a3b", "Q4_K_M", "RTX 3060", 360, 0.5),
        pytest.param("qwen35moe-35b-a3b", "Q4_K_M", "RTX 5070 Ti", 896, 0.7, marks=pytest.mark.slow),
        pytest.param("qwen35moe-35b-a3b", "Q4_K_M", "RTX 3090", 936, 1, marks=pytest.mark.slow),
        pytest.param("gpt-oss-20b", "Q8_0", "RTX 3060", 360, 0.95, marks=pytest.mark.slow),  # 2 s
        pytest.param("gpt-oss-20b", "Q8_0", "RTX 3090", 936, 1, marks=pytest.mark.slow),
    ],
)
def test_mixtures_on_boards(
    tmp_path: Path, name: str, preset: str, board: str, gb_s: int, share: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """share: of the experts that fit on the board, roughly."""
    shape = synthetic.SHAPES[name] if name == "gpt-oss-20b" else replace(synthetic.SHAPES[name], vocab=2048)
    synthetic.write_sparse(tmp_path / "model.gguf", shape, name, preset)
    plan = plan_memory(tmp_path / "model.gguf", board=board)
    experts = plan.memory.experts
    assert experts is not None and (experts.experts, experts.used) == (shape.n_experts, shape.n_used)
    assert experts.share == pytest.approx(share, abs=0.08) and plan.max_tokens_s is not None
    if share == 1:
        assert experts.host_bytes == 0 and plan.tokens_s_over(25) is None and plan.memory.context >= 16384
    else:
        assert experts.host_bytes > experts.slots * experts.slot_bytes and plan.memory.context == 16384
        slow, fast = plan.tokens_s_over(25), plan.tokens_s_over(50)
        assert slow is not None and fast is not None and slow < fast < plan.max_tokens_s
        assert main(["inspect", str(tmp_path / "model.gguf"), "--board", board]) == 0
        text = capsys.readouterr().out
        assert f"{experts.slots} of the {experts.experts} experts of each layer are in device memory" in text
        assert f"over PCIe 4.0 x16 (25 GB/s): at most {slow:,.0f} tok/s" in text
    assert plan.memory.bytes_per_token == pytest.approx(token_bytes(shape, preset), rel=0.02)  # rows' padding, biases
    assert plan.max_tokens_s == pytest.approx(gb_s * 1e9 / plan.memory.bytes_per_token)


def test_a_tower_on_the_cpu_beside_a_board(capsys: pytest.CaptureFixture[str]) -> None:
    """The model has the tower's memory, and the CPU's plan has the tower."""
    with_tower, without = (plan_memory("tiny-vl", board="RTX 3090", vision_device=where) for where in (None, "cpu"))
    assert with_tower.memory.vision is None and without.memory.vision is not None
    names = {"vision tower", "image buffers"}
    moved = sum(with_tower.memory.bytes_of(name) for name in names)
    assert moved > 0 and without.memory.total_bytes == with_tower.memory.total_bytes - moved
    assert without.memory.vision.place == "cpu" and {one.name for one in without.memory.vision.entries} == names
    assert main(["inspect", "tiny-vl", "--board", "RTX 3090", "--vision-device", "cpu"]) == 0
    assert capsys.readouterr().out.count(" available (") == 2
    with pytest.raises(InvalidRequestError, match="the board GeForce RTX 3090 or for the device cuda:1, not both"):
        plan_memory("tiny-vl", board="RTX 3090", vision_device="cuda:1")


@pytest.mark.parametrize(
    ("device", "names", "message"),
    [
        ("cpu", ["cpu"], "vision_device = cpu: the model is there"),
        ("cuda", ["cuda:0"], "vision_device = cuda: the model is there"),
        ("hip:1", ["hip:0", "hip:1"], "vision_device = hip:1: the model is there"),
        ("auto", ["cuda:0"], 'vision_device names a device, as cpu or cuda:1; got "auto"'),
    ],
)
def test_devices_without_a_tower(device: str, names: list[str], message: str) -> None:
    of_model = [Selection(name, None, None, ()) for name in names]
    with pytest.raises(InvalidRequestError, match=message):
        resolve_vision_device(device, of_model)
    assert resolve_vision_device("cpu", [Selection("cuda:0", None, None, ())]).device == "cpu"


def test_expected_hits() -> None:
    """No experts: none; all: all; and in between more with every expert."""
    hits = [ExpertPlan(256, 8, slots, 40, 1000, 1).expected_hits for slots in range(257)]
    assert hits[0] == 0 and hits[-1] == 1 and all(a < b for a, b in pairwise(hits))
    assert ExpertPlan(256, 8, 128, 40, 1000, 1).expected_link_bytes == pytest.approx((1 - hits[128]) * 8000)


RESERVED = 256 << 20
"""Device memory that no plan uses."""


def chunk_of(plan: Plan) -> int:
    return next(int(one.detail.split()[0]) for one in plan.memory.entries if one.name == "activations")


def test_chunks_of_prompts_are_long_if_experts_are_in_host_memory(tmp_path: Path) -> None:
    """Unless a chunk is given, or the longer one does not fit."""
    path = tmp_path / "model.gguf"
    synthetic.write_sparse(path, replace(synthetic.SHAPES["qwen35moe-35b-a3b"], vocab=2048), "35b", "Q4_K_M")
    boards = {"RTX 3090": 512, "RTX 3060 12GB": 2048, "H200 SXM": 2048}
    assert {board: chunk_of(plan_memory(path, board=board)) for board in boards} == boards
    assert chunk_of(plan_memory(path, board="H200 SXM", expert_slots=64)) == 8192
    default, given = (plan_memory(path, board="RTX 3060 12GB", prefill_chunk=chunk) for chunk in (None, 512))
    assert chunk_of(given) == 512 and given.memory.experts.slots > default.memory.experts.slots
    least = plan_memory(path, board="RTX 3060 12GB", expert_slots=8)
    small = plan_memory(path, board="RTX 3060 12GB", memory_limit=least.memory.total_bytes + RESERVED - (100 << 20))
    assert chunk_of(least) == 2048 and chunk_of(small) == 512 and small.memory.experts.slots >= 8


def test_experts_need_nvidia_from_sm_80_on(tmp_path: Path) -> None:
    shape = replace(synthetic.SHAPES["qwen35moe-35b-a3b"], vocab=2048)
    synthetic.write_sparse(tmp_path / "model.gguf", shape, "35b", "Q4_K_M")
    for board in ("RTX 2080 Ti", "RX 7800 XT"):
        with pytest.raises(
            OutOfMemoryError, match="must have all experts in its memory: experts in host memory need an"
        ):
            plan_memory(tmp_path / "model.gguf", board=board)
        with pytest.raises(UnsupportedError, match="experts in host memory need an NVIDIA GPU from sm_80 on"):
            plan_memory(tmp_path / "model.gguf", board=board, expert_slots=64)


def test_a_plan_without_the_pack_is_the_packs(large: tuple[Path, Path], tmp_path: Path) -> None:
    absent = plan_memory(large[0], board="RTX 3090")
    assert absent.kernels == "GeForce RTX 3090, pack sm_86, which is not installed"
    install(tmp_path, content=full_manifest("sm_86"))
    with on_path(tmp_path):
        assert plan_memory(large[0], board="RTX 3090").memory == absent.memory


def test_every_target_can_be_planned() -> None:
    for target in targets.TARGETS:
        made = json.loads(manifest_json(target))
        expected = full_manifest(target.name)
        code, whole = made["generations"][0], expected["generations"][0]
        listed = {kernel["name"]: kernel["max_threads"] for kernel in whole["kernels"]}
        assert {kernel["name"]: kernel["max_threads"] for kernel in code["kernels"]} == listed
        assert (made["tuning"], made["capabilities"]) == (expected["tuning"], expected["capabilities"])


def test_a_scorer_beside_or_swapped(
    large: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scorer that does not fit together with a 27B borrows its weights' memory; the target gets all the rest."""
    scorer = tmp_path / "scorer.gguf"
    synthetic.write_sparse(scorer, replace(synthetic.SHAPES["qwen3-0.6b"], vocab=2048), "qwen3-0.6b", "BF16")
    install(tmp_path, content=full_manifest("sm_86"))
    flags: dict[str, Any] = {"board": "RTX 3090", "context": 32768, "draft": "none", "sessions": 1}
    with on_path(tmp_path):
        alone = plan_memory(large[0], **flags)
        beside = plan_memory(large[0], prefill_drafter=str(scorer), **flags)
        assert beside.scorer is not None and not beside.scorer.is_swapped
        assert beside.memory.available_bytes == alone.memory.available_bytes - beside.scorer.memory.total_bytes

        limit = flags["memory_limit"] = alone.memory.total_bytes + 512 * 2**20  # with the driver's share
        tight = plan_memory(large[0], **flags)
        swapped = plan_memory(large[0], prefill_drafter=str(scorer), **flags)
        assert swapped.scorer is not None and swapped.scorer.is_swapped
        assert swapped.memory == tight.memory
        assert swapped.scorer.memory.entries == beside.scorer.memory.entries  # the same context, so the same scores
        parked, own = swapped.scorer.parked_bytes, entry(swapped.scorer.memory, "weights")
        assert parked == swapped.scorer.memory.total_bytes < entry(tight.memory, "weights")
        assert swapped.scorer.host_bytes == parked + own

        command = ["inspect", str(large[0]), "--board", "RTX 3090", "--context", "32768", "--draft", "none",
                   "--prefill-drafter", str(scorer)]  # fmt: skip
        assert main(command) == 0 and f"scorer {scorer}, beside the target" in capsys.readouterr().out
        assert main([*command, "--memory-limit", str(limit)]) == 0
        text = capsys.readouterr().out
        assert f"scorer {scorer}, swapped with the target" in text and "of the target's weights.\n" in text
        with pytest.raises(OutOfMemoryError, match=r"context = 32768 needs .* of memory of GeForce RTX 3090"):
            plan_memory(large[0], prefill_drafter=str(scorer), **flags | {"memory_limit": "15GiB"})
        with pytest.raises(OutOfMemoryError, match=r"27b.gguf does not fit beside the target, nor in the memory of"):
            plan_memory(scorer, prefill_drafter=str(large[0]), **flags)


def test_sparse_attention_on_amd(tmp_path: Path) -> None:
    """Refused before anything loads, by the name of the option."""
    install(tmp_path, "gfx1100", content=full_manifest("gfx1100"))
    flags: dict[str, Any] = {"board": "Radeon RX 7900 XTX", "memory_limit": "8GiB", "draft": "none", "context": 256}
    scorer = DATA / "recall" / "recall-scorer.Q4_0.gguf"
    with on_path(tmp_path):
        assert plan_memory(TINY_HYBRID, prefill_drafter=str(scorer), **flags).scorer is not None
        for given in (
            {"sparse_prefill": 0.5},
            {"prefill_sparse_alpha": 0.5, "prefill_drafter": str(scorer)},
        ):
            option = next(iter(given))
            message = rf"^{option} = 0.5: gfx1100 \(Radeon RX 7900 XTX\) has no kernels for block-sparse attention"
            with pytest.raises(UnsupportedError, match=message):
                plan_memory(TINY_HYBRID, **flags, **given)


@pytest.mark.slow  # 3 s: a vocabulary of 248,320
def test_a_27b_in_nvfp4_fits_a_card_of_32_gb(tmp_path: Path) -> None:
    """4.5 bits per weight and 32K tokens of q8_0: at most 18 GiB."""
    install(tmp_path / "pack", "sm_120", content=full_manifest("sm_120"))
    file = tmp_path / "27b.gguf"
    synthetic.write_sparse(file, synthetic.SHAPES["qwen35-27b"], "qwen35-27b", "NVFP4")
    with on_path(tmp_path / "pack"):
        memory = plan_memory(file, board="RTX 5090", context=32768, kv="q8_0").memory
    assert 14 * GIB < entry(memory, "weights") < memory.total_bytes <= 18 * GIB


def test_the_limit_bounds_what_a_model_takes() -> None:
    with LLM(str(TINY_HYBRID), device="cpu", threads=1, memory_limit="30MiB") as llm:
        plan = llm.memory_plan
        assert plan.available_bytes == 30 * 2**20 and plan.mapped_bytes + plan.total_bytes <= plan.available_bytes
        assert 0 < plan.context < plan.max_context and llm.options.memory_limit == 30 * 2**20
    with pytest.raises(OutOfMemoryError, match=r"1\.0 MiB of memory are available"):
        LLM(str(TINY_HYBRID), device="cpu", threads=1, memory_limit="1MiB")
    with LLM(str(TINY_HYBRID), device="cpu", threads=1, context=256, memory_limit="100TiB") as llm:
        assert llm.memory_plan.available_bytes < 100 * 2**40


def test_the_plan_is_that_of_a_load() -> None:
    flags = {"device": "cpu", "threads": 1, "context": 512, "draft": "suffix"}
    with LLM(str(TINY_HYBRID), **flags) as llm:
        assert plan_memory(TINY_HYBRID, **flags).memory.entries == llm.memory_plan.entries


def test_a_plan_has_the_types_that_a_device_holds(tmp_path: Path) -> None:
    """A type without kernels is planned as BF16, the megakernel's tables too."""
    install(tmp_path / "pack", "sm_90", content=full_manifest("sm_90"))
    shape = Shape("llama", n_layers=1, hidden=256, ffn=512, head_dim=64, vocab=266, tied=True)
    plans = {}
    with on_path(tmp_path / "pack"):
        for dtype in ("IQ2_S", "NVFP4", "BF16"):
            typed = replace(shape, dtype=dtype)
            file = write(tmp_path / f"{dtype}.gguf", metadata(typed) | small_vocabulary(), tensors(typed))
            plans[dtype] = plan_memory(file, board="H100 SXM").memory
    assert entry(plans["BF16"], "decode step") > 0
    assert plans["IQ2_S"].entries == plans["BF16"].entries
    values = 266 * 256 + 256 * (2 * 4 * 64 + 2 * 2 * 64) + 3 * 256 * 512
    assert 0 < entry(plans["NVFP4"], "weights") - values * 4.5 / 8 < 64 << 10
