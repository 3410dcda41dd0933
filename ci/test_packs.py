"""Builds kernel packs, verifies them and this interpreter's host wheel, then makes an index of them all and installs
from it. Implements the stages "packs" and "all-packs" of test.py, and `make packs`. The stage "packs" compiles a part
of two packs, only checks the rest of their sources, and needs no host wheel.

    test_packs.py                  every target
    test_packs.py sim gfx1151      only these targets
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import build_packs
from project import BUILD, ROOT, build_wheel, run, tools_environment

import targets

# One target per vendor. NVRTC compiles for NVIDIA: it has fewer headers than nvcc, so it is the compiler that rejects
# sources.
PARTS = ("sm_90", "gfx1151")
# Kernel files that use no word of a dialect that the others lack. The stage "packs" runs only the compilers' front ends
# on them; all-packs compiles every file.
DEAR = {
    *("attention_decode", "attention_decode_batched", "attention_decode_rows"),
    *("attention_decode_packed", "attention_decode_packed_batched", "attention_wide", "attention_wide_rows"),
    *("attention_wide_tail", "attention_wide_tail_rows"),
    *("attention_decode_8_packed", "attention_decode_8_packed_batched", "attention_decode_8_packed_rows"),
    *("attention_prefill_16", "attention_prefill_32", "attention_prefill_16_packed", "attention_prefill_32_packed"),
    *("attention_prefill_sm90", "attention_prepare", "attention_sparse_16", "attention_sparse_32"),
    *("attention_fp32_rows", "attention_merge_rows", "key_scores", "kv_cache", "select_blocks"),
    *("expert_gate_up_plain", "expert_gate_up_quantised", "expert_gemm_gate_up_quantised"),
    *("expert_gemm_down_quantised", "expert_gemm_plain", "expert_gemm_q8_0_64"),
    *("cast_results_sm90", "gemm_k_small", "gemm_plain", "gemm_q4_0", "gemm_q6_k", "gemm_q8_0", "gemm_q8_0_64"),
    *("gemm_sm90", "gemm_wide", "gemm_skinny_32", "gemm_skinny_256", "gemm_skinny_pairs"),
    *("gemv_32", "gemv_256", "gemv_plain"),
    *("gated_delta", "gated_delta_chain", "gated_delta_chunks", "gated_delta_rows"),
    *("megakernel_32", "megakernel_256", "megakernel_plain"),
    *("megakernel_32_direct", "megakernel_256_direct", "megakernel_plain_direct"),
    *("causal_conv", "delta_inputs", "delta_inputs_chain", "delta_inputs_small", "delta_prepare"),
    *("block_conv", "previous_row", "sample", "select_candidates", "walk_tree"),
    *("add_bias", "add_norm", "bias_gelu", "clamp", "copy_rows", "embed", "geglu", "heads", "layer_norm", "patches"),
    *("rope", "rope_table", "round_rows", "soft_cap", "swiglu"),
    *("cast_rows_fp8", "cast_rows_sm90", "expand_weights", "gemm_sum", "gemv_whole_sm90", "route_experts"),
}
# On AMD, it alone has single rows of byte products.
DEAR_ON = {"sm_90": {"expert_down_quantised"}}
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


def build_part(name: str, python: Path) -> None:
    """Builds a variant of a pack without the dear files, and checks these."""
    folder = BUILD / f"part-{name}"
    dear_stems = DEAR | DEAR_ON.get(name, set())
    dear = [ROOT / source for source in targets.load(name).sources() if Path(source).stem in dear_stems]
    definitions = {
        "LUCEBOX_TARGET": name,
        "LUCEBOX_VARIANT": "part",
        "LUCEBOX_WITHOUT": ";".join(source.stem for source in dear),
        "LUCEBOX_NVCC": "OFF",
        "Python_EXECUTABLE": str(python),
    }
    options = [f"-D{key}={value}" for key, value in definitions.items()]
    options += [setting.replace("cmake.define.", "-D") for setting in build_packs.nvrtc(name)]
    environment = tools_environment(python)
    run("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "--log-level=WARNING", *options, env=environment)
    run("cmake", "--build", folder, "--", "--quiet", env=environment)
    (manifest,) = folder.glob("pack/*/manifest.json")
    (generation,) = json.loads(manifest.read_text())["generations"]
    check(name, python, generation["compiler"]["flags"], dear)


def check(name: str, python: Path, flags: list[str], sources: list[Path]) -> None:
    """Runs the front end on these files: it instantiates their templates and reports every error of the language."""
    if targets.load(name).vendor == "nvidia":
        library = dict(setting.split("=") for setting in build_packs.nvrtc(name))["cmake.define.LUCEBOX_NVRTC"]
        script = ROOT / "python/lucebox/packs/nvrtc.py"
        command = [python, "-I", script, "--library", library, "--root", ROOT, "--check"]
        more = ["--", *flags]
    else:
        command = [python, "-m", "ziglang", "clang", *flags, "-fsyntax-only"]
        command += [f"-I{ROOT / folder}" for folder in ("src/hip", "src/cpp", "src")]
        more = []

    def problem(source: Path) -> str:
        words = [str(word) for word in (*command, source, *more)]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return f"{' '.join(words)}\n{done.stdout}" if done.returncode else ""

    print(f"+ {len(sources)} other files of {name}, front end only", flush=True)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        if problems := list(filter(None, pool.map(problem, sources))):
            sys.exit("\n".join(problems))


def everyday() -> None:
    python = build_packs.toolchain(list(PARTS))
    for name in PARTS:
        build_part(name, python)


def test(chosen: tuple[str, ...]) -> None:
    wheels = build_and_verify(*chosen)
    run(PYTHON, CI / "make_index.py", INDEX, *wheels)
    run(PYTHON, CI / "install_test.py", INDEX)


if __name__ == "__main__":
    test(tuple(sys.argv[1:]) or EVERY)
