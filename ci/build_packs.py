"""Builds kernel packs as wheels into build/packs and prints a table: target, seconds, processor time, kilobytes,
kernels; and the bytes of code by kernel family, with the change since the pack that was there before.

build_packs.py                     every target
build_packs.py sm_75 gfx1151       only these targets
build_packs.py --isolated sm_86    in pip's isolation: a fresh environment from PyPI for every pack
build_packs.py --system sm_86      with the compilers of this machine
build_packs.py --nvcc sm_86        with nvcc's code beside NVRTC's: twice the time and bytes

NVIDIA packs have the code of one compiler: NVRTC, or nvcc where the target names no NVRTC. Without --isolated the
compilers are installed once, into build/toolchain, and code that was compiled before comes from a store
(compile_object.py). A pack that fails does not stop the others; its build output is printed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import venv
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import generate_targets
from pack.store import Store
from project import BUILD, ROOT, run, tools_environment

import targets

PACKS = BUILD / "packs"
TOOLCHAIN = BUILD / "toolchain"
# The folder of cmake/LuceboxPack.cmake, and the bytes that it may have: all packs of some ten versions of the kernels.
OBJECTS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lucebox/objects"
OBJECTS_LIMIT = 4 << 30
PTXAS = "nvidia-cuda-nvcc-cu12=={}.*"


@dataclass(frozen=True)
class Built:
    target: str
    seconds: float
    cpu_seconds: float = 0
    bytes: int = 0
    kernels: int = 0
    code: dict[str, int] = field(default_factory=dict)  # bytes of code objects by room of src/gpu
    changes: dict[str, int] = field(default_factory=dict)  # bytes minus the previous pack's bytes
    problem: str = ""  # output of a failed build


def toolchain(chosen: list[str]) -> Path:
    """Makes an environment with the build tools of these packs and returns its interpreter."""
    lines = (ROOT / "ci/requirements-build.txt").read_text().splitlines()
    wanted = {line for line in lines if line and not line.startswith("#")}
    for name in chosen:
        wanted |= set(compilers(name))
    python, stamp = TOOLCHAIN / "bin/python", TOOLCHAIN / "installed.txt"
    installed = set(stamp.read_text().splitlines()) if stamp.exists() else set()
    if not wanted <= installed:
        if not python.exists():
            venv.create(TOOLCHAIN, with_pip=True)
        packages = sorted(wanted | installed)
        run(python, "-m", "pip", "install", "-qq", "--no-compile", *packages)
        stamp.write_text("\n".join(packages) + "\n")
    return python


def compilers(name: str) -> list[str]:
    """The wheels of a target's compilers. Not NVRTC: one environment cannot hold the versions of several targets."""
    target = targets.load(name)
    return [] if target.vendor == "nvidia" and not target.has_nvcc else generate_targets.COMPILER[target.vendor]


def nvrtc(name: str) -> list[str]:
    """Installs a target's NVRTC and the ptxas of its release into a separate folder; returns the build settings that
    name them, or []."""
    target = targets.load(name)
    if target.nvrtc is None:
        return []
    folder = TOOLCHAIN / f"nvrtc-{target.nvrtc.version}"
    library, ptxas = folder / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12", folder / "nvidia/cuda_nvcc/bin/ptxas"
    if not (library.exists() and ptxas.exists()):
        requirements = [package.format(target.nvrtc.version) for package in (generate_targets.NVRTC, PTXAS)]
        pip = (TOOLCHAIN / "bin/python", "-m", "pip", "install", "-qq", "--no-deps", "--upgrade")
        run(*pip, "--target", folder, *requirements)
    return [f"cmake.define.LUCEBOX_NVRTC={library}", f"cmake.define.LUCEBOX_PTXAS={ptxas}"]


def commit() -> str:
    """The commit of the working tree; empty without a history or with uncommitted changes."""
    git = ("git", "-C", str(ROOT))
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return "" if changed.returncode or changed.stdout else head.stdout.strip()


def build(name: str, python: Path, *, isolated: bool, system: bool, nvcc: bool) -> Built:
    target = targets.load(name)
    before = dict[str, int]()
    for old in PACKS.glob(f"lucebox_{target.slug}-*.whl"):
        before = code_bytes(manifest(old)) | {"wheel": old.stat().st_size}
        old.unlink()
    command = [python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", PACKS, ROOT / "targets" / name]
    command += [] if isolated else ["--no-build-isolation"]
    settings = [f"cmake.define.LUCEBOX_COMMIT={commit()}"]
    if target.nvrtc:
        if target.has_nvcc:
            settings.append(f"{generate_targets.NVCC}=true" if nvcc else "cmake.define.LUCEBOX_NVCC=OFF")
        settings += [] if isolated else nvrtc(name)
    if not isolated:
        settings.append(f"cmake.define.LUCEBOX_OBJECTS={OBJECTS}")
    if system:
        settings.append("cmake.define.LUCEBOX_TOOLCHAIN=system")
    if name == "sim":  # the kernel tests reuse this build folder (ci/build_sim.py)
        settings.append(f"build-dir={BUILD / name}")
    for setting in settings:
        command += ["--config-settings", setting]
    start, cpu_start = time.perf_counter(), cpu()
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env=tools_environment(python),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    seconds, cpu_seconds = round(time.perf_counter() - start, 1), round(cpu() - cpu_start, 1)
    if done.returncode:
        return Built(name, seconds, cpu_seconds, problem=done.stdout)
    (wheel,) = PACKS.glob(f"lucebox_{target.slug}-*.whl")
    content = manifest(wheel)
    code = code_bytes(content)
    size = wheel.stat().st_size
    now = code | {"wheel": size}
    changes = {key: now.get(key, 0) - before.get(key, 0) for key in {**now, **before}} if before else {}
    return Built(name, seconds, cpu_seconds, size, len(content["generations"][0]["kernels"]), code, changes)


def cpu() -> float:
    """The seconds of processor time that this program's children took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def code_bytes(content: dict[str, Any]) -> dict[str, int]:
    """Bytes of a pack's code objects, before compression, by the room of src/gpu that they come from."""
    rooms = {file.stem: file.parent.name for file in (ROOT / "src/gpu").glob("*/*.cpp")}
    found: dict[str, int] = {}
    for code in content["generations"]:
        for file in code["files"]:
            room = rooms.get(file["file"].partition(".")[0], "other")
            found[room] = found.get(room, 0) + file["bytes"]
    return dict(sorted(found.items()))


def code_line(row: Built) -> str:
    """Kilobytes of code by room, and the change since the pack that was in build/packs before."""
    rooms = [
        f"{room} {size / 1000:.0f}" + (f" ({row.changes[room] / 1000:+.0f})" if row.changes.get(room) else "")
        for room, size in row.code.items()
    ]
    wheel = f"; the wheel {row.changes['wheel'] / 1000:+.0f}" if row.changes else ""
    return f"{'':<10}code in kB: {', '.join(rooms)}{wheel}"


def manifest(wheel: Path) -> dict[str, Any]:
    """The manifest inside a pack's wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/manifest.json"))
        content: dict[str, Any] = json.loads(archive.read(name))
        return content


def main() -> int:
    parser = argparse.ArgumentParser(description="Build kernel packs.")
    parser.add_argument("targets", nargs="*", help="folders of targets/; none: all of them")
    parser.add_argument("--isolated", action="store_true", help="a fresh environment from PyPI for every pack")
    parser.add_argument("--system", action="store_true", help="compile with this machine's nvcc and clang")
    parser.add_argument("--nvcc", action="store_true", help="add nvcc's code where a target has NVRTC's")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    arguments = parser.parse_args()
    chosen = arguments.targets or targets.names()
    if unknown := sorted(set(chosen) - set(targets.names())):
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(targets.names())}")

    PACKS.mkdir(parents=True, exist_ok=True)
    python = Path(sys.executable) if arguments.isolated else toolchain(chosen)
    rows = []
    for name in chosen:
        row = build(name, python, isolated=arguments.isolated, system=arguments.system, nvcc=arguments.nvcc)
        rows.append(row)
        if not arguments.json:
            result = "FAILED" if row.problem else f"{row.bytes / 1000:8.0f} kB{row.kernels:>6} kernels"
            print(f"{row.target:<10}{row.seconds:>7.1f} s{row.cpu_seconds:>7.1f} CPU s  {result}", flush=True)
            if row.code:
                print(code_line(row), flush=True)
    if not arguments.isolated:
        Store(OBJECTS).prune(OBJECTS_LIMIT)
    failed = [row for row in rows if row.problem]
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        for row in failed:
            print(f"\n=== {row.target}\n{row.problem}")
        total, total_cpu = (sum(getattr(row, name) for row in rows) for name in ("seconds", "cpu_seconds"))
        count = f"{len(rows) - len(failed)} of {len(rows)}"
        print(f"{count} packs built in {total:.0f} s ({total_cpu:.0f} CPU s), in build/packs")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
