"""Counts of AMD assembly, and the limits of the kernels that decide a model's speed."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import compile_object
import pytest
import rdna_report
from pack import hsaco, rdna
from pack.kernel import Kernel
from project import BUILD, ROOT

import targets

ASSEMBLY = """\
\t.text
helper:                                 ; @helper
\tv_mov_b32_e32 v0, 1
\ts_setpc_b64 s[30:31]
a_kernel:                               ; @a_kernel
\ts_load_b64 s[0:1], s[0:1], 0x0
.LBB0_1:
\tglobal_load_b128 v[1:4], v0, s[0:1]
\tglobal_load_u8 v5, v0, s[0:1] offset:16
\tglobal_load_d16_hi_b16 v6, v0, s[0:1]
\ts_waitcnt vmcnt(0)
\ts_waitcnt_depctr 0xfff
\ts_wait_loadcnt 0x0
\ts_wait_alu 0xfffd
\tv_dual_mov_b32 v4, 0 :: v_dual_lshlrev_b32 v1, 2, v0
\tv_dot4_i32_iu8 v7, v1, v2, v7 neg_lo:[1,1,0]
\tv_wmma_f32_16x16x16_f16 v[8:15], v[0:7], v[0:7], v[8:15]
\ts_cbranch_scc1 .LBB0_1
\ts_endpgm
\t.section\t.rodata,"a",@progbits
\t.amdhsa_kernel a_kernel
\t\t.amdhsa_next_free_vgpr 16
\t.end_amdhsa_kernel
"""


def test_counts() -> None:
    found = rdna.counts(ASSEMBLY)
    assert found == {
        "a_kernel": rdna.Counts(
            instructions=13, vector=3, paired=2, dots=1, matrix=1, loads=3, load_bytes=19, wide_bytes=16, waits=2
        )
    }
    assert rdna.load(rdna.dump(found)) == found


LIMIT = next(limit for limit in rdna.LIMITS if limit.kernel == "gemv_q4_k_int8_kernel")
GOOD = rdna.Counts(vector=700, paired=350, dots=64, loads=25, load_bytes=364, wide_bytes=352, waits=15)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        ({}, None),
        ({"paired": 70}, "10 % of its vector operations issue in pairs, expected 36 % or more"),
        ({"wide_bytes": 182}, "50 % of its bytes come by loads of 16, expected 90 % or more"),
        ({"waits": 60}, "60 waits for memory, expected at most 20"),
        ({"load_bytes": 800, "wide_bytes": 790}, "800 bytes loaded for 64 dot products, expected 9.5 a product"),
    ],
)
def test_limits(spoil: dict[str, int], problem: str | None) -> None:
    kernel = Kernel(LIMIT.kernel, "gemv_256.hsaco", 256, 170, 0, 65536, 0, 0)
    target = targets.load("gfx1100")
    found = list(rdna.problems([kernel], {kernel.name: replace(GOOD, **spoil)}, target))
    assert found == [] if problem is None else len(found) == 1 and problem in found[0]
    assert not list(rdna.problems([replace(kernel, name="other")], {"other": rdna.Counts()}, target))


@pytest.mark.parametrize(
    ("name", "launched", "registers", "fits"),
    [
        ("gfx1102", 512, 256, True),  # 4 waves on a SIMD
        ("gfx1102", 1024, 128, True),  # 8
        ("gfx1102", 1024, 129, False),
        ("gfx1150", 1024, 170, False),  # 5
        ("gfx1100", 1024, 170, True),  # 8
        ("gfx1201", 1024, 193, False),  # 7
    ],
)
def test_the_waves_that_are_launched_fit(name: str, launched: int, registers: int, fits: bool) -> None:
    kernel = Kernel("gemv_q8_0_int8_kernel", "gemv_32.hsaco", 256, registers, 0, 65536, 0, 0)
    target = targets.load(name)
    target = replace(target, tuning=replace(target.tuning, matvec_threads_per_sm=launched))
    found = list(rdna.problems([kernel], {}, target))
    assert found == [] if fits else len(found) == 1 and f"matvec_threads_per_sm launches {launched}" in found[0]
    assert not list(rdna.problems([replace(kernel, name="gemv_q8_0_int8_wide_kernel")], {}, target))


def test_every_limit_is_of_a_kernel() -> None:
    lists = "".join(file.read_text() for file in (ROOT / "src/gpu").glob("*/instances.h"))
    assert len({limit.kernel for limit in rdna.LIMITS}) == len(rdna.LIMITS)
    assert all(limit.kernel in lists for limit in rdna.LIMITS)


KERNEL = """\
#include "dialect.h"

#include "gpu/gemv/formats_32.h"
#include "gpu/gemv/gemv.h"

namespace lb::gpu {
LB_KERNEL(gemv_q4_k_int8_kernel, Gemv, kGemvThreads, 2) {
  int spare;
  gemv<Block32Format<DType::kQ4_K, 8>, 1, ROWS>(p);
}
}  // namespace lb::gpu
"""
Build = Callable[..., list[str]]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Compiles the kernel with these flags and returns the broken limits."""
    zig = next(BUILD.glob("toolchain/lib/python*/site-packages/ziglang/zig"), None)
    if zig is None:
        pytest.skip("no ziglang: run ci/build_packs.py gfx1151 once")
    linker = tmp_path / "ld.lld"
    linker.write_text(f"#!/bin/sh\nexec '{zig}' ld.lld \"$@\"\n")
    linker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    source = tmp_path / "gemv.cpp"
    source.write_text(KERNEL)

    def broken(name: str, *flags: str) -> list[str]:
        base = ("-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", f"--offload-arch={name}", "-O3")
        more = ("-mcode-object-version=5", "-fuse-cuid=none", "-nogpuinc", "-nogpulib", "-nostdinc", "-std=c++20")
        job = compile_object.Job("clang", source, name, (str(zig), "clang"), "", "", "", (*base, *more, *flags), ROOT)
        made = compile_object.clang(job)
        assert (b"unused variable 'spare'" in made["log"]) == ("-Wunused-variable" in flags)
        kernels = hsaco.kernels(made["code"], "gemv.hsaco", 65536)
        return list(rdna.problems(kernels, rdna.load(made["isa"].decode()), targets.load(name)))

    return broken


def test_a_spoiled_kernel_is_refused(build: Build) -> None:
    assert build("gfx1102", "-DROWS=8") == []
    (line,) = build("gfx1102", "-DROWS=8", "-mllvm", "-amdgpu-enable-vopd=0", "-Wunused-variable")
    assert "gemv_q4_k_int8_kernel: 0 % of its vector operations issue in pairs" in line


# The report


def test_the_predicted_speeds() -> None:
    target = targets.load("gfx1100")
    board = next(board for board in target.boards if board.name == "Radeon RX 7900 XTX")
    weights, size = 25_000_000_000, 15_000_000_000
    matrix = rdna.Counts(vector=1024, matrix=32)  # 1,024 cycles of multiplications and as many of others
    found = rdna_report.predict(target, board, GOOD, matrix, weights, size)
    assert found is not None
    assert found.decode == pytest.approx(0.8 * 960e9 / size)  # memory is the limit
    assert found.prefill_peak == pytest.approx(122.88e12 / (2 * weights))
    assert found.prefill == pytest.approx(found.prefill_peak / 2)

    slow = replace(GOOD, vector=100_000, paired=0)
    limited = rdna_report.predict(target, board, slow, matrix, weights, size)
    assert limited is not None
    assert limited.decode == pytest.approx(192 * 2.5e9 * 32 * GOOD.load_bytes / 100_000 / size)
    assert rdna_report.predict(target, replace(board, name="another"), GOOD, matrix, weights, size) is None
    assert rdna_report.predict(target, replace(board, bandwidth_gb_s=None), GOOD, matrix, weights, size) is None


def test_the_report_is_marked_as_predicted(tmp_path: Path) -> None:
    counts = {rdna_report.DECODE: GOOD, rdna_report.PREFILL: rdna.Counts(vector=1024, matrix=32)}
    (tmp_path / "code").mkdir()
    (tmp_path / "code/a.isa.json").write_text(rdna.dump(counts))
    text = rdna_report.report(targets.load("gfx1201"), rdna_report.counts_of(tmp_path))
    assert "| `gemv_q4_k_int8_kernel` | 0 | 50 % |" in text
    assert "**Predicted, not measured**" in text and "| Radeon AI PRO R9700 | 3" in text
    with pytest.raises(SystemExit, match="has no counts: build the pack there"):
        rdna_report.counts_of(tmp_path / "code")
