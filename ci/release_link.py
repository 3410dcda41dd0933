"""Links the Python modules for x86_64 with the compiler, linker and flags of ci/release_host.py. Objects are compiled
at -O1: the stage tests the link, not the code. The library must export the modules' entry points and nothing of the C++
library."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from project import BUILD, ROOT, run, tools_environment
from release_host import cmake_defines, zig_caches

ARCHITECTURE = "x86_64"
FOLDER = BUILD / "release" / "link"
ENTRIES = ("PyInit__engine", "PyInit__kernels")
# Mangled names in namespace std. Not the allocation functions, which programs may replace.
STANDARD = re.compile(r"_Z(N[KVO]*|T[ISV]N?K?)?S[tabdios]")


def link() -> Path:
    """The linked library."""
    env = tools_environment(Path(sys.executable), **zig_caches())
    defines = {
        **cmake_defines(ARCHITECTURE, Path(sys.executable)),
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CXX_FLAGS_RELEASE": "-O1 -DNDEBUG",
        "LUCEBOX_PYTHON": "ON",
        "Python_EXECUTABLE": sys.executable,
    }
    options = [f"-D{name}={value}" for name, value in defines.items()]
    run("cmake", "-S", ROOT, "-B", FOLDER, "-G", "Ninja", *options, env=env)
    run("cmake", "--build", FOLDER, "--target", "_engine", env=env)
    (module,) = FOLDER.rglob("_engine*.so")
    return module


def exports(module: Path) -> list[str]:
    """The names of the symbols that a shared library defines for others."""
    command = ["nm", "--dynamic", "--defined-only", "--format=just-symbols", str(module)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def problems(names: list[str]) -> list[str]:
    """The faults of a library that exports these names."""
    missing = [f"does not export {entry}" for entry in ENTRIES if entry not in names]
    return missing + [f"exports {name} of the C++ library" for name in names if STANDARD.match(name)]


def main() -> int:
    module = link()
    found = problems(exports(module))
    print(*(f"{module.name}: {problem}" for problem in found or ["linked"]), sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
