"""Checks the generated files in the repository: the options' structs and keywords, the type stubs of the extension
modules, docs/reference, the predicted speeds of the megakernel, README's speed table, and everything generated from
targets/ and the kernels.

    check_generated.py            fails if a file differs from its generator's output
    check_generated.py --write    writes the files

Works on the installed lucebox: build and install the wheel first (make check does).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import generate_options
import generate_planned
import generate_predictions
import generate_reference
import generate_speed
import generate_targets
from project import ROOT

PACKAGE = "python/lucebox"
MODULES = ("_engine", "_kernels")
REFERENCE = "docs/reference"


def stubs() -> dict[str, str]:
    """The stub files by name, made by nanobind's generator in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        for module in MODULES:
            command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-r", "-m", f"lucebox.{module}", "-O", folder]
            subprocess.run(command, check=True, cwd=folder)
        made = Path(folder)
        return {file.relative_to(made).as_posix(): _tidy(file.read_text()) for file in made.rglob("*.pyi")}


def _tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n"


def expected() -> dict[str, str]:
    """Every generated file: path from the root, and content."""
    files = {f"{PACKAGE}/{name}": text for name, text in stubs().items()}
    files |= {f"{REFERENCE}/{name}": text for name, text in generate_reference.pages().items()}
    files |= generate_options.files() | generate_targets.files() | generate_planned.files()
    return files | generate_predictions.files() | generate_speed.files()


def present() -> set[str]:
    stub_files = [file for module in MODULES for file in (ROOT / PACKAGE / module).rglob("*.pyi")]
    files = [*stub_files, *(ROOT / REFERENCE).rglob("*.md")]
    return {file.relative_to(ROOT).as_posix() for file in files} | generate_targets.present()


def drift() -> list[str]:
    """One line per file that is missing, differs, or is no longer generated."""
    wanted = expected()
    problems = [
        f"{name} is not what the sources say; run `make generate`"
        for name, text in wanted.items()
        if not (ROOT / name).exists() or (ROOT / name).read_text() != text
    ]
    return problems + [f"{name} is generated no more; delete it" for name in sorted(present() - wanted.keys())]


def main() -> int:
    parser = argparse.ArgumentParser(description="Check or write the generated files.")
    parser.add_argument("--write", action="store_true", help="write them instead of comparing")
    if parser.parse_args().write:
        generate_options.main()  # first: the stubs and docs/reference need a build with these options
        wanted = expected()
        for name in present() - wanted.keys():
            (ROOT / name).unlink()
        for name, text in wanted.items():
            (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / name).write_text(text)
    problems = drift()
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
