"""Compiles kernel sources with NVRTC, the compiler in NVIDIA's libnvrtc: needs no nvcc, no C++ compiler and no GPU.

`lucebox tune --compile` runs this file, and the compile command of a pack's build imports it; it needs only the
standard library:

    python -I nvrtc.py --library libnvrtc.so.12 --root CHECKOUT --out gemv.cubin gemv.cpp -- -arch=sm_86 ...

A program compiles many sources in parallel processes, and gets the code objects as they finish:

    from lucebox.packs import nvrtc

    library = nvrtc.find()  # of the wheel nvidia-cuda-nvrtc-cu12
    flags = ["-arch=sm_86", *more]  # `flags` of the compiler "nvrtc" in the manifest of an installed pack
    for made in nvrtc.compile_all(library, root, sources, flags, jobs=4, progress=show):
        module = device.load(made.image, made.source.name)

`root` is a folder that contains this project's src. A source that does not compile raises CompileError with the
compiler's log.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import mmap
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

__all__ = ["CompileError", "Made", "check_source", "compile_all", "compile_source", "find", "headers", "release"]

SONAME = "libnvrtc.so.12"
# Include roots, relative to the folder of this project's sources. nvrtc/ has the standard headers and builtins that
# NVRTC lacks.
INCLUDES = ("src/cuda/nvrtc", "src/cuda", "src/cpp", "src")
BUILTINS = "src/cuda/nvrtc/builtins.h"

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
RELEASE = re.compile(rb"Cuda compilation tools, release [\d.]+, V(\d+\.\d+\.\d+)")
RESOURCES = re.compile(r"ptxas info|\d+ bytes stack frame|^\s*$")  # lines of ptxas -v that report no problem


class CompileError(Exception):
    """A compiler is missing, or refused a source; the message has the compiler's log. Not in lucebox.errors, because
    this file also runs without lucebox."""


@dataclass(frozen=True, slots=True)
class Made:
    """A compiled source."""

    source: Path
    image: bytes
    """The cubin; PTX if the flags name no chip but -arch=compute_86."""
    log: str
    """The resources of each kernel, as ptxas -v reports them, and warnings."""


def find() -> Path:
    """libnvrtc of the wheel nvidia-cuda-nvrtc-cu12 in this Python environment.

    Raises:
        CompileError: there is none.
    """
    spec = PathFinder.find_spec("nvidia")  # imports nothing
    for place in (spec.submodule_search_locations or []) if spec else []:
        library = Path(place) / "cuda_nvrtc" / "lib" / SONAME
        if library.exists():
            return library
    raise CompileError(f"{sys.executable} has no NVRTC. Install it there: pip install nvidia-cuda-nvrtc-cu12")


def release(library: Path) -> str:
    """Compiler version with its patch level, "12.4.127"; nvrtcVersion omits the patch level.

    Raises:
        CompileError: the file is no NVRTC.
    """
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found = RELEASE.search(content)
            version = found[1].decode() if found else ""
    except (OSError, ValueError) as error:
        raise CompileError(f"{library} cannot be read: {error}") from error
    if not version:
        raise CompileError(f"{library}: expected NVIDIA's NVRTC, found no version of it")
    return version


def compile_source(library: Path, root: Path, source: Path, flags: Sequence[str]) -> Made:
    """Compiles one source in this process. `flags` name no paths: -arch=sm_86, -std=c++20, -DNAME, ...

    Raises:
        CompileError: with the compiler's log.
    """
    result = "PTX" if any(flag.startswith("-arch=compute_") for flag in flags) else "CUBIN"
    return _compile(library, root, source, [*flags, "--ptxas-options=-v"], result)


def check_source(library: Path, root: Path, source: Path, flags: Sequence[str]) -> None:
    """Compiles one source as far as the front end's errors: a fiftieth of the time.

    Raises:
        CompileError: with the compiler's log.
    """
    _compile(library, root, source, [*flags, "--dlink-time-opt"], "LTOIR")


def _compile(library: Path, root: Path, source: Path, flags: Sequence[str], result: str) -> Made:
    nvrtc = _open(library)
    folders = [source.parent, *(root / folder for folder in INCLUDES)]
    options = [*flags, f"--pre-include={root / BUILTINS}", *(f"-I{folder}" for folder in folders)]
    program = ctypes.c_void_p()
    name = os.path.relpath(source, root).encode()  # appears in messages, and is hashed into local symbols
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), name, 0, None, None), source)
    try:
        words = (ctypes.c_char_p * len(options))(*map(os.fsencode, options))
        status = nvrtc.nvrtcCompileProgram(program, len(options), words)
        log = _read(nvrtc, "ProgramLog", program, source).rstrip(b"\0").decode(errors="replace")
        if status:
            raise CompileError(f"{source}: {_error(nvrtc, status)}\n{log}".rstrip())
        return Made(source, _read(nvrtc, result, program, source).rstrip(b"\0" if result == "PTX" else b""), log)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def compile_all(
    library: Path,
    root: Path,
    sources: Sequence[Path],
    flags: Sequence[str],
    *,
    jobs: int | None = None,
    progress: Callable[[int, int, Path], None] | None = None,
) -> Iterator[Made]:
    """Compiles sources in parallel processes, because NVRTC serialises compilations within a process. Yields them in
    order of completion. `jobs` is the number of processes, one per core by default; `progress` is called after each
    source with the number done, the number of all and the source.

    Raises:
        CompileError: for the first source that fails; the others are abandoned.
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads and the GPU context of the caller
    workers = min(jobs or os.cpu_count() or 1, max(len(sources), 1))
    with concurrent.futures.ProcessPoolExecutor(workers, context) as pool:
        pending = [pool.submit(compile_source, library, root, source, flags) for source in sources]
        try:
            for n_done, done in enumerate(concurrent.futures.as_completed(pending), 1):
                made = done.result()
                if progress:
                    progress(n_done, len(sources), made.source)
                yield made
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def headers(
    root: Path, source: Path, folders: Sequence[str] = INCLUDES, always: Sequence[str] = (BUILTINS,)
) -> list[Path]:
    """The source's headers, found by their #include lines regardless of preprocessor conditions, and `always` ones."""
    found: dict[Path, None] = {root / name: None for name in always}
    pending = [source, *found]
    while pending:
        file = pending.pop()
        places = [file.parent, *(root / folder for folder in folders)]
        for name in INCLUDE.findall(file.read_text(encoding="utf-8")):
            header = next((place / name for place in places if (place / name).is_file()), None)
            if header is not None and header not in found:
                found[header] = None
                pending.append(header)
    return sorted(found)


def _open(library: Path) -> ctypes.CDLL:
    """Loads libnvrtc. NVRTC opens libnvrtc-builtins by its bare name, so this loads that library first."""
    try:
        for builtins in sorted(library.parent.glob("libnvrtc-builtins.so*")):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        nvrtc = ctypes.CDLL(str(library))
    except OSError as error:
        raise CompileError(f"{library} cannot be loaded: {error}") from error
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return nvrtc


def _read(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p, source: Path) -> bytes:
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), source)
    content = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, content), source)
    return content.raw


def _check(nvrtc: ctypes.CDLL, status: int, source: Path) -> None:
    if status:
        raise CompileError(f"{source}: {_error(nvrtc, status)}")


def _error(nvrtc: ctypes.CDLL, status: int) -> str:
    text: bytes = nvrtc.nvrtcGetErrorString(status)
    return f"NVRTC: {text.decode()}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile a kernel source by NVRTC.")
    parser.add_argument("source", type=Path, nargs="?", help="without one: print the library and its version")
    parser.add_argument("flags", nargs="*", help="compiler flags without paths, after --")
    parser.add_argument("--library", type=Path, help=f"{SONAME}; without it, the NVRTC of this Python environment")
    parser.add_argument("--root", type=Path, help="the folder with this project's src")
    parser.add_argument("--out", type=Path, help="the .cubin; its .log and .cubin.d are written beside it")
    parser.add_argument("--check", action="store_true", help="the front end's errors alone; writes nothing")
    arguments = parser.parse_args()
    try:
        library = arguments.library or find()
        if arguments.source is None:
            print(library, release(library), sep=";")
            return 0
        root, source, out = arguments.root, arguments.source, arguments.out
        if arguments.check:
            check_source(library, root, source, arguments.flags)
            return 0
        made = compile_source(library, root, source, arguments.flags)
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1
    if not all(map(RESOURCES.search, made.log.splitlines())):
        print(made.log, end="")
    out.write_bytes(made.image)
    out.with_suffix(".log").write_text(made.log)
    names = [str(file).replace(" ", r"\ ") for file in (out, source, *headers(root, source))]
    Path(f"{out}.d").write_text(f"{names[0]}: {' '.join(names[1:])}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
