"""Builds the host wheels for publication: manylinux_2_28, compiled by the clang in PyPI's ziglang, which can link
against any glibc version. This needs neither an old Linux nor a container, and aarch64 is cross-compiled on x86_64: the
engine needs only Python's stable-ABI headers, which are the same on both.

    release_host.py                                 x86_64 and aarch64 for Python 3.12 and newer (abi3)
    release_host.py --python 3.10 --arch x86_64     for one older Python (not across architectures)

Wheels for this machine are installed into a fresh environment and tested there, unless --no-try is given.
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pythons
import ziglang
from project import BUILD, ROOT, run, tools_environment
from test_pythons import environment

GLIBC = "2.28"
ARCHITECTURES = ("x86_64", "aarch64")
# Tests of the parts where another compiler's libraries could differ: processor, kernels, parsers, text, sessions.
TRIED = ("instruction_sets", "linear", "rms_norm", "gguf", "safetensors", "tokenizer", "tiny_models", "session")


def compiler(architecture: str) -> Path:
    """Makes a folder with one wrapper script per zig tool, because CMake wants separate programs. A script names zig's
    version and keeps its time while its text is unchanged: a compiler cache compares both."""
    zig = Path(ziglang.__file__).parent / "zig"
    folder = BUILD / "release" / f"zig-{architecture}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("cc", "c++", "ar", "ranlib"):
        target = f" -target {architecture}-linux-gnu.{GLIBC}" if name in ("cc", "c++") else ""
        file = folder / name
        text = f'#!/bin/sh\n# zig {metadata.version("ziglang")}\nexec "{zig}" {name}{target} "$@"\n'
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
            file.chmod(0o755)
    return folder


def multiarch_headers(python: Path) -> Path | None:
    """A folder for the header search path, if this Python is Debian's or Ubuntu's; else None. Their pyconfig.h includes
    <x86_64-linux-gnu/python3.12/pyconfig.h>, from the folder of the system's headers, which no cross-compiler may
    search. The stable ABI is the same on all architectures, so each gets the header of this machine."""
    script = (
        "import sysconfig; print(sysconfig.get_path('include'), sysconfig.get_config_var('MULTIARCH') or '', sep=';')"
    )
    done = subprocess.run([python, "-c", script], check=True, capture_output=True, text=True)
    include, _, triplet = done.stdout.strip().partition(";")
    own = Path(include).parent / triplet / Path(include).name
    if not triplet or not (own / "pyconfig.h").exists():
        return None
    folder = BUILD / "release" / f"headers-{Path(include).name}"
    shutil.rmtree(folder, ignore_errors=True)
    for architecture in ARCHITECTURES:
        (folder / f"{architecture}-linux-gnu").mkdir(parents=True)
        shutil.copytree(own, folder / f"{architecture}-linux-gnu" / own.name)
    return folder


def cmake_defines(architecture: str, python: Path) -> dict[str, str | Path]:
    """The CMake variables of a release: compilers, linker and their flags."""
    tools = compiler(architecture)
    headers = multiarch_headers(python)
    more = "" if headers is None else f" -isystem {headers}"
    return {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": architecture,
        "CMAKE_C_COMPILER": tools / "cc",
        "CMAKE_CXX_COMPILER": tools / "c++",
        "CMAKE_AR": tools / "ar",
        "CMAKE_RANLIB": tools / "ranlib",
        # nanobind uses stderr without including its header; libc++ does not include it indirectly.
        "CMAKE_CXX_FLAGS": f"-include cstdio -ffile-prefix-map={Path(ziglang.__file__).parent}=zig{more}",
        "CMAKE_MODULE_LINKER_FLAGS": "-Wl,-s",
        "CMAKE_DISABLE_PRECOMPILE_HEADERS": "ON",  # finds missing includes, also in the bindings
    }


def zig_caches() -> dict[str, str]:
    """Environment variables that keep zig's compiled C++ library in the build folder."""
    cache = str(BUILD / "release" / "zig-cache")
    return {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}


def build(architecture: str, version: str, python: Path, out: Path) -> Path:
    """Builds the wheel with pip; it still has the tag linux_<architecture>."""
    folder = BUILD / "release" / f"{architecture}-{version}"
    settings = [f"cmake.define.{name}={value}" for name, value in cmake_defines(architecture, python).items()]
    settings += [f"build-dir={folder}", "install.strip=false"]  # stripped by zig's linker, for every architecture
    # Sets the wheel's tag in a cross build.
    env = tools_environment(python, **zig_caches(), _PYTHON_HOST_PLATFORM=f"linux-{architecture}")
    shutil.rmtree(out, ignore_errors=True)
    pip = (python, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "--wheel-dir", out)
    run(*pip, *(word for setting in settings for word in ("--config-settings", setting)), ROOT, env=env)
    (wheel,) = out.glob("*.whl")
    return wheel


def retag(wheel: Path) -> Path:
    """Gives the wheel its manylinux tag, after auditwheel has confirmed that the wheel conforms to it."""
    command = (sys.executable, "-m", "auditwheel", "show", wheel)
    shown = subprocess.run(command, check=True, capture_output=True, text=True, env=tools_environment()).stdout
    said = " ".join(shown.split())
    print(f"  auditwheel: {said}")
    found = re.search(r'consistent with the following platform tag: "manylinux_(\d+)_(\d+)_', said)
    if found is None or (int(found[1]), int(found[2])) > tuple(map(int, GLIBC.split("."))):
        sys.exit(f"{wheel.name} is not manylinux_{GLIBC.replace('.', '_')}: {said}")
    architecture = wheel.stem.split("-")[-1].removeprefix("linux_")
    return with_platform(wheel, f"manylinux_{GLIBC.replace('.', '_')}_{architecture}")


def with_platform(wheel: Path, platform_tag: str) -> Path:
    """Replaces the wheel by one with this platform tag. The same wheel gives the same bytes: `wheel tags` rewrites
    WHEEL and RECORD, at the time that tools_environment() says."""
    run(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", platform_tag, wheel)
    (tagged,) = wheel.parent.glob("*.whl")
    return tagged


def try_it(wheel: Path, interpreter: Path) -> None:
    folder = BUILD / "release" / "try"
    python = folder / "bin" / "python"
    run(interpreter, "-m", "venv", "--clear", folder)
    run(python, "-m", "pip", "install", "-qq", f"{wheel}[test]")
    tests = [f"tests/host/test_{name}.py" for name in TRIED]
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, env=tools_environment(python))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the host wheels that are published.")
    parser.add_argument("--python", nargs="+", default=["3.12"], metavar="VERSION")
    parser.add_argument("--arch", nargs="+", default=list(ARCHITECTURES), choices=ARCHITECTURES)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--no-try", action="store_true", help="do not install and test the wheels")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for version in arguments.python:
        interpreter = pythons.find(version)
        if interpreter is None:
            sys.exit(f"Python {version}: no such interpreter on PATH, in pyenv or in uv")
        python = environment(version, interpreter)
        for architecture in arguments.arch:
            if architecture != platform.machine() and version != "3.12":
                sys.exit(f"Python {version} has no stable ABI: build its {architecture} wheel on {architecture}")
            start = time.perf_counter()
            wheel = retag(build(architecture, version, python, BUILD / "release" / "wheels"))
            seconds = time.perf_counter() - start
            if architecture == platform.machine() and not arguments.no_try:
                try_it(wheel, interpreter)
            final = Path(shutil.copy(wheel, arguments.out))
            print(f"{final.name}: {final.stat().st_size / 1024:.0f} KiB in {seconds:.0f} s")


if __name__ == "__main__":
    main()
