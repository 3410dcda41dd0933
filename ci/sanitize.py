"""Runs fuzz drivers and tests with the address and undefined-behaviour sanitizers. Builds the cpu-asan and sim-asan
presets, runs every fuzz driver for a fixed number of inputs, then a share of the native host tests and, on the
simulator, of the GPU kernel tests.

sanitize.py [--inputs N]   N: inputs of each fuzz driver
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from project import BUILD, PYTEST, ROOT, run, tools_environment

FOLDER = BUILD / "cpu-asan"
SIM_PACK = BUILD / "sim-asan" / "pack" / "lucebox_sim"
FUZZ_INPUTS = 20_000  # minutes; a million inputs in all take 15 minutes
# Tests of Python code: sanitizers find nothing there and make it several times slower.
PYTHON_ONLY = (
    "bench",
    "catalog",
    "chat*",
    "cli",
    "clients",
    "detokenize",
    "doctor",
    "energy",
    "fuzz_text",
    "hub",
    "machine",
    "packaging",
    "power",
    "prefix_files",
    "prefix_plan",
    "probe",
    "quoting",
    "selftest",  # separate tests cover its kernels and their CPU twins
    "stop",
    "tokenizer",
)
SHARE = ("--share", "6")  # a test's first case and a sixth of its other cases, which differ in sizes and types
# Reports, the server, many tokens, a real model. These take minutes, and other tests cover a few of the same calls.
NOT_SANITIZED = ("test_bench", "test_megakernel_decode", "test_serve", "test_smollm2")
DESELECTED = (
    "host/test_memory.py::test_resident_set",  # the sanitizer's shadow memory is resident too
    # Long; other tests here run the same code.
    "host/test_prefix_cache.py::test_a_hundred_turns_have_the_bits_of_cold_runs",
    "host/test_speculation.py::test_ten_thousand_tokens",
    # A real model on the simulator.
    "gpu/test_split.py::test_llm",
    "gpu/test_split_drafts.py::test_llm",
)


def build() -> None:
    run("cmake", "--preset", "cpu-asan", "-DLUCEBOX_PYTHON=ON", f"-DPython_EXECUTABLE={sys.executable}")
    run("cmake", "--build", "--preset", "cpu-asan")
    run("cmake", "--preset", "sim-asan", f"-DPython_EXECUTABLE={sys.executable}")
    run("cmake", "--build", "--preset", "sim-asan")


def fuzz(n_inputs: int) -> None:
    drivers = [file for file in sorted((FOLDER / "tests/fuzz").glob("fuzz_*")) if file.is_file()]
    if not drivers:
        sys.exit("the cpu-asan preset built no fuzz driver (tests/fuzz)")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda driver: run(driver, str(n_inputs)), drivers))


def tests() -> None:
    """Runs the tests on the package as installed, in a separate folder that PYTHONPATH puts before .venv's package."""
    site = FOLDER / "site"
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(ROOT / "python", site, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    run("cmake", "--install", FOLDER, "--component", "host", "--prefix", site)
    libraries = [
        subprocess.run(["g++", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")  # libstdc++ too: asan must find __cxa_throw before Python loads it
    ]
    env = tools_environment(
        PYTHONPATH=str(site),
        LD_PRELOAD=" ".join(libraries),
        PYTHONMALLOC="malloc",
        ASAN_OPTIONS="detect_leaks=0",  # CPython frees little at exit
        UBSAN_OPTIONS="print_stacktrace=1",
    )
    skipped = [f"--ignore-glob=tests/host/test_{name}.py" for name in PYTHON_ONLY]
    # --capture=sys: a sanitizer's report goes to file descriptor 2 just before the process ends.
    pytest = (sys.executable, *PYTEST, "-q", "--capture=sys", *(f"--deselect=tests/{test}" for test in DESELECTED))
    run(*pytest, *skipped, *SHARE, "tests/host", env=env)
    other = [f"--ignore=tests/gpu/{name}.py" for name in NOT_SANITIZED]
    env["PYTHONMALLOC"] = "pymalloc"  # kernels access only arrays, which numpy allocates
    run(*pytest, *other, *SHARE, "tests/gpu", "--pack", SIM_PACK, "-k", SIM_PACK.name, env=env)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run fuzz drivers and tests with sanitizers.")
    parser.add_argument("--inputs", type=int, default=FUZZ_INPUTS, help="inputs of each fuzz driver")
    arguments = parser.parse_args()
    build()
    fuzz(arguments.inputs)
    tests()
