"""The last step of a pack's build: compiled files in, the import package with its manifest out.

    make_pack.py sm_86 --out FOLDER --sbom FILE --abi 0123... --compiler "nvcc 13.0.88" --flags="-O3 ..." a.cubin ...

Beside each .cubin lies the .log of its compiler, beside the simulator's kernels.so the .json list of its kernels.
Fails, and leaves no pack, when a kernel breaks the rules of pack/gate.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import sbom
from pack import cubin, gate, hsaco
from pack.kernel import CodeError, Kernel

import targets

SCHEMA = 1


def read(file: Path, target: targets.Target) -> tuple[bytes, list[Kernel]]:
    """What goes into the pack of one compiled file, and the kernels it holds."""
    image = file.read_bytes()
    shared = target.capabilities.shared_block_bytes
    if target.vendor == "nvidia":
        return cubin.without_folder(image), cubin.kernels(
            image, file.with_suffix(".log").read_text(), file.name, shared
        )
    if target.vendor == "amd":
        return image, hsaco.kernels(image, file.name, shared)
    table = json.loads(file.with_suffix(".json").read_text())
    return image, [Kernel(**row, file=file.name, max_dynamic_shared_bytes=shared) for row in table]


@dataclasses.dataclass(frozen=True)
class Origin:
    """What a pack was built from, and with."""

    version: str
    abi: str
    compiler: dict[str, Any]
    commit: str = ""
    """LUCEBOX_COMMIT; empty where the source has no history, as in a release's source archive."""
    runs_on: str = ""
    """The architecture its code was compiled for, if not the target's: to try it there, not to publish it."""


def manifest(target: targets.Target, origin: Origin, images: dict[str, bytes], kernels: list[Kernel]) -> dict[str, Any]:
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
        "min_driver": target.min_driver,
        "boards": targets.published_boards(target),
        "compiler": origin.compiler,
        "capabilities": facts["capabilities"],
        "tuning": facts["tuning"],
        "exceptions": facts["exceptions"],
        "files": [
            {"file": name, "bytes": len(image), "sha256": hashlib.sha256(image).hexdigest()}
            for name, image in images.items()
        ],
        "kernels": [dataclasses.asdict(kernel) for kernel in kernels],
    }


def make(target: targets.Target, origin: Origin, files: list[Path], out: Path, bill: Path) -> None:
    """Writes the package, and its bill of materials.

    Raises:
        CodeError: a file is not what the compiler should have made, or a kernel breaks the rules.
    """
    shutil.rmtree(out, ignore_errors=True)
    images, kernels = {}, []
    for file in sorted(files, key=lambda file: file.name):
        images[file.name], found = read(file, target)
        kernels += found
    names = [kernel.name for kernel in kernels]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise CodeError(f"kernels must have different names, there is more than one {', '.join(twice)}")
    if not origin.runs_on and (problems := gate.problems(kernels, target)):
        advice = (
            "lower the thread bound or the work per thread; a spill that pays can be named with its reason "
            f"under [[exceptions]] in targets/{target.family}/target.toml"
        )
        raise CodeError("\n".join([f"{target.name}: kernels that do not fit:", *problems, advice]))
    out.mkdir(parents=True)
    (out / "__init__.py").write_text("")
    for name, image in images.items():
        (out / name).write_bytes(image)
    content = manifest(target, origin, images, kernels)
    bill.parent.mkdir(parents=True, exist_ok=True)
    bill.write_text(sbom.dump(sbom.of_pack(content)), encoding="utf-8", newline="\n")
    (out / "manifest.json").write_text(json.dumps(content, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the import package of a kernel pack.")
    parser.add_argument("target")
    targets.add_arguments(parser)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sbom", type=Path, required=True, help="the bill of materials to write")
    parser.add_argument("--commit", default="", help="LUCEBOX_COMMIT")
    parser.add_argument("--abi", required=True, help="LUCEBOX_KERNEL_ABI of this source tree")
    parser.add_argument("--compiler", required=True, help='name and version: "nvcc 13.0.88"')
    parser.add_argument("--flags", default="", help="what the kernels were compiled with, without paths")
    parser.add_argument("--runs-on", default="", help="LUCEBOX_RUNS_ON")
    arguments = parser.parse_args()
    name, _, version = arguments.compiler.rpartition(" ")
    compiler = {"name": name, "version": version, "flags": arguments.flags.split()}
    try:
        origin = Origin(sbom.project_version(), arguments.abi, compiler, arguments.commit, arguments.runs_on)
        make(targets.chosen(arguments), origin, arguments.files, arguments.out, arguments.sbom)
    except (CodeError, targets.TargetError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
