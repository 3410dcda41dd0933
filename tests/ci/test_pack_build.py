"""Packs of small kernels, built from end to end where the compilers are, and what the build refuses."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import build_packs
import pytest
import sbom
import test_packs
import verify_wheel
from lucebox.packs import open_folder
from pack import cubin, gate, hsaco
from pack.kernel import CodeError, Kernel
from project import BUILD, ROOT

import targets

# Kernels for either vendor's compiler, without the dialect: here only their resources matter.
HEAD = """
#ifdef __CUDACC__
#define BOUND(n) __launch_bounds__(n)
#define MANY 100  // values: more than the 64 registers that each of 1024 threads has
__device__ inline int thread() { return threadIdx.x; }
#else
#define MANY 220  // more than 192 registers
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define BOUND(n) __attribute__((amdgpu_flat_work_group_size(n, n)))
__device__ inline int thread() { return __builtin_amdgcn_workitem_id_x(); }
#endif
"""
GOOD = """
__device__ static const int kTable[4] = {3, 1, 4, 1};
extern "C" __global__ void BOUND(256) good_kernel(float* x, int n) {
  __shared__ float s[256];
  s[thread()] = x[thread()];
  for (int i = 0; i < n; i++) x[i] += s[(thread() * 5 + i) % 256] * kTable[i % 4];
}
"""
SPILLS = """
extern "C" __global__ void BOUND(1024) spilling_kernel(float* x, int n) {
  float v[MANY];
#pragma unroll
  for (int i = 0; i < MANY; i++) v[i] = x[i * 1024 + thread()];
  for (int k = 0; k < n; k++) {
#pragma unroll
    for (int i = 0; i < MANY; i++) v[i] = v[i] * v[(i * 7 + 3) % MANY] + x[k];
  }
#pragma unroll
  for (int i = 0; i < MANY; i++) x[i * 1024 + thread()] = v[i];
}
"""
STACK = """
extern "C" __global__ void BOUND(32) stack_kernel(float* x, int n) {
  float v[100];
  for (int i = 0; i < 100; i++) v[i] = x[i];
  for (int i = 0; i < n; i++) x[i] += v[int(x[i]) % 100];
}
"""
# More registers than a function may use without saving some of them for callers of whom it knows nothing.
CALLS = """
__device__ __attribute__((noinline)) void called(float* x, int n) {
  float v[80];
#pragma unroll
  for (int i = 0; i < 80; i++) v[i] = x[i * 256 + thread()];
  for (int k = 0; k < n; k++) {
#pragma unroll
    for (int i = 0; i < 80; i++) v[i] = v[i] * v[i] + x[k];
  }
#pragma unroll
  for (int i = 0; i < 80; i++) x[i * 256 + thread()] = v[i];
}
extern "C" __global__ void BOUND(256) calling_kernel(float* x, float* y, int n) {
  called(x, n);
  called(y, n);
}
"""
NEEDED_BY = {"sm_86": "nvidia", "gfx1151": "ziglang"}
BOTH = pytest.mark.parametrize("name", NEEDED_BY)
# Every day by the vendor with one compiler: the steps of the build are the same.
MOSTLY_AMD = pytest.mark.parametrize("name", [pytest.param("sm_86", marks=pytest.mark.slow), "gfx1151"])


def interpreter(name: str) -> Path:
    """A Python that has the compilers of this target: the tests' own, or that of ci/build_packs.py."""
    if importlib.util.find_spec(NEEDED_BY[name]):
        return Path(sys.executable)
    if list(BUILD.glob(f"toolchain/lib/python*/site-packages/{NEEDED_BY[name]}")):
        return BUILD / "toolchain/bin/python"
    pytest.skip(f"no {NEEDED_BY[name]} compiler in this environment: run ci/build_packs.py {name} once")


def nvrtc(name: str) -> list[str]:
    """The definitions of the NVRTC of this target and its ptxas, in the toolchain of ci/build_packs.py."""
    target = targets.load(name)
    if target.nvrtc is None:
        return []
    library = BUILD / f"toolchain/nvrtc-{target.nvrtc.version}/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
    if not library.exists():
        pytest.skip(f"no NVRTC {target.nvrtc.version}: run ci/build_packs.py {name} once")
    return [setting.removeprefix("cmake.define.") for setting in build_packs.nvrtc(name)]


def drop_exceptions(folder: Path, name: str) -> None:
    """Those of kernels that the tree does not have. They end the file."""
    target = folder / f"targets/{name}/target.toml"
    target.write_text(target.read_text().partition("\n[[exceptions]]")[0])


def tree(folder: Path, name: str, source: str) -> Path:
    """A project with one kernel file and one target."""
    for part in ("ci", "cmake", "src/cuda/nvrtc"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    own = (f"targets/{name}/{file}" for file in ("target.toml", "pyproject.toml", "LICENSE"))
    for file in ("CMakeLists.txt", "LICENSE", "pyproject.toml", "python/lucebox/packs/nvrtc.py", *own):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, folder / file)
    drop_exceptions(folder, name)
    (folder / "src/gpu/probe").mkdir(parents=True)
    (folder / "src/cpp/ops").mkdir(parents=True)
    (folder / "src/cpp/ops/probe.h").write_text("struct Probe {};\n")
    (folder / "src/gpu/probe/probe.cpp").write_text(HEAD + source)
    return folder


def cmake(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = ["cmake", *map(str, arguments)]
    env = {**os.environ, "PATH": path, **environment}
    return subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def command(words: list[str | Path], folder: Path, python: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command with the tools of that interpreter first on the path."""
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "VIRTUAL_ENV": str(python.parent.parent)}
    words = [str(word) for word in words]
    return subprocess.run(
        words, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def configure(folder: Path, name: str, python: Path, *more: str, **environment: str) -> str:
    where = ("-S", folder, "-B", folder / "build", "-G", "Ninja", "-DLUCEBOX_OBJECTS=")
    return cmake(*where, f"-DLUCEBOX_TARGET={name}", f"-DPython_EXECUTABLE={python}", *more, **environment).stdout


def build(folder: Path, name: str, *more: str) -> tuple[str, Path]:
    """What the build said, and the folder of the pack."""
    own = [f"-D{definition}" for definition in nvrtc(name)]
    said = configure(folder, name, interpreter(name), *own, *more) + cmake("--build", folder / "build").stdout
    return said, folder / f"build/pack/lucebox_{name.replace('_', '')}"


Good = Callable[[str], Path]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Good:
    """The folder of a target's pack of the kernel GOOD, built once."""

    @functools.cache
    def built(name: str) -> Path:
        said, pack = build(tree(tmp_path_factory.mktemp(name), name, GOOD), name)
        assert pack.is_dir(), said
        return pack

    return built


def manifest(pack: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((pack / "manifest.json").read_text())
    return content


@BOTH
def test_the_manifest_tells_the_truth(good: Good, name: str) -> None:
    pack = good(name)
    content = manifest(pack)
    target = targets.load(name)
    assert (content["target"], content["architecture"]) == (name, target.architecture)
    assert content["capabilities"]["shared_block_bytes"] == target.capabilities.shared_block_bytes
    assert content["commit"] == ""
    assert str(pack.parents[2]) not in (pack / "manifest.json").read_text()
    bill = json.loads((pack.parents[1] / f"sboms/{target.project}.cdx.json").read_text())
    assert bill == sbom.of_pack(content)

    compilers = {"sm_86": ["nvcc", "nvrtc"], "gfx1151": ["zig clang"]}[name]
    assert [code["compiler"]["name"] for code in content["generations"]] == compilers
    drivers = {"sm_86": ["580", "525"], "gfx1151": ["6.0"]}[name]
    assert [code["min_driver"] for code in content["generations"]] == drivers
    assert {file.name for file in pack.iterdir()} == {"__init__.py", "manifest.json", "code.xz"}
    open_folder(pack).check()
    images = open_folder(pack).images()
    for code in content["generations"]:
        assert code["compiler"]["version"][0].isdigit()
        (file,) = code["files"]
        image = images[file["file"]]
        assert (file["bytes"], file["sha256"]) == (len(image), hashlib.sha256(image).hexdigest())
        (kernel,) = code["kernels"]
        assert kernel.pop("registers") in range(4, 256)
        assert kernel == {
            "name": "good_kernel",
            "file": file["file"],
            "max_threads": 256,
            "shared_bytes": 1024,
            "max_dynamic_shared_bytes": target.capabilities.shared_block_bytes - 1024,
            "spill_bytes": 0,
            "stack_bytes": 0,
        }


@pytest.mark.slow  # 3 s each: two builds
@MOSTLY_AMD
def test_the_timeline_is_an_option_that_the_manifest_tells(name: str, tmp_path: Path) -> None:
    stamped = (
        GOOD + "#ifdef LUCEBOX_TIMELINE\n" + GOOD.replace("good", "stamped").replace("kTable", "kOther") + "#endif\n"
    )
    folder = tree(tmp_path, name, stamped)
    for more, kernels in ((), ["good_kernel"]), (["-DLUCEBOX_TIMELINE=ON"], ["good_kernel", "stamped_kernel"]):
        said, pack = build(folder, name, *more)
        assert pack.is_dir(), said
        for code in manifest(pack)["generations"]:
            assert sorted(kernel["name"] for kernel in code["kernels"]) == kernels
            assert ("-DLUCEBOX_TIMELINE" in code["compiler"]["flags"]) == bool(more)


@pytest.mark.slow  # 3 s: three builds
def test_the_abi_is_of_the_headers_that_engines_share(tmp_path: Path) -> None:
    name, found = "gfx1151", []
    folder = tree(tmp_path, name, GOOD)
    for header in ("struct Probe {};\n", "struct Probe { int n; };\n", "struct Probe {};\n"):
        (folder / "src/cpp/ops/probe.h").write_text(header)
        said, pack = build(folder, name)
        assert pack.is_dir(), said
        found.append(manifest(pack)["abi"])
    assert re.fullmatch("[0-9a-f]{16}", found[0])
    assert found[0] == found[2] != found[1]


# nvcc, not clang, names what is in an anonymous namespace by the folder.
@pytest.mark.parametrize("name", ["sm_86", pytest.param("gfx1151", marks=pytest.mark.slow)])
def test_two_folders_give_the_same_bytes(good: Good, name: str, tmp_path: Path) -> None:
    said, again = build(tree(tmp_path / "another-with-a-longer-name", name, GOOD), name)
    assert again.is_dir(), said
    one, other = ({file.name: file.read_bytes() for file in pack.iterdir()} for pack in (good(name), again))
    assert one == other


@pytest.mark.slow  # 3 s: two builds
def test_the_manifest_names_the_commit_that_the_build_is_told(tmp_path: Path) -> None:
    folder = tree(tmp_path, "gfx1151", GOOD)
    for commit in ("0123456789abcdef" * 2, ""):
        said, pack = build(folder, "gfx1151", f"-DLUCEBOX_COMMIT={commit}")
        assert pack.is_dir(), said
        assert manifest(pack)["commit"] == commit


@pytest.mark.slow  # 10 s: two wheels by pip
@BOTH
def test_an_sdist_builds_the_same_wheel(name: str, tmp_path: Path) -> None:
    project = tree(tmp_path / "tree", name, GOOD) / "targets" / name
    python = interpreter(name)
    path = os.pathsep.join([str(python.parent), str(Path(sys.executable).parent), os.environ["PATH"]])

    def run(*words: str | Path, cwd: Path = tmp_path) -> None:
        command = list(map(str, (python, *words)))
        done = subprocess.run(command, cwd=cwd, env={**os.environ, "PATH": path}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    sdists = tmp_path / "sdists"
    run("-c", f"from scikit_build_core.build import build_sdist; build_sdist({str(sdists)!r})", cwd=project)
    (sdist,) = sdists.iterdir()
    found = []
    for folder, source in (("in-place", project), ("of-sdist", sdist)):
        pip = ("-m", "pip", "--no-cache-dir")  # pip keeps wheels by the path of their sdist, which another run reuses
        more = [f"--config-settings=cmake.define.{definition}" for definition in nvrtc(name)]
        more += ["--config-settings=lucebox.nvcc=true"] if name == "sm_86" else []
        run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", *more, "-w", tmp_path / folder, source)
        (wheel,) = (tmp_path / folder).iterdir()
        assert len(build_packs.manifest(wheel)["generations"]) == (2 if name == "sm_86" else 1)
        found.append((wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest()))
    assert found[0] == found[1]
    assert verify_wheel.verify(wheel).problems == []


FRONT_END = {
    "sm_86": ("-arch=sm_86", "-std=c++20", "-default-device"),
    "gfx1151": (
        *("-x", "hip", "--cuda-device-only", "--offload-arch=gfx1151", "-std=c++20"),
        *("-nogpuinc", "-nogpulib", "-nostdinc"),
    ),
}
ERROR = """
template <class T> __device__ int member_of(T) { return T::missing; }
extern "C" __global__ void BOUND(32) wrong_kernel(int* x) { *x = member_of(1); }
"""


@BOTH
def test_the_front_end_alone_finds_errors_in_templates(name: str, tmp_path: Path) -> None:
    python, _ = interpreter(name), nvrtc(name)
    good, wrong = tmp_path / "good.cpp", tmp_path / "wrong.cpp"
    good.write_text(HEAD + GOOD)
    wrong.write_text(HEAD + ERROR)
    test_packs.check(name, python, list(FRONT_END[name]), [good])
    with pytest.raises(SystemExit, match=r"wrong\.cpp"):
        test_packs.check(name, python, list(FRONT_END[name]), [good, wrong])


@pytest.mark.first_case
@pytest.mark.parametrize("name", ["gfx1151", "sm_86"])  # sm_86 takes 2 s more
def test_a_spill_fails_the_build_unless_it_is_named(name: str, tmp_path: Path) -> None:
    folder = tree(tmp_path, name, SPILLS)
    said, pack = build(folder, name)
    assert not pack.exists()
    files = {"sm_86": ["probe.cubin", "probe.nvrtc.cubin"], "gfx1151": ["probe.hsaco"]}[name]
    assert all(f"{file}: spilling_kernel: spills" in said for file in files)
    assert f"[[exceptions]] in targets/{name}/target.toml" in said

    with (folder / f"targets/{name}/target.toml").open("a") as target:
        target.write('\n[[exceptions]]\nkernel = "spilling_kernel"\nwhat = "spill"\nreason = "a test"\n')
    said, pack = build(folder, name)
    assert pack.is_dir(), said
    assert manifest(pack)["exceptions"] == [
        {"kernel": "spilling_kernel", "what": "spill", "reason": "a test", "compiler": ""}
    ]
    assert all(code["kernels"][0]["spill_bytes"] > 0 for code in manifest(pack)["generations"])

    shutil.rmtree(pack)
    (folder / "src/gpu/probe/probe.cpp").write_text(HEAD + GOOD.replace("good", "spilling"))
    said, pack = build(folder, name)
    assert not pack.exists()
    assert "does not spill; remove its exception" in said


@pytest.mark.slow  # 2 s
def test_code_for_a_later_chip(tmp_path: Path) -> None:
    """To try it there: held to no chip's registers, and kept from being installed by its architecture."""
    later = "-DLUCEBOX_RUNS_ON=sm_90"
    said, pack = build(tree(tmp_path / "later", "sm_86", SPILLS), "sm_86", later)
    assert pack.is_dir(), said
    content = manifest(pack)
    assert (content["target"], content["architecture"]) == ("sm_86", "sm_90")
    (code,) = content["generations"]  # NVRTC assembles for no other chip than it compiles for
    assert "arch=compute_86,code=sm_90" in code["compiler"]["flags"]
    (kernel,) = code["kernels"]
    assert kernel["spill_bytes"] > 0

    said = configure(tree(tmp_path / "amd", "gfx1151", GOOD), "gfx1151", interpreter("gfx1151"), later)
    assert "LUCEBOX_RUNS_ON=sm_90: expected nothing, as gfx1151 is not NVIDIA's" in said


@pytest.mark.first_case
@BOTH
def test_a_stack_fails_the_build(name: str, tmp_path: Path) -> None:
    said, pack = build(tree(tmp_path, name, STACK), name)
    assert not pack.exists()
    assert re.search(r"stack_kernel: 4\d\d bytes of stack per thread, expected none", said)  # v is 400 bytes


def test_a_call_takes_registers_and_no_stack(tmp_path: Path) -> None:
    said, pack = build(tree(tmp_path, "gfx1151", CALLS), "gfx1151")
    assert pack.is_dir(), said
    (kernel,) = manifest(pack)["generations"][0]["kernels"]
    assert kernel["registers"] >= 80 and kernel["stack_bytes"] == kernel["spill_bytes"] == 0


@MOSTLY_AMD
def test_a_changed_header_builds_again(name: str, tmp_path: Path) -> None:
    folder = tree(tmp_path, name, '#include "shape.h"\n' + GOOD.replace("s[256]", "s[kCount]"))
    header = folder / "src/gpu/probe/shape.h"
    header.write_text("constexpr int kCount = 256;\n")
    said, pack = build(folder, name)
    assert pack.is_dir(), said
    header.write_text("constexpr int kCount = 512;\n")
    said = cmake("--build", folder / "build").stdout
    assert all(code["kernels"][0]["shared_bytes"] == 2048 for code in manifest(pack)["generations"]), said


@pytest.mark.parametrize(
    ("name", "advice"),
    [("sm_86", "pip install 'nvidia-cuda-nvrtc-cu12==12.9.*'"), ("gfx1151", "pip install 'ziglang==")],
)
def test_no_compiler_in_the_environment(name: str, advice: str, tmp_path: Path) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("a bare Python 3.10 cannot read target.toml")
    venv.create(tmp_path / "bare", with_pip=False)
    said = configure(tree(tmp_path / "tree", name, GOOD), name, tmp_path / "bare/bin/python")
    assert advice in said and "-DLUCEBOX_TOOLCHAIN=system" in said


def test_no_system_compiler(tmp_path: Path) -> None:
    system = "-DLUCEBOX_TOOLCHAIN=system"
    folder = tree(tmp_path, "sm_86", GOOD)
    said = configure(folder, "sm_86", Path(sys.executable), system, CUDACXX="/no/such/nvcc")
    assert "LUCEBOX_TOOLCHAIN=system: no /no/such/nvcc" in said
    assert "expected pypi or system, got 'own'" in configure(
        folder, "sm_86", Path(sys.executable), "-DLUCEBOX_TOOLCHAIN=own"
    )


def test_system_nvcc(tmp_path: Path) -> None:
    if not shutil.which("nvcc"):
        pytest.skip("no nvcc on PATH")
    folder = tree(tmp_path, "sm_86", GOOD)
    said = configure(folder, "sm_86", Path(sys.executable), "-DLUCEBOX_TOOLCHAIN=system")
    said += cmake("--build", folder / "build").stdout
    assert (folder / "build/pack/lucebox_sm86/manifest.json").exists(), said


def test_an_unknown_target_is_named(tmp_path: Path) -> None:
    said = configure(tree(tmp_path, "sm_86", GOOD), "sm_999", Path(sys.executable))
    assert "targets/sm_999/target.toml: no such file; the targets are sm_86" in " ".join(said.split())


def test_a_code_object_cut_short_is_refused(good: Good) -> None:
    image = open_folder(good("gfx1151")).images()["probe.hsaco"]
    for size in range(0, len(image) - 1, 61):
        with pytest.raises(CodeError, match=r"probe\.hsaco"):
            hsaco.kernels(image[:size], "probe.hsaco", 65536)


def test_a_cubin_and_its_log_must_agree(good: Good) -> None:
    pack = good("sm_86")
    image = open_folder(pack).images()["probe.cubin"]
    log = (pack.parents[1] / "code/probe.log").read_text()
    (kernel,) = cubin.kernels(image, log, "probe.cubin", 101376)
    with pytest.raises(CodeError, match=f"good_kernel has {kernel.registers} registers, the log of ptxas says 99"):
        cubin.kernels(image, log.replace(f"Used {kernel.registers} ", "Used 99 "), "probe.cubin", 101376)
    with pytest.raises(CodeError, match="the log of ptxas says 0"):
        cubin.kernels(image, "", "probe.cubin", 101376)
    for size in range(0, len(image) - 1, 61):
        with pytest.raises(CodeError, match=r"probe\.cubin"):
            cubin.kernels(image[:size], log, "probe.cubin", 101376)


PLAIN = Kernel("a_kernel", "a.cubin", 256, 64, 1024, 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("sm_86", {}, None),
        ("sm_86", {"max_threads": 1024}, None),
        ("sm_86", {"max_threads": 1024, "registers": 65}, "65 registers allow 896 threads a block, it declares 1024"),
        ("sm_86", {"max_threads": 256, "registers": 255}, None),
        ("gfx1100", {"max_threads": 1024, "registers": 192}, None),
        ("gfx1100", {"max_threads": 1024, "registers": 193}, "193 registers allow 896 threads"),
        ("gfx1102", {"max_threads": 1024, "registers": 128}, None),
        ("gfx1102", {"max_threads": 1024, "registers": 129}, "129 registers allow 896 threads"),
        ("gfx1200", {"max_threads": 1024, "registers": 192}, None),
        ("sm_86", {"shared_bytes": 101376}, None),
        ("sm_86", {"shared_bytes": 101377}, "101377 bytes of shared memory, sm_86 has 101376"),
        ("sm_86", {"spill_bytes": 4, "stack_bytes": 8}, "spills 4 bytes"),
        ("sm_86", {"stack_bytes": 8}, "8 bytes of stack per thread"),
        ("sim", {"max_threads": 1024, "registers": 0}, None),
    ],
)
def test_gate(name: str, change: dict[str, int], problem: str | None) -> None:
    target = replace(targets.load(name), exceptions=())
    found = gate.problems({"nvcc": [replace(PLAIN, **change)]}, target)  # type: ignore[arg-type]
    assert found == [] if problem is None else len(found) == 1 and problem in found[0]


def test_a_spill_of_one_compiler_is_excused_for_it_alone() -> None:
    code = {"nvcc": [PLAIN], "nvrtc": [replace(PLAIN, file="a.nvrtc.cubin", spill_bytes=4)]}
    target = targets.load("sm_86")
    older, newer, both = (
        replace(target, exceptions=(targets.Waiver("a_kernel", "spill", "three registers", compiler),))
        for compiler in ("nvrtc", "nvcc", "")
    )
    assert gate.problems(code, older) == gate.problems(code, both) == []
    assert gate.problems({"nvcc": [PLAIN]}, older) == []  # a pack without that code
    assert gate.problems(code, newer) == [
        "a.nvrtc.cubin: a_kernel: spills 4 bytes of registers per thread, expected none",
        "a_kernel: excused from spilling, but it does not spill; remove its exception",
    ]


# Two compilers


@pytest.mark.slow  # 2 s each: released packs are built without nvcc
@pytest.mark.parametrize("compiler", ["nvcc", "g++"])
def test_without_nvcc_a_pack_has_the_code_for_older_drivers(compiler: str, tmp_path: Path) -> None:
    """nvcc, or the C++ compiler that it needs, is missing."""
    folder = tree(tmp_path / "tree", "sm_86", GOOD)
    python, path = interpreter("sm_86"), os.environ["PATH"]
    if compiler == "nvcc":
        python = Path(sys.executable)
    else:
        tools = tmp_path / "tools"
        tools.mkdir()
        for tool in ("cmake", "ninja"):
            found = shutil.which(tool, path=os.pathsep.join([str(Path(sys.executable).parent), path]))
            assert found is not None
            (tools / tool).symlink_to(found)
        path = str(tools)
    definitions = [f"-D{definition}" for definition in nvrtc("sm_86")]

    def run(*words: str | Path) -> str:
        env = {**os.environ, "PATH": path if compiler == "g++" else f"{Path(sys.executable).parent}{os.pathsep}{path}"}
        return subprocess.run(
            list(map(str, words)), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        ).stdout

    where = ["cmake", "-S", folder, "-G", "Ninja", "-DLUCEBOX_TARGET=sm_86", f"-DPython_EXECUTABLE={python}"]
    where.append("-DLUCEBOX_OBJECTS=")
    said = run(*where, "-B", folder / "build", *definitions)
    assert "no code by nvcc: " in said and {"nvcc": "has no nvcc", "g++": "there is no g++ on PATH"}[compiler] in said
    said = run("cmake", "--build", folder / "build")
    (code,) = manifest(folder / "build/pack/lucebox_sm86")["generations"]
    assert (code["compiler"]["name"], code["min_driver"]) == ("nvrtc", "525"), said
    assert [file["file"] for file in code["files"]] == ["probe.nvrtc.cubin"]

    said = run(*where, "-B", folder / "strict", *definitions, "-DLUCEBOX_NVCC=ON")
    assert "CMake Error" in said and not (folder / "strict/build.ninja").exists()


def test_code_by_nvcc_can_be_left_out(tmp_path: Path) -> None:
    folder = tree(tmp_path, "sm_86", GOOD)
    definitions = [f"-D{definition}" for definition in (*nvrtc("sm_86"), "LUCEBOX_NVCC=OFF")]
    said = configure(folder, "sm_86", interpreter("sm_86"), *definitions)
    assert "1 files for sm_86 with nvrtc" in said and "with nvcc" not in said
    said = configure(folder, "sm_86", interpreter("sm_86"), "-DLUCEBOX_NVCC=no")
    assert "LUCEBOX_NVCC: expected AUTO, ON or OFF, got 'no'" in said


def test_nvrtc_of_another_release_is_refused(tmp_path: Path) -> None:
    folder = tree(tmp_path, "sm_86", GOOD)
    file = folder / "targets/sm_86/target.toml"
    file.write_text(file.read_text().replace('version = "12.9"', 'version = "12.4"'))
    said = configure(folder, "sm_86", interpreter("sm_86"), *(f"-D{definition}" for definition in nvrtc("sm_86")))
    assert re.search(r"is\s+NVRTC\s+12\.9\.\d+,\s+expected\s+12\.4", said)


def test_no_nvrtc_in_the_library(tmp_path: Path) -> None:
    fake = tmp_path / "libnvrtc.so.12"
    fake.write_text("not a library")
    folder = tree(tmp_path / "tree", "sm_86", GOOD)
    said = configure(folder, "sm_86", Path(sys.executable), f"-DLUCEBOX_NVRTC={fake}")
    assert "expected NVIDIA's NVRTC, found no version of it" in " ".join(said.split())


@pytest.mark.slow  # 2 s: released packs have one compiler's code
def test_code_by_both_compilers_has_the_same_kernels(tmp_path: Path) -> None:
    other = "#ifdef __CUDACC_RTC__\n" + GOOD.replace("good", "other").replace("kTable", "kOther") + "#endif\n"
    said, pack = build(tree(tmp_path, "sm_86", GOOD + other), "sm_86")
    assert not pack.exists()
    assert "the code by nvrtc and nvcc must have the same kernels, they differ in other_kernel" in said


def test_the_log_of_nvrtc_says_what_is_wrong(tmp_path: Path) -> None:
    said, pack = build(tree(tmp_path, "sm_86", GOOD + "int wrong = missing_name;\n"), "sm_86")
    assert not pack.exists()
    assert re.search(r'src/gpu/probe/probe\.cpp\(\d+\): error: identifier "missing_name" is undefined', said)
