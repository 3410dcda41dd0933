"""Checks the metadata of a wheel or sdist for problems that PyPI refuses or displays badly. release_collect.py calls
it; verify_wheel.py checks a wheel's contents."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import Parser
from pathlib import Path

from pypi_readme import ABSOLUTE, FENCE, LINK
from trove_classifiers import classifiers
from wheels import Wheel, project_name

LIMIT_BYTES = 100_000_000  # PyPI's file size limit for a new project
SUMMARY_MAX = 512  # characters
REQUIRED = ("Summary", "Author", "License-Expression", "License-File", "Requires-Python", "Keywords", "Classifier")
PYPI_PLATFORM = re.compile(r"any|manylinux_\d+_\d+_\w+")  # the ones that we build, all accepted by PyPI


def read(path: Path) -> Message:
    """Reads a wheel's METADATA or an sdist's PKG-INFO.

    Raises:
        KeyError, tarfile.TarError: there is none.
    """
    if path.suffix == ".whl":
        return Wheel(path).metadata
    with tarfile.open(path) as archive:
        file = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert file is not None
        return Parser().parsestr(file.read().decode())


def problems(path: Path, *, for_pypi: bool = True) -> Iterator[str]:
    """One line per reason not to publish the file."""
    try:
        metadata = read(path)
    except (KeyError, tarfile.TarError, OSError) as error:
        yield f"cannot be read: {error}"
        return
    if for_pypi:
        yield from _refused(path)
    yield from _fields(path, metadata)
    yield from _description(metadata)


def _refused(path: Path) -> Iterator[str]:
    if path.stat().st_size > LIMIT_BYTES:
        yield f"has {path.stat().st_size / 1e6:.0f} MB; PyPI takes {LIMIT_BYTES / 1e6:.0f} MB a file"
    if path.suffix == ".whl":
        for platform in path.stem.split("-")[-1].split("."):
            if not PYPI_PLATFORM.fullmatch(platform):
                yield f"PyPI does not take the platform tag {platform}"


def _fields(path: Path, metadata: Message) -> Iterator[str]:
    name, version = path.name.removesuffix(".tar.gz").removesuffix(".whl").split("-")[:2]
    said = (project_name(metadata["Name"] or ""), metadata["Version"])
    if said != (project_name(name), version):
        yield f"its metadata is of {said[0]} {said[1]}"
    yield from (f"has no {field}" for field in REQUIRED if not metadata[field])
    if len(metadata["Summary"] or "") > SUMMARY_MAX:
        yield f"Summary has {len(metadata['Summary'])} characters; PyPI takes {SUMMARY_MAX}"
    found = metadata.get_all("Classifier", [])
    yield from (f'PyPI knows no classifier "{one}"' for one in found if one not in classifiers)
    if not any(one.startswith("Development Status ::") for one in found):
        yield "has no classifier of its development status"
    for requirement in metadata.get_all("Requires-Dist", []):
        if "@" in requirement.partition(";")[0]:
            yield f"requires an address, which PyPI refuses: {requirement}"


def _description(metadata: Message) -> Iterator[str]:
    text = metadata.get_payload()
    if not isinstance(text, str) or not text.strip():
        yield "has no long description"
        return
    if not metadata["Description-Content-Type"]:
        yield "has no Description-Content-Type"
    for found in LINK.finditer(FENCE.sub("", text)):
        if not ABSOLUTE.match(found[3]):
            yield f"its long description has a link that leads nowhere on PyPI: {found[3]}"


def twine(files: Sequence[Path]) -> str | None:
    """The problems that `twine check --strict` finds in the files."""
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip() if done.returncode else None
