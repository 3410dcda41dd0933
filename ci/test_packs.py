"""Builds kernel packs, verifies them and this interpreter's host wheel, then makes an index of them all and installs
from it. Implements the stages "packs" and "all-packs" of test.py, and `make packs`.

    test_packs.py                  every target
    test_packs.py sim gfx1151      only these targets
"""

from __future__ import annotations

import sys
from pathlib import Path

from project import BUILD, ROOT, build_wheel, run

import targets

ONE_PER_VENDOR = ("sm_90", "gfx1151")  # not sim: the tests compile it
EVERY = tuple(targets.names())
INDEX = BUILD / "index"
PYTHON, CI = Path(sys.executable), ROOT / "ci"


def build_and_verify(chosen: tuple[str, ...], *options: str) -> list[Path]:
    """Returns the wheels of the host and of each target's pack. `options` go to both scripts."""
    run(PYTHON, CI / "build_packs.py", *options, *chosen)
    slugs = [targets.load(name).slug for name in chosen]
    wheels = [build_wheel(), *(next((BUILD / "packs").glob(f"lucebox_{slug}-*.whl")) for slug in slugs)]
    run(PYTHON, CI / "verify_wheel.py", *options, *wheels)
    return wheels


def test(chosen: tuple[str, ...]) -> None:
    wheels = build_and_verify(chosen)
    run(PYTHON, CI / "make_index.py", INDEX, *wheels)
    run(PYTHON, CI / "install_test.py", INDEX)


if __name__ == "__main__":
    test(tuple(sys.argv[1:]) or EVERY)
