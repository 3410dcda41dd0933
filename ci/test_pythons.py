"""Builds and tests the wheel on other installed Python versions: test_pythons.py [3.10 3.12 3.15 ...]. Versions from
3.12 on get the wheel that 3.12 builds, as users do. Skips versions that this machine lacks, with a message."""

from __future__ import annotations

import sys
from pathlib import Path

import pythons
from project import BUILD, PYTEST, ROOT, build_wheel, install, run, tools_environment

ABI3 = "3.12"  # the oldest with the stable ABI: its wheel is for all later versions
VERSIONS = (ABI3, "3.15")  # tested in addition to .venv's Python: the oldest and the newest with that wheel
# Tests of ops, packs and tiny models: native code that does not depend on the Python version.
NATIVE_ONLY = (
    "attention",
    "delta_net",
    "launch",
    "linear",
    "mutations",
    "planes",
    "quant",
    "rms_norm",
    "rope",
    "sim_*",
    "swiglu",
    "thread_pool",
    "tiny_models",
)


def environment(version: str, interpreter: Path) -> Path:
    """Makes build/pythonX.Y, a virtual environment with the build tools, and returns its interpreter."""
    python = BUILD / f"python{version}" / "bin" / "python"
    requirements = ROOT / "ci" / "requirements-build.txt"
    stamp = BUILD / f"python{version}" / "requirements.txt"
    if not stamp.exists() or stamp.read_text() != requirements.read_text():
        run(interpreter, "-m", "venv", "--clear", python.parent.parent)
        run(python, "-m", "pip", "install", "-qq", "-r", requirements)
        stamp.write_text(requirements.read_text())
    return python


def wheel_of(version: str) -> Path:
    """Builds the module for this Python on top of the engine in .venv's wheel, which does not depend on Python."""
    interpreter = pythons.find(version)
    if interpreter is None:
        raise SystemExit(f"Python {version} is not on PATH, in pyenv or in uv: it builds the wheel of later versions")
    engine = BUILD / "-".join(build_wheel().stem.split("-")[-3:]) / "src/cpp/liblucebox_engine.a"
    folder = BUILD / f"module{version}"  # one per version, because a build folder keeps the setting
    return build_wheel(
        environment(version, interpreter), settings=(f"cmake.define.LUCEBOX_ENGINE={engine}", f"build-dir={folder}")
    )


def is_abi3(version: str) -> bool:
    """Whether this Python takes the wheel of ABI3."""
    return tuple(map(int, version.split("."))) >= tuple(map(int, ABI3.split(".")))


def main() -> None:
    for version in sys.argv[1:] or VERSIONS:
        interpreter = pythons.find(version)
        if interpreter is None:
            print(f"Python {version}: skipped, no such interpreter on PATH, in pyenv or in uv")
            continue
        python = environment(version, interpreter)
        wheel = wheel_of(ABI3 if is_abi3(version) else version)
        print(f"Python {version}: {wheel.name}")
        install(python, wheel, "test")
        run(python, "-m", "pip", "install", "-qq", ROOT / "models" / "tiny-hybrid")
        env = tools_environment(python)
        skipped = [f"--ignore-glob=tests/host/test_{name}.py" for name in NATIVE_ONLY]
        run(python, *PYTEST, "-q", "-p", "no:cacheprovider", *skipped, "tests/host", env=env)


if __name__ == "__main__":
    main()
