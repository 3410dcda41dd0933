"""Parses manifest.json of a GPU pack into typed data, strictly: every key, every type, and consistency between keys.
Independent of where packs are installed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from lucebox.errors import PackError

__all__ = [
    "SCHEMA",
    "Board",
    "CodeObject",
    "Compiler",
    "Generation",
    "Kernel",
    "Manifest",
    "Waiver",
    "extra",
    "package",
]

SCHEMA = 3

PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # no path separators: files are in the manifest's folder
DRIVER = re.compile(r"\d+(\.\d+)*")
SHA256 = re.compile(r"[0-9a-f]{64}")
WORDS = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    type(None): "null",
}


VARIANT = re.compile(r"[a-z][a-z0-9]*")
NAME = re.compile(r"(sm_\d+|gfx\d+|sim)_([a-z][a-z0-9]*)")


def release(version: str) -> tuple[int, ...]:
    """A version ("580", "6.0") as comparable numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def extra(target: str) -> str:
    """The extra of the host wheel that installs a target's pack: "sm86" for "sm_86"."""
    return target.replace("_", "")


def package(name: str) -> str:
    """The import package of a pack: "lucebox_sm86" for "sm_86", "lucebox_sm86_laptop" for "sm_86_laptop"."""
    target, variant = split(name)
    return f"lucebox_{extra(target)}" + (f"_{variant}" if variant else "")


def split(name: str) -> tuple[str, str]:
    """Target and variant of a pack's name; most packs are no variant."""
    found = NAME.fullmatch(name)
    return (found[1], found[2]) if found else (name, "")


@dataclass(frozen=True, slots=True)
class Compiler:
    """The compiler of the code objects."""

    name: str
    version: str
    flags: tuple[str, ...]

    def __str__(self) -> str:
        """ "nvcc 13.0.88"."""
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class Board:
    """A product with the target's chip; a figure is None if the maker does not publish it."""

    name: str
    sm_count: int | None
    memory_gb: int | float | None
    bandwidth_gb_s: int | float | None


@dataclass(frozen=True, slots=True)
class CodeObject:
    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel and the resources it takes on a multiprocessor."""

    name: str
    file: str
    max_threads: int
    registers: int
    shared_bytes: int
    max_dynamic_shared_bytes: int
    spill_bytes: int
    stack_bytes: int


@dataclass(frozen=True, slots=True)
class Generation:
    """All kernels of a pack, compiled by one compiler, for drivers from min_driver on."""

    min_driver: str
    """The oldest driver that loads this code: "580", "6.0"; empty for sim."""
    compiler: Compiler
    files: tuple[CodeObject, ...]
    """The code objects, as the driver loads them."""
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True, slots=True)
class Waiver:
    """A waiver that target.toml grants a kernel, with the reason."""

    kernel: str
    what: str
    reason: str
    compiler: str
    """The compiler of the code it applies to; empty for all."""


@dataclass(frozen=True, slots=True)
class Manifest:
    schema: int
    target: str
    variant: str
    """The word after the target in the pack's name; empty for the target itself."""
    vendor: str
    architecture: str
    """The compiler's name of the architecture: "sm_90a"."""
    version: str
    """Version of the lucebox it was built with."""
    abi: str
    """Hash of the headers shared by kernels and engine; the engine accepts only its own."""
    commit: str
    """The commit of its sources; empty if the build did not record one."""
    boards: tuple[Board, ...]
    capabilities: Mapping[str, bool | int | str]
    tuning: Mapping[str, int]
    exceptions: tuple[Waiver, ...]
    archive: CodeObject | None
    """The file with the code objects of all generations in their order, one xz stream; None: each is a file."""
    generations: tuple[Generation, ...]
    """Newest drivers first; every generation has the same kernels."""

    @property
    def stored(self) -> tuple[CodeObject, ...]:
        """The files in the pack's folder."""
        if self.archive is not None:
            return (self.archive,)
        return tuple(file for code in self.generations for file in code.files)

    @property
    def min_driver(self) -> str:
        """The oldest driver that loads any code of the pack."""
        return self.generations[-1].min_driver

    @property
    def kernel_names(self) -> tuple[str, ...]:
        return tuple(kernel.name for kernel in self.generations[0].kernels)

    @property
    def name(self) -> str:
        """The target, and the variant if it is one: "sm_86", "sm_86_laptop"."""
        return self.target + (f"_{self.variant}" if self.variant else "")

    @classmethod
    def parse(cls, text: str, where: str) -> Manifest:
        """The manifest in `text`; `where` names it in errors.

        Raises:
            PackError: not JSON, another schema, or a key missing, unknown, of another type or contradicting another.
        """
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PackError(f"{where} is not JSON: {error}") from error
        _check_schema(value, where)
        manifest: Manifest = _read(cls, value, where, "")
        _check_sense(manifest, where)
        return manifest


def _check_schema(value: Any, where: str) -> None:
    """Runs first, because another schema may have any keys."""
    schema = value.get("schema") if isinstance(value, dict) else None
    if type(schema) is not int:
        raise PackError(f'{where}: "schema" must be {SCHEMA}, got {_short(schema)}')
    if schema > SCHEMA:
        raise PackError(f"{where}: schema {schema} is of a newer lucebox; this one reads schema {SCHEMA}")
    if schema < SCHEMA:
        raise PackError(f"{where}: schema {schema} is not known; this lucebox reads schema {SCHEMA}")


def _read(kind: Any, value: Any, where: str, key: str) -> Any:
    """`value` as `kind`: a dataclass or None, tuple[X, ...], Mapping[str, X], a union or a plain type."""
    if isinstance(kind, UnionType) and value is not None and is_dataclass(get_args(kind)[0]):
        kind = get_args(kind)[0]
    if is_dataclass(kind):
        return _read_object(kind, _expect(dict, value, where, key), where, key)
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        return tuple(_read(item, v, where, f"{key}[{i}]") for i, v in enumerate(_expect(list, value, where, key)))
    if isinstance(get_origin(kind), type) and issubclass(get_origin(kind), Mapping):
        item = get_args(kind)[1]
        return {name: _read(item, v, where, f"{key}.{name}") for name, v in _expect(dict, value, where, key).items()}
    return _expect(kind, value, where, key)


def _read_object(kind: Any, value: dict[str, Any], where: str, key: str) -> Any:
    dot = f"{key}." if key else ""
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    for name in names:
        if name not in value:
            raise PackError(f'{where}: key "{dot}{name}" is missing')
    for name in value:
        if name not in names:
            raise PackError(f'{where}: key "{dot}{name}" is not known in schema {SCHEMA}')
    return kind(**{name: _read(hints[name], value[name], where, dot + name) for name in names})


def _expect(kind: Any, value: Any, where: str, key: str) -> Any:
    allowed = get_args(kind) or (kind,)
    if type(value) not in allowed:  # exact: true is no integer
        words = " or ".join(WORDS[option] for option in allowed)
        raise PackError(f'{where}: "{key}" must be {words}, got {_short(value)}')
    if type(value) in (int, float) and value < 0:
        raise PackError(f'{where}: "{key}" must not be negative, got {value}')
    return value


def _check_sense(manifest: Manifest, where: str) -> None:
    if manifest.vendor not in ("nvidia", "amd", "sim"):
        raise PackError(f'{where}: "vendor" must be nvidia, amd or sim, got {_short(manifest.vendor)}')
    if manifest.variant and not VARIANT.fullmatch(manifest.variant):
        raise PackError(f'{where}: "variant" must be small letters and digits, got {_short(manifest.variant)}')
    if manifest.archive is not None:
        _check_file(manifest.archive, where, "archive")
    if not manifest.generations:
        raise PackError(f'{where}: "generations" must have one or more, got none')
    for i, one in enumerate(manifest.generations):
        _check_generation(one, manifest.vendor, where, f"generations[{i}]")
        names = {kernel.name for kernel in one.kernels}
        if differing := sorted(names ^ {*manifest.kernel_names}):
            raise PackError(f'{where}: all "generations" must have the same kernels, they differ in {differing[0]}')
    drivers = [one.min_driver for one in manifest.generations]
    if len(drivers) > 1 and drivers != sorted({*drivers}, key=release, reverse=True):
        raise PackError(f'{where}: "generations" must be for ever older drivers, got {_short(drivers)}')


def _check_generation(code: Generation, vendor: str, where: str, key: str) -> None:
    if vendor != "sim" and not DRIVER.fullmatch(code.min_driver):
        raise PackError(f'{where}: "{key}.min_driver" must be a version like 580 or 6.0, got {_short(code.min_driver)}')
    names = [file.file for file in code.files]
    for i, file in enumerate(code.files):
        _check_file(file, where, f"{key}.files[{i}]")
        if file.file in names[:i]:
            raise PackError(f'{where}: "{key}.files" names {file.file} twice')
    seen: set[str] = set()
    for i, kernel in enumerate(code.kernels):
        if kernel.file not in names:
            raise PackError(f'{where}: "{key}.kernels[{i}].file" is {_short(kernel.file)}, which "files" does not have')
        if kernel.name in seen:
            raise PackError(f'{where}: "{key}.kernels" names {kernel.name} twice')
        seen.add(kernel.name)


def _check_file(file: CodeObject, where: str, key: str) -> None:
    if not PLAIN_NAME.fullmatch(file.file):
        raise PackError(f'{where}: "{key}.file" must be a file name without folders, got {_short(file.file)}')
    if not SHA256.fullmatch(file.sha256):
        raise PackError(f'{where}: "{key}.sha256" must be 64 hexadecimal digits, got {_short(file.sha256)}')


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
