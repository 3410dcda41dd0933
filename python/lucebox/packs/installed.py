"""Finds installed packs through the entry points `lucebox.packs`. Packs are untrusted: this module reads them as data,
and runs no code of theirs except the import of an empty package."""

from __future__ import annotations

import hashlib
import lzma
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import lucebox
from lucebox.errors import FormatError, PackError
from lucebox.packs import targets
from lucebox.packs.manifest import CodeObject, Generation, Manifest, extra, package, split
from lucebox.packs.pip_command import PipCommand
from lucebox.regular_files import read_regular

if TYPE_CHECKING:
    from importlib.abc import Traversable

__all__ = [
    "ON_PYPI",
    "BrokenPack",
    "BrokenPackError",
    "Pack",
    "Packs",
    "broken_pack",
    "find",
    "install_advice",
    "install_command",
    "open_folder",
    "reinstall_command",
    "unpacked",
]

GROUP = "lucebox.packs"
MANIFEST = "manifest.json"
MAX_MANIFEST = 4 << 20  # bytes
# Bounds of hostile files. All code objects of one compiler have 20 MB; the decoder's memory is its dictionary, 32 MiB.
MAX_UNPACKED_BYTES = 256 << 20
MAX_DECODER_BYTES = 64 << 20
# Whether all our package names are registered on PyPI. Until then a plain `pip install` may fetch a stranger's package.
ON_PYPI = False


def install_command(*targets: str) -> PipCommand:
    """The command that installs released packs, in the version that this lucebox needs."""
    return PipCommand(("install", f"lucebox[{','.join(map(extra, targets))}]"))


def install_advice(target: str) -> str:
    """How to get a target's pack: an install command, or advice to build it."""
    return str(install_command(target)) if _has_extra(target) else _build_advice(target)


def reinstall_command(target: str) -> PipCommand:
    """The command that replaces the files of a damaged pack, and nothing else."""
    return PipCommand(("install", "--force-reinstall", "--no-deps", f"{_project(target)}=={lucebox.__version__}"))


def _build_advice(target: str) -> str:
    """Advice for a pack that its owner built: a variant, or a target without an extra of lucebox."""
    if split(target)[1]:
        return f"build the variant again and install its wheel, or pip uninstall {_project(target)}"
    return f"build it again (pip wheel --no-deps ./targets/{target}) and install the wheel"


def _project(name: str) -> str:
    return package(name).replace("_", "-")


def _has_extra(name: str) -> bool:
    """Whether the pack is released, so pip can install it."""
    return targets.find(name) is not None


class BrokenPackError(PackError):
    """A defect of an installed pack, with the command that repairs it, unless the pack must be rebuilt."""

    def __init__(self, defect: str, mend: PipCommand | str) -> None:
        super().__init__(f"{defect}; {mend}")
        self.command = mend if isinstance(mend, PipCommand) else None


@dataclass(frozen=True, slots=True)
class Pack:
    """An installed pack with a valid manifest."""

    manifest: Manifest
    manifest_json: str
    distribution: str
    """The name of its wheel: "lucebox-sm86"."""
    folder: Traversable
    installed_ns: int = 0
    """Install time of the wheel, in nanoseconds since 1970; 0 if unknown."""

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def variant(self) -> str:
        return self.manifest.variant

    @property
    def target(self) -> str:
        return self.manifest.target

    @property
    def architecture(self) -> str:
        """The architecture for which the pack's code is compiled."""
        return self.manifest.architecture

    def load(self, code: Generation) -> dict[str, bytes]:
        """The code objects of a generation by file name. What the pack stores is checked against the manifest.

        Raises:
            PackError: a file is missing, truncated or changed.
        """
        if self.manifest.archive is None:
            return {entry.file: self._read(entry) for entry in code.files}
        before = self.manifest.generations[: self.manifest.generations.index(code)]
        start = sum(file.bytes for one in before for file in one.files)
        try:
            return unpacked(self._read(self.manifest.archive), code.files, start)
        except ValueError as error:
            raise _damaged(self.name, f"{self.folder / self.manifest.archive.file}: {error}") from error

    def images(self) -> dict[str, bytes]:
        """The code objects of all generations, by file name."""
        return {name: image for code in self.manifest.generations for name, image in self.load(code).items()}

    def check(self) -> None:
        """Checks every file against its size and hash in the manifest.

        Raises:
            PackError: a file is missing, truncated or changed.
        """
        for entry in self.manifest.stored:
            self._read(entry)

    def _read(self, entry: CodeObject) -> bytes:
        file = self.folder / entry.file
        try:
            data = read_regular(Path(str(file)), entry.bytes + 1)
        except OSError as error:
            raise _damaged(self.name, f"{file} cannot be read ({error.strerror})") from error
        except FormatError as error:
            raise _damaged(self.name, f"{error}; the manifest says {entry.bytes} bytes") from error
        if len(data) != entry.bytes:
            defect = f"has {len(data)} bytes, the manifest says {entry.bytes}: it is truncated or replaced"
            raise _damaged(self.name, f"{file} {defect}")
        found = hashlib.sha256(data).hexdigest()
        if found != entry.sha256:
            raise _damaged(self.name, f"{file} is damaged: expected sha256 {entry.sha256}, found {found}")
        return data


@dataclass(frozen=True, slots=True)
class BrokenPack:
    """An installed pack that is unusable on any device, and why."""

    name: str
    """The target, and the variant if it is one."""
    distribution: str
    error: str
    command: PipCommand | None = None
    """The command that repairs the pack; None if no single command does."""
    installed_ns: int = 0

    @property
    def target(self) -> str:
        return split(self.name)[0]

    @property
    def variant(self) -> str:
        return split(self.name)[1]

    @property
    def architecture(self) -> str:
        """The target's architecture, because a broken pack's manifest is unreliable."""
        known = targets.find(self.target)
        return known.architecture if known else self.target


@dataclass(frozen=True, slots=True)
class Packs:
    """All packs of this Python environment."""

    usable: tuple[Pack, ...]
    broken: tuple[BrokenPack, ...]

    @property
    def installed(self) -> tuple[Pack | BrokenPack, ...]:
        return (*self.usable, *self.broken)


def find(version: str | None = None) -> Packs:
    """The packs of this environment, sorted by target. `version` is the required version, lucebox's own by default."""
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, _distribution(point)))
    claims = Counter(point.name for point in points)
    usable: list[Pack] = []
    broken: list[BrokenPack] = []
    for point in points:
        try:
            if claims[point.name] > 1:
                raise _two_packs(point.name, points)
            usable.append(_open(point, version or lucebox.__version__))
        except PackError as error:
            broken.append(broken_pack(point.name, _distribution(point), error, _installed_ns(point)))
    return Packs(tuple(usable), tuple(broken))


def open_folder(folder: Path) -> Pack:
    """The pack in a folder that is not installed, as a build leaves it.

    Raises:
        PackError: its manifest is invalid.
    """
    text = read_regular(folder / MANIFEST, MAX_MANIFEST).decode()
    return Pack(Manifest.parse(text, str(folder / MANIFEST)), text, "", folder)


def broken_pack(name: str, distribution: str, error: PackError, installed_ns: int = 0) -> BrokenPack:
    command = error.command if isinstance(error, BrokenPackError) else None
    return BrokenPack(name, distribution, str(error), command, installed_ns)


def unpacked(archive: bytes, files: Sequence[CodeObject], start: int = 0) -> dict[str, bytes]:
    """The code objects that an archive has one after the other from byte `start` of its content, by file name. What
    follows them is not decompressed.

    Raises:
        ValueError: the archive is no xz stream, or is shorter.
    """
    end = start + sum(file.bytes for file in files)
    if end > MAX_UNPACKED_BYTES:
        raise ValueError(f"the manifest lists {end} bytes of code, more than {MAX_UNPACKED_BYTES >> 20} MiB")
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_DECODER_BYTES)
    try:
        content = decompressor.decompress(archive, end)
    except (lzma.LZMAError, MemoryError) as error:
        raise ValueError(f"no xz file that can be read ({error})") from error
    if len(content) != end:
        raise ValueError(f"an xz file of {len(content)} bytes, the manifest says {end} or more")
    images, at = {}, start
    for file in files:
        images[file.file] = content[at : at + file.bytes]
        at += file.bytes
    return images


def _damaged(name: str, defect: str) -> BrokenPackError:
    return BrokenPackError(defect, reinstall_command(name) if _has_extra(name) else _build_advice(name))


def _open(point: EntryPoint, version: str) -> Pack:
    name, distribution, expected = point.name, _distribution(point), package(point.name)
    if point.value != expected:
        raise PackError(f"{distribution}: the package of {name} must be {expected}, its entry point says {point.value}")
    try:
        folder = files(expected)
    except ModuleNotFoundError as error:
        raise _damaged(name, f"{distribution} is installed but its package {expected} is not") from error
    except Exception as error:  # the package's own code runs
        raise _damaged(name, f"{distribution}: importing {expected} raises {type(error).__name__}: {error}") from error
    where = f"{expected}/{MANIFEST}"
    try:
        text = read_regular(Path(str(folder / MANIFEST)), MAX_MANIFEST).decode()
    except (OSError, UnicodeDecodeError, FormatError) as error:
        raise _damaged(name, f"{where} cannot be read ({_cause(error)})") from error
    try:
        manifest = Manifest.parse(text, where)
    except PackError as error:
        raise _damaged(name, str(error)) from error
    _check_identity(manifest, name, f"{where} of {distribution}")
    if manifest.version != version:
        raise BrokenPackError(
            f"{distribution} is version {manifest.version}, lucebox is {version}, and they must be equal",
            install_command(name) if _has_extra(name) else _build_advice(name),
        )
    return Pack(manifest, text, distribution, folder, _installed_ns(point))


def _check_identity(manifest: Manifest, name: str, where: str) -> None:
    """Checks that the manifest is self-consistent and matches its entry point. Does not consult the host's table of
    targets: a pack's target may be newer than the host, or private."""
    target, variant = split(name)
    suffixed = f"{target}a"
    expected = {
        "target": (target,),
        "variant": (variant,),
        "architecture": (target, suffixed) if targets.vendor_of(suffixed) else (target,),
        "vendor": (targets.vendor_of(manifest.architecture),),
    }
    for key, allowed in expected.items():
        found = getattr(manifest, key)
        if found not in allowed:
            words = " or ".join(map(str, allowed)) or "empty"
            raise _damaged(name, f'{where}: "{key}" must be {words} in a pack for {name}, got {found or "none"}')


def _two_packs(target: str, points: list[EntryPoint]) -> BrokenPackError:
    names = [_distribution(point) for point in points if point.name == target]
    return BrokenPackError(f"{' and '.join(names)} both claim {target}, keep one", PipCommand(("uninstall", names[-1])))


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


def _installed_ns(point: EntryPoint) -> int:
    """When pip or uv created the wheel's .dist-info folder."""
    if point.dist is None:
        return 0
    stem = f"{point.dist.name.replace('-', '_')}-{point.dist.version}"
    try:
        return Path(str(point.dist.locate_file(f"{stem}.dist-info"))).stat().st_mtime_ns
    except OSError:
        return 0


def _cause(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
