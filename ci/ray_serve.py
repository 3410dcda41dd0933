"""Installs lucebox with Ray in build/ray and two other routers in build/routers, and runs the tests of a cluster and of
these routers: `make test-all`'s stage `ray`.

Ray's wheel has 80 MB, and a cluster ten processes, so the everyday environment does without them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from project import BUILD, ROOT, build_wheel, install, run, tools_environment

TESTS = ("tests/serve/test_ray.py", "tests/serve/test_ray_files.py", "tests/serve/test_routers.py")
ROUTERS = ("sglang-router", "vllm-router")


def main() -> None:
    python, routers = (environment(BUILD / name) for name in ("ray", "routers"))
    install(python, build_wheel(), "test,ray")
    run(python, "-m", "pip", "install", "-qq", "--no-deps", ROOT / "models" / "tiny-hybrid")
    run(routers, "-m", "pip", "install", "-qq", "--no-compile", *ROUTERS)
    tools = tools_environment(python)
    path = f"{tools['PATH']}{os.pathsep}{routers.parent}"
    # One process: the cluster already has one for each core.
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, env={**tools, "PATH": path})


def environment(folder: Path) -> Path:
    """The interpreter of the virtual environment in this folder, which is made if need be."""
    python = folder / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", folder)
    return python


if __name__ == "__main__":
    main()
