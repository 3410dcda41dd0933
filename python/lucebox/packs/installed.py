"""The packs on this machine: found through the entry points of `lucebox.packs`, read but not trusted. A pack is code
for a device and data for us; nothing of it runs here but its empty package."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from typing import TYPE_CHECKING

import lucebox
from lucebox import targets
from lucebox.errors import PackError
from lucebox.packs.manifest import CodeObject, Manifest, extra

if TYPE_CHECKING:
    from importlib.abc import Traversable

__all__ = ["BrokenPack", "Pack", "Packs", "find", "install_command", "install_line"]

GROUP = "lucebox.packs"
MANIFEST = "manifest.json"


def install_line(target: str) -> str:
    """What installs a target's pack, or the version that this lucebox takes."""
    return f'pip install "lucebox[{extra(target)}]"'


def install_command(target: str) -> str:
    """What replaces the files of a damaged pack."""
    return f'pip install --force-reinstall "lucebox[{extra(target)}]"'


@dataclass(frozen=True, slots=True)
class Pack:
    """An installed pack whose manifest is in order."""

    manifest: Manifest
    manifest_json: str
    distribution: str
    """The wheel it came with: "lucebox-sm86"."""
    folder: Traversable

    @property
    def target(self) -> str:
        return self.manifest.target

    def load(self) -> dict[str, bytes]:
        """The code objects by file name, each compared with its size and hash in the manifest.

        Raises:
            PackError: one is missing, truncated or changed.
        """
        return {entry.file: self._read(entry) for entry in self.manifest.files}

    def _read(self, entry: CodeObject) -> bytes:
        file = self.folder / entry.file
        try:
            data = file.read_bytes()
        except OSError as error:
            raise PackError(f"{file} cannot be read ({error.strerror}); {install_command(self.target)}") from error
        if len(data) != entry.bytes:
            raise PackError(
                f"{file} has {len(data)} bytes, the manifest says {entry.bytes}: it is truncated or replaced; "
                f"{install_command(self.target)}"
            )
        found = hashlib.sha256(data).hexdigest()
        if found != entry.sha256:
            raise PackError(
                f"{file} is damaged: expected sha256 {entry.sha256}, found {found}; {install_command(self.target)}"
            )
        return data


@dataclass(frozen=True, slots=True)
class BrokenPack:
    """An installed pack that cannot be used on any device, and why."""

    target: str
    distribution: str
    error: str


@dataclass(frozen=True, slots=True)
class Packs:
    """All packs of this Python environment."""

    usable: tuple[Pack, ...]
    broken: tuple[BrokenPack, ...]

    @property
    def installed(self) -> tuple[Pack | BrokenPack, ...]:
        return (*self.usable, *self.broken)


def find(version: str | None = None) -> Packs:
    """The packs of this environment, by target name; `version` is what a pack must be of, lucebox's own by default."""
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, _distribution(point)))
    claims = Counter(point.name for point in points)
    usable: list[Pack] = []
    broken: list[BrokenPack] = []
    for point in points:
        try:
            if claims[point.name] > 1:
                raise PackError(_two_packs(point.name, points))
            usable.append(_open(point, version or lucebox.__version__))
        except PackError as error:
            broken.append(BrokenPack(point.name, _distribution(point), str(error)))
    return Packs(tuple(usable), tuple(broken))


def _open(point: EntryPoint, version: str) -> Pack:
    target, distribution = point.name, _distribution(point)
    package = "lucebox_" + extra(target)
    if point.value != package:
        raise PackError(
            f"{distribution}: the package of {target} must be {package}, its entry point says {point.value}"
        )
    try:
        folder = files(package)
    except ModuleNotFoundError as error:
        raise PackError(
            f"{distribution} is installed but its package {package} is not; {install_command(target)}"
        ) from error
    where = f"{package}/{MANIFEST}"
    try:
        text = (folder / MANIFEST).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PackError(f"{where} cannot be read ({_cause(error)}); {install_command(target)}") from error
    try:
        manifest = Manifest.parse(text, where)
    except PackError as error:
        raise PackError(f"{error}; {install_command(target)}") from error
    _check_identity(manifest, target, f"{where} of {distribution}")
    if manifest.version != version:
        raise PackError(
            f"{distribution} is version {manifest.version}, lucebox is {version}; they must be equal: "
            f"{install_line(target)}"
        )
    return Pack(manifest, text, distribution, folder)


def _check_identity(manifest: Manifest, target: str, where: str) -> None:
    """The pack is what its entry point announces, and what this lucebox knows by that name."""
    known = targets.find(target)
    if known is None or known.name != target:
        raise PackError(f"{where}: lucebox has no target {target}; there are {', '.join(targets.NAMES)}")
    expected = {"target": target, "vendor": known.vendor, "architecture": known.architecture}
    for key, value in expected.items():
        found = getattr(manifest, key)
        if found != value:
            raise PackError(
                f'{where}: "{key}" must be {value} in a pack for {target}, got {found}; {install_command(target)}'
            )


def _two_packs(target: str, points: list[EntryPoint]) -> str:
    names = [_distribution(point) for point in points if point.name == target]
    return f"{' and '.join(names)} both claim {target}; keep one: pip uninstall {names[-1]}"


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


def _cause(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
