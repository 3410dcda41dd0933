"""Makes a pack's import package and manifest from compiled files: the last step of a pack's build.

    make_pack.py sm_86 --out FOLDER --sbom FILE --abi 0123...
        --generation "nvcc 13.0.88" a.cubin ... --flags="-O3 ..."
        --generation "nvrtc 12.4.127" a.nvrtc.cubin ... --flags="-default-device ..."

A generation is all kernels by one compiler; the host loads the newest that the installed driver takes. Next to each
.cubin is its compiler's .log, next to each .hsaco the .isa.json of pack/rdna.py, next to the simulator's kernels.so the
.json list of its kernels. Fails, and leaves no pack, if a kernel breaks the rules of pack/gate.py or the limits of
pack/rdna.py, or a generation lacks a kernel that another one has.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import lzma
import shutil
import sys
from pathlib import Path
from typing import Any

import sbom
from pack import cubin, gate, hsaco, rdna
from pack.kernel import CodeError, Kernel

import targets

SCHEMA = 3
DICTIONARY = 32 << 20  # more than all code of a pack; a decoder takes this memory
ARCHIVE = "code.xz"
# The context of a byte is its position: in words of 4 bytes on AMD, in instructions of 16 bytes on NVIDIA. Archives are
# 2 and 5 % smaller than with the default, which is for text. A delta filter makes them 60 % larger.
POSITION_BITS = {"nvidia": {"lc": 0, "lp": 4, "pb": 4}, "amd": {"lc": 0, "lp": 2, "pb": 2}}


def read(file: Path, target: targets.Target) -> tuple[bytes, list[Kernel]]:
    """The bytes that the pack stores for one compiled file, and the file's kernels."""
    image = file.read_bytes()
    shared = target.capabilities.shared_block_bytes
    if target.vendor == "nvidia":
        return image, cubin.kernels(image, file.with_suffix(".log").read_text(), file.name, shared)
    if target.vendor == "amd":
        return image, hsaco.kernels(image, file.name, shared)
    table = json.loads(file.with_suffix(".json").read_text())
    return image, [Kernel(**row, file=file.name, max_dynamic_shared_bytes=shared) for row in table]


@dataclasses.dataclass(frozen=True)
class Origin:
    """The sources and settings of a pack's build."""

    version: str
    abi: str
    commit: str = ""
    """LUCEBOX_COMMIT; empty without a git history, as in a release's source archive."""
    runs_on: str = ""
    """The architecture that the code was compiled for, if not the target's: for experiments, never published."""


@dataclasses.dataclass(frozen=True)
class Generation:
    """The code of one compiler."""

    compiler: dict[str, Any]  # name, version, flags
    images: dict[str, bytes]
    kernels: list[Kernel]
    counts: dict[str, rdna.Counts]  # by kernel; empty if it is not AMD's or was compiled without assembly
    matrix_problems: list[str]  # of gate.py

    def min_driver(self, target: targets.Target) -> str:
        """The oldest driver that loads this code."""
        is_older = self.compiler["name"] == "nvrtc" and target.nvrtc
        return target.nvrtc.min_driver if is_older and target.nvrtc else target.min_driver

    def facts(self, target: targets.Target) -> dict[str, Any]:
        """This generation's part of the manifest."""
        return {
            "min_driver": self.min_driver(target),
            "compiler": self.compiler,
            "files": listed(self.images),
            "kernels": [dataclasses.asdict(kernel) for kernel in self.kernels],
        }


def listed(files: dict[str, bytes]) -> list[dict[str, Any]]:
    """Files as the manifest lists them."""
    return [
        {"file": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    ]


def archive_of(generations: list[Generation], vendor: str) -> bytes:
    """All code objects as one xz stream: kernels repeat each other, and so do compilers. The newest drivers' code is
    first, so that they decompress no other."""
    content = b"".join(image for one in generations for image in one.images.values())
    lzma2 = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": DICTIONARY}
    return lzma.compress(content, lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=[lzma2 | POSITION_BITS[vendor]])


def manifest(
    target: targets.Target, origin: Origin, generations: list[Generation], stored: dict[str, bytes]
) -> dict[str, Any]:
    facts = dataclasses.asdict(target)
    return {
        "schema": SCHEMA,
        "target": target.family,
        "variant": target.variant,
        "vendor": target.vendor,
        "architecture": origin.runs_on or target.architecture,
        "version": origin.version,
        "abi": origin.abi,
        "commit": origin.commit,
        "boards": targets.published_boards(target),
        "capabilities": facts["capabilities"],
        "tuning": facts["tuning"],
        "exceptions": facts["exceptions"],
        "archive": listed(stored)[0] if ARCHIVE in stored else None,
        "generations": [one.facts(target) for one in generations],
    }


def generation(target: targets.Target, compiler: dict[str, Any], files: list[Path]) -> Generation:
    images, kernels, counts = dict[str, bytes](), list[Kernel](), dict[str, rdna.Counts]()
    for file in sorted(files, key=lambda file: file.name):
        images[file.name], found = read(file, target)
        kernels += found
        if (counted := file.with_suffix(".isa.json")).exists():
            counts |= rdna.load(counted.read_text())
    names = [kernel.name for kernel in kernels]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise CodeError(f"kernels must have different names, there is more than one {', '.join(twice)}")
    problems: list[str] = []
    if target.vendor == "nvidia":
        may_spill = gate.excused(target, compiler["name"])
        problems = [line for name, image in images.items() for line in gate.matrix_problems(image, name, may_spill)]
    return Generation(compiler, images, kernels, counts, problems)


def check_equal(generations: list[Generation]) -> None:
    """Checks that all generations have the same kernels with the same block sizes, so that a launch fits each."""
    first, *others = ({kernel.name: kernel.max_threads for kernel in one.kernels} for one in generations)
    for one, threads in zip(generations[1:], others, strict=True):
        if differing := sorted(dict(first.items() ^ threads.items())):
            names = f"{generations[0].compiler['name']} and {one.compiler['name']}"
            raise CodeError(f"the code by {names} must have the same kernels, they differ in {', '.join(differing)}")


def make(target: targets.Target, origin: Origin, generations: list[Generation], out: Path, bill: Path) -> None:
    """Writes the package, and its bill of materials.

    Raises:
        CodeError: the generations have different kernels, or a kernel breaks the rules.
    """
    shutil.rmtree(out, ignore_errors=True)
    check_equal(generations)
    code = {one.compiler["name"]: one.kernels for one in generations}
    problems = gate.problems(code, target)
    for one in generations:
        problems += one.matrix_problems
        problems += rdna.problems(one.kernels, one.counts, target) if target.vendor == "amd" else []
    if not origin.runs_on and problems:
        advice = (
            "lower the thread bound or the work per thread; a spill that pays can be named with its reason "
            f"under [[exceptions]] in targets/{target.family}/target.toml"
        )
        raise CodeError("\n".join([f"{target.name}: kernels that do not fit:", *problems, advice]))
    out.mkdir(parents=True)
    (out / "__init__.py").write_text("")
    generations = sorted(generations, key=lambda one: targets.release(one.min_driver(target)), reverse=True)
    if target.vendor == "sim":  # one library, which every test reads
        stored = {name: image for one in generations for name, image in one.images.items()}
    else:
        stored = {ARCHIVE: archive_of(generations, target.vendor)}
    for name, data in stored.items():
        (out / name).write_bytes(data)
    content = manifest(target, origin, generations, stored)
    bill.parent.mkdir(parents=True, exist_ok=True)
    bill.write_text(sbom.dump(sbom.of_pack(content)), encoding="utf-8", newline="\n")
    (out / "manifest.json").write_text(json.dumps(content, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the import package of a kernel pack.")
    parser.add_argument("target")
    targets.add_arguments(parser)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sbom", type=Path, required=True, help="the bill of materials to write")
    parser.add_argument("--commit", default="", help="LUCEBOX_COMMIT")
    parser.add_argument("--abi", required=True, help="LUCEBOX_KERNEL_ABI of this source tree")
    parser.add_argument(
        "--generation",
        action="append",
        nargs="+",
        required=True,
        metavar=("COMPILER", "FILE"),
        help='name and version of the compiler, "nvcc 13.0.88", and its files; once for each compiler',
    )
    parser.add_argument("--flags", action="append", default=[], help="the flags of each generation, without paths")
    parser.add_argument("--runs-on", default="", help="LUCEBOX_RUNS_ON")
    arguments = parser.parse_args()
    try:
        target = targets.chosen(arguments)
        origin = Origin(sbom.project_version(), arguments.abi, arguments.commit, arguments.runs_on)
        generations = []
        for (compiler, *files), flags in zip(arguments.generation, arguments.flags, strict=True):
            name, _, version = compiler.rpartition(" ")
            facts = {"name": name, "version": version, "flags": flags.split()}
            generations.append(generation(target, facts, list(map(Path, files))))
        make(target, origin, generations, arguments.out, arguments.sbom)
    except (CodeError, targets.TargetError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
