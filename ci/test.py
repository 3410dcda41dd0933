"""Everything CI runs, in stages; `make test` calls it.

test.py                     all stages
test.py wheel gates tests   only these
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import test_packs
from project import PYTEST, ROOT, build_wheel, install, run

PYTHON = Path(sys.executable)


def script(name: str) -> Callable[[], None]:
    return lambda: run(PYTHON, ROOT / "ci" / name)


def wheel() -> None:
    install(PYTHON, build_wheel(), "test")


STAGES: dict[str, Callable[[], None]] = {
    "wheel": wheel,
    "gates": script("run_gates.py"),
    "aarch64": script("cross.py"),
    "reproducible": script("check_reproducible.py"),
    "packs": lambda: test_packs.test(test_packs.TARGETS),
    "pythons": script("test_pythons.py"),
    "sanitizers": script("sanitize.py"),
    "simulator": lambda: run(PYTHON, *PYTEST, "-q", "tests/gpu"),
    "tests": lambda: run(PYTHON, *PYTEST),  # last: its summary closes the output
}


def main() -> int:
    chosen = sys.argv[1:] or list(STAGES)
    if unknown := set(chosen) - STAGES.keys():
        sys.exit(f"no stage {', '.join(sorted(unknown))}; there are: {', '.join(STAGES)}")
    report: list[str] = []
    for name in (name for name in STAGES if name in chosen):
        if name == "tests" and report:
            print("", *report, sep="\n")
        print(f"\n=== {name}", flush=True)
        start = time.perf_counter()
        try:
            STAGES[name]()
            result = "ok"
        except SystemExit as error:
            result = f"FAILED, {error}"
        report.append(f"{name:<14}{time.perf_counter() - start:>7.1f} s  {result}")
        if name == "wheel" and result != "ok":
            break  # nothing after it could mean anything
    failed = [row for row in report if not row.endswith("ok")]
    print(*failed, sep="\n", end="\n" if failed else "")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
