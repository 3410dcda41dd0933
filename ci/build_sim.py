"""Builds the simulator's pack from the current tree into build/sim, incrementally, and prints its folder. The tests of
the kernels call it; the stage "packs" of test.py builds ahead of them.

build_sim.py [-DNAME=VALUE...]    definitions for CMake, which the folder keeps
"""

from __future__ import annotations

import fcntl
import functools
import subprocess
import sys
from pathlib import Path

from project import BUILD, ROOT, tools_environment


@functools.cache
def build_sim(*definitions: str) -> Path:
    """The folder of the pack. Raises RuntimeError with the output of a build that fails."""
    build = BUILD / "sim"
    configure = ["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DLUCEBOX_TARGET=sim",
                 f"-DPython_EXECUTABLE={sys.executable}", *definitions]  # fmt: skip
    build.parent.mkdir(exist_ok=True)
    with build.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes may build it too
        # Ninja configures a folder again by itself where CMake's files changed.
        is_configured = (build / "build.ninja").exists() and not definitions
        for command in (*(() if is_configured else (configure,)), ["cmake", "--build", build, "-j2"]):
            words = [str(word) for word in command]
            done = subprocess.run(words, capture_output=True, text=True, env=tools_environment())
            if done.returncode:
                raise RuntimeError(done.stdout + done.stderr)
    return build / "pack" / "lucebox_sim"


if __name__ == "__main__":
    try:
        print(build_sim(*sys.argv[1:]))
    except RuntimeError as error:
        sys.exit(str(error))
