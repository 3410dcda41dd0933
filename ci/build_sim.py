"""Builds the simulator's pack from the current tree into build/sim, incrementally, and prints its folder. The tests of
the kernels call it; the stage "packs" of test.py builds ahead of them."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

from project import BUILD, ROOT, tools_environment


def build_sim() -> Path:
    """The folder of the pack. Raises RuntimeError with the output of a build that fails."""
    build = BUILD / "sim"
    configure = ["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DLUCEBOX_TARGET=sim",
                 f"-DPython_EXECUTABLE={sys.executable}"]  # fmt: skip
    build.parent.mkdir(exist_ok=True)
    with build.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes may build it too
        for command in (configure, ["cmake", "--build", build, "-j2"]):
            words = [str(word) for word in command]
            done = subprocess.run(words, capture_output=True, text=True, env=tools_environment())
            if done.returncode:
                raise RuntimeError(done.stdout + done.stderr)
    return build / "pack" / "lucebox_sim"


if __name__ == "__main__":
    try:
        print(build_sim())
    except RuntimeError as error:
        sys.exit(str(error))
