"""Recompiles some kernel files of a pack with other compiled-in constants. `lucebox tune --compile` runs the copy of
this file in the wheel lucebox-kernels. It needs the compiler of the target's vendor and no CMake.

    compile_kernels.py sm_86 gemv_32 --abi 0123... --defines LUCEBOX_GEMV_BLOCKS=3 --flags="-arch=..." --out DIR

`--flags` come from the manifest and contain no paths. Writes the code objects to DIR and prints one JSON object: the
compiler, and the files and kernels in the manifest's form. Exit code 3: a kernel breaks the rules of pack/gate.py. Exit
code 1: any other failure, such as sources that do not match the engine (`--abi`).
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import make_pack
from pack import gate
from pack.kernel import CodeError

import targets
from targets import ROOT, ZIG, Target

# The headers that kernels and engine share, as in cmake/LuceboxAbi.cmake.
SHARED_HEADERS = ("cpp/base/dtype_id.h", "cpp/device/sim_abi.h", "cpp/ops/*.h", "cpp/quant/*.h", "gpu/*/shape.h")
# The simulator's code is host code. Its manifest lists the other flags of cmake/LuceboxOptions.cmake that matter.
SIM_FLAGS = ("-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=off", "-Wno-missing-field-initializers")
SIM_LIBRARY = "compiled.so"
EXIT_RULES = 3  # the compiler works, but with these constants the kernels do not fit the chip


class CompileError(Exception):
    """The compiler is missing or refused a file, or the sources do not match the engine."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A compilation: sources, target and flags."""

    target: Target
    sources: tuple[Path, ...]
    flags: tuple[str, ...]
    out: Path
    root: Path = ROOT


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiler and the files that it made."""

    name: str
    version: str
    files: tuple[Path, ...]


def kernel_abi(root: Path = ROOT) -> str:
    """LUCEBOX_KERNEL_ABI of these sources."""
    names = sorted({file.relative_to(root).as_posix() for one in SHARED_HEADERS for file in (root / "src").glob(one)})
    rows = (f"{name} {_sha256((root / name).read_bytes())}\n" for name in names)
    return _sha256("".join(rows).encode())[:16]


def compile_nvidia(job: Job) -> Compiled:
    """Compiles with the NVRTC of this Python environment."""
    wanted = job.target.nvrtc
    if wanted is None:
        raise CompileError(f"{job.target.family} has no code by NVRTC; build the variant by nvcc from a checkout")
    nvrtc = [sys.executable, str(job.root / "python/lucebox/packs/nvrtc.py")]
    found = subprocess.run(nvrtc, capture_output=True, text=True)
    if found.returncode:
        raise CompileError(f"{found.stderr.strip()}=={wanted.version}.*")
    library, version = found.stdout.strip().split(";")
    if not version.startswith(f"{wanted.version}."):
        package = f"nvidia-cuda-nvrtc-cu12=={wanted.version}.*"
        raise CompileError(f"NVRTC {version} is installed, expected {wanted.version}: pip install '{package}'")

    def compile_one(source: Path) -> Path:
        out = job.out / f"{source.stem}.nvrtc.cubin"
        _run([*nvrtc, "--library", library, "--root", str(job.root), "--out", str(out), str(source), "--", *job.flags])
        return out

    return Compiled("nvrtc", version, _parallel(compile_one, job.sources))


def compile_amd(job: Job) -> Compiled:
    """Compiles with the clang of the wheel ziglang, else with ROCm's or the machine's."""
    clang, name, environment = _clang(job.out)
    about = subprocess.run([*clang, "--version"], capture_output=True, text=True, env=environment, check=True).stdout
    version = re.search(r"clang version ([0-9.]+)", about)
    includes = [f"-I{job.root / folder}" for folder in ("src/hip", "src/cpp", "src")]

    def compile_one(source: Path) -> Path:
        out = job.out / f"{source.stem}.hsaco"
        prefix = f"-ffile-prefix-map={job.root}=."
        _run([*clang, *job.flags, prefix, *includes, "-o", str(out), str(source)], environment)
        return out

    return Compiled(name, version[1] if version else "", _parallel(compile_one, job.sources))


def compile_sim(job: Job) -> Compiled:
    """Compiles the kernels and the simulator that runs them into one library, with the machine's C++ compiler."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise CompileError("the pack of sim needs a C++ compiler: neither g++ nor c++ on PATH")
    version = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
    includes = [f"-I{job.root / folder}" for folder in ("src/sim", "src/cpp", "src")]
    flags = [*job.flags, *SIM_FLAGS, f"-ffile-prefix-map={job.root}=.", *includes]

    def compile_one(source: Path) -> Path:
        out = job.out / f"{source.stem}.o"
        _run([compiler, *flags, "-c", "-o", str(out), str(source)])
        return out

    objects = _parallel(compile_one, [*job.sources, *sorted((job.root / "src/sim").glob("*.cpp"))])
    library, lister = job.out / SIM_LIBRARY, job.out / "list_kernels"
    _run([compiler, "-shared", "-o", str(library), *map(str, objects)])
    _run([compiler, "-std=c++20", includes[1], "-o", str(lister), str(job.root / "ci/pack/list_kernels.cpp"), "-ldl"])
    _run([str(lister), str(library), str(library.with_suffix(".json"))])
    return Compiled("GNU", version, (library,))


COMPILERS: dict[str, Callable[[Job], Compiled]] = {"nvidia": compile_nvidia, "amd": compile_amd, "sim": compile_sim}


def compile_kernels(job: Job, defines: Sequence[str]) -> dict[str, Any]:
    """Compiles the job with these constants and checks the kernels.

    Raises:
        CompileError: the compiler is missing or refused a file.
        CodeError: a kernel breaks the rules of a pack.
    """
    job.out.mkdir(parents=True, exist_ok=True)
    flags = (*job.flags, *(f"-D{define}" for define in defines))
    made = COMPILERS[job.target.vendor](dataclasses.replace(job, flags=flags))
    compiler = {"name": made.name, "version": made.version, "flags": list(flags)}
    generation = make_pack.generation(job.target, compiler, list(made.files))
    if problems := gate.problems({made.name: generation.kernels}, job.target):
        raise CodeError("; ".join(problems))
    for name, image in generation.images.items():
        (job.out / name).write_bytes(image)
    facts = generation.facts(job.target)
    return {key: facts[key] for key in ("compiler", "files", "kernels")}


def _clang(out: Path) -> tuple[list[str], str, dict[str, str]]:
    """clang's command, its name in manifests, and its environment. zig's clang runs a linker named lld."""
    environment = dict(os.environ)
    spec = importlib.util.find_spec("ziglang")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        zig = Path(folder) / "zig"
        if zig.exists():
            lld = out / "bin" / "lld"
            lld.parent.mkdir(parents=True, exist_ok=True)
            lld.write_text(f'#!/bin/sh\n[ "$1" = -flavor ] && shift 2\nexec {shlex.quote(str(zig))} ld.lld "$@"\n')
            lld.chmod(0o755)
            environment["PATH"] = f"{lld.parent}{os.pathsep}{environment['PATH']}"
            return [str(zig), "clang"], "zig clang", environment
    for name in ("amdclang++", "clang++"):
        if found := shutil.which(name, path=f"{environment['PATH']}{os.pathsep}/opt/rocm/bin"):
            return [found], name, environment
    raise CompileError(f"{sys.executable} has no ziglang, whose clang compiles AMD kernels: pip install {ZIG}")


def _parallel(compile_one: Callable[[Path], Path], sources: Sequence[Path]) -> tuple[Path, ...]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return tuple(pool.map(compile_one, sources))


def _run(command: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise CompileError(f"{Path(command[0]).name} failed:\n{done.stderr or done.stdout}".rstrip())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile kernel files with other constants.")
    parser.add_argument("target")
    parser.add_argument("stems", nargs="+", metavar="STEM", help="kernel files of src/gpu, without folder and suffix")
    parser.add_argument("--abi", required=True, help="LUCEBOX_KERNEL_ABI of the engine")
    parser.add_argument("--defines", required=True, metavar="KEY=N,...", help="the constants")
    parser.add_argument("--flags", required=True, help="flags of the pack's compiler, without paths")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        own = kernel_abi()
        if arguments.abi != own:
            hashes = f"hashes of the headers they share: {own} and {arguments.abi}"
            raise CompileError(f"these kernel sources are not those of the engine ({hashes})")
        options = argparse.Namespace(
            target=arguments.target, variant="tuned", tuning="", defines=arguments.defines, without=""
        )
        target = targets.chosen(options)
        sources = {Path(source).stem: ROOT / source for source in target.sources()}
        if unknown := sorted(set(arguments.stems) - sources.keys()):
            raise CompileError(f"{arguments.target} has no kernel file {unknown[0]}; it has {', '.join(sources)}")
        job = Job(
            target,
            tuple(sources[stem] for stem in arguments.stems),
            tuple(arguments.flags.split()),
            arguments.out.resolve(),
        )
        print(json.dumps(compile_kernels(job, arguments.defines.split(","))))
    except CodeError as error:
        print(error, file=sys.stderr)
        return EXIT_RULES
    except (CompileError, targets.TargetError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
