"""Checks finished wheels (host, packs, lucebox-kernels, lucebox-tiny) and rejects those that must not be published.

    verify_wheel.py WHEEL...              a table, and one line per failure; exit code 1 if there are failures
    verify_wheel.py --json WHEEL...       the table as JSON
    verify_wheel.py --no-import WHEEL...  without installing host wheels into a fresh environment

Packs must match the manifest schema of the lucebox installed in this interpreter's environment.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lucebox.errors import PackError
from lucebox.packs import unpacked
from lucebox.packs.manifest import Generation, Manifest
from wheels import PACK_GROUP, Wheel

import targets

MEGABYTE = 1 << 20
LIMITS_MB = {"pack": 4}  # largest wheels, of other kinds MAX_MB
MAX_MB = 20
KINDS = {"lucebox": "host", "lucebox-tiny": "model", "lucebox-kernels": "kernels"}
# ELF machine numbers (e_machine).
DEVICE_MACHINES = {"nvidia": (190, "CUDA"), "amd": (224, "AMD GPU")}
HOST_MACHINES = {"x86_64": 62, "aarch64": 183}
SYSTEM_LIBRARIES = re.compile(r"(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|ld-linux[-\w]*)\.so\.\d+")
BUILDERS_FLAGS = re.compile(r"-m(?:arch|tune|cpu)=native|-m(?:fma|avx|sse|bmi|f16c)")  # sim, in a developer's preset
FOLDER = re.compile(rb"/(?:root|home|tmp|work|build|Users)/[\w./+-]+")


@dataclass
class Report:
    """The facts about one wheel, and its failures."""

    wheel: str
    kind: str
    bytes: int
    facts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def verify(path: Path, limit_mb: float | None = None, *, imports: bool = True) -> Report:
    report = Report(path.name, "unreadable", path.stat().st_size)
    try:
        wheel = Wheel(path)
        report.kind = KINDS.get(wheel.project, "pack")
        report.problems += _archive(wheel)
        if report.kind in ("host", "pack"):
            report.problems += _bill(wheel)
        if report.kind == "pack":
            report.problems += _pack(wheel, report.facts)
        elif report.kind == "model":
            report.problems += _model(wheel)
        elif report.kind == "kernels":
            report.problems += _kernels(wheel)
        else:
            report.problems += _host(wheel, report.facts)
            if imports and not report.problems:
                report.problems += _import(wheel, report.facts)
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        report.problems.append(f"cannot be read as a wheel: {error}")
    limit = LIMITS_MB.get(report.kind, MAX_MB) if limit_mb is None else limit_mb
    if report.bytes > limit * MEGABYTE:
        report.problems.append(f"is {report.bytes / MEGABYTE:.1f} MB; the limit is {limit:g} MB")
    return report


def _archive(wheel: Wheel) -> Iterator[str]:
    """Checks every wheel's archive."""
    if len(wheel.name_parts) != 5:
        raise ValueError(f"a wheel's name has five parts, got {wheel.path.name}")
    said = (wheel.metadata["Name"], wheel.metadata["Version"])
    if (said[0] or "").replace("-", "_") != wheel.name_parts[0] or said[1] != wheel.version:
        yield f"METADATA is of {said[0]} {said[1]}, the file is called {wheel.path.name}"
    python, abi, platforms = wheel.name_parts[2:]
    named = {f"{python}-{abi}-{one}" for one in platforms.split(".")}
    if named != set(wheel.tags):
        yield f"WHEEL has the tags {', '.join(wheel.tags)}, the file name says {', '.join(sorted(named))}"
    names = wheel.metadata.get_all("License-File", [])
    if not names:
        yield "METADATA has no License-File"
    yield from (f"{name} is missing" for name in names if f"{wheel.info}/licenses/{name}" not in wheel.members)
    yield from wheel.damaged_members()
    for name, content in wheel.members.items():
        if found := FOLDER.search(content):
            yield f"{name} names a folder of the machine that built it: {found[0].decode()}"


def _model(wheel: Wheel) -> Iterator[str]:
    """Checks lucebox-tiny: weights for every machine, without a bill of materials because nothing is compiled."""
    if "-".join(wheel.name_parts[2:]) != "py3-none-any":
        yield f"must have the tag py3-none-any, as it holds data, got {'-'.join(wheel.name_parts[2:])}"
    if not any(name.endswith(".gguf") for name in wheel.members):
        yield "holds no GGUF file"


def _kernels(wheel: Wheel) -> Iterator[str]:
    """Checks lucebox-kernels: sources for every machine, nothing compiled, only for the host of the same version."""
    if "-".join(wheel.name_parts[2:]) != "py3-none-any":
        yield f"must have the tag py3-none-any, as it holds sources, got {'-'.join(wheel.name_parts[2:])}"
    pin = f"lucebox=={wheel.version}"
    if pin not in [line.replace(" ", "") for line in wheel.metadata.get_all("Requires-Dist", [])]:
        yield f"must require {pin}"
    source = "lucebox_kernels/source"
    needed = [
        "ci/compile_kernels.py",
        *(f"targets/{target.name}/target.toml" for target in targets.load_all() if not target.variant),
    ]
    yield from (f"{source}/{name} is missing" for name in needed if f"{source}/{name}" not in wheel.members)
    yield from (f"{name} is compiled code" for name, data in wheel.members.items() if data.startswith(b"\x7fELF"))


def _bill(wheel: Wheel) -> Iterator[str]:
    """Checks that a compiled wheel contains its bill of materials (PEP 770)."""
    bill = f"{wheel.info}/sboms/{wheel.project}.cdx.json"
    try:
        subject = json.loads(wheel.members[bill])["metadata"]["component"]
        found = (subject["name"], subject["version"])
    except (KeyError, TypeError, ValueError):
        yield f"{bill} is missing or no CycloneDX"
        return
    if found != (wheel.project, wheel.version):
        yield f"{bill} is of {' '.join(found)}"


def _pack(wheel: Wheel, facts: dict[str, str]) -> Iterator[str]:
    if len(wheel.packs) != 1:
        yield f"announces {len(wheel.packs)} packs in entry point group {PACK_GROUP}, expected one"
        return
    ((name, package),) = wheel.packs.items()
    facts["target"] = name
    try:
        target = targets.load(name)
    except targets.TargetError as error:
        yield str(error)
        return
    if (wheel.project, package) != (target.project, f"lucebox_{target.slug}"):
        yield (
            f"target {name} belongs in {target.project} with package lucebox_{target.slug}, "
            f"got {wheel.project} with {package}"
        )
    yield from _pack_tag(wheel, target)
    pins = [line.replace(" ", "") for line in wheel.metadata.get_all("Requires-Dist", [])]
    if pins != [f"lucebox=={wheel.version}"]:
        yield f"must require lucebox=={wheel.version} and nothing else, got {', '.join(pins) or 'nothing'}"

    try:
        where = f"{package}/manifest.json"
        manifest = Manifest.parse(wheel.members[where].decode(), where)
    except (KeyError, UnicodeDecodeError, PackError) as error:
        yield str(error) if isinstance(error, PackError) else f"{where} is missing or not text"
        return
    compilers = [one.compiler for one in manifest.generations]
    facts["compiler"] = " and ".join(f"{compiler.name} {compiler.version}" for compiler in compilers)
    facts["kernels"] = str(len(manifest.kernel_names))
    facts_of = {"target": target.family, "variant": target.variant, "vendor": target.vendor}
    for key, expected in {**facts_of, "architecture": target.architecture}.items():
        if getattr(manifest, key) != expected:
            yield f"{where}: {key} must be {expected}, got {getattr(manifest, key)}"
    if manifest.version != wheel.version:
        yield f"{where}: version must be {wheel.version}, got {manifest.version}"
    if target.oldest_driver not in {one.min_driver for one in manifest.generations}:
        yield f"{where}: has no code for drivers from {target.oldest_driver} on, which NVRTC compiles"
    yield from _pack_files(wheel, package, manifest)
    yield from _resources(manifest, target)
    for flag in sorted({flag for one in compilers for flag in one.flags if BUILDERS_FLAGS.match(flag)}):
        yield f"{where}: {flag} makes code for the machine that built it; build the wheel with pip, not with a preset"


def _pack_tag(wheel: Wheel, target: targets.Target) -> Iterator[str]:
    tag = "-".join(wheel.name_parts[2:])
    if target.vendor != "sim" and tag != "py3-none-any":
        yield f"must have the tag py3-none-any, as it holds no host code, got {tag}"
    if target.vendor == "sim" and not re.fullmatch(r"py3-none-(linux|manylinux_\d+_\d+)_\w+", tag):
        yield f"holds host code and must have the tag py3-none-<platform>, got {tag}"


def _pack_files(wheel: Wheel, package: str, manifest: Manifest) -> Iterator[str]:
    """Checks that the package contains exactly the files in the manifest, with the listed contents."""
    listed = {f"{package}/{file.file}": file for file in manifest.stored}
    if wheel.members.get(f"{package}/__init__.py", b"x"):
        yield f"{package}/__init__.py must be there and empty"
    expected = listed.keys() | {f"{package}/__init__.py", f"{package}/manifest.json"}
    for name in sorted(wheel.members.keys() - expected):
        if not name.startswith(f"{wheel.info}/"):
            yield f"{name} is not in the manifest"
    if not manifest.kernel_names:
        yield "the manifest lists no kernel"
    for unused in sorted(name for code in manifest.generations for name in _unused(code)):
        yield f"{unused} holds no kernel that the manifest lists"
    for name, file in listed.items():
        content = wheel.members.get(name)
        if content is None:
            yield f"{name} is in the manifest but not in the wheel"
            continue
        if (len(content), hashlib.sha256(content).hexdigest()) != (file.bytes, file.sha256):
            yield f"{name}: {len(content)} bytes do not have the size and sha256 that the manifest lists"
    yield from _code_objects(wheel, package, manifest)


def _code_objects(wheel: Wheel, package: str, manifest: Manifest) -> Iterator[str]:
    """Checks what the driver gets: the content of an archive, and that all is code for the vendor's machine."""
    files = [file for code in manifest.generations for file in code.files]
    images = {file.file: wheel.members.get(f"{package}/{file.file}", b"") for file in files}
    if manifest.archive is not None:
        where = f"{package}/{manifest.archive.file}"
        try:
            images = unpacked(wheel.members.get(where, b""), files)
        except ValueError as error:
            yield f"{where}: {error}"
            return
        for file in files:
            if hashlib.sha256(images[file.file]).hexdigest() != file.sha256:
                yield f"{where}: {file.file} does not have the sha256 that the manifest lists"
    for name, content in images.items():
        machine = _elf_machine(content)
        if manifest.vendor in DEVICE_MACHINES:
            number, label = DEVICE_MACHINES[manifest.vendor]
            if machine != number:
                yield f"{package}/{name} must be device code ({label}, ELF machine {number}), got {_kind(content)}"
        elif machine not in HOST_MACHINES.values():
            yield f"{package}/{name} must be a shared library of the host, got {_kind(content)}"


def _unused(code: Generation) -> set[str]:
    """The files without a kernel."""
    return {file.file for file in code.files} - {kernel.file for kernel in code.kernels}


def _resources(manifest: Manifest, target: targets.Target) -> Iterator[str]:
    for code in manifest.generations:
        waivers = [waiver for waiver in target.exceptions if waiver.excuses("spill", code.compiler.name)]
        excused = {waiver.kernel for waiver in waivers}
        for kernel in code.kernels:
            if kernel.spill_bytes and kernel.name not in excused:
                yield (
                    f"kernel {kernel.name} of {kernel.file} spills {kernel.spill_bytes} bytes; "
                    f"change it, or give the reason in [[exceptions]] of targets/{target.name}/target.toml"
                )


def _elf_machine(content: bytes) -> int | None:
    """e_machine of a little-endian ELF file; None for anything else."""
    if len(content) < 20 or content[:4] != b"\x7fELF" or content[5] != 1:
        return None
    machine: int = struct.unpack_from("<H", content, 18)[0]
    return machine


def _kind(content: bytes) -> str:
    if (machine := _elf_machine(content)) is not None:
        return f"ELF machine {machine}"
    return "a script" if content.startswith(b"#!") else f"no ELF file (starts {content[:4]!r})"


def _host(wheel: Wheel, facts: dict[str, str]) -> Iterator[str]:
    python, abi, platforms = wheel.name_parts[2:]
    version = int(python.removeprefix("cp3") or 0) if re.fullmatch(r"cp3\d+", python) else 0
    if abi != ("abi3" if version == 12 else python) or not 10 <= version <= 12:
        yield f"must have the tag cp312-abi3, or cp310-cp310 or cp311-cp311, got {python}-{abi}"
    for requirement in wheel.metadata.get_all("Requires-Dist", []):
        if re.match(r"lucebox-(sm|gfx|sim)", requirement) and f"=={wheel.version}" not in requirement.replace(" ", ""):
            yield f"an extra must pin its pack to {wheel.version}, got Requires-Dist: {requirement}"
    modules = [name for name in wheel.members if re.fullmatch(r"lucebox/_engine[\w.-]*\.so", name)]
    libraries = [name for name in wheel.members if re.search(r"\.so(\.\d+)*$", name)]
    if len(modules) != 1 or libraries != modules:
        yield f"must hold one library, lucebox/_engine*.so, got {', '.join(libraries) or 'none'}"
        return
    (module,) = modules
    if module.endswith(".abi3.so") != (abi == "abi3"):
        yield f"{module} does not fit the tag {python}-{abi}"
    machine = next((name for name in HOST_MACHINES if platforms.endswith(name)), None)
    if machine is None or _elf_machine(wheel.members[module]) != HOST_MACHINES[machine]:
        yield f"{module} is {_kind(wheel.members[module])}, the wheel's platform is {platforms}"
    yield from _links(module, wheel.members[module], platforms, facts)


def _links(module: str, content: bytes, platforms: str, facts: dict[str, str]) -> Iterator[str]:
    """Checks the shared libraries and symbol versions that a module needs."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(content)
        file.flush()
        command = ["readelf", "--wide", "--dynamic", "--version-info", file.name]
        listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[([^]]+)\]", listing)
    facts["needs"] = " ".join(needed)
    for library in needed:
        if not SYSTEM_LIBRARIES.fullmatch(library):
            yield f"{module} needs {library}; drivers are opened at run time and nothing else may be needed"
    for path in re.findall(r"\((?:RPATH|RUNPATH)\).*\[([^]]+)\]", listing):
        yield f"{module} has the library path {path}; it must have none"
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"\bGLIBC_(\d+(?:\.\d+)+)", listing)}
    newest = max(versions, default=(0, 0))
    facts["glibc"] = ".".join(map(str, newest))
    for major, minor in re.findall(r"manylinux_(\d+)_(\d+)_", platforms):
        if newest > (int(major), int(minor)):
            yield f"{module} needs GLIBC {facts['glibc']}, the tag promises {major}.{minor}"


def _import(wheel: Wheel, facts: dict[str, str]) -> Iterator[str]:
    """Installs the wheel with its dependencies into a fresh environment and imports it."""
    is_abi3 = wheel.name_parts[3] == "abi3" and sys.version_info >= (3, 12)
    fits = is_abi3 or wheel.name_parts[2] == f"cp3{sys.version_info[1]}"
    if not fits or not wheel.name_parts[4].endswith(platform.machine()):
        facts["import"] = f"not here: Python 3.{sys.version_info[1]} on {platform.machine()}"
        return
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "bin" / "python"
        for command in (
            (sys.executable, "-m", "venv", "--without-pip", folder),
            (sys.executable, "-m", "pip", "--python", python, "install", "-qq", "--no-compile", wheel.path.resolve()),
            (python, "-c", "import lucebox; print(lucebox.__version__)"),
        ):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                yield f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip().splitlines()[-1]}"
                return
        if done.stdout.strip() != wheel.version:
            yield f"lucebox.__version__ is {done.stdout.strip()}, the wheel is {wheel.version}"
        facts["import"] = "ok"


def table(reports: list[Report]) -> str:
    rows = [
        f"{report.wheel:<64}{report.bytes / MEGABYTE:>8.2f} MB  {'FAILED' if report.problems else 'ok':<8}"
        + ", ".join(f"{key} {value}" for key, value in report.facts.items())
        for report in reports
    ]
    rows += [f"{report.wheel}: {problem}" for report in reports for problem in report.problems]
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Refuse wheels that must not be published.")
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    parser.add_argument("--limit-mb", type=float, help="largest size of a wheel (a pack 4, others 20)")
    parser.add_argument("--no-import", action="store_true", help="do not install host wheels")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON")
    arguments = parser.parse_args()
    reports = [verify(path, arguments.limit_mb, imports=not arguments.no_import) for path in arguments.wheels]
    print(json.dumps([asdict(report) for report in reports], indent=2) if arguments.json else table(reports))
    return 1 if any(report.problems for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
