"""Reads wheels, for the scripts that verify, index and install them. Checks nothing."""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from functools import cached_property
from pathlib import Path

from project import sha256

PACK_GROUP = "lucebox.packs"


def project_name(name: str) -> str:
    """A project's name as an index spells it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class Wheel:
    """One wheel file. Its members are read whole: the largest is a few megabytes."""

    path: Path

    @cached_property
    def members(self) -> dict[str, bytes]:
        with zipfile.ZipFile(self.path) as archive:
            return {info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}

    @property
    def name_parts(self) -> list[str]:
        """name, version, python tag, abi tag, platform tag, from the file name."""
        return self.path.name.removesuffix(".whl").split("-")

    @cached_property
    def info(self) -> str:
        """The wheel's .dist-info folder."""
        return "-".join(self.name_parts[:2]) + ".dist-info"

    def text(self, name: str) -> str:
        return self.members[f"{self.info}/{name}"].decode()

    @cached_property
    def metadata(self) -> Message:
        return Parser().parsestr(self.text("METADATA"))

    @cached_property
    def project(self) -> str:
        return project_name(self.name_parts[0])

    @property
    def version(self) -> str:
        return self.name_parts[1]

    @cached_property
    def tags(self) -> list[str]:
        return Parser().parsestr(self.text("WHEEL")).get_all("Tag", [])

    @cached_property
    def packs(self) -> dict[str, str]:
        """Entry points that announce a pack: target name, import package."""
        if f"{self.info}/entry_points.txt" not in self.members:
            return {}
        parser = configparser.ConfigParser(delimiters="=")
        parser.read_string(self.text("entry_points.txt"))
        return dict(parser[PACK_GROUP]) if parser.has_section(PACK_GROUP) else {}

    @cached_property
    def sha256(self) -> str:
        return sha256(self.path)

    def damaged_members(self) -> Iterator[str]:
        """One line per member that RECORD lacks or lists with other contents."""
        recorded = {row[0]: row[1] for row in csv.reader(self.text("RECORD").splitlines()) if row}
        for name, content in self.members.items():
            if name == f"{self.info}/RECORD":
                continue
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            if name not in recorded:
                yield f"{name} is not in RECORD"
            elif recorded[name] != f"sha256={digest}":
                yield f"{name}: RECORD says {recorded[name]}, the file has sha256={digest}"
        yield from (f"RECORD lists {name}, which is not in the wheel" for name in recorded.keys() - self.members.keys())
