"""Builds kernel packs, verifies them and this interpreter's host wheel, then makes an index of them all and installs
from it. Implements the stages "packs" and "all-packs" of test.py, and `make packs`. The stage "packs" builds one
pack, and compiles a part of another one with NVRTC.

    test_packs.py                  every target
    test_packs.py sim gfx1151      only these targets
"""

from __future__ import annotations

import sys
from pathlib import Path

import build_packs
from project import BUILD, ROOT, build_wheel, run, tools_environment

import targets

ONE = "gfx1151"
PART_OF = "sm_90"
# Kernel files that instantiate a template of another file with other types or sizes, and take 2/5 of the time.
SAME_TEMPLATES = (
    *("attention_decode", "attention_decode_8_packed"),  # others: _batched, _packed, _8_packed_batched
    *("attention_prefill_16", "attention_prefill_16_packed", "attention_sparse_16", "attention_sparse_32"),  # _32, _256
    "expert_gemm_q8_0_64",  # expert_gemm_down_quantised, expert_gemm_gate_up_quantised
    *("gemm_q4_0", "gemm_q6_k", "gemm_q8_0", "gemm_q8_0_64"),  # gemm_q4_k
    *("gemm_skinny_256", "gemm_skinny_32"),  # gemm_skinny_pairs
    "gemv_32",  # gemv_256
    *("megakernel_32", "megakernel_plain"),  # megakernel_256
)
EVERY = tuple(targets.names())
INDEX = BUILD / "index"
PYTHON, CI = Path(sys.executable), ROOT / "ci"


def build_and_verify(*chosen: str) -> list[Path]:
    """Returns the wheels of the host and of each target's pack."""
    run(PYTHON, CI / "build_packs.py", *chosen)
    slugs = [targets.load(name).slug for name in chosen]
    wheels = [build_wheel(), *(next((BUILD / "packs").glob(f"lucebox_{slug}-*.whl")) for slug in slugs)]
    run(PYTHON, CI / "verify_wheel.py", *wheels)
    return wheels


def build_part() -> None:
    """Builds a variant of a pack that has every kernel template once, with NVRTC. NVRTC has fewer headers than nvcc, so
    it is the compiler that rejects sources. all-packs compiles every file, with nvcc too."""
    python = build_packs.toolchain([ONE, PART_OF])
    folder = BUILD / "part"
    definitions = {
        "LUCEBOX_TARGET": PART_OF,
        "LUCEBOX_VARIANT": "part",
        "LUCEBOX_WITHOUT": ";".join(SAME_TEMPLATES),
        "LUCEBOX_NVCC": "OFF",
        "Python_EXECUTABLE": str(python),
    }
    options = [f"-D{name}={value}" for name, value in definitions.items()]
    options += [setting.replace("cmake.define.", "-D") for setting in build_packs.nvrtc(PART_OF)]
    environment = tools_environment(python)
    run("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "--log-level=WARNING", *options, env=environment)
    run("cmake", "--build", folder, "--", "--quiet", env=environment)


def everyday() -> None:
    build_part()
    build_and_verify(ONE)


def test(chosen: tuple[str, ...]) -> None:
    wheels = build_and_verify(*chosen)
    run(PYTHON, CI / "make_index.py", INDEX, *wheels)
    run(PYTHON, CI / "install_test.py", INDEX)


if __name__ == "__main__":
    test(tuple(sys.argv[1:]) or EVERY)
