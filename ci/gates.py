"""Gates: the project rules that a script can check. Each gate takes the root of a tree and the files to check, and
returns one line per violation, so that tests can pass it a small tree."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import python_imports

# A folder of src/cpp, or src/gpu (the kernels and their host code), may include its own row and the rows above.
LAYERS = (
    ("base", "quant"),
    ("ops",),
    ("format", "device"),
    ("cpu", "pack"),
    ("gpu",),
    ("dispatch",),
    ("weights", "state"),
    ("models",),
    ("sampling",),
    ("speculation",),
    ("engine",),
    ("bindings",),
)
# Headers of src/cuda, src/hip or src/sim.
DIALECT = {"dialect.h", "cluster.h", "narrow_matrix.h", "pairs.h", "peers.h", "transfer.h", "warpgroup.h"}
RANK = {folder: rank for rank, row in enumerate(LAYERS) for folder in row}

PACKAGE = "python/lucebox"
# A room is a folder or file of the package; it imports only from its own row's room and the rows above. A module
# belongs to the room with the longest matching name.
ROOMS = (
    ("_kernels", "cache", "errors", "interrupted", "names", "option_fields", "results"),
    ("regular_files",),
    ("compression.keep_ratio", "figures", "local_files", "sizes"),
    ("options",),
    ("text",),
    ("images",),
    ("chat.messages",),
    ("chat.sandbox",),
    ("chat.template",),
    ("packs",),
    ("models",),
    ("compression",),
    ("generation",),
    ("chat",),
    ("api",),
    ("measure", "selftest", "tune"),
    ("probe", "serve"),
    ("ray",),
    ("cli",),
    ("__main__",),
)
ROOM_RANK = {room: rank for rank, row in enumerate(ROOMS) for room in row}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
VENDOR = re.compile(r"^(cuda|nv|cub/|thrust/|cooperative_groups|mma\.h|hip/|rocm|amd_)")
PYTHON = re.compile(r"^(nanobind/|Python\.h|pybind11/)")
CPP_ENVIRONMENT = re.compile(r"\b(secure_getenv|getenv|setenv|putenv|environ)\b")
PYTHON_ENVIRONMENT = re.compile(r"\bos\.(environ|getenv|putenv)\b|\bfrom os import .*\b(environ|getenv)\b")
# The cache's path; the vendors' own variables that name ROCm's folder or hide GPUs; Ray's, which are its only settings.
READS_ENVIRONMENT = {"python/lucebox/cache.py", "python/lucebox/packs/machine.py", "python/lucebox/ray/environment.py"}
HOST_FLAGS = re.compile(r"-m(?:arch|tune|cpu)=native\b")
MACHINE = re.compile(r"(?<![\w.~-])/(?:root|work|home|Users)/\w|\b(?:pypi|pythonhosted|npmjs)\.(?:org|com)\b")


def _lines(root: Path, files: Iterable[Path], *suffixes: str) -> Iterator[tuple[str, int, str]]:
    """(path relative to root, line number, line) for the text files with one of these suffixes, or for all files."""
    for file in files:
        if suffixes and file.suffix not in suffixes:
            continue
        try:
            text = file.read_text()
        except UnicodeDecodeError:
            continue
        name = file.relative_to(root).as_posix()
        for number, line in enumerate(text.splitlines(), start=1):
            yield name, number, line


def include_direction(root: Path, files: Iterable[Path]) -> list[str]:
    """A folder of src/cpp, or src/gpu, includes nothing from higher layers."""
    problems = []
    for name, number, line in _lines(root, files, ".h", ".cpp", ".inc"):
        found = INCLUDE.match(line)
        if not name.startswith(("src/cpp/", "src/gpu/")) or not found or found[1] == "<" or found[2] in DIALECT:
            continue
        parts = name.split("/")
        folder, target = "gpu" if parts[1] == "gpu" else parts[2], found[2].split("/")[0]
        if folder not in RANK:
            problems.append(f"{name}: folder {folder!r} has no layer; add it to LAYERS in ci/gates.py")
        elif target not in RANK or not (root / ("src" if target == "gpu" else "src/cpp") / found[2]).exists():
            problems.append(f'{name}:{number}: "{found[2]}" is no file of src/cpp or src/gpu; write paths from there')
        elif RANK[target] > RANK[folder]:
            problems.append(f"{name}:{number}: {folder} may not include {found[2]}, a layer above it")
    return problems


def room_direction(root: Path, files: Iterable[Path]) -> list[str]:
    """A module of the package imports only from its own room and from rooms in the rows above."""
    problems = []
    for module, targets in python_imports.imports_of(root / PACKAGE, files).items():
        room = _room(module)
        if room is None:
            problems.append(f"lucebox.{module} has no room; add it to ROOMS in ci/gates.py")
            continue
        for target, line in targets.items():
            other = _room(target)
            if other not in (None, room) and ROOM_RANK[other] >= ROOM_RANK[room]:
                problems.append(f"lucebox.{module}, line {line}: {room} may not import {target}: it is not below")
    return problems


def import_circles(root: Path, files: Iterable[Path]) -> list[str]:
    """No modules of the package import each other, directly or through others."""
    found = python_imports.circles(python_imports.imports_of(root / PACKAGE, files))
    return [f"{PACKAGE}: a circle of imports: {', '.join(circle)}" for circle in found]


def _room(module: str) -> str | None:
    fitting = [room for room in ROOM_RANK if f"{module}.".startswith(f"{room}.")]
    return max(fitting, key=len, default=None)


def vendor_headers(root: Path, files: Iterable[Path]) -> list[str]:
    """Vendor headers only in src/{cuda,hip,sim}; nanobind and Python headers only in src/cpp/bindings."""
    problems = []
    for name, number, line in _lines(root, files, ".h", ".cpp", ".inc"):
        found = INCLUDE.match(line)
        if not found or found[1] == '"':
            continue
        if VENDOR.match(found[2]) and not name.startswith(("src/cuda/", "src/hip/", "src/sim/")):
            problems.append(f"{name}:{number}: <{found[2]}> belongs in src/cuda, src/hip or src/sim")
        if PYTHON.match(found[2]) and not name.startswith("src/cpp/bindings/"):
            problems.append(f"{name}:{number}: <{found[2]}> belongs in src/cpp/bindings")
    return problems


def environment_reads(root: Path, files: Iterable[Path]) -> list[str]:
    """Options are arguments. The engine reads no environment; the Python package only in READS_ENVIRONMENT."""
    problems = []
    for name, number, line in _lines(root, files, ".h", ".cpp", ".inc", ".py"):
        pattern = PYTHON_ENVIRONMENT if name.endswith(".py") else CPP_ENVIRONMENT
        if name.startswith(("src/", "python/")) and name not in READS_ENVIRONMENT and pattern.search(line):
            problems.append(f"{name}:{number}: reads the environment; make it an option")
    return problems


def host_flags(root: Path, files: Iterable[Path]) -> list[str]:
    """The wheel runs on every machine of its architecture: nothing is compiled for the build machine alone."""
    return [
        f"{name}:{number}: {found[0]} compiles for the building machine"
        for name, number, line in _lines(root, files, ".txt", ".cmake", ".json", ".toml")
        if (found := HOST_FLAGS.search(line))
    ]


def machine_paths(root: Path, files: Iterable[Path]) -> list[str]:
    """No tracked text file names a machine's home folder or the host of a package registry."""
    return [
        f"{name}:{number}: names a machine's folder or a registry's host: {found[0]}"
        for name, number, line in _lines(root, files)
        if (found := MACHINE.search(line))
    ]


def isa_objects(objects: Iterable[Path]) -> list[str]:
    """An object compiled for one instruction set defines one global symbol, its table, and nothing that the linker may
    merge. Otherwise the linker could keep an AVX-512 copy of an inline function for the whole program."""
    problems = []
    for file in objects:
        listing = subprocess.run(
            ["nm", "--demangle", "--defined-only", "--extern-only", file], check=True, capture_output=True, text=True
        )
        tables = []
        for line in listing.stdout.splitlines():
            _, kind, symbol = line.split(maxsplit=2)
            if kind in "DRB":  # data; unique (u) and weak (W, V) symbols and functions (T) are not
                tables.append(symbol)
            else:
                problems.append(f"{file.name}: defines {symbol} ({kind}); give it internal linkage")
        if len(tables) > 1:
            problems.append(f"{file.name}: exports more than its table: {', '.join(tables)}")
    return problems
