"""Installs lucebox with Ray in build/ray, and runs the tests of a cluster: `make test-all`'s stage `ray`.

Ray's wheel has 80 MB, and a cluster ten processes, so the everyday environment does without Ray.
"""

from __future__ import annotations

import sys

from project import BUILD, ROOT, build_wheel, install, run, tools_environment

FOLDER = BUILD / "ray"
TESTS = ("tests/serve/test_ray.py", "tests/serve/test_ray_files.py")


def main() -> None:
    python = FOLDER / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", FOLDER)
    install(python, build_wheel(), "test,ray")
    run(python, "-m", "pip", "install", "-qq", "--no-deps", ROOT / "models" / "tiny-hybrid")
    # One process: the cluster already has one for each core.
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, env=tools_environment(python))


if __name__ == "__main__":
    main()
