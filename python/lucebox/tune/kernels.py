"""Recompiles a pack's code with other compile-time constants. The wheel lucebox-kernels has the sources and the compile
script, which runs in a subprocess."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import lucebox
from lucebox.errors import PackError
from lucebox.packs import Pack
from lucebox.tune.variant import file_stem

__all__ = ["CANDIDATES", "COMPILED", "Compiled", "Kernels", "UnfitError"]

Json = dict[str, Any]

PROJECT, PACKAGE = "lucebox-kernels", "lucebox_kernels"
STEMS = ("gemv_32", "gemv_256", "gemv_plain")
COMPILED = {"LUCEBOX_GEMV_BLOCKS": 2}  # constant -> value in released packs
CANDIDATES = {"LUCEBOX_GEMV_BLOCKS": (3,)}  # 4 spills registers on sm_86
EXIT_RULES = 3  # exit status of compile_kernels.py: the kernels do not fit the chip
BLOCK_THREADS = 256  # kGemvThreads: more blocks per SM also need a larger matvec_threads_per_sm


@dataclass(frozen=True, slots=True)
class Compiled:
    """A pack's code with some files recompiled."""

    manifest: Json
    """The pack's manifest, with one generation."""
    files: Mapping[str, bytes]
    """The recompiled files."""
    images: Mapping[str, bytes]
    """All code objects, in the form the driver loads."""


class UnfitError(Exception):
    """Raised if kernels spill registers or do not fit the chip with these constants."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The installed lucebox-kernels."""

    source: Path

    @classmethod
    def find(cls) -> Kernels:
        """Raises:
        PackError: it is not installed, or of another version.
        """
        wanted = f"install {PROJECT} {lucebox.__version__} from where lucebox came from"
        try:
            found = version(PROJECT)
        except PackageNotFoundError:
            raise PackError(f"[tune] --compile needs the kernel sources; {wanted}") from None
        if found != lucebox.__version__:
            raise PackError(
                f"[tune] {PROJECT} is {found}, lucebox is {lucebox.__version__}; they must be equal; {wanted}"
            )
        spec = importlib.util.find_spec(PACKAGE)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            if (Path(folder) / "source").is_dir():
                return cls(Path(folder) / "source")
        raise PackError(f"[tune] {PROJECT} is installed but its files are not; {wanted}")

    def compile(self, pack: Pack, defines: Mapping[str, int], out: Path) -> Compiled:
        """The pack's code with these constants; `out` is a folder for the compiler.

        Raises:
            PackError: no compiler, or other sources than the engine's.
            UnfitError: the kernels break the rules of a pack.
        """
        manifest: Json = json.loads(pack.manifest_json)
        by = "nvrtc" if manifest["vendor"] == "nvidia" else pack.manifest.generations[0].compiler.name
        found = next((i for i, one in enumerate(pack.manifest.generations) if one.compiler.name == by), None)
        if found is None:
            raise PackError(f"[tune] pack {pack.name} has no code by NVRTC, so --compile cannot replace a part of it")
        code, images = manifest["generations"][found], pack.load(pack.manifest.generations[found])
        made = self._run(pack, manifest["abi"], code["compiler"]["flags"], defines, out)
        names = {one["name"] for one in made["kernels"]}
        kept = [one for one in code["files"] if file_stem(one["file"]) not in STEMS]
        files = {one["file"]: (out / one["file"]).read_bytes() for one in made["files"]}
        code = {
            **code,
            "compiler": made["compiler"],
            "files": [*kept, *made["files"]],
            "kernels": [*(one for one in code["kernels"] if one["name"] not in names), *made["kernels"]],
        }
        return Compiled(
            {**manifest, "archive": None, "generations": [code]},
            files,
            {one["file"]: images[one["file"]] for one in kept} | files,
        )

    def _run(self, pack: Pack, abi: str, flags: list[str], defines: Mapping[str, int], out: Path) -> Json:
        script = self.source / "ci/compile_kernels.py"
        command = [sys.executable, "-B", str(script), pack.target, *STEMS]  # -B: no files beside the sources
        command += ["--abi", abi, "--defines", ",".join(f"{name}={value}" for name, value in defines.items())]
        command += [f"--flags={' '.join(flags)}", "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == EXIT_RULES:
            raise UnfitError(done.stderr.strip())
        if done.returncode:
            raise PackError(f"[tune] {done.stderr.strip() or f'exit code {done.returncode} of compile_kernels.py'}")
        made: Json = json.loads(done.stdout)
        return made
