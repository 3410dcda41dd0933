"""Compiles the engine for aarch64 with the clang in PyPI's ziglang, warnings as errors: the portable code must build
without x86 kernels. Compiles objects only; links and runs nothing."""

from __future__ import annotations

from pathlib import Path

import ziglang
from project import BUILD, ROOT, run, tools_environment

TARGET = "aarch64-linux-gnu"


def main() -> None:
    zig = Path(ziglang.__file__).parent / "zig"
    folder = BUILD / "aarch64"
    env = tools_environment(ZIG_GLOBAL_CACHE_DIR=str(folder / "zig"), ZIG_LOCAL_CACHE_DIR=str(folder / "zig"))
    configure = (
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON",  # possible because the compiler is pinned
        "-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON",  # finds missing includes
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        # Linking, even in CMake's probes, would first build zig's C++ library, which takes minutes.
        "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY",
        "-DCMAKE_CXX_COMPILER_ID_TEST_FLAGS_FIRST=-c",
        f"-DCMAKE_CXX_COMPILER={zig};c++;-target;{TARGET}",
    )
    if not (folder / "build.ninja").exists():
        run("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *configure, env=env)
    run("cmake", "--build", folder, env=env)


if __name__ == "__main__":
    main()
