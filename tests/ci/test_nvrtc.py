"""lucebox.packs.nvrtc: kernel sources compiled by the library alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lucebox.packs import nvrtc
from pack import cubin
from project import BUILD, ROOT

LIBRARY = BUILD / "toolchain/nvrtc-12.9/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
FLAGS = ("-arch=sm_86", "-std=c++20", "-default-device")
KERNEL = """#include "dialect.h"
struct Params { float* x; };
namespace lb::gpu {
LB_KERNEL(NAME, Params, 64, 1) { p.x[thread_id()] += 1.0f; }
}
"""

needs_nvrtc = pytest.mark.skipif(not LIBRARY.exists(), reason="no NVRTC 12.9: run ci/build_packs.py sm_86 once")


def sources(folder: Path, *names: str) -> list[Path]:
    files = [folder / f"{name}.cpp" for name in names]
    for file in files:
        file.write_text(KERNEL.replace("NAME", f"{file.stem}_kernel"))
    return files


@needs_nvrtc
def test_many_sources_at_once(tmp_path: Path) -> None:
    files = sources(tmp_path, "one", "two", "three")
    seen: list[tuple[int, int]] = []
    made = list(
        nvrtc.compile_all(
            LIBRARY, ROOT, files, FLAGS, jobs=2, progress=lambda done, total, source: seen.append((done, total))
        )
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert {one.source for one in made} == {*files}
    for one in made:
        (kernel,) = cubin.kernels(one.image, one.log, one.source.name, 101376)
        assert (kernel.name, kernel.max_threads, kernel.spill_bytes) == (f"{one.source.stem}_kernel", 64, 0)
        assert one.image == nvrtc.compile_source(LIBRARY, ROOT, one.source, FLAGS).image


@needs_nvrtc
def test_a_refused_source_comes_with_the_log(tmp_path: Path) -> None:
    good, bad = sources(tmp_path, "good", "bad")
    bad.write_text("__global__ void k(float* x) { x[0] = y; }\n")
    with pytest.raises(nvrtc.CompileError, match=r'(?s)bad\.cpp: NVRTC: NVRTC_ERROR_COMPILATION.*"y" is undefined'):
        list(nvrtc.compile_all(LIBRARY, ROOT, [bad, good], FLAGS, jobs=1))
    with pytest.raises(nvrtc.CompileError, match="NVRTC_ERROR_INVALID_OPTION"):
        nvrtc.compile_source(LIBRARY, ROOT, good, ["-arch=sm_999"])


@needs_nvrtc
def test_the_release_has_its_patch_level() -> None:
    assert nvrtc.release(LIBRARY).startswith("12.9.")


def test_no_library(tmp_path: Path) -> None:
    with pytest.raises(nvrtc.CompileError, match="cannot be read: "):
        nvrtc.release(tmp_path / "libnvrtc.so.12")
    with pytest.raises(nvrtc.CompileError, match="cannot be loaded: "):
        nvrtc.compile_source(tmp_path / "libnvrtc.so.12", ROOT, tmp_path / "no.cpp", FLAGS)


def test_the_library_of_the_environment(tmp_path: Path) -> None:
    """The wheel is found where Python looks for packages, and none is an error with the command."""
    script = shutil.copy(Path(nvrtc.__file__), tmp_path / "nvrtc.py")

    def run(*environment: str) -> subprocess.CompletedProcess[str]:
        find = f"import sys; sys.path[:0] = {[str(tmp_path), *environment]}; import nvrtc; print(nvrtc.find())"
        return subprocess.run([sys.executable, "-S", "-c", find], capture_output=True, text=True, check=False)

    assert Path(script).exists() and "pip install nvidia-cuda-nvrtc-cu12" in run().stderr
    library = tmp_path / "site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
    library.parent.mkdir(parents=True)
    library.touch()
    assert run(str(tmp_path / "site")).stdout.strip() == str(library)


def test_headers_of_a_source() -> None:
    names = {file.relative_to(ROOT).as_posix() for file in nvrtc.headers(ROOT, ROOT / "src/gpu/elementwise/rope.cpp")}
    assert {"src/cuda/dialect.h", "src/cpp/ops/rope.h", "src/gpu/vectors.h", "src/cuda/nvrtc/builtins.h"} < names
    assert all((ROOT / name).is_file() for name in names)
