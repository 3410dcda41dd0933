"""Builds the release files that need no compiler: the sdist of every project, and the wheels of lucebox-kernels and
lucebox-tiny.

build_sources.py --out dist
build_sources.py --out dist gfx1151 sim      only the sdists of these packs
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from project import ROOT, run
from release_plan import plan

TINY = ROOT / "models" / "tiny-hybrid"
KERNELS = ROOT / "kernels"


def build(out: Path, chosen: list[str]) -> None:
    """Builds with the tools of this environment and downloads nothing."""
    command = (sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "--outdir", out)
    for folder in (ROOT, *(ROOT / "targets" / name for name in chosen)):
        run(*command, "--sdist", folder)
    run(*command, "--sdist", "--wheel", TINY)
    run(*command, "--wheel", KERNELS)


def main() -> None:
    released = plan().targets
    parser = argparse.ArgumentParser(description="Build sdists and the wheels without compiled files.")
    parser.add_argument("targets", nargs="*", help="packs; none: all of them")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.targets) - set(released)):
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(released)}")
    build(arguments.out.resolve(), arguments.targets or list(released))


if __name__ == "__main__":
    main()
