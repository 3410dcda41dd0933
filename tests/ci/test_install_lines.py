"""Install lines of pages and programs while lucebox's names are not registered on PyPI."""

from __future__ import annotations

import re

from lucebox.packs import ON_PYPI
from project import ROOT, tracked_files


def test_nobody_is_sent_to_a_second_index() -> None:
    """pip takes the newest version of any index, so a stranger's lucebox-sm86 would win."""
    told = [*tracked_files("README.md", "docs", "python", ".github")]
    assert len(told) > 50
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in told
        if file.suffix in (".md", ".py", ".yml")
        for line in file.read_text().splitlines()
        if re.search(r"--extra-index-url|--index-strategy", line)
    ]
    assert found == []


def test_readme_installs_from_files_or_one_index() -> None:
    text = (ROOT / "README.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("$ pip install") and "lucebox" in line]
    assert lines and all(".whl" in line or "--index-url" in line for line in lines)


def test_pages_say_what_the_program_says() -> None:
    """The commit that sets ON_PYPI changes these pages too."""
    for name, words in (
        ("README.md", "are not registered on PyPI yet"),
        ("docs/doctor.md", "the names are not on PyPI"),
    ):
        assert (words in " ".join((ROOT / name).read_text().split())) != ON_PYPI, name
