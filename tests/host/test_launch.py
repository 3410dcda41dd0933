"""The choice of kernel and launch geometry, for targets without a device on this machine."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from kernel_sources import kernels_of_sources
from lucebox import _kernels
from lucebox.errors import FormatError, InvalidRequestError, UnsupportedError
from reference.linear import BLOCK_TYPES, FP8, PLAIN_TYPES, block_size
from whole_packs import has_source, kernels_of, load, manifest, whole

TARGETS = ("sm_70", "sm_75", "sm_90", "sm_121", "gfx1151", "sim")
KERNELS = {name: threads for kernels in kernels_of_sources().values() for name, threads in kernels.items()}
TYPES = (*PLAIN_TYPES, *BLOCK_TYPES, FP8)
GEMM_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K")  # with kernels in src/gpu/gemm
N_SMS = 20


def has_bf16(name: str) -> bool:
    """Whether the target is NVIDIA's from sm_80 on, or sim, whose packs have the kernels for matrix units with bf16."""
    return load(name).vendor != "amd" and load(name).capabilities.bf16


def choose(name: str, op: str, n_sms: int = N_SMS, **numbers: object) -> list[dict[str, Any]]:
    """The launches of an op on a target."""
    return _kernels.launch.choose(whole(name), n_sms, op, **numbers)


def check(launch: dict[str, object], name: str) -> None:
    """The geometry is within the limits of the device and the kernel."""
    grid, block = np.array(launch["grid"]), np.array(launch["block"])
    assert (grid >= 1).all() and (grid[1:] < 1 << 16).all()
    assert block[0] % 32 == 0 and 32 <= block.prod() <= KERNELS[str(launch["kernel"])]
    assert int(str(launch["shared_bytes"])) <= load(name).capabilities.shared_block_bytes
    assert not launch["cooperative"] or grid.prod() <= N_SMS


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("op", ["rms_norm", "gated_rms_norm", "add_norm", "rope", "swiglu", "geglu", "soft_cap",
                                "rope_table", "causal_conv", "delta_prepare", "copy_rows", "previous_row",
                                "block_conv"])  # fmt: skip
def test_rows(name: str, op: str) -> None:
    for dim in (2, 64, 129, 1024, 17408, 248320):
        numbers = {
            "rms_norm": {"heads": 2, "dim": dim},
            "gated_rms_norm": {"heads": 2, "dim": dim},
            "rope": {"heads": 2, "dim": dim, "n_pairs": dim // 2},
            "add_norm": {"dim": dim},
            "swiglu": {"dim": dim},
            "geglu": {"dim": dim},
            "soft_cap": {"dim": dim},
            "rope_table": {"n_pairs": dim},
            "causal_conv": {"channels": dim, "n_taps": 4},
            "delta_prepare": {"n_k_heads": 2, "n_v_heads": 2, "dk": dim},
            "copy_rows": {"dim": dim},
            "previous_row": {"dim": dim},
            "block_conv": {"dim": dim, "n_taps": 4, "group": 1},
        }
        for rows in (1, 3, 512):
            (launch,) = choose(name, op, rows=rows, **numbers[op])
            check(launch, name)


@pytest.mark.parametrize("name", TARGETS)
def test_ops_of_vision_towers(name: str) -> None:
    image = {"height": 128, "columns": 128, "merge": 2}
    heads = {"heads": 16, "dim": 72, "padded": 128}
    for op, numbers in (
        ("read_patches", {**image, "patch": 16}),
        ("add_positions", {**image, "dim": 1152, "side": 48}),
        ("add_axis_positions", {"columns": 48, "merge": 3, "dim": 1152, "side": 10240}),
        ("pool_patches", {"dim": 1152, "block": 9}),
        ("clamp", {"dim": 4304}),
        ("layer_norm", {"dim": 1152}),
        ("bias_gelu", {"dim": 4304}),
        ("split_heads", {**heads, "type": "f16"}),
        ("merge_heads", heads),
    ):
        for rows in (1, 3, 4096):
            (launch,) = choose(name, op, rows=rows, **numbers)
            check(launch, name)
    with pytest.raises(InvalidRequestError, match="rotation by axis takes sizes in multiples of 8"):
        choose(name, "split_heads", rows=1, heads=1, dim=4, padded=64, type="f16", is_by_axis=1)
    with pytest.raises(InvalidRequestError, match=r"\[layer_norm\] \[1, 6\]: sizes must be multiples of 4"):
        choose(name, "layer_norm", rows=1, dim=6)


@pytest.mark.parametrize("name", TARGETS)
def test_ops_of_drafts(name: str) -> None:
    for rows, vocab in ((1, 1), (1, 248320), (22, 248320), (63, 248320), (64, 2_000_000)):
        slices, merge = choose(name, "top_tokens", rows=rows, vocab=vocab, k=1)
        assert slices["grid"][0] <= 128 and slices["grid"][1] == merge["grid"][0] == rows
        assert slices["grid"][0] * 32768 >= vocab
        for launch in (slices, merge):
            check(launch, name)
    for rank in (1, 37, 1024):
        for launch in choose(name, "select_candidates", type="F16", rows=15, vocab=100, k=8 - rank // 1024, rank=rank):
            check(launch, name)
    for sequences in (1, 70_000):
        numbers = {"sequences": sequences, "max_rows": 64, "rows": 23}
        (grow,) = choose(name, "grow_tree", depth=15, k=8, **numbers)
        check(grow, name)
        assert grow["grid"][0] == sequences and grow["overlap_previous"]
        for depth, k in ((64, 8), (15, 9)):
            with pytest.raises(UnsupportedError, match=r"\[grow_tree\] 64 rows of .*: up to 64 rows of 63 x 8"):
                choose(name, "grow_tree", depth=depth, k=k, **numbers)
    with pytest.raises(InvalidRequestError, match=r"\[top_tokens\] 9 of \[1, 100\]: 1 to 8 tokens"):
        choose(name, "top_tokens", rows=1, vocab=100, k=9)
    with pytest.raises(UnsupportedError, match=r"\[select_candidates\] 64 rows of 1 beside F16 \[9, 8\]: 1 to 63 rows"):
        choose(name, "select_candidates", type="F16", rows=64, vocab=9, k=1, rank=8)
    with pytest.raises(UnsupportedError, match=r"\[block_conv\] \[1, 8\], 9 taps, groups of 1: 1 to 8 taps"):
        choose(name, "block_conv", rows=1, dim=8, n_taps=9, group=1)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(
    "types",
    [("Q4_K", "Q4_K", "Q6_K"), ("MXFP4", "MXFP4", "MXFP4"), ("Q4_K", "Q5_K", "BF16"), ("NVFP4", "NVFP4", "F8_E4M3")],
)
def test_mixtures(name: str, types: tuple[str, str, str]) -> None:
    """A launch for gate and up, or one each if their types differ, then one for down. Many rows of types with grouped
    kernels: a sort of the choices, gate and up, down, and sums."""
    rows_of = {"gate_rows": 512, "up_rows": 512, "down_rows": 2048}
    dtypes = {f"{part}_type": dtype for part, dtype in zip(("gate", "up", "down"), types, strict=True)}
    sizes = {"k": 8, "n_experts": 16, "dim": 2048, "ffn": 512, **rows_of, **dtypes}
    for rows in (17, 60, 5000) if types[0] == types[1] else ():
        launches = choose(name, "mix_experts", rows=rows, **sizes)
        for launch in launches:
            check(launch, name)
        group, gate_up, down, sums = launches
        assert group["grid"] == (1, 1, 1) and sums["grid"] == (8, rows, 1)
        tile = 16 if rows == 17 else 64
        assert gate_up["kernel"].endswith((f"_{tile}_kernel", "_16_kernel"))
        assert gate_up["kernel"].endswith("_64_kernel") == down["kernel"].endswith("_64_kernel")
    for rows in (1, 16) if types[0] == types[1] else (1, 17, 5000):
        *both, down = choose(name, "mix_experts", rows=rows, **sizes)
        assert len(both) == (1 if types[0] == types[1] else 2)
        for launch in (*both, down):
            check(launch, name)
        assert both[0]["grid"] == (16, 8 * rows, 1) and down["grid"] == (128, rows, 1)
    with pytest.raises(InvalidRequestError, match=r"\[mix_experts\] .*: rows outside an expert"):
        choose(name, "mix_experts", rows=1, k=1, n_experts=1, dim=2048, ffn=513, **rows_of, **dtypes)


@pytest.mark.parametrize("name", TARGETS)
def test_scores_and_selected_blocks(name: str) -> None:
    """Every shape fits the targets; what no kernel takes is refused by name."""
    heads = {"n_heads": 16, "n_kv_heads": 8, "head_dim": 128}
    cache = {"k_type": "Q8_0", "v_type": "F16"}
    sums, scores = choose(name, "key_scores", rows=16, **heads, **cache)
    assert sums["grid"] == (256, 8, 1) and scores["grid"] == (256, 1, 1)
    check(sums, name)
    check(scores, name)
    means = {"rows": 2048, "max_blocks": 1024, "n_kv_heads": 8, "head_dim": 512, **cache}
    if name.startswith("gfx"):  # selection is for NVIDIA targets
        with pytest.raises(UnsupportedError, match="key_means"):
            choose(name, "key_means", **means)
        return
    check(choose(name, "key_means", **means)[0], name)
    for dim in (64, 128, 256):
        (select,) = choose(name, "select_blocks", rows=2048, max_blocks=2048, list_size=2049, n_query_blocks=32,
                           n_heads=16, n_kv_heads=8, head_dim=dim)  # fmt: skip
        check(select, name)
        assert select["grid"] == (32, 8, 1)
    with pytest.raises(InvalidRequestError, match="the rows are 32 query blocks, not 31"):
        choose(name, "select_blocks", rows=2048, max_blocks=9, list_size=10, n_query_blocks=31, **heads)
    with pytest.raises(UnsupportedError, match="takes heads of 64, 128 or 256"):
        choose(name, "select_blocks", rows=2048, max_blocks=9, list_size=10, n_query_blocks=32, n_heads=16,
               n_kv_heads=8, head_dim=80)  # fmt: skip
    with pytest.raises(InvalidRequestError, match="takes 1 to 16 rows"):
        choose(name, "key_scores", rows=17, **heads, **cache)


@pytest.mark.parametrize("name", TARGETS)
def test_fused_ops_of_a_step(name: str) -> None:
    def delta_inputs(rows: int, dim: int, heads: int) -> dict[str, Any]:
        sizes = {"channels": 4 * heads * dim, "n_taps": 4, "n_k_heads": heads, "n_v_heads": heads, "dk": dim}
        (launch,) = choose(name, "delta_inputs", rows=rows, **sizes)
        return launch

    for dim in (8, 64, 128, 256):
        for heads in (1, 4, 16):
            inputs = delta_inputs(1, dim, heads)
            check(inputs, name)
            assert inputs["grid"] == (4 * heads + 1, 1, 1) and inputs["overlap_previous"]
            for rows in (1, 22, 512):
                cache = {"k_type": "F16", "v_type": "F16", "n_kv_heads": heads, "head_dim": dim}
                (prepare,) = choose(name, "attention_prepare", rows=rows, n_heads=3 * heads, n_pairs=dim // 2, **cache)
                check(prepare, name)
                assert prepare["grid"] == (-(-rows * 5 * heads // 4), 1, 1) and prepare["overlap_previous"]
    with pytest.raises(UnsupportedError, match=r"\[delta_inputs\] \[2, 256\], 4 taps, 1 heads of 64: one row"):
        delta_inputs(2, 64, 1)
    for rows, kernel, threads in ((2, "small", 256), (64, "small", 256), (65, "chain", 128)):
        inputs = delta_inputs(rows, 128, 4)
        check(inputs, name)
        assert (inputs["kernel"], inputs["block"][0]) == (f"delta_inputs_{kernel}_kernel", threads)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize("dtype", TYPES)
def test_gemv(name: str, activations: str, dtype: str) -> None:
    for n_out, n_in in ((1, 256), (33, 1024), (4096, 4096), (5120, 17408), (17408, 5120), (248320, 5120), (4, 131072)):
        for rows in (1, 8):
            (launch,) = _kernels.launch.choose_linear(whole(name), N_SMS, [dtype], [n_out], n_in, rows, activations)
            check(launch, name)
            assert launch["overlap_previous"] and dtype.lower() in str(launch["kernel"])


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize("dtype", GEMM_TYPES)
def test_gemm(name: str, activations: str, dtype: str) -> None:
    for n_out, n_in in ((1, 256), (33, 1024), (5120, 17408), (17408, 5120), (248320, 5120)):
        for rows in (2, 8, 22, 64, 65, 4096):
            batch = _kernels.launch.choose_gemm(whole(name), N_SMS, [dtype], [n_out], n_in, rows, activations)
            for launch in batch["launches"]:
                check(launch, name)
                assert launch["overlap_previous"]
            quantised = dtype.startswith("Q")
            bits = 16 if activations == "f32" else 0 if rows > 64 else 8
            assert batch["rounded_bits"] == (bits if quantised else 0)
            narrow = dtype != "F32" and batch["rounded_bits"] == 0
            kernels = [launch["kernel"] for launch in batch["launches"]]
            has_scales = narrow and quantised and any(name.startswith("gemm_sm90") for name in kernels)
            cast = "cast_rows_f16_kernel" if has_scales else "cast_rows_kernel"
            assert (kernels[0] == cast) == narrow
            is_skinny = kernels[0].startswith("gemm_skinny")
            assert f"_{dtype.lower()}_" in kernels[narrow]
            has_sum = "gemm_sum_kernel" in kernels
            assert batch["scratch_bytes"] >= narrow * rows * n_in * 2
            assert (batch["scratch_bytes"] > 0) == (narrow or has_sum or is_skinny)
            if name == "sm_90" and dtype in ("Q4_K", "Q6_K") and activations == "int8":
                assert is_skinny == (rows <= 22)


@pytest.mark.parametrize("name", TARGETS)
def test_every_gemm_kernel_is_chosen(name: str) -> None:
    """In a pack without the kernels that are preferred. A kernel that nothing chooses fails the self-test."""
    kernels = kernels_of(name)
    has_wide = any(kernel["name"].startswith("gemm_wide") for kernel in kernels)
    preferred = ("gemm_skinny", "gemm_sm90") if has_wide else ("gemm_skinny",)
    kernels = [kernel for kernel in kernels if not kernel["name"].startswith(preferred)]
    of_one_chip = [kernel for kernel in kernels if not kernel["name"].startswith("gemm_sm89")]  # sim has every chip's
    packs, chosen = (manifest(name, kernels), manifest(name, of_one_chip)), set()
    cases = [*itertools.product(GEMM_TYPES, ("int8", "f32"), (8, 16, 24, 32, 48, 64, 512)), (FP8, "int8", 512)]
    if any(kernel["name"] == "gemm_sm120_nvfp4_kernel" for kernel in kernels):
        cases.append(("NVFP4", "fp4", 512))
    for pack, (dtype, activations, rows) in itertools.product(packs, cases):
        for n_out, n_in in ((4096, 4096), (33, 17408)):
            batch = _kernels.launch.choose_gemm(pack, N_SMS, [dtype], [n_out], n_in, rows, activations)
            chosen |= {launch["kernel"] for launch in batch["launches"]}
    of_tiles = {kernel["name"] for kernel in kernels if kernel["name"].startswith("gemm_")}
    assert {name for name in of_tiles if not name.startswith("gemm_sm90")} <= chosen


def test_types_without_a_gemm_kernel_are_expanded() -> None:
    for name, wide in (("sm_75", "f16"), ("sm_90", "bf16")):
        for rows in (12, 64, 65, 512):
            batch = _kernels.launch.choose_gemm(whole(name), N_SMS, ["Q4_1", "Q4_1"], [4096, 1024], 4096 + 32, rows)
            kernels = [launch["kernel"] for launch in batch["launches"] if "sum" not in launch["kernel"]]
            assert kernels[0] == "cast_rows_kernel" and kernels[1::2] == 2 * ["expand_weights_kernel"]
            assert all(f"_{wide}_" in kernel for kernel in kernels[2::2]) and batch["rounded_bits"] == 0
            assert batch["scratch_bytes"] >= 2 * 4096 * (4096 + rows)  # one matrix at a time
            gemms = [launch for launch in batch["launches"] if f"_{wide}_" in launch["kernel"]]
            assert not any(launch["overlap_previous"] for launch in gemms)  # weights are read before the wait
        with pytest.raises(UnsupportedError, match="no batch kernel reads Q4_1"):
            _kernels.launch.choose_gemm(whole(name), N_SMS, ["Q4_1"], [4096], 4096 + 32, 11)
        with pytest.raises(UnsupportedError, match="no batch kernel reads Q3_K"):
            _kernels.launch.choose_gemm(whole(name), N_SMS, ["Q3_K"], [248320], 4096, 512)


@pytest.mark.parametrize("dtype", [*BLOCK_TYPES, FP8, "F16", "BF16"])
def test_skinny_gemm_of_every_type(dtype: str) -> None:
    narrow = dtype in ("F16", "BF16")
    for n_in, is_skinny in ((4096, True), (4096 + 32, False)):
        if n_in % block_size(dtype)[0] != 0:
            continue
        for rows in (2, 8, 16, 22, 32, 33) if is_skinny else (12, 32):
            batch = _kernels.launch.choose_gemm(whole("sm_80"), N_SMS, [dtype], [4096], n_in, rows)
            kernel = str(batch["launches"][narrow]["kernel"])
            few = is_skinny and rows <= (48 if dtype in ("Q4_K", "NVFP4") else 32)
            assert kernel.startswith(f"gemm_skinny_{dtype.lower()}_") == few, (rows, n_in, kernel)
            if few:
                assert int(kernel.split("_")[-2]) >= rows


def test_gemv_of_long_rows_takes_the_ring() -> None:
    """Each SM has 120 KiB of weights; the ring leaves shared memory to concurrent kernels."""

    def choose(name: str, dtype: str, n_out: int, n_in: int, rows: int = 1, acts: str = "int8") -> dict[str, object]:
        (launch,) = _kernels.launch.choose_linear(whole(name), 132, [dtype] * 2, [n_out, 1000], n_in, rows, acts)
        check(launch, name)
        return launch

    for dtype, n_in, threads in (("Q4_K", 4096, 416), ("Q6_K", 5120, 352), ("Q4_K", 6144, 416), ("Q4_K", 17408, 576)):
        launch = choose("sm_90", dtype, 9000, n_in)
        assert launch["kernel"] == f"gemv_{dtype.lower()}_int8_ring_kernel"
        assert (launch["grid"], launch["block"]) == ((132, 1, 1), (threads, 1, 1))
        assert 160 << 10 < int(str(launch["shared_bytes"])) <= 210 << 10
        for other in ("sm_75", "sm_121", "gfx1151"):
            assert "ring" not in str(choose(other, dtype, 9000, n_in)["kernel"])
    for shape in (
        ("Q4_K", 4096, 4096),  # too small
        ("Q4_K", 99999, 3840),  # short rows
        ("Q6_K", 9999, 5120),  # a multiple of 16 bytes only in pairs of rows
        ("Q6_K", 9998, 4352),  # not even in pairs
        ("Q4_K", 9999, 17664),  # more pieces than a block has threads
        ("Q8_0", 9999, 5120),
        ("Q4_K", 9999, 5120, 2),
        ("Q4_K", 9999, 5120, 1, "f32"),
    ):
        assert "ring" not in str(choose("sm_90", *shape)["kernel"])


def test_short_gemv_launches_take_the_whole_kernel() -> None:
    """An SM has room for the next launch, or, where rows are short, for this one only."""

    def choose(name: str, n_out: list[int], n_in: int, dtype: str = "Q4_K", rows: int = 1) -> dict[str, object]:
        (launch,) = _kernels.launch.choose_linear(whole(name), 132, [dtype] * len(n_out), n_out, n_in, rows, "int8")
        check(launch, name)
        return launch

    for n_out, n_in, threads, per_sm in (
        ([4096], 4096, 512, 3),
        ([1000], 16384, 512, 3),
        ([3584, 3584], 1024, 512, 1),
        ([1, 3000], 2304, 480, 1),
    ):
        launch = choose("sm_90", n_out, n_in)
        assert launch["kernel"] == "gemv_q4_k_int8_whole_kernel"
        assert launch["block"] == (threads, 1, 1)
        assert (228 << 10) // (int(str(launch["shared_bytes"])) + 1024) == per_sm
        for other in ("sm_75", "sm_121", "gfx1151"):
            assert "whole" not in str(choose(other, n_out, n_in)["kernel"])
    for launch in (
        choose("sm_90", [4225], 4096),  # more than eight rows for a team
        choose("sm_90", [100], 17408),  # more pieces than a block has threads
        choose("sm_90", [4096], 4096, "Q6_K"),
        choose("sm_90", [4096], 4096, "Q4_K", 2),
    ):
        assert "whole" not in str(launch["kernel"])


def test_few_rows_keep_every_sm_busy() -> None:
    """22 rows, a speculation's tree: one pass over the weights, on two blocks an SM, or one block of a skinny GEMM."""
    for n_out, n_in, waits in ((5120, 17408, "one wave"), (17408, 5120, "one wave"), (7168, 1024, "cluster 2")):
        batch = _kernels.launch.choose_gemm(whole("sm_75"), 72, ["Q4_K"], [n_out], n_in, 22)
        assert [launch["kernel"] for launch in batch["launches"]] == [
            "gemm_q4_k_int8_24_kernel",
            "gemm_sum_kernel",
        ]
        for dtype, rows in itertools.product(("Q4_K", "Q6_K"), (16, 22)):
            (launch,) = _kernels.launch.choose_gemm(whole("sm_90"), 132, [dtype], [n_out], n_in, rows)["launches"]
            assert launch["kernel"] == f"gemm_skinny_{dtype.lower()}_{16 if rows == 16 else 24}_kernel"
            assert 126 <= launch["grid"][0] * launch["grid"][1] <= 132 and waits in launch["text"]


def test_spinning_blocks_leave_room_for_another_grid() -> None:
    """17408 values need more slices than half of twelve SMs, so that the GEMM of tiles computes them."""
    for n_sms, kernel in ((12, "gemm_q4_k_int8_16_kernel"), (24, "gemm_skinny_q4_k_16_kernel")):
        launch = _kernels.launch.choose_gemm(whole("sm_89"), n_sms, ["Q4_K"], [5120], 17408, 16)["launches"][0]
        assert launch["kernel"] == kernel


def test_tiles_print_themselves() -> None:
    """The choice between op and launch, for a device that is not here."""

    def gemm(dtype: str, n_in: int, rows: int, activations: str = "int8") -> str:
        products = [dtype], [5120], n_in, rows, activations
        return str(_kernels.launch.choose_gemm(whole("sm_90"), 132, *products)["config"])

    assert gemm("Q4_K", 17408, 512, "f32") == (
        "gemm_q4_k_int16_32_kernel: tiles of 32 x 128 by 128, 0 whole, on 264 blocks of 256 threads, 4 stages, 90112 B"
    )
    assert gemm("BF16", 5120, 512) == (
        "gemm_sm90_bf16_128x128_kernel: tiles of 128 x 128 by 64, 132 whole, on 132 blocks of 384 threads, 220256 B"
    )
    assert gemm("Q4_K", 17408, 16) == (
        "gemm_skinny_q4_k_16_kernel: 10 slices of up to 7 blocks, 13 ranges of up to 25 tiles, 64896 B"
    )
    heads = {"k_type": "F16", "v_type": "F16", "n_heads": 24, "n_kv_heads": 4, "head_dim": 256}
    assert choose("sm_90", "attention", 132, capacity=32768, rows=1, **heads)[0]["config"] == (
        "attention_decode_f16_256_kernel: 1 x 16 queries, 66 splits, ring of 3, 128 threads, 113536 B"
    )


def test_cast_rows_runs_once_for_each_form_of_x() -> None:
    dtypes, n_out = ["Q4_K", "F16", "BF16", "Q6_K"], [640, 1, 1024, 7]
    batch = _kernels.launch.choose_gemm(whole("sm_90"), 132, dtypes, n_out, 1024, 512)
    kernels = [launch["kernel"] for launch in batch["launches"]]
    assert sorted(kernels[:3]) == ["cast_rows_f16_kernel", "cast_rows_kernel", "cast_rows_kernel"]
    assert sum(kernel.startswith("gemm_sm90") for kernel in kernels) == 4


def prompt_kernels(name: str, rows: int, dtypes: list[str], activations: str = "int8") -> list[str]:
    n_out = [5120, 1024][: len(dtypes)]
    batch = _kernels.launch.choose_gemm(whole(name), 132, dtypes, n_out, 5120, rows, activations)
    assert batch["rounded_bits"] == 0
    return [launch["kernel"] for launch in batch["launches"]]


def test_prompts_of_fp8_are_multiplied_as_fp8_where_matrix_units_are() -> None:
    kernels = prompt_kernels
    both = kernels("sm_90", 2048, ["F8_E4M3", "F8_E4M3"])
    assert both[:2] == ["cast_rows_f8_kernel", "gemm_sm90_f8_e4m3_256x128_kernel"]  # one product
    mixed = kernels("sm_90", 65, ["F8_E4M3", "BF16"])
    assert mixed[:2] == ["cast_rows_f8_kernel", "cast_rows_kernel"] and "expand_weights_kernel" not in mixed
    assert "expand_weights_kernel" in kernels("sm_90", 64, ["F8_E4M3"])
    for name, kernel in (("sm_89", "sm89"), ("sm_120", "sm120"), ("sm_121", "sm120")):
        assert kernels(name, 2048, ["F8_E4M3", "F8_E4M3"])[:2] == [
            "cast_rows_f8_kernel",
            f"gemm_{kernel}_f8_e4m3_kernel",
        ]
    for name in ("sm_86", "sm_100", "gfx1201"):
        assert "expand_weights_kernel" in kernels(name, 65, ["F8_E4M3"])
    with pytest.raises(UnsupportedError, match="no batch kernel reads F8_E4M3"):
        kernels("sm_90", 65, ["F8_E4M3"], "f32")


def test_prompts_of_nvfp4_are_multiplied_as_fp4_on_request() -> None:
    kernels = prompt_kernels
    for name in ("sm_120", "sm_121", "sim"):
        assert kernels(name, 2048, ["NVFP4", "NVFP4"], "fp4")[:2] == ["cast_rows_fp4_kernel", "gemm_sm120_nvfp4_kernel"]
        assert "expand_weights_kernel" in kernels(name, 2048, ["NVFP4"])
        assert kernels(name, 2048, ["Q4_K"], "fp4") == kernels(name, 2048, ["Q4_K"])
    mixed = kernels("sm_120", 65, ["NVFP4", "F8_E4M3"], "fp4")
    assert mixed[:2] == ["cast_rows_fp4_kernel", "cast_rows_f8_kernel"]
    assert {"gemm_sm120_nvfp4_kernel", "gemm_sm120_f8_e4m3_kernel"} < set(mixed)
    for name in ("sm_89", "sm_90", "sm_100", "gfx1201"):
        with pytest.raises(UnsupportedError, match=f"activations = fp4: {name} has no products of 4-bit activations"):
            kernels(name, 65, ["NVFP4"], "fp4")
        assert kernels(name, 65, ["Q4_K"], "fp4") == kernels(name, 65, ["Q4_K"])


def delta_sizes(n_k_heads: int, n_v_heads: int, dk: int, dv: int) -> dict[str, int]:
    return {"n_k_heads": n_k_heads, "n_v_heads": n_v_heads, "dk": dk, "dv": dv}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("shape", [(16, 48, 128, 128), (16, 16, 128, 128), (1, 1, 8, 8), (2, 4, 256, 256)])
def test_appends_of_a_recurrent_layer(name: str, shape: tuple[int, int, int, int]) -> None:
    run, long = ["pairs", "chunks"], ["fold", "pairs", "chunks"]
    for rows, kernels in ((0, ["fold"]), (1, ["step"]), (2, run), (33, run), (64, run), (65, long), (4096, long)):
        if rows > 64 and shape[2] == 128 and has_source(name, "gated_delta_chain"):
            kernels = ["fold", "chain", "chain"]
        if rows == 2 and shape[2] == 128 and has_source(name, "gated_delta_small"):
            kernels = ["small"]
        launches = choose(name, "gated_delta", rows=rows, **delta_sizes(*shape))
        assert [str(launch["kernel"]).split("_")[2].rstrip("1236") for launch in launches] == kernels
        for launch in launches:
            check(launch, name)


def test_few_heads_are_cut_into_narrow_slices() -> None:
    for n_v_heads, columns in ((16, 16), (48, 32)):
        *_, chunks = choose("sm_90", "gated_delta", 132, rows=64, **delta_sizes(16, n_v_heads, 128, 128))
        assert chunks["kernel"] == f"gated_delta_chunks{columns}_kernel"
        assert chunks["grid"] == (128 // columns, n_v_heads, 1)


@pytest.mark.parametrize("name", TARGETS)
def test_gemv_of_several_types(name: str) -> None:
    dtypes, n_out = ["Q4_K", "Q6_K", "Q8_0"], [5120, 1, 1024]
    launches = _kernels.launch.choose_linear(whole(name), N_SMS, dtypes, n_out, 17408, 1, "int8")
    assert len(launches) == 3
    for launch, dtype in zip(launches, dtypes, strict=True):
        check(launch, name)
        assert dtype.lower() in str(launch["kernel"])


@pytest.mark.parametrize("name", TARGETS)
def test_sampling(name: str) -> None:
    for size in (1, 2, 31, 129, 2048, 2049, 32781, 262144, 1 << 20):
        check(_kernels.launch.choose_sampling(whole(name), N_SMS, "sample", size), name)
        check(_kernels.launch.choose_sampling(whole(name), N_SMS, "count_window", size), name)
        check(_kernels.launch.choose_sampling(whole(name), N_SMS, "walk_tree", size), name)
    check(_kernels.launch.choose_sampling(whole(name), N_SMS, "next_token", 4), name)
    launch = _kernels.launch.choose_sampling(whole(name), 1000, "sample", (1 << 21) - 1)
    assert launch["grid"] == (256, 1, 1)  # what SampleGrid has room for
    with pytest.raises(UnsupportedError, match=rf"\[sample\] vocabulary of 2097152 on {name}: must be 1 to 2097151"):
        _kernels.launch.choose_sampling(whole(name), N_SMS, "sample", 1 << 21)


def choose_attention(
    name: str, types: tuple[str, str], rows: int, n_heads: int, n_kv_heads: int, head_dim: int, capacity: int
) -> list[dict[str, Any]]:
    cache = {"k_type": types[0], "v_type": types[1], "n_kv_heads": n_kv_heads, "head_dim": head_dim}
    return choose(name, "attention", capacity=capacity, rows=rows, n_heads=n_heads, **cache)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("types", [("F16", "F16"), ("BF16", "BF16"), ("F32", "F32"), ("F16", "Q8_0"), ("Q5_1", "WHT4")])
@pytest.mark.parametrize(
    ("n_heads", "n_kv_heads", "head_dim"), [(24, 4, 256), (16, 8, 128), (9, 3, 64), (6, 1, 96), (32, 4, 512)]
)
def test_attention(name: str, types: tuple[str, str], n_heads: int, n_kv_heads: int, head_dim: int) -> None:
    """Wide launches fill the chip and are not split; narrow ones are cut as far as the cache is long."""
    group = n_heads // n_kv_heads
    for rows in (1, 2, 7, 22, 64, 65, 512):
        for capacity in (512, 32768, 262144):
            chosen = choose_attention(name, types, rows, n_heads, n_kv_heads, head_dim, capacity)
            for launch in chosen:
                check(launch, name)
            kernel, grid = str(chosen[0]["kernel"]), np.array(chosen[0]["grid"])
            if types[0] != "F32" and head_dim in (64, 128, 256):
                stored = types[0].lower() if types[0] == types[1] else "packed"
                is_decode = rows * group <= 16
                is_wide = rows > 64 and head_dim < 256 and "gfx" not in name
                queries, form = (16, "decode") if is_decode else (128, "prefill_32") if is_wide else (64, "prefill_16")
                per_sm = {64: 4, 128: 3, 256: 2}[head_dim] if is_decode else 2
                if stored == "packed" and rows * group <= 8 and has_bf16(name):
                    queries, form, per_sm = 8, "decode_8", 3 if head_dim == 256 else 4
                if rows * group > 64 and name in ("sm_90", "sim"):
                    queries, form, per_sm = 128, "prefill_sm90", 1
                assert kernel == f"attention_{form}_{stored}_{head_dim}_kernel"
            elif types[0] != "F32" and head_dim == 512 and has_bf16(name):
                queries = 16 if rows * group <= 16 else 32
                each = (load(name).capabilities.shared_block_bytes + 1024) // 2 - 1024
                per_sm = 2 if chosen[0]["shared_bytes"] <= each else 1
                stored = types[0].lower() if types[0] == types[1] else "packed"
                assert kernel == f"attention_wide_{queries}_{stored}_512_kernel"
            else:
                queries, per_sm = 8, 2
                assert kernel == "attention_fp32_kernel"
            blocks = n_kv_heads * -(-rows * group // queries)
            assert grid.prod() <= max(blocks, per_sm * N_SMS)
            assert grid.prod() > per_sm * N_SMS // 2 or grid.prod() == blocks * -(-capacity // 128)
            assert (len(chosen) > 1) == (grid.prod() > blocks or types[1] == "WHT4")  # the merge rotates back


@pytest.mark.parametrize(
    ("name", "kernel"),
    [("sm_86", "prefill_32"), ("sm_90", "prefill_sm90"), ("gfx1151", "prefill_16")],
)
def test_attention_among_patches(name: str, kernel: str) -> None:
    """The patches of an image are the query heads of one row: the kernels of prompts."""
    (launch,) = choose_attention(name, ("f16", "f16"), 1, 16 * 4096, 16, 128, 16384)
    assert launch["kernel"] == f"attention_{kernel}_f16_128_kernel" and launch["grid"][1:] == (16, 1)


def test_what_attention_refuses() -> None:
    with pytest.raises(InvalidRequestError, match=r"\[1, 4, 40\] over 2 heads of f16 and q8_0: q8_0 takes head_dim in"):
        choose_attention("sm_90", ("F16", "Q8_0"), 1, 4, 2, 40, 1024)
    with pytest.raises(InvalidRequestError, match="a cache of 8 tokens cannot hold the rows"):
        choose_attention("sm_90", ("F16", "F16"), 9, 4, 2, 64, 8)


def test_a_launch_says_what_it_is() -> None:
    launch = _kernels.launch.choose_sampling(whole("sm_90"), 132, "sample", 248320)
    assert launch["text"] == "sample_kernel<<<[122, 1, 1], [512, 1, 1], 0 B>>> cooperative"
    (launch,) = choose("sm_90", "rms_norm", 132, rows=2, heads=1, dim=5120)
    assert launch["text"] == "rms_norm_kernel<<<[2, 1, 1], [1024, 1, 1], 0 B>>> overlap"


def test_a_kernel_that_the_pack_lacks_is_named() -> None:
    without = manifest("sm_90", [{"name": "rope_kernel", "max_threads": 256}])
    with pytest.raises(UnsupportedError, match=r"\[swiglu\] \[1, 8\]: the pack of sm_90 has no swiglu_kernel"):
        _kernels.launch.choose(without, 132, "swiglu", rows=1, dim=8)
    with pytest.raises(UnsupportedError, match=r"\[linear\] 1 rows x Q4_K \[8, 256\] int8: the pack of sm_90 has no"):
        _kernels.launch.choose_linear(without, 132, ["Q4_K"], [8], 256)


@pytest.mark.parametrize("rows", (0, 1, 32))
def test_recurrent_rows_one_by_one(rows: int) -> None:
    sizes = delta_sizes(16, 48, 128, 128)
    (launch,) = choose("sm_90", "gated_delta", 132, rows=rows, by_row=1, **sizes)
    assert (launch["kernel"], launch["grid"]) == ("gated_delta_rows_kernel", (8, 48, 1))
    with pytest.raises(InvalidRequestError, match="row by row: at most 32 rows"):
        choose("sm_90", "gated_delta", 132, rows=33, by_row=1, **sizes)


def test_what_no_kernel_computes_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"\[gated_delta\] 1 rows of 1 x 12 keys, 2 x 8 values: head dims are"):
        choose("sm_90", "gated_delta", rows=1, **delta_sizes(1, 2, 12, 8))
    with pytest.raises(InvalidRequestError, match=r"Q5_K rows are multiples of 256 values, got \[9, 128\]"):
        choose("sm_90", "embed", type="Q5_K", vocab=9, dim=128, rows=1)
    with pytest.raises(InvalidRequestError, match=r"\[swiglu\] \[0, 8\]: nothing to compute"):
        choose("sm_90", "swiglu", rows=0, dim=8)
    with pytest.raises(FormatError, match='the pack of sm_90 has no tuning constant "matvec_threads_per_sm"'):
        _kernels.launch.choose_linear(manifest("sm_90", kernels_of("sm_90"), tuning={}), 132, ["Q8_0"], [8], 256)
