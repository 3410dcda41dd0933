"""Builds the wheel a second time, in another folder and in pip's isolated environment, and compares the bytes.

check_reproducible.py [WHEEL]: WHEEL replaces the first build.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from project import BUILD, ROOT, build_wheel, sha256, tracked_files


def differences(first: Path, second: Path) -> list[str]:
    """The archive members that differ between the two wheels."""
    with zipfile.ZipFile(first) as a, zipfile.ZipFile(second) as b:
        names = sorted({*a.namelist(), *b.namelist()})
        return [n for n in names if n not in a.namelist() or n not in b.namelist() or a.read(n) != b.read(n)]


def main() -> int:
    first = Path(sys.argv[1]) if len(sys.argv) > 1 else build_wheel()
    stamp = BUILD / "reproducible.sha256"
    if stamp.exists() and stamp.read_text() == sha256(first):
        print(f"{first.name}: checked before")
        return 0
    with tempfile.TemporaryDirectory(prefix="lucebox-elsewhere-") as folder:
        source = Path(folder) / "a-folder-with-another-name"
        for file in tracked_files():
            target = source / file.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
        second = build_wheel(source=source, isolated=True)
        if sha256(first) != sha256(second):
            print(f"{first.name}: two builds differ in {', '.join(differences(first, second)) or 'the archive itself'}")
            return 1
    print(f"{first.name}: two builds in two folders, sha256 {sha256(first)}")
    stamp.write_text(sha256(first))
    return 0


if __name__ == "__main__":
    sys.exit(main())
