"""The gate of matrix instructions: which ones the loops of a kernel have, read from its machine code."""

from __future__ import annotations

import re
import struct
from collections import Counter
from pathlib import Path

import pytest
from lucebox.packs import nvrtc
from pack import gate, sass
from project import ROOT
from test_nvrtc import LIBRARY, needs_nvrtc
from whole_packs import kernels_of

# Instructions as ptxas 13.0 encodes them: (low, high) words of 8 bytes.
QMMA = 0x0000000E0408727A, 0x000FE20000002C08
OMMA = 0x7090080E0410747F, 0x004FDE0000043EFF
HMMA = 0x0000000E0404723C, 0x000FDE00000018FF
LDL = 0x0000000001027983, 0x000EA20000100800
NOP = 0x0000000000007918, 0x000FC00000000000


def branch(distance: int, architecture: int) -> tuple[int, int]:
    """BRA with a distance in bytes from the next instruction."""
    if architecture < 90:
        bits = distance & (1 << 50) - 1
        return 0x7947 | (bits & 0xFFFFFFFF) << 32, 0x000FEA0003800000 | bits >> 32
    bits = distance >> 10 & (1 << 48) - 1
    far = bits << 2
    return 0x7947 | (distance >> 2 & 0xFF) << 16 | (far & 0xFFFFFFFF) << 32, 0x000FEA0003800000 | far >> 32


@pytest.mark.parametrize(
    ("low", "high", "architecture", "distance"),
    [
        (0x000000600000B947, 0x000FEA0003800000, 89, 0x60),
        (0xFFFFF41000008947, 0x000FEA000083FFFF, 89, -0xBF0),
        (0x0000000000187947, 0x000FEC0003800000, 120, 0x60),
        (0x0000000D009C7547, 0x000FEA000B800000, 120, 0xE70),
        (0xFFFFFFF40014B947, 0x000FEA000203FFFF, 120, -0xBB0),
    ],
)
def test_distances_are_those_of_the_disassembler(low: int, high: int, architecture: int, distance: int) -> None:
    assert sass.distance(low, high, architecture) == distance


@pytest.mark.parametrize("architecture", [70, 75, 89, 90, 121])
def test_only_instructions_in_loops_count(architecture: int) -> None:
    code = [HMMA, QMMA, OMMA, NOP, branch(-16 * 4, architecture), LDL, HMMA, branch(16, architecture), NOP]
    data = b"".join(struct.pack("<QQ", *instruction) for instruction in code)
    assert sass.in_loops(data, architecture) == {"QMMA": 1, "OMMA": 1}
    spilling = b"".join(struct.pack("<QQ", *one) for one in [NOP] * 300 + [LDL, branch(-16 * 300, architecture)])
    assert sass.in_loops(spilling, architecture) == {"LDL": 1}


@pytest.mark.parametrize(("architecture", "wanted"), [(70, "IDP"), (75, "IMMA")])
def test_bytes_are_multiplied_by_dp4a_on_sm_70(architecture: int, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    image = struct.pack("<48xI12x", architecture)
    for found in ("IDP", "IMMA"):
        counts = {"gemm_q8_0_int8_8_kernel": Counter({found: 3})}
        monkeypatch.setattr(sass, "loops", lambda image, file, counts=counts: counts)
        assert bool(list(gate.matrix_problems(image, "k.cubin"))) == (found != wanted)


def test_every_pattern_names_kernels() -> None:
    names = {kernel["name"] for name in ("sm_89", "sm_120") for kernel in kernels_of(name)}
    unused = [pattern for pattern in gate.MATRIX if not any(re.fullmatch(pattern, name) for name in names)]
    assert unused == []


# A loop with one product. 90a has no instruction for fp8 by mma.sync; ptxas assembles two of f16.
KERNEL = """
extern "C" __global__ void {name}(const unsigned* in, float* out, int n) {{
  float c[4] = {{}};
  unsigned v[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) v[i] = in[i * 32 + threadIdx.x];
#pragma unroll 1
  for (int k = 0; k < n; ++k) {{
    {body}
    v[{index}] += 1;
  }}
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = c[i];
}}
"""
PRODUCT = """asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
    "{%8, %9}, {%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
    : "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"(v[4]), "r"(v[5]));"""


def problems(
    folder: Path, architecture: str, body: str, name: str = "gemm_sm89_f8_e4m3_kernel", index: str = "0"
) -> list[str]:
    source = folder / "k.cpp"
    source.write_text(KERNEL.format(name=name, body=body, index=index))
    image = nvrtc.compile_source(LIBRARY, ROOT, source, [f"-arch={architecture}", "-std=c++20"]).image
    return list(gate.matrix_problems(image, "k.cubin"))


@needs_nvrtc
def test_kernels_that_are_spoiled_are_refused(tmp_path: Path) -> None:
    expected = "k.cubin: gemm_sm89_f8_e4m3_kernel: expected QMMA as the matrix instruction of its loops, got "
    assert problems(tmp_path, "sm_89", PRODUCT) == []
    assert problems(tmp_path, "sm_90a", PRODUCT) == [expected + "2 HMMA"]
    assert problems(tmp_path, "sm_89", "c[0] += float(v[1]);") == [expected + "no matrix instruction"]
    (line,) = problems(tmp_path, "sm_89", PRODUCT, index="in[k] % 64")  # an array with such an index is in local memory
    assert "accesses to local memory in its loops, expected none" in line
    assert problems(tmp_path, "sm_90a", PRODUCT, name="other_kernel") == []
    assert problems(tmp_path, "sm_89", PRODUCT, name="gemm_q8_0_int8_8_kernel")[0].endswith("got 1 QMMA")
