"""Compiles one kernel file for a pack: the compile command of CMake's modules for NVIDIA and AMD.

    compile_object.py nvcc --arch sm_86 --tool .../nvcc --compiler TEXT --out a.cubin a.cpp -- -std=c++20 ...
    compile_object.py nvrtc --arch sm_86 --tool .../libnvrtc.so.12 --ptxas .../ptxas ... -- -std=c++20 ...
    compile_object.py clang --arch gfx1151 --tool ".../zig;clang" ... -- -O3 ...

The flags after -- contain no paths. Writes the code object, a dependency file, the compiler's log, and for AMD the
counts of pack/rdna.py.

With --store, code is taken from there if the same source and headers were compiled with the same flags by the same
compiler before, in whatever folder.

NVIDIA's compilers translate to PTX, which ptxas assembles for a chip. The first part takes about half of the time,
and gives the same PTX for chips of one group of SHARED, except for the line that names the chip. PTX is therefore made
for the first chip of a group, and the store gives it to the others. A compilation for the chip itself gives the same
code, byte for byte. NVRTC shares PTX only if --ptxas is given; without it, it compiles for the chip itself.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pack import rdna
from pack.store import Files, Store

ROOT = Path(__file__).resolve().parent.parent
if TYPE_CHECKING:
    from lucebox.packs import nvrtc
else:  # a pack is built without an installed lucebox
    sys.path.append(str(ROOT / "python/lucebox/packs"))
    import nvrtc

# The chips whose PTX is the same. 100 and 103 differ in the order of some sums of addresses.
SHARED = (("sm_80", "sm_86", "sm_87", "sm_89"), ("sm_100a", "sm_110a", "sm_120a"), ("sm_103a", "sm_121a"))
# How sources ask for the chip, with its number times ten. Sources that ask in another way share nothing.
ASKS, ASKS_FROM = re.compile(r"__CUDA_ARCH"), re.compile(r"__CUDA_ARCH__ >= (\d+)")
TARGET_LINE = re.compile(rb"^\.target .*$", re.MULTILINE)
TIMES = re.compile(r"^ptxas info\s*: Compile time = .*\n", re.MULTILINE)
READ_BY_COMPILERS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "CPLUS_INCLUDE_PATH")  # environment variables
INCLUDES = {"nvcc": ("src/cuda", "src/cpp", "src"), "nvrtc": nvrtc.INCLUDES, "clang": ("src/hip", "src/cpp", "src")}


@dataclass(frozen=True, slots=True)
class Job:
    kind: str
    source: Path
    arch: str
    tool: tuple[str, ...]
    ptxas: str
    host_compiler: str
    runs_on: str
    flags: tuple[str, ...]
    root: Path

    def headers(self) -> list[Path]:
        always = (nvrtc.BUILTINS,) if self.kind == "nvrtc" else ()
        return nvrtc.headers(self.root, self.source, INCLUDES[self.kind], always)

    def includes(self) -> list[str]:
        return [f"-I{self.root / folder}" for folder in INCLUDES[self.kind]]


def front(arch: str, texts: Sequence[str]) -> str:
    """The chip for which PTX is made: the first of the group that the sources cannot tell from this one."""
    asks = [number for text in texts for number in ASKS_FROM.findall(text)]
    if len(asks) != sum(len(ASKS.findall(text)) for text in texts):
        return arch
    group = next((group for group in SHARED if arch in group), (arch,))
    return next(one for one in group if all((_number(one) >= int(n)) == (_number(arch) >= int(n)) for n in asks))


def _number(arch: str) -> int:
    return 10 * int(arch.removeprefix("sm_").removesuffix("a"))


def compiled(job: Job, texts: dict[str, str], compiler: str, store: Store) -> Files:
    """The code object ("code"), the log, and for AMD the counts ("isa")."""
    own = [Path(file).read_bytes() for file in (__file__, nvrtc.__file__, rdna.__file__)]  # they make the files
    sources = [part for name, text in texts.items() for part in (name, text)]
    environment = [os.environ.get(name, "") for name in READ_BY_COMPILERS]
    key: list[str | bytes] = [job.kind, compiler, *environment, *own, *job.flags, "of", *sources]
    if job.kind == "clang":
        return store.made([job.arch, *key], lambda: clang(job))
    if job.kind == "nvrtc" and not job.ptxas:
        return store.made([job.arch, *key], lambda: nvrtc_files(job, job.arch))

    def assembled() -> Files:
        of = front(job.arch, list(texts.values()))
        make = nvcc_ptx if job.kind == "nvcc" else nvrtc_files
        ptx = store.made(["ptx", of, *key], lambda: make(job, of.replace("sm_", "compute_")))
        code = assemble(job, TARGET_LINE.sub(f".target {job.arch}".encode(), ptx["code"]))
        return code | {"log": ptx["log"] + code["log"]}

    return store.made([job.arch, job.runs_on, *key], assembled)


def clang(job: Job) -> Files:
    """Compiles to assembly, which says what the kernels do, and assembles it. Drops the symbols that only the compiler
    reads, which are a tenth of a small file."""
    with tempfile.TemporaryDirectory() as folder:
        assembly, out = Path(folder) / "code.s", Path(folder) / "code"
        prefix = f"-ffile-prefix-map={job.root}=."
        log = run([*job.tool, *job.flags, prefix, *job.includes(), "-S", "-o", str(assembly), str(job.source)])
        chip = ["-target", "amdgcn-amd-amdhsa", f"-mcpu={job.arch}"]
        chip += [flag for flag in job.flags if flag.startswith("-mcode-object-version")]
        log += run([*job.tool, *chip, "-x", "assembler", str(assembly), "-Wl,-x", "-o", str(out)])
        isa = rdna.dump(rdna.counts(assembly.read_text()))
        return {"code": out.read_bytes(), "log": log.encode(), "isa": isa.encode()}


def without_folder(ptx: bytes) -> bytes:
    """nvcc hashes the source's full path into the names of variables and functions with internal linkage. They are
    local symbols, which nothing looks up."""
    return re.sub(rb"(_INTERNAL_|_GLOBAL__N__)[0-9a-f]{8}_", rb"\g<1>00000000_", ptx)


def nvcc_ptx(job: Job, arch: str) -> Files:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "ptx"
        host = ["-ccbin", job.host_compiler]
        flags = [*job.flags, "-ptx", f"-arch={arch}"]
        log = run([*job.tool, *host, *flags, *job.includes(), "-o", str(out), str(job.source)])
        return {"code": without_folder(out.read_bytes()), "log": log.encode()}


def nvrtc_files(job: Job, arch: str) -> Files:
    made = nvrtc.compile_source(Path(job.tool[0]), job.root, job.source, [f"-arch={arch}", *job.flags])
    return {"code": made.image, "log": TIMES.sub("", made.log).encode()}


def assemble(job: Job, ptx: bytes) -> Files:
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "ptx", Path(folder) / "code"
        source.write_bytes(ptx)
        # these options in this order, because a cubin has a copy of them
        log = run([job.ptxas, "-v", f"-arch={job.runs_on or job.arch}", "-m64", str(source), "-o", str(out)])
        return {"code": out.read_bytes(), "log": TIMES.sub("", log).encode()}


def run(command: list[str]) -> str:
    """What a command prints; raises CompileError with it if the command fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:  # negative: of the signal that ended it, which prints nothing
        raise nvrtc.CompileError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}".rstrip())
    return done.stdout


def main() -> int:
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description="Compile one kernel file.", epilog="-- flags of the compiler")
    parser.add_argument("kind", choices=INCLUDES)
    parser.add_argument("source", type=Path)
    parser.add_argument("--arch", required=True, help="the chip")
    parser.add_argument("--tool", required=True, help="the compiler: its command, split by semicolons, or its library")
    parser.add_argument("--compiler", required=True, help="a text that names the compiler's build")
    parser.add_argument("--ptxas", default="", help="assembles PTX that chips share")
    parser.add_argument("--host-compiler", default="", help="nvcc's preprocessor")
    parser.add_argument("--runs-on", default="", help="LUCEBOX_RUNS_ON")
    parser.add_argument("--store", default="", help="LUCEBOX_OBJECTS")
    parser.add_argument("--out", type=Path, required=True)
    arguments, flags = parser.parse_args(words[:end]), tuple(words[end + 1 :])
    tool = tuple(arguments.tool.split(";"))
    own = (arguments.ptxas, arguments.host_compiler, arguments.runs_on, flags, ROOT)
    job = Job(arguments.kind, arguments.source.resolve(), arguments.arch, tool, *own)
    files = [job.source, *job.headers()]
    texts = {os.path.relpath(file, ROOT): file.read_text(encoding="utf-8") for file in files}
    out: Path = arguments.out
    try:
        made = compiled(job, texts, arguments.compiler, Store(Path(arguments.store) if arguments.store else None))
    except nvrtc.CompileError as error:
        print(error, file=sys.stderr)
        return 1
    log = made["log"].decode()
    out.with_suffix(".log").write_text(log)
    if not all(map(nvrtc.RESOURCES.search, log.splitlines())):
        print(log, end="")
    if "isa" in made:
        out.with_suffix(".isa.json").write_bytes(made["isa"])
    out.write_bytes(made["code"])
    names = [str(file).replace(" ", r"\ ") for file in (out, *files)]
    Path(f"{out}.d").write_text(f"{names[0]}: {' '.join(names[1:])}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
