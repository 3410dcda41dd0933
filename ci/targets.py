"""The schema and the only reader of targets/<name>/target.toml.

    targets.py                 checks every target and lists them
    targets.py --names         every name as one JSON list, for a build matrix
    targets.py sm_86           prints one target as JSON, with defaults, for CMake and the pack builder

A variant is a target with other constants or fewer kernel files under a separate name: sm_86_laptop. A folder in
targets/ defines it, or the options --variant, --tuning, --defines and --without.

The dataclasses are the schema: a field without a default is required, and unknown keys are errors. Every problem raises
a TargetError that names the place, the expected value and the value found.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

ZIG = "ziglang==0.17.1"  # whose clang compiles AMD kernels and the host wheels
ROOT = Path(__file__).resolve().parent.parent
SCHEMA = 1
HOSTS = ("x86_64", "aarch64")

# Vendor -> pattern of its architecture strings.
VENDORS = {"nvidia": re.compile(r"sm_\d+a?"), "amd": re.compile(r"gfx\d+"), "sim": re.compile(r"sim")}
PCI_VENDORS = {"10de:": "nvidia", "1002:": "amd"}
# Matrix instruction -> the architectures whose compiler accepts it.
MATRIX = {
    "mma_f16": r"sm_7[05]",
    "mma_bf16": r"sm_8\d|sm_12\da?",
    "wgmma": r"sm_90a",
    "tcgen05": r"sm_1[01]\da",
    "wmma_gfx11": r"gfx11\d\d",
    "wmma_gfx12": r"gfx12\d\d",
    "emulated": r"sim",
}
# The line with a kernel file's requirements, in its head: "// Needs: tma, no wgmma, 192 KiB of shared memory".
NEEDS_LINE = re.compile(r"^// Needs: (.+)$", re.MULTILINE)
SHARED_NEED = re.compile(r"(\d+) KiB of shared memory")
# Capability -> the architectures that may claim it. NVIDIA: CUDA programming guide, feature support per compute
# capability. fp8: products of FP8 by mma.sync or wgmma, which ptxas assembles to conversions and products of f16
# elsewhere. ptxas accepts FP4, which is block-scaled, only for architectures with the `a` suffix.
NEEDS = {
    "bf16": r"sm_8\d|sm_(9|1\d)\da?|gfx1[12]\d\d|sim",
    "async_copy": r"sm_8\d|sm_(9|1\d)\da?|sim",
    "fp8": r"sm_89|sm_90a|sm_12\da?",
    "fp4": r"sm_1\d\da",
    "tma": r"sm_(9|1\d)\da?",
    "clusters": r"sm_(9|1\d)\da?|sim",
}
# Tuning constant -> minimum, maximum, and the number that it must be a multiple of.
TUNING = {
    "matvec_threads_per_sm": (32, 2048, 32),
    "speculation_budget": (1, 64, 1),
    "prefill_chunk": (64, 8192, 64),
    "megakernel_max_mib": (0, 1 << 20, 1),
    "megakernel_max_kv_mib": (0, 1 << 20, 1),
}
# Constants compiled into kernels, as macros with a default in src/gpu -> minimum and maximum. Only variants override
# the defaults.
DEFINES = {"LUCEBOX_GEMV_BLOCKS": (1, 4)}
WAIVERS = ("spill",)
VARIANT = re.compile(r"[a-z][a-z0-9]*")
VARIANT_KEYS = ("inherits", "tuning", "defines", "without")


MADE = {"made": True}  # marks fields that load() and vary() set; files may not


class TargetError(Exception):
    """A target file is missing, malformed or inconsistent."""


@dataclass(frozen=True, slots=True)
class Board:
    """A product with this chip. A figure without a source is omitted."""

    name: str
    source: str
    sm_count: int | None = None  # compute units on AMD
    memory_gb: float | None = None
    bandwidth_gb_s: float | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The hardware features that a kernel may use."""

    bf16: bool
    matrix: str
    async_copy: bool
    fp8: bool  # matrix instructions of mma.sync or wgmma, without tcgen05
    fp4: bool
    tma: bool
    clusters: bool
    shared_block_bytes: int  # maximum dynamic shared memory per block
    warp_size: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """Tuning constants that the launch functions read."""

    matvec_threads_per_sm: int  # GEMV: threads resident on an SM, over all its blocks
    speculation_budget: int  # rows of a draft tree; no code reads it
    prefill_chunk: int  # prompt rows per prefill chunk, unless the user sets them
    megakernel_max_mib: int  # the megakernel beats a graph up to this many MiB of weights per token; 0: never
    megakernel_max_kv_mib: int  # and, with heads of 256 columns, up to this many MiB of K and V


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """The NVRTC wheel on PyPI that compiles an NVIDIA target's code for drivers older than the target's min_driver."""

    version: str  # "12.4": any patch release
    min_driver: str  # the target's: NVRTC compiles all of its code


@dataclass(frozen=True, slots=True)
class Waiver:
    """Allows a kernel to break a rule of the build, with a reason."""

    kernel: str
    what: str
    reason: str
    compiler: str = ""  # the generation of code that it applies to, "nvrtc"; empty: all

    def excuses(self, what: str, compiler: str) -> bool:
        return self.what == what and self.compiler in ("", compiler)


@dataclass(frozen=True, slots=True)
class Target:
    """One target.toml."""

    schema: int
    name: str
    vendor: str
    architecture: str  # the compiler's argument
    hosts: tuple[str, ...]
    capabilities: Capabilities
    tuning: Tuning
    min_driver: str = ""  # for the code by the vendor's compiler; sim has none
    nvrtc: Nvrtc | None = None
    boards: tuple[Board, ...] = ()
    exceptions: tuple[Waiver, ...] = ()
    inherits: str = dataclasses.field(default="", metadata=MADE)  # the base target of a variant
    variant: str = dataclasses.field(default="", metadata=MADE)  # the variant's word in the name, "laptop"
    without: tuple[str, ...] = dataclasses.field(default=(), metadata=MADE)  # stems of excluded kernel files
    defines: Mapping[str, int] = dataclasses.field(default_factory=dict, metadata=MADE)  # values of macros in DEFINES

    @property
    def family(self) -> str:
        """The target's name; for a variant, the base target's name."""
        return self.inherits or self.name

    @property
    def slug(self) -> str:
        """The name in extras and import packages, such as sm86 or sm86_laptop."""
        return self.family.replace("_", "") + (f"_{self.variant}" if self.variant else "")

    @property
    def project(self) -> str:
        """The name of its wheel."""
        return f"lucebox-{self.slug}".replace("_", "-")

    @property
    def oldest_driver(self) -> str:
        """The oldest driver that can load one of the pack's generations."""
        return self.nvrtc.min_driver if self.nvrtc else self.min_driver

    @property
    def has_nvcc(self) -> bool:
        """Whether nvcc compiles code for the target. CUDA 13 knows no chip before sm_75."""
        return self.vendor == "nvidia" and (self.nvrtc is None or self.nvrtc.min_driver != self.min_driver)

    @property
    def facts(self) -> set[str]:
        """The words that a kernel file's "Needs:" line may name: the vendor, the matrix instruction, capabilities."""
        return {self.vendor, self.capabilities.matrix, *(name for name in NEEDS if getattr(self.capabilities, name))}

    def sources(self, root: Path = ROOT) -> list[str]:
        """The kernel files that are compiled for the target, relative to the root: it meets their needs and does not
        exclude them. sim emulates every instruction and compiles all kernel files.

        Raises:
            TargetError: a "Needs:" line names something unknown.
        """
        files = kernel_files(root)
        chosen = [file for file in files if _meets(self, file.read_text(encoding="utf-8"), file.relative_to(root))]
        return [file.relative_to(root).as_posix() for file in chosen if file.stem not in self.without]


def kernel_files(root: Path = ROOT) -> list[Path]:
    """Every kernel source: the .cpp files in the folders of src/gpu, except host code (choose*.cpp)."""
    return sorted(file for file in (root / "src/gpu").glob("*/*.cpp") if not file.name.startswith("choose"))


def _meets(target: Target, text: str, where: Path) -> bool:
    """Whether the target meets the needs of a kernel file."""
    known = VENDORS.keys() | MATRIX.keys() | NEEDS.keys()
    is_met = True
    for line in NEEDS_LINE.findall(text):
        for need in line.rstrip(".").split(", "):
            if shared := SHARED_NEED.fullmatch(need):
                is_met &= target.capabilities.shared_block_bytes >= int(shared[1]) << 10
                continue
            word = need.removeprefix("no ")
            if word not in known:
                raise TargetError(
                    f"{where}: Needs: {word!r}: expected N KiB of shared memory, or {', '.join(sorted(known))}"
                )
            is_met &= (word in target.facts) == (word == need)
    return is_met or target.vendor == "sim"


def release(version: str) -> tuple[int, ...]:
    """A driver's version as comparable numbers; () for sim's, which is empty."""
    return tuple(int(part) for part in version.split(".") if part)


def names(root: Path = ROOT) -> list[str]:
    """Every target that has a folder, in the order of the tables: NVIDIA by number, AMD by number, sim."""
    found = [file.parent.name for file in (root / "targets").glob("*/target.toml")]
    return sorted(found, key=lambda name: ("sm gf si".find(name[:2]), _number(name), name))


def _number(name: str) -> int:
    """sm_86 -> 86, sm_86_laptop -> 86, sim -> 0."""
    found = re.search(r"\d+", name)
    return int(found[0]) if found else 0


def load_all(root: Path = ROOT) -> list[Target]:
    return [load(name, root) for name in names(root)]


@dataclass(frozen=True, slots=True)
class PciId:
    """A row of targets/pci_ids.csv: a GPU and its PCI id. Its architecture need not have a target."""

    id: str
    architecture: str
    name: str
    source: str


def load_pci_ids(root: Path = ROOT) -> list[PciId]:
    """The rows of targets/pci_ids.csv, checked.

    Raises:
        TargetError: a row is malformed, out of order or duplicated.
    """
    where = "targets/pci_ids.csv"
    with (root / where).open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    columns = [field.name for field in dataclasses.fields(PciId)]
    if not rows or rows[0] != columns:
        raise TargetError(f"{where}: expected the columns {', '.join(columns)}")
    known: list[PciId] = []
    for line, row in enumerate(rows[1:], 2):
        if len(row) != len(columns) or not all(cell.strip() == cell != "" for cell in row):
            raise TargetError(f"{where}:{line}: expected {len(columns)} cells with text, got {row}")
        one = PciId(*row)
        vendor = next((PCI_VENDORS[prefix] for prefix in PCI_VENDORS if one.id.startswith(prefix)), None)
        if vendor is None or not re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{4}", one.id):
            raise TargetError(f"{where}:{line}: id must be 10de or 1002, a colon and four digits, got {one.id!r}")
        if not re.fullmatch(r"sm_\d+" if vendor == "nvidia" else r"gfx[0-9a-f]+", one.architecture):
            raise TargetError(f"{where}:{line}: {one.architecture!r} is no architecture of {vendor}")
        known.append(one)
    order = sorted(known, key=lambda one: (not one.id.startswith("10de"), one.id))
    if known != order or len({one.id for one in known}) != len(known):
        raise TargetError(f"{where}: expected every id once, NVIDIA's first, in order")
    return known


def load(name: str, root: Path = ROOT) -> Target:
    """Loads and checks the target of that name.

    Raises:
        TargetError: there is no such target, or its file is wrong.
    """
    where = f"targets/{name}/target.toml"
    try:
        table = tomllib.loads((root / where).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TargetError(f"{where}: no such file; the targets are {', '.join(names(root))}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TargetError(f"{where}: not TOML: {error}") from None
    if "inherits" in table:
        return _load_variant(name, table, root, where)
    target = _read(Target, table, f"{where}: ")
    for check in (_check_identity, _check_capabilities, _check_tuning, _check_boards, _check_exceptions):
        problem = check(target, name, root)
        if problem:
            raise TargetError(f"{where}: {problem}")
    return target


def _load_variant(name: str, table: dict[str, Any], root: Path, where: str) -> Target:
    unknown = sorted(table.keys() - {*VARIANT_KEYS})
    if unknown:
        raise TargetError(f"{where}: {unknown[0]}: no such key of a variant; the keys are {', '.join(VARIANT_KEYS)}")
    inherits = _value(str, table["inherits"], f"{where}: inherits")
    tuning = table.get("tuning", {})
    if not isinstance(tuning, dict):
        raise TargetError(f"{where}: tuning: expected a table, got {tuning!r}")
    defines = table.get("defines", {})
    if not isinstance(defines, dict):
        raise TargetError(f"{where}: defines: expected a table, got {defines!r}")
    without = _value(tuple[str, ...], table.get("without", []), f"{where}: without")
    if not name.startswith(f"{inherits}_"):
        raise TargetError(f"{where}: inherits: expected the start of the folder's name, got {inherits!r}")
    return vary(load(inherits, root), name.removeprefix(f"{inherits}_"), tuning, defines, without, root, where)


def vary(
    base: Target,
    word: str,
    tuning: Mapping[str, Any],
    defines: Mapping[str, Any],
    without: Sequence[str],
    root: Path = ROOT,
    where: str = "variant",
) -> Target:
    """Makes a variant of a target: replaces constants and excludes kernel files.

    Raises:
        TargetError: `base` is a variant, a constant or a file is unknown, or a value is out of range.
    """
    if base.variant:
        raise TargetError(f"{where}: {base.name} is a variant itself; vary {base.inherits}")
    if not VARIANT.fullmatch(word):
        raise TargetError(f"{where}: expected a word of small letters and digits behind {base.name}_, got {word!r}")
    if unknown := sorted(tuning.keys() - TUNING.keys()):
        raise TargetError(f"{where}: tuning.{unknown[0]}: no such constant; they are {', '.join(TUNING)}")
    values = {name: _value(int, value, f"{where}: tuning.{name}") for name, value in tuning.items()}
    if problem := _check_defines(defines):
        raise TargetError(f"{where}: {problem}")
    stems = [Path(source).stem for source in base.sources(root)]
    if unknown := sorted(set(without) - {*stems}):
        raise TargetError(f"{where}: without: {base.name} has no kernel file {unknown[0]}; it has {', '.join(stems)}")
    varied = dataclasses.replace(
        base,
        name=f"{base.name}_{word}",
        inherits=base.name,
        variant=word,
        tuning=dataclasses.replace(base.tuning, **values),
        without=tuple(without),
        defines=dict(defines),
    )
    if problem := _check_tuning(varied, word, root):
        raise TargetError(f"{where}: {problem}")
    return varied


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds a variant's options; CMake passes LUCEBOX_VARIANT, _TUNING, _DEFINES and _WITHOUT in this form."""
    parser.add_argument("--variant", default="", metavar="WORD", help="a variant of the target: laptop")
    parser.add_argument("--tuning", default="", metavar="KEY=N,...", help="its tuning constants that differ")
    parser.add_argument("--defines", default="", metavar="KEY=N,...", help="its constants that are compiled in")
    parser.add_argument("--without", default="", metavar="STEM,...", help="the kernel files that it leaves out")


def chosen(arguments: argparse.Namespace, root: Path = ROOT) -> Target:
    """The target that the command line names.

    Raises:
        TargetError: there is no such target, or its file or an option is wrong.
    """
    base = load(arguments.target, root)
    if not arguments.variant:
        for name in ("tuning", "defines", "without"):
            if getattr(arguments, name):
                raise TargetError(f"{name}: a changed {base.name} needs a name of its own: set the variant")
        return base
    tuning, defines = (_assignments(name, getattr(arguments, name)) for name in ("tuning", "defines"))
    return vary(base, arguments.variant, tuning, defines, _items(arguments.without), root)


def _assignments(option: str, text: str) -> dict[str, int]:
    """Parses constants in the form "KEY=N,..."."""
    found = {}
    for item in _items(text):
        key, _, value = item.partition("=")
        if not re.fullmatch(r"\d+", value.strip()):
            raise TargetError(f"{option}: expected KEY=N, got {item!r}")
        found[key.strip()] = int(value)
    return found


def _items(text: str) -> list[str]:
    return [item.strip() for item in re.split("[;,]", text) if item.strip()]


def _read(kind: type[T], table: dict[str, Any], where: str) -> T:
    """Makes a dataclass from a table, which must have exactly its fields, each with the right type."""
    known = {f.name: f for f in dataclasses.fields(kind) if not f.metadata.get("made")}  # type: ignore[arg-type]
    unknown = sorted(table.keys() - known.keys())
    if unknown:
        raise TargetError(f"{where}{unknown[0]}: no such key; the keys are {', '.join(known)}")
    hints, values = typing.get_type_hints(kind), {}
    for name, value in table.items():
        values[name] = _value(hints[name], value, f"{where}{name}")
    for name, f in known.items():
        if name not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise TargetError(f"{where}{name}: missing")
    return kind(**values)


def _value(kind: Any, value: Any, where: str) -> Any:
    """Converts a TOML value to a field of this type."""
    if typing.get_origin(kind) is types.UnionType:  # an optional key: TOML has no null
        kind = next(option for option in typing.get_args(kind) if option is not types.NoneType)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise TargetError(f"{where}: expected a list, got {value!r}")
        item = typing.get_args(kind)[0]
        return tuple(_value(item, one, f"{where}[{i}]") for i, one in enumerate(value))
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise TargetError(f"{where}: expected a table, got {value!r}")
        return _read(typing.cast(type, kind), value, f"{where}.")
    if kind is float and type(value) is int:
        return value
    if type(value) is not kind:  # not isinstance: bool is a subclass of int
        words = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
        raise TargetError(f"{where}: expected {words[kind]}, got {value!r}")
    if kind is str and not value.strip():
        raise TargetError(f"{where}: expected text, got {value!r}")
    return value


def _check_identity(target: Target, folder: str, root: Path) -> str | None:
    if target.schema != SCHEMA:
        return f"schema: expected {SCHEMA}, got {target.schema}; this reader knows no other"
    if target.name != folder:
        return f"name: expected {folder!r}, the name of the folder, got {target.name!r}"
    if target.vendor not in VENDORS:
        return f"vendor: expected one of {', '.join(VENDORS)}, got {target.vendor!r}"
    if not VENDORS[target.vendor].fullmatch(target.architecture):
        return f"architecture: {target.architecture!r} is none of vendor {target.vendor!r}"
    if target.architecture.removesuffix("a") != target.name:
        return f"architecture: expected {target.name!r} or {target.name + 'a'!r}, got {target.architecture!r}"
    if target.vendor == "sim":
        if target.min_driver:
            return f"min_driver: sim needs no driver, got {target.min_driver!r}"
    elif not re.fullmatch(r"\d+(\.\d+)*", target.min_driver):
        return f"min_driver: expected a version such as '580' or '6.0', got {target.min_driver!r}"
    if problem := _check_nvrtc(target):
        return problem
    wrong = [host for host in target.hosts if host not in HOSTS]
    if wrong or not target.hosts or len(set(target.hosts)) < len(target.hosts):
        return f"hosts: expected some of {', '.join(HOSTS)}, got {list(target.hosts)}"
    return None


def _check_nvrtc(target: Target) -> str | None:
    if target.nvrtc is None:
        return None
    if target.vendor != "nvidia":
        return f"nvrtc: only NVIDIA targets have one, got {target.vendor!r}"
    if not re.fullmatch(r"12\.\d+", target.nvrtc.version):
        return f"nvrtc.version: expected a release of CUDA 12 such as '12.4', got {target.nvrtc.version!r}"
    minimum = target.nvrtc.min_driver
    if not re.fullmatch(r"\d+", minimum) or release(minimum) > release(target.min_driver):
        return f"nvrtc.min_driver: expected {target.min_driver} or an older driver, got {minimum!r}"
    return None


def _check_capabilities(target: Target, folder: str, root: Path) -> str | None:
    can, architecture = target.capabilities, target.architecture
    if can.matrix not in MATRIX:
        return f"capabilities.matrix: expected one of {', '.join(MATRIX)}, got {can.matrix!r}"
    if not re.fullmatch(MATRIX[can.matrix], architecture):
        fit = [matrix for matrix, pattern in MATRIX.items() if re.fullmatch(pattern, architecture)]
        return f"capabilities.matrix: {architecture} has no {can.matrix}; it has {', '.join(fit) or 'none we know'}"
    for name, pattern in NEEDS.items():
        if getattr(can, name) and not re.fullmatch(pattern, architecture):
            return f"capabilities.{name}: {architecture} has none, got true"
    if can.bf16 == (can.matrix == "mma_f16"):
        return f"capabilities.bf16: {str(can.bf16).lower()} contradicts matrix = {can.matrix!r}"
    if not 16384 <= can.shared_block_bytes <= 262144 or can.shared_block_bytes % 1024:
        return f"capabilities.shared_block_bytes: expected whole KiB from 16 to 256, got {can.shared_block_bytes} bytes"
    if can.warp_size != 32:
        return f"capabilities.warp_size: expected 32, which every kernel is written for, got {can.warp_size}"
    return None


def _check_tuning(target: Target, folder: str, root: Path) -> str | None:
    for name, (lowest, highest, step) in TUNING.items():
        value = getattr(target.tuning, name)
        if not lowest <= value <= highest or value % step:
            multiple = f", a multiple of {step}" if step > 1 else ""
            return f"tuning.{name}: expected {lowest} to {highest}{multiple}, got {value}"
    return None


def _check_defines(defines: Mapping[str, Any]) -> str | None:
    for name, value in defines.items():
        if name not in DEFINES:
            return f"defines.{name}: no such constant; they are {', '.join(DEFINES)}"
        lowest, highest = DEFINES[name]
        if type(value) is not int or not lowest <= value <= highest:
            return f"defines.{name}: expected {lowest} to {highest}, got {value!r}"
    return None


def _check_boards(target: Target, folder: str, root: Path) -> str | None:
    if bool(target.boards) == (target.vendor == "sim"):
        return f"boards: expected {'none' if target.boards else 'one or more'}, got {len(target.boards)}"
    seen = set()
    for i, board in enumerate(target.boards):
        if board.name in seen:
            return f"boards[{i}].name: {board.name!r} is there twice"
        seen.add(board.name)
        for name in ("sm_count", "memory_gb", "bandwidth_gb_s"):
            value = getattr(board, name)
            if value is not None and value <= 0:
                return f"boards[{i}].{name}: expected more than 0, got {value}"
    return None


def _check_exceptions(target: Target, folder: str, root: Path) -> str | None:
    for i, waiver in enumerate(target.exceptions):
        if waiver.what not in WAIVERS:
            return f"exceptions[{i}].what: expected one of {', '.join(WAIVERS)}, got {waiver.what!r}"
        if waiver.compiler and (
            waiver.compiler not in ("nvcc", "nvrtc") or target.nvrtc is None or not target.has_nvcc
        ):
            return f"exceptions[{i}].compiler: expected nvcc or nvrtc of a target with both, got {waiver.compiler!r}"
    return None


def published_boards(target: Target) -> list[dict[str, Any]]:
    """The boards without their sources, for manifests and the host's table."""
    boards = dataclasses.asdict(target)["boards"]
    return [{key: value for key, value in board.items() if key != "source"} for board in boards]


def description(target: Target, root: Path = ROOT) -> dict[str, Any]:
    """The target in the form that CMake and the pack builder read: the file's fields, names, compilers and sources."""
    names = {"family": target.family, "slug": target.slug, "project": target.project}
    return {**dataclasses.asdict(target), **names, "has_nvcc": target.has_nvcc, "sources": target.sources(root)}


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the target files, or print one as JSON.")
    parser.add_argument("target", nargs="?", help="the name of a folder of targets/")
    add_arguments(parser)
    parser.add_argument("--names", action="store_true", help="print every name as one JSON list, for a build matrix")
    arguments = parser.parse_args()
    try:
        if arguments.names:
            print(json.dumps(names()))
        elif arguments.target:
            print(json.dumps(description(chosen(arguments)), indent=2))
        else:
            for target in load_all():
                print(f"{target.name:<10}{target.vendor:<8}{target.architecture:<10}{len(target.boards):>3} boards")
    except TargetError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
