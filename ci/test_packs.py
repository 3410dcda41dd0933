"""Builds kernel packs, verifies them and this interpreter's host wheel, makes an index of them all and installs from
it: the stage "packs" of test.py, and `make packs`.

    test_packs.py                  every target
    test_packs.py sim gfx1151      these
"""

from __future__ import annotations

import sys
from pathlib import Path

from project import BUILD, ROOT, build_wheel, run

import targets

# One of each kind: the oldest NVIDIA, one with its own instructions, one with FP4, AMD, and the simulator.
TARGETS = ("sim", "sm_75", "sm_90", "sm_121", "gfx1151")
INDEX = BUILD / "index"


def test(chosen: tuple[str, ...]) -> None:
    python, ci = Path(sys.executable), ROOT / "ci"
    run(python, ci / "build_packs.py", *chosen)
    slugs = [targets.load(name).slug for name in chosen]
    wheels = [build_wheel(), *(next((BUILD / "packs").glob(f"lucebox_{slug}-*.whl")) for slug in slugs)]
    run(python, ci / "verify_wheel.py", *wheels)
    run(python, ci / "make_index.py", INDEX, *wheels)
    run(python, ci / "install_test.py", INDEX)


if __name__ == "__main__":
    test(tuple(sys.argv[1:]) or tuple(targets.names()))
