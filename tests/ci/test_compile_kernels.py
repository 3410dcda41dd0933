"""Kernels with other compiled-in constants, and the wheel lucebox-kernels that has their sources."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from pathlib import Path

import compile_kernels
import lucebox
import pytest
import wheel_data
from compile_kernels import EXIT_RULES, CompileError, Job, kernel_abi
from lucebox import packs
from lucebox.errors import PackError
from lucebox.tune import Kernels
from lucebox.tune.kernels import BLOCK_THREADS, CANDIDATES, COMPILED, STEMS
from lucebox.tune.measure import ALTERNATIVES
from pack_data import on_path
from project import ROOT

import targets

DEFINES = "LUCEBOX_GEMV_BLOCKS=3"
AMD_FLAGS = [
    "-x",
    "hip",
    "--cuda-device-only",
    "--no-gpu-bundle-output",
    "--offload-arch=gfx1151",
    "-mcode-object-version=5",
    "-fuse-cuid=none",
    "-nogpuinc",
    "-nogpulib",
    "-nostdinc",
    "-O3",
    "-std=c++20",
    "-fno-optimize-sibling-calls",
]


def job(target: str, stem: str, out: Path, flags: list[str]) -> Job:
    varied = targets.vary(targets.load(target), "tuned", {}, {}, ())
    return Job(varied, (ROOT / f"src/gpu/gemv/{stem}.cpp",), tuple(flags), out)


def script(python: Path | str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [python, ROOT / "ci/compile_kernels.py", *words]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_file_is_compiled_with_the_constant(tmp_path: Path) -> None:
    made = compile_kernels.compile_kernels(job("gfx1151", "gemv_plain", tmp_path, AMD_FLAGS), [DEFINES])
    assert made["compiler"]["flags"] == [*AMD_FLAGS, f"-D{DEFINES}"]
    (file,) = made["files"]
    assert file["file"] == "gemv_plain.hsaco" and file["bytes"] == (tmp_path / "gemv_plain.hsaco").stat().st_size
    kernels = {kernel["name"]: kernel for kernel in made["kernels"]}
    assert kernels["gemv_bf16_kernel"]["max_threads"] == 256 and kernels["gemv_bf16_kernel"]["registers"] > 0


def test_a_file_that_does_not_compile(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="failed"):
        compile_kernels.compile_kernels(
            job("gfx1151", "gemv_plain", tmp_path, [*AMD_FLAGS, "-include", "no.h"]), [DEFINES]
        )


def test_a_target_without_nvrtc(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="sm_110 has no code by NVRTC"):
        compile_kernels.compile_kernels(job("sm_110", "gemv_plain", tmp_path, []), [DEFINES])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a bare Python 3.10 has no TOML reader")
def test_an_environment_without_nvrtc(tmp_path: Path) -> None:
    venv.EnvBuilder(with_pip=False).create(tmp_path / "bare")
    words = ["--abi", kernel_abi(), "--defines", DEFINES, "--flags=-arch=sm_86", "--out", str(tmp_path / "out")]
    done = script(tmp_path / "bare/bin/python", "sm_86", "gemv_plain", *words)
    assert done.returncode == 1 != EXIT_RULES
    assert "has no NVRTC. Install it there: pip install nvidia-cuda-nvrtc-cu12==12.9.*" in done.stderr


@pytest.mark.parametrize(
    "words, message",
    [
        (("sm_86", "gemv_plain", "--abi", "0123"), "these kernel sources are not those of the engine (hashes"),
        (("sm_1", "gemv_plain"), "targets/sm_1/target.toml: no such file"),
        (
            ("sm_86", "gemv_plain", "--defines", "SPEED=9"),
            "defines.SPEED: no such constant; they are LUCEBOX_GEMV_BLOCKS",
        ),
        (("sm_86", "gemv_plain", "--defines", "LUCEBOX_GEMV_BLOCKS=9"), "LUCEBOX_GEMV_BLOCKS: expected 1 to 4, got 9"),
        (("sm_86", "gemm"), "sm_86 has no kernel file gemm"),
    ],
)
def test_what_cannot_be_compiled(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    given = {"--abi": kernel_abi(), "--defines": DEFINES, "--flags": "", "--out": str(tmp_path / "out")}
    more = [f"{option}={value}" for option, value in given.items() if option not in words]
    done = script(sys.executable, *words, *more)
    assert done.returncode == 1 and message in done.stderr


# The wheel


def installed(site: Path, version: str) -> None:
    info = site / f"lucebox_kernels-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: lucebox-kernels\nVersion: {version}\n")


def test_the_wheel_must_be_there_in_the_version_of_lucebox(tmp_path: Path) -> None:
    wanted = f"install lucebox-kernels {lucebox.__version__} from where lucebox came from"
    with on_path(tmp_path), pytest.raises(PackError, match=f"--compile needs the kernel sources; {wanted}"):
        Kernels.find()
    installed(tmp_path, "0.0.9")
    with on_path(tmp_path), pytest.raises(PackError, match=r"lucebox-kernels is 0\.0\.9, lucebox is .* must be equal"):
        Kernels.find()


def test_a_wheel_without_its_files(tmp_path: Path) -> None:
    installed(tmp_path, lucebox.__version__)
    with (
        on_path(tmp_path),
        pytest.raises(PackError, match="its files are not; install lucebox-kernels"),
    ):
        Kernels.find()


def test_sources_of_another_engine_are_refused(tmp_path: Path) -> None:
    wheel = wheel_data.write(tmp_path, wheel_data.pack_members("gfx1151"))
    subprocess.run([sys.executable, "-m", "zipfile", "-e", wheel, tmp_path / "site"], check=True)
    with on_path(tmp_path / "site"):
        (pack,) = packs.find().usable
        assert json.loads(pack.manifest_json)["abi"] != kernel_abi()
        with pytest.raises(PackError, match="these kernel sources are not those of the engine"):
            Kernels(ROOT).compile(pack, {"LUCEBOX_GEMV_BLOCKS": 3}, tmp_path / "out")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-qq",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        out,
        ROOT / "kernels",
    ]
    subprocess.run(pip, check=True)
    (wheel,) = out.glob("*.whl")
    return wheel


def test_the_wheel_has_what_compiles_kernels(wheel: Path, tmp_path: Path) -> None:
    """Every file that a kernel of any vendor includes, found as the compiler finds it."""
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "zipfile", "-e", wheel, site], check=True)
    with on_path(site):
        source = Kernels.find().source
    assert kernel_abi(source) == kernel_abi()
    assert targets.names(source) == [target.name for target in targets.load_all() if not target.variant]
    assert [file.name for file in targets.kernel_files(source)] == [file.name for file in targets.kernel_files()]
    dialects = {"nvidia": ("src/cuda",), "amd": ("src/hip",), "sim": ("src/sim",)}
    for target in ("sm_90", "gfx1151", "sim"):
        loaded = targets.load(target)
        roots = [source / folder for folder in (*dialects[loaded.vendor], "src/cpp", "src")]
        seen: set[Path] = set()
        for kernel in loaded.sources(source):
            missing = [name for name in includes(source / kernel, roots, seen) if name]
            assert missing == [], (target, kernel)


def includes(file: Path, roots: list[Path], seen: set[Path]) -> list[str]:
    """Names of the project's own headers that are not there."""
    from lucebox.packs.nvrtc import INCLUDE

    missing = []
    for line in file.read_text().splitlines():
        found = INCLUDE.match(line)
        if not found or "<" in line:
            continue
        header = next((place / found[1] for place in (file.parent, *roots) if (place / found[1]).is_file()), None)
        if header is None:
            missing.append(f"{file.name}: {found[1]}")
        elif header not in seen:
            seen.add(header)
            missing += includes(header, roots, seen)
    return missing


def test_files_with_an_alternative_are_kernel_files() -> None:
    """`lucebox tune` tries a pack without them; a file that was renamed would never be tried again."""
    stems = {file.stem for file in targets.kernel_files()}
    assert {stem for stem, _ in ALTERNATIVES} <= stems
    assert {*STEMS} <= stems and COMPILED.keys() == targets.DEFINES.keys()
    for name, values in CANDIDATES.items():
        lowest, highest = targets.DEFINES[name]
        assert all(lowest <= value <= highest and value != COMPILED[name] for value in values)
    default = re.search(r"#define LUCEBOX_GEMV_BLOCKS (\d+)", (ROOT / "src/gpu/gemv/gemv.h").read_text())
    assert default and {"LUCEBOX_GEMV_BLOCKS": int(default[1])} == COMPILED
    threads = re.search(r"kGemvThreads = (\d+)", (ROOT / "src/gpu/gemv/shape.h").read_text())
    assert threads and int(threads[1]) == BLOCK_THREADS
