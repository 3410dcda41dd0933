"""Runs the stages of the project's tests.

test.py                     the everyday stages: `make test`, 12 minutes on two cores, build included
test.py --all               every stage: `make test-all`, before a release or a change of kernels, parsers or the build
test.py wheel gates tests   only these stages

A stage that fails ends the run, so that its messages end the output; with --all, the other stages run too. Otherwise
pytest's summary ends the output.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import test_packs
from project import PYTEST, ROOT, build_wheel, install, run, tools_environment

PYTHON = Path(sys.executable)
TESTS = ("tests/attack", "tests/ci", "tests/host", "tests/model", "tests/serve", "tests/gpu")


def script(name: str, *arguments: str) -> Callable[[], None]:
    return lambda: run(PYTHON, ROOT / "ci" / name, *arguments)


def pytest(*options: str) -> Callable[[], None]:
    return lambda: run(PYTHON, *PYTEST, "-q", *options, *TESTS)


def wheel() -> None:
    with ThreadPoolExecutor() as pool:  # the network and the compiler at the same time
        others = pool.submit(install_others)
        built = build_wheel()
    others.result()
    install(PYTHON, built, "test")
    run(PYTHON, ROOT / "ci/verify_wheel.py", built)


def install_others() -> None:
    """Installs the tools, the demo's model, and what the wheel and its extra `test` require."""
    run("make", "-o", ".venv/build", ".venv/tiny")  # -o: this environment is in use, so it stays
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    libraries: list[str] = project["dependencies"]
    extras = ["test"]
    while extras:
        for line in project["optional-dependencies"][extras.pop()]:
            own = re.fullmatch(r"lucebox\[(\w+)\]", line)
            (extras if own else libraries).append(own[1] if own else line)
    run(PYTHON, "-m", "pip", "install", "-qq", "--no-compile", *libraries)


def collect() -> None:
    """Reads every test file. One that cannot be imported fails here, and the processes of the stage "tests" find the
    files compiled: each of them would compile all, for 12 s."""
    words = [str(word) for word in (PYTHON, "-m", "pytest", "-qq", "--collect-only", *TESTS)]
    done = subprocess.run(words, cwd=ROOT, env=tools_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"exit code {done.returncode}: {' '.join(words)}\n{done.stdout}{done.stderr}")


def gates() -> None:
    with ThreadPoolExecutor() as pool:  # mypy leaves a core free
        checks = (pool.submit(script("run_gates.py")), pool.submit(collect))
    for check in checks:
        check.result()


def packs() -> None:
    # The simulator's kernels at the same time, because each build has stretches with work for one core only.
    with ThreadPoolExecutor() as pool:
        builds = (pool.submit(test_packs.everyday), pool.submit(script("build_sim.py", "-DLUCEBOX_TOGETHER=ON")))
    for build in builds:
        build.result()


EVERYDAY: dict[str, Callable[[], None]] = {
    "wheel": wheel,
    "gates": gates,
    "packs": packs,
    # Large grids of types, sizes and instruction sets: each value, and one in 24 of the other combinations. The stage
    # is the last one, so that its summary, with its time, ends the output.
    "tests": pytest("-m", "not slow", "--grids", "24"),
}
MORE: dict[str, Callable[[], None]] = {
    "aarch64": script("cross.py"),
    "release-link": script("release_link.py"),
    "reproducible": script("check_reproducible.py"),
    "pythons": script("test_pythons.py"),
    "oldest": script("test_oldest.py"),
    "sanitizers": script("sanitize.py"),
    "all-packs": lambda: test_packs.test(test_packs.EVERY),
    "release-dry-run": script("release_dry_run.py"),
    "sdks": script("sdk_loops.py"),
    "ray": script("ray_serve.py"),
    "all-tests": pytest(),  # includes the stage "tests"
}
STAGES = {**MORE, **EVERYDAY}
ORDER = ("wheel", "gates", *MORE, "packs", "tests")
ENDS = {"tests", "all-tests"}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the project's tests, in stages.")
    parser.add_argument("stages", nargs="*", help=f"of {', '.join(ORDER)}; none: the everyday ones")
    parser.add_argument("--all", action="store_true", help="every stage")
    arguments = parser.parse_args()
    all_stages = STAGES.keys() - {"packs", "tests"}  # all-packs and all-tests include them
    chosen = arguments.stages or (all_stages if arguments.all else EVERYDAY)
    if unknown := sorted(set(chosen) - STAGES.keys()):
        parser.error(f"no stage {', '.join(unknown)}; there are: {', '.join(ORDER)}")
    report: dict[str, str] = {}
    for name in (name for name in ORDER if name in chosen):
        if name in ENDS and report:
            print("", *report.values(), sep="\n")
        print(f"\n=== {name}", flush=True)
        start = time.perf_counter()
        try:
            STAGES[name]()
            result = "ok"
        except SystemExit as error:
            result = f"FAILED, {error}"
        report[name] = f"{name:<14}{time.perf_counter() - start:>7.1f} s  {result}"
        if result != "ok" and (name == "wheel" or not arguments.all):
            break
    failed = {name: row for name, row in report.items() if not row.endswith("ok")}
    # pytest's summary ends the output unless another stage failed before the tests.
    last = failed.keys() - ENDS if ENDS & report.keys() else report.keys()
    print(*(row for name, row in report.items() if name in last), sep="\n", end="\n" if last else "")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
