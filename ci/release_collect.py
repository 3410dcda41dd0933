"""Checks the built files of a release and sorts them for the uploads.

release_collect.py dist out               requires exactly the files of the plan, with metadata that PyPI accepts
release_collect.py dist out --partial     files may be missing: for trials with some packs

out/all/FILE              for the GitHub Release and the attestation
out/pypi/PROJECT/FILE     for PyPI, one folder per project
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import release_metadata
import release_plan
from release_plan import Plan


@dataclass(frozen=True)
class Collected:
    """The files of a release and their problems."""

    files: tuple[str, ...]
    """In upload order."""
    absent: tuple[str, ...]
    problems: tuple[str, ...]
    """One line each: file, colon, reason."""


def check(dist: Path, plan: Plan, *, partial: bool = False) -> Collected:
    """Checks the files in `dist` against the plan."""
    there = {file.name: file for file in sorted(dist.iterdir())}
    planned = {name: name not in project.not_on_pypi for project in plan.projects for name in project.files}
    files = [name for name in planned if name in there]
    absent = [name for name in planned if name not in there]
    problems = [f"{name}: no file of lucebox {plan.version}" for name in there if name not in planned]
    problems += [] if partial else [f"{name}: is not there" for name in absent]
    for name in files:
        reasons = release_metadata.problems(there[name], for_pypi=planned[name])
        problems += [f"{name}: {reason}" for reason in reasons]
    if files and (said := release_metadata.twine([there[name] for name in files])):
        problems.append(f"twine check: {said}")
    return Collected(tuple(files), tuple(absent), tuple(problems))


def sort(dist: Path, out: Path, plan: Plan) -> None:
    """Fills `out`; hard-links a file that goes to two places."""
    shutil.rmtree(out, ignore_errors=True)
    (out / "all").mkdir(parents=True)
    for project in plan.projects:
        for name in project.files:
            if not (dist / name).exists():
                continue
            os.link(dist / name, out / "all" / name)
            if name not in project.not_on_pypi:
                (out / "pypi" / project.name).mkdir(parents=True, exist_ok=True)
                os.link(dist / name, out / "pypi" / project.name / name)


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the files of a release and sort them for the uploads.")
    parser.add_argument("dist", type=Path, help="folder of all files")
    parser.add_argument("out", type=Path, help="folder for the sorted files; what is there is replaced")
    parser.add_argument("--partial", action="store_true", help="files may be missing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    try:
        plan = release_plan.plan()
    except release_plan.ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    found = check(arguments.dist, plan, partial=arguments.partial)
    if not found.problems:
        sort(arguments.dist, arguments.out, plan)
    if arguments.json:
        print(json.dumps(asdict(found), indent=2))
    else:
        print(*found.files, *(f"FAILED {problem}" for problem in found.problems), sep="\n")
        print(f"{len(found.files)} files in order of upload, {len(found.absent)} not there, {arguments.out}")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
