"""Compiled kernels in the store, and PTX that chips share."""

import os
import re
import subprocess
import sys
from pathlib import Path

import compile_object
import pytest
from pack.store import Store, digest
from project import BUILD, ROOT

KERNEL = '#include "shape.h"\nextern "C" __global__ void __launch_bounds__(64) a_kernel(float* x) { x[0] = kValue; }\n'
NVRTC = BUILD / "toolchain/nvrtc-12.9/nvidia"
LIBRARY, PTXAS = NVRTC / "cuda_nvrtc/lib/libnvrtc.so.12", NVRTC / "cuda_nvcc/bin/ptxas"
NVCC = next(BUILD.glob("toolchain/lib/python*/site-packages/nvidia/cu13/bin/nvcc"), Path("none"))
PARTS = ("ci/compile_object.py", "ci/targets.py", "ci/pack", "python/lucebox/packs/nvrtc.py", "src/cuda/nvrtc")


# The store


def test_the_store_makes_the_same_thing_once(tmp_path: Path) -> None:
    made = []

    def make() -> dict[str, bytes]:
        made.append(1)
        return {"code": b"code" * 100, "log": b""}

    store = Store(tmp_path)
    first = store.made(["a", "b"], make)
    assert Store(tmp_path).made(["a", "b"], make) == first == {"code": b"code" * 100, "log": b""}
    assert len(made) == 1
    store.made(["ab"], make)  # other parts, though the same characters
    store.made(["a", "b", ""], make)
    assert len(made) == 3
    assert len({digest(parts) for parts in (["ab"], ["a", "b"], ["a", "b", ""], [b"1 a"], [])}) == 5


def test_a_damaged_entry_is_made_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    whole = store.made(["a"], lambda: {"code": bytes(range(256))})
    (entry,) = tmp_path.glob("*/*")
    content = entry.read_bytes()
    again = {"code": b"made again"}
    for size in range(len(content)):
        entry.write_bytes(content[:size])
        assert store.made(["a"], lambda: again) == again
        entry.write_bytes(content[:size] + bytes([content[size] ^ 0x81]) + content[size + 1 :])
        assert store.made(["a"], lambda: again) == again
    entry.write_bytes(content)
    assert store.made(["a"], lambda: again) == whole


def test_no_store_keeps_nothing() -> None:
    answers = iter(({"code": b"1"}, {"code": b"2"}))
    store = Store(None)
    assert [store.made(["a"], lambda: next(answers))["code"] for _ in range(2)] == [b"1", b"2"]
    assert store.prune(0) == 0


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for age, name in enumerate(("new", "old", "used")):
        before = set(tmp_path.glob("*/*"))
        store.made([name], lambda: {"code": bytes(1000)})
        (entry,) = set(tmp_path.glob("*/*")) - before
        os.utime(entry, (1e9 - age, 1e9 - age))
    store.made(["used"], lambda: pytest.fail("it is in the store"))
    sizes = [file.stat().st_size for file in tmp_path.glob("*/*")]
    next(tmp_path.glob("*/*")).with_suffix(".renamed").symlink_to("elsewhere")  # listed, and gone when it is read
    assert store.prune(sum(sizes)) == 0
    assert store.prune(sum(sizes) - 1) == sizes[0]
    for name in ("new", "used"):
        store.made([name], lambda: pytest.fail("it is in the store"))
    assert store.made(["old"], lambda: {"code": b"made again"}) == {"code": b"made again"}


# PTX that chips share


@pytest.mark.parametrize(
    ("arch", "text", "of"),
    [
        ("sm_75", "", "sm_75"),
        ("sm_80", "", "sm_80"),
        ("sm_86", "", "sm_80"),
        ("sm_87", "#if __CUDA_ARCH__ >= 800", "sm_80"),
        ("sm_89", "#if __CUDA_ARCH__ >= 900", "sm_80"),
        ("sm_89", "#if __CUDA_ARCH__ >= 890", "sm_89"),
        ("sm_87", "#if __CUDA_ARCH__ >= 860", "sm_86"),
        ("sm_86", "#if __CUDA_ARCH__ >= 860", "sm_86"),
        ("sm_86", "#if __CUDA_ARCH__ < 890", "sm_86"),  # asked in another way
        ("sm_86", "#ifdef __CUDA_ARCH_FEAT_SM86", "sm_86"),
        ("sm_90a", "", "sm_90a"),
        ("sm_100a", "", "sm_100a"),
        ("sm_110a", "", "sm_100a"),
        ("sm_120a", "", "sm_100a"),
        ("sm_120a", "#if __CUDA_ARCH__ >= 1200", "sm_120a"),
        ("sm_103a", "", "sm_103a"),
        ("sm_121a", "", "sm_103a"),
    ],
)
def test_the_chip_that_ptx_is_made_for(arch: str, text: str, of: str) -> None:
    assert compile_object.front(arch, ["int x;", text]) == of


@pytest.mark.parametrize(
    ("arch", "of"), [("sm_86", "sm_80"), ("sm_87", "sm_80"), ("sm_120a", "sm_100a"), ("sm_121a", "sm_103a")]
)
def test_headers_of_every_kernel_let_chips_share(arch: str, of: str) -> None:
    """Otherwise these packs take twice the compilers' time."""
    source = ROOT / "src/gpu/elementwise/add_bias.cpp"
    job = compile_object.Job("nvrtc", source, arch, (), "", "", "", (), ROOT)
    assert compile_object.front(arch, [file.read_text() for file in (source, *job.headers())]) == of


def nvrtc(out: Path, source: Path, arch: str, *, ptxas: bool, store: Path | None = None, root: Path = ROOT) -> bytes:
    if not PTXAS.exists():
        pytest.skip("no NVRTC 12.9 or its ptxas: run ci/build_packs.py sm_86 once")
    own = ("--tool", LIBRARY, "--compiler", "12.9", f"--ptxas={PTXAS if ptxas else ''}", "--", "-std=c++20")
    return compiled(out, "nvrtc", source, arch, *own, "-default-device", store=store, root=root)


def compiled(
    out: Path, kind: str, source: Path, arch: str, *words: str | Path, store: Path | None = None, root: Path = ROOT
) -> bytes:
    command = [sys.executable, root / "ci/compile_object.py", kind, source, "--arch", arch, "--out", out]
    command += [f"--store={store or ''}", *words]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stdout
    return out.read_bytes()


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("sampling/next_token", "sm_87"),
        *(
            pytest.param(name, arch, marks=pytest.mark.slow)  # 1.5 s each
            for name, arch in (("attention/attention_merge", "sm_89"), ("gemm/gemm_sum", "sm_86"))
        ),
    ],
)
def test_shared_ptx_gives_the_code_of_nvrtc_itself(name: str, arch: str, tmp_path: Path) -> None:
    source = ROOT / f"src/gpu/{name}.cpp"
    direct = nvrtc(tmp_path / "direct.cubin", source, arch, ptxas=False)
    nvrtc(tmp_path / "sm_80.cubin", source, "sm_80", ptxas=True, store=tmp_path / "store")
    assert nvrtc(tmp_path / "shared.cubin", source, arch, ptxas=True, store=tmp_path / "store") == direct
    logs = [(tmp_path / f"{name}.log").read_text() for name in ("direct", "shared")]
    found = [re.findall(r"Used \d+ registers|\d+ bytes spill stores", log) for log in logs]
    assert found[0] == found[1] != []


@pytest.mark.slow  # 1.5 s each: released packs have NVRTC's code
@pytest.mark.parametrize(
    "arch",
    ["sm_87", "sm_120a", "sm_121a"],
)
def test_shared_ptx_gives_the_code_of_nvcc_itself(arch: str, tmp_path: Path) -> None:
    if not NVCC.exists():
        pytest.skip("no nvcc: run ci/build_packs.py sm_86 once")
    source, direct = ROOT / "src/gpu/sampling/next_token.cpp", tmp_path / "direct.cubin"
    flags = ["-x", "cu", "-std=c++20", "-O3"]
    includes = [f"-I{ROOT / folder}" for folder in compile_object.INCLUDES["nvcc"]]
    subprocess.run(
        [NVCC, *flags, "-cubin", f"-arch={arch}", "-Xptxas", "-v", *includes, "-o", direct, source],
        check=True,
        capture_output=True,
    )
    tools = (f"--tool={NVCC}", f"--ptxas={NVCC.parent / 'ptxas'}", "--host-compiler=g++", "--compiler=13.0")
    shared = compiled(tmp_path / "shared.cubin", "nvcc", source, arch, *tools, "--", *flags)
    assert shared == compile_object.without_folder(direct.read_bytes())


def test_names_in_an_anonymous_namespace_have_no_trace_of_the_folder() -> None:
    """Both hashes in a name as nvcc 13.0 makes it."""
    name = "_ZN30_INTERNAL_{0}_7_anon_cu_k32_GLOBAL__N__{0}_7_anon_cu_k1fEi"
    assert compile_object.without_folder(name.format("28af0092").encode()) == name.format("0" * 8).encode()


def test_a_compiler_that_is_killed_is_named(tmp_path: Path) -> None:
    source, tool = ROOT / "src/gpu/gemm/gemm_sum.cpp", f"{sys.executable};-c;import os\nos.kill(os.getpid(), 9)"
    command = [sys.executable, ROOT / "ci/compile_object.py", "clang", source, "--arch", "gfx1151", "--compiler", "one"]
    command += ["--tool", tool, "--out", tmp_path / "a.hsaco"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(sys.executable) and done.stderr.endswith(": exit status -9\n")


# A store for all checkouts


def checkout(folder: Path, value: int = 1) -> Path:
    """A checkout with one kernel file and its header; returns the kernel file."""
    for part in PARTS:
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", ROOT / part, folder / part], check=True)
    for name in ("src/cuda", "src/cpp", "src/gpu/probe"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "src/gpu/probe/shape.h").write_text(f"constexpr float kValue = {value};\n")
    source = folder / "src/gpu/probe/probe.cpp"
    source.write_text(KERNEL)
    return source


def test_another_checkout_has_it_without_a_compiler(tmp_path: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "a.cubin"
    first = nvrtc(out, checkout(tmp_path / "one"), "sm_86", ptxas=True, store=store, root=tmp_path / "one")

    def again(folder: str, *more: str, value: int = 1, compiler: str = "12.9", **environment: str) -> bool:
        """Whether a build whose compiler is missing gets the code."""
        root = tmp_path / folder
        words = [sys.executable, root / "ci/compile_object.py", "nvrtc", checkout(root, value), "--arch", "sm_86"]
        words += ["--out", out, f"--store={store}", "--tool", root / "none.so", "--ptxas", "none"]
        words += ["--compiler", compiler, "--", "-std=c++20", "-default-device", *more]
        out.unlink(missing_ok=True)
        done = subprocess.run(
            [str(word) for word in words], env=os.environ | environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 or "cannot be loaded" in done.stderr
        return done.returncode == 0 and out.read_bytes() == first

    assert again("two")
    assert f"{tmp_path / 'two'}/src/gpu/probe/shape.h" in Path(f"{out}.d").read_text()
    assert again("one")
    assert not again("two", value=2)
    assert not again("two", "-DX=1")
    assert not again("two", compiler="12.5")
    assert not again("two", NVCC_APPEND_FLAGS="-lineinfo")
    assert nvrtc(out, checkout(tmp_path / "three"), "sm_86", ptxas=False, root=tmp_path / "three") == first
