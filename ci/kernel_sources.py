"""Lists the kernels that the sources in src/gpu define, without building a pack."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import tempfile
from pathlib import Path

import targets

ROOT = targets.ROOT
KERNEL = re.compile(r"@kernel (\w+) ([^@]+) @")
CONSTANT = re.compile(r"\b(k\w+) = (\d+)[,;]")


@functools.cache
def kernels_of_sources() -> dict[str, dict[str, int]]:
    """Kernel file (relative to the root) -> its kernels -> maximum threads per block.

    The preprocessor expands the lists that files instantiate (src/gpu/*/instances.h). Every kernel file is included
    once, with a dialect in which LB_KERNEL only emits the name and the launch bound.
    """
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # the sanitizer sets it
    names = [file.relative_to(ROOT).as_posix() for file in targets.kernel_files()]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "dialect.h").write_text(
            "#define LB_KERNEL(name, Params, kMaxThreads, kMinBlocks) @kernel name kMaxThreads @\n"
        )
        includes = [f"-I{path}" for path in (folder, *(ROOT / "src" / part for part in ("sim", "cpp", ".")))]
        done = subprocess.run(
            ["c++", "-std=c++20", "-E", "-P", "-x", "c++", *includes, "-"],
            input="".join(f'@file {name}\n#include "{ROOT / name}"\n' for name in names),
            capture_output=True, text=True, check=True, env=plain,
        )  # fmt: skip
    text = " ".join(done.stdout.split())
    constants = {name: int(value) for name, value in CONSTANT.findall(text)}

    def bound(text: str) -> int:
        return sum(constants[term] if term in constants else int(term) for term in text.split(" + "))

    found = {}
    for part in text.split("@file ")[1:]:
        name, _, body = part.partition(" ")
        found[name] = {kernel: bound(threads) for kernel, threads in KERNEL.findall(body)}
    return found
