"""The installed packs, found through the entry points `lucebox.packs`. Packs are not trusted: this module reads them as
data and runs nothing of them except the import of an empty package."""

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

__all__ = [
    "ON_PYPI",
    "BrokenPack",
    "BrokenPackError",
    "Pack",
    "Packs",
    "broken_pack",
    "find",
    "install_command",
    "reinstall_command",
]

GROUP = "lucebox.packs"
MANIFEST = "manifest.json"
# Whether every name of ours is registered there. Until then a plain `pip install` may fetch a stranger's package.
ON_PYPI = False


def install_command(target: str) -> str:
    """Installs a target's pack, in the version that this lucebox needs."""
    return f'pip install "lucebox[{extra(target)}]"'


def reinstall_command(target: str) -> str:
    """Replaces the files of a damaged pack, and nothing else."""
    return f"pip install --force-reinstall --no-deps lucebox-{extra(target)}=={lucebox.__version__}"


class BrokenPackError(PackError):
    """A defect of an installed pack, and the command that mends it."""

    def __init__(self, defect: str, command: str) -> None:
        super().__init__(f"{defect}; {command}")
        self.command = command


@dataclass(frozen=True, slots=True)
class Pack:
    """An installed pack with a valid manifest."""

    manifest: Manifest
    manifest_json: str
    distribution: str
    """The name of its wheel: "lucebox-sm86"."""
    folder: Traversable

    @property
    def target(self) -> str:
        return self.manifest.target

    def load(self) -> dict[str, bytes]:
        """The code objects by file name, each checked against its size and hash in the manifest.

        Raises:
            PackError: a file is missing, truncated or changed.
        """
        return {entry.file: self._read(entry) for entry in self.manifest.files}

    def _read(self, entry: CodeObject) -> bytes:
        file = self.folder / entry.file
        try:
            data = file.read_bytes()
        except OSError as error:
            raise _damaged(self.target, f"{file} cannot be read ({error.strerror})") from error
        if len(data) != entry.bytes:
            defect = f"has {len(data)} bytes, the manifest says {entry.bytes}: it is truncated or replaced"
            raise _damaged(self.target, f"{file} {defect}")
        found = hashlib.sha256(data).hexdigest()
        if found != entry.sha256:
            raise _damaged(self.target, f"{file} is damaged: expected sha256 {entry.sha256}, found {found}")
        return data


@dataclass(frozen=True, slots=True)
class BrokenPack:
    """An installed pack that is unusable on any device, and why."""

    target: str
    distribution: str
    error: str
    command: str | None = None
    """Mends it; None where no single command does."""


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
            broken.append(broken_pack(point.name, _distribution(point), error))
    return Packs(tuple(usable), tuple(broken))


def broken_pack(target: str, distribution: str, error: PackError) -> BrokenPack:
    """The pack that raised `error`."""
    command = error.command if isinstance(error, BrokenPackError) else None
    return BrokenPack(target, distribution, str(error), command)


def _damaged(target: str, defect: str) -> BrokenPackError:
    return BrokenPackError(defect, reinstall_command(target))


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
        raise _damaged(target, f"{distribution} is installed but its package {package} is not") from error
    where = f"{package}/{MANIFEST}"
    try:
        text = (folder / MANIFEST).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(target, f"{where} cannot be read ({_cause(error)})") from error
    try:
        manifest = Manifest.parse(text, where)
    except PackError as error:
        raise _damaged(target, str(error)) from error
    _check_identity(manifest, target, f"{where} of {distribution}")
    if manifest.version != version:
        raise BrokenPackError(
            f"{distribution} is version {manifest.version}, lucebox is {version}, and they must be equal",
            install_command(target),
        )
    return Pack(manifest, text, distribution, folder)


def _check_identity(manifest: Manifest, target: str, where: str) -> None:
    """The manifest agrees with the entry point and with this lucebox's table of targets."""
    known = targets.find(target)
    if known is None or known.name != target:
        raise PackError(f"{where}: lucebox has no target {target}; there are {', '.join(targets.NAMES)}")
    expected = {"target": target, "vendor": known.vendor, "architecture": known.architecture}
    for key, value in expected.items():
        found = getattr(manifest, key)
        if found != value:
            raise _damaged(target, f'{where}: "{key}" must be {value} in a pack for {target}, got {found}')


def _two_packs(target: str, points: list[EntryPoint]) -> BrokenPackError:
    names = [_distribution(point) for point in points if point.name == target]
    return BrokenPackError(f"{' and '.join(names)} both claim {target}, keep one", f"pip uninstall {names[-1]}")


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


def _cause(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
