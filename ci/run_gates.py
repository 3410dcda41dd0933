"""Runs every gate and prints a table: gate, seconds, result; then the problems of the gates that failed. Fails when one
fails.

run_gates.py            all gates
run_gates.py --fix      first let clang-format and ruff rewrite what they can
run_gates.py --json     the table as JSON
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import check_generated
import gates
from project import BUILD, ROOT, tools_environment, tracked_files

Gate = Callable[[], list[str]]
SHOWN = 24  # lines of problems, so that the end of a log has them all


@dataclass(frozen=True)
class Row:
    gate: str
    seconds: float
    problems: list[str]


def tool(*command: str) -> Gate:
    """A gate that runs a program; if the program fails, its output is the list of problems."""

    def gate() -> list[str]:
        done = subprocess.run(command, cwd=ROOT, env=tools_environment(), capture_output=True, text=True)
        return (done.stdout + done.stderr).strip().splitlines() if done.returncode else []

    return gate


def unformatted(cpp: list[str]) -> list[str]:
    command = ["clang-format", "--dry-run", "--Werror", *cpp]
    done = subprocess.run(command, cwd=ROOT, env=tools_environment(), capture_output=True, text=True)
    files = {line.split(":")[0] for line in done.stderr.splitlines() if ": error:" in line}
    return [f"{file}: not as clang-format writes it; run `make format`" for file in sorted(files)]


def isa_objects() -> list[str]:
    """Checks the objects of every optimised build that exists; ci/test.py builds the wheel first."""
    builds = [folder.parent for folder in BUILD.glob("*/build.ninja") if folder.parent.name != "cpu-asan"]
    objects = [file for folder in builds for file in folder.glob("**/cpu/isa_*.o")]
    return gates.isa_objects(objects) if objects else ["no object files to look at: build the wheel first (make check)"]


def run_gate(name: str, gate: Gate) -> Row:
    start = time.perf_counter()
    try:
        problems = gate()
    except Exception as error:  # a gate that cannot run counts as failed; the other gates still report
        problems = [f"{type(error).__name__}: {error}"]
    return Row(name, round(time.perf_counter() - start, 2), problems)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run every gate.")
    parser.add_argument("--fix", action="store_true", help="rewrite what clang-format and ruff can")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    arguments = parser.parse_args()

    files = tracked_files()
    cpp = [file.relative_to(ROOT).as_posix() for file in files if file.suffix in {".h", ".cpp"}]
    workflows = [file.relative_to(ROOT).as_posix() for file in files if file.parent.name == "workflows"]
    if arguments.fix:
        for command in (["clang-format", "-i", *cpp], ["ruff", "check", "--fix", "-q"], ["ruff", "format", "-q"]):
            subprocess.run(command, cwd=ROOT, env=tools_environment(), check=False)

    table: dict[str, Gate] = {
        "clang-format": lambda: unformatted(cpp),
        "ruff format": tool("ruff", "format", "--check", "--output-format=concise"),
        "ruff check": tool("ruff", "check", "-q", "--output-format=concise"),
        "mypy --strict": tool("mypy", "--no-error-summary"),
        "include direction": lambda: gates.include_direction(ROOT, files),
        "room direction": lambda: gates.room_direction(ROOT, files),
        "import circles": lambda: gates.import_circles(ROOT, files),
        "vendor headers": lambda: gates.vendor_headers(ROOT, files),
        "environment reads": lambda: gates.environment_reads(ROOT, files),
        "host flags": lambda: gates.host_flags(ROOT, files),
        "machine paths": lambda: gates.machine_paths(ROOT, files),
        "workflow schema": tool("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows),
        "workflow safety": tool("zizmor", "--offline", "--pedantic", "-q", "--format=plain", *workflows),
        "instruction set objects": isa_objects,
        "generated files": check_generated.drift,
    }
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # most gates wait for a program
        rows = list(pool.map(run_gate, table.keys(), table.values()))
    failed = [row for row in rows if row.problems]

    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        for row in rows:
            print(f"{row.gate:<24}{row.seconds:>7.2f} s  {'FAILED' if row.problems else 'ok'}")
        for row in failed:
            n = max(SHOWN // len(failed), 3)
            print(f"\n{row.gate}:", *row.problems[:n], sep="\n    ")
            if len(row.problems) > n:
                print(f"    and {len(row.problems) - n} more")
        print(f"{len(rows) - len(failed)} of {len(rows)} gates ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
