"""Runs the server's tests with the oldest dependency versions that pyproject.toml allows, in build/oldest.

`fastapi>=0.115` is tested with 0.115, even if a test tool wants a newer version. If a bound fails to install or to
pass, raise it in pyproject.toml.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from project import BUILD, PYTEST, ROOT, build_wheel, run, tools_environment

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = BUILD / "oldest"
LOWER_BOUND = re.compile(r"([\w-]+)>=([\d.]+)")
UV = Path(sys.executable).parent / "uv"


def oldest(pyproject: str) -> list[str]:
    """The lower bounds of lucebox[serve]'s requirements, as pins.

    Raises:
        ValueError: a requirement has no lower bound.
    """
    project = tomllib.loads(pyproject)["project"]
    pins = []
    for requirement in project["dependencies"] + project["optional-dependencies"]["serve"]:
        bound = LOWER_BOUND.match(requirement)
        if bound is None:
            raise ValueError(f"pyproject.toml: {requirement!r} has no lower bound, expected name>=version")
        pins.append(f"{bound[1]}=={bound[2]}")
    return pins


def main() -> None:
    run(sys.executable, "-m", "venv", "--clear", FOLDER)
    python, pins = FOLDER / "bin" / "python", FOLDER / "oldest.txt"
    pins.write_text("\n".join(oldest((ROOT / "pyproject.toml").read_text())) + "\n")
    install = (UV, "pip", "install", "--quiet", "--python", python, "--only-binary=:all:")
    run(*install, "--override", pins, f"{build_wheel()}[test]")
    run(python, "-m", "pip", "install", "-qq", "--no-deps", ROOT / "models" / "tiny-hybrid")
    run(*install[:2], "list", "--python", python)
    run(python, *PYTEST, "-q", "-p", "no:cacheprovider", "-m", "not slow", "tests/serve", env=tools_environment(python))


if __name__ == "__main__":
    main()
