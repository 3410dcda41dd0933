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

__all__ = ["BrokenPack", "Pack", "Packs", "find", "install_command", "reinstall_command"]

GROUP = "lucebox.packs"
MANIFEST = "manifest.json"


def install_command(target: str) -> str:
    """Installs a target's pack, in the version that this lucebox needs."""
    if targets.find(target) is None:
        return _build_command(target)
    return f'pip install "lucebox[{extra(target)}]"'


def reinstall_command(target: str) -> str:
    """Replaces the files of a damaged pack."""
    if targets.find(target) is None:
        return _build_command(target)
    return f'pip install --force-reinstall "lucebox[{extra(target)}]"'


def _build_command(target: str) -> str:
    """For a target that lucebox has no extra for: its pack was built by its owner."""
    return f"build it again (pip wheel --no-deps ./targets/{target}) and install the wheel"


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

    @property
    def architecture(self) -> str:
        """The architecture that its code is compiled for."""
        return self.manifest.architecture

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
            raise PackError(f"{file} cannot be read ({error.strerror}); {reinstall_command(self.target)}") from error
        if len(data) != entry.bytes:
            raise PackError(
                f"{file} has {len(data)} bytes, the manifest says {entry.bytes}: it is truncated or replaced; "
                f"{reinstall_command(self.target)}"
            )
        found = hashlib.sha256(data).hexdigest()
        if found != entry.sha256:
            raise PackError(
                f"{file} is damaged: expected sha256 {entry.sha256}, found {found}; {reinstall_command(self.target)}"
            )
        return data


@dataclass(frozen=True, slots=True)
class BrokenPack:
    """An installed pack that is unusable on any device, and why."""

    target: str
    distribution: str
    error: str

    @property
    def architecture(self) -> str:
        """The architecture of its target, since its manifest says nothing reliable."""
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
            f"{distribution} is installed but its package {package} is not; {reinstall_command(target)}"
        ) from error
    where = f"{package}/{MANIFEST}"
    try:
        text = (folder / MANIFEST).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PackError(f"{where} cannot be read ({_cause(error)}); {reinstall_command(target)}") from error
    try:
        manifest = Manifest.parse(text, where)
    except PackError as error:
        raise PackError(f"{error}; {reinstall_command(target)}") from error
    _check_identity(manifest, target, f"{where} of {distribution}")
    if manifest.version != version:
        raise PackError(
            f"{distribution} is version {manifest.version}, lucebox is {version}; they must be equal: "
            f"{install_command(target)}"
        )
    return Pack(manifest, text, distribution, folder)


def _check_identity(manifest: Manifest, target: str, where: str) -> None:
    """The manifest agrees with the entry point and with itself. The host's table of targets is not asked: a pack may be
    of a target that is newer than the host, or private."""
    suffixed = f"{target}a"
    architectures = (target, suffixed) if targets.vendor_of(suffixed) else (target,)
    expected = {
        "target": (target,),
        "architecture": architectures,
        "vendor": (targets.vendor_of(manifest.architecture),),
    }
    for key, allowed in expected.items():
        found = getattr(manifest, key)
        if found not in allowed:
            raise PackError(
                f'{where}: "{key}" must be {" or ".join(map(str, allowed))} in a pack for {target}, got {found}; '
                f"{reinstall_command(target)}"
            )


def _two_packs(target: str, points: list[EntryPoint]) -> str:
    names = [_distribution(point) for point in points if point.name == target]
    return f"{' and '.join(names)} both claim {target}; keep one: pip uninstall {names[-1]}"


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


def _cause(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
