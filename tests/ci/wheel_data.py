"""Small wheels for the tests of verify_wheel.py and make_index.py: a pack that is in order unless told otherwise."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import sbom

import targets

VERSION = "0.1.0"
EM_X86_64, EM_CUDA, EM_AMDGPU = 62, 190, 224


def elf(machine: int, content: bytes = b"code") -> bytes:
    """The head of a 64-bit little-endian ELF file of that machine, then some content."""
    return b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHI", 2, machine, 1) + bytes(40) + content


def manifest(target: targets.Target, *generations: dict[str, bytes], **kernel: Any) -> dict[str, Any]:
    """The pack builder's description of the files of each generation of code: one kernel in each file."""
    described = targets.description(target)
    return {
        "schema": 3,
        "target": target.family,
        "variant": target.variant,
        "vendor": target.vendor,
        "architecture": target.architecture,
        "version": VERSION,
        "abi": "0123456789abcdef",
        "commit": "",
        "boards": targets.published_boards(target),
        "capabilities": described["capabilities"],
        "tuning": described["tuning"],
        "exceptions": described["exceptions"],
        "archive": None,
        "generations": [code(target, i, files, kernel) for i, files in enumerate(generations)],
    }


def code(target: targets.Target, i: int, files: dict[str, bytes], kernel: dict[str, Any]) -> dict[str, Any]:
    name, version = (("nvcc", "13.0.88"), ("nvrtc", "12.4.127"))[i]
    compiler = {"name": name, "version": version, "flags": ["-O3", f"-arch={target.architecture}"]}
    return {
        "min_driver": (target.min_driver, target.oldest_driver)[i],
        "compiler": compiler,
        "files": [
            {"file": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in files.items()
        ],
        "kernels": [
            {
                "name": f"{name.split('.')[0]}_kernel",
                "file": name,
                "max_threads": 256,
                "registers": 24,
                "shared_bytes": 128,
                "max_dynamic_shared_bytes": 0,
                "spill_bytes": 0,
                "stack_bytes": 0,
                **kernel,
            }
            for name in files
        ],
    }


def pack_members(name: str = "sm_86", **kernel: Any) -> dict[str, bytes]:
    """The members of a pack that is in order, by path."""
    target = targets.load(name)
    generations = {
        "nvidia": [{"rms_norm.cubin": elf(EM_CUDA)}, {"rms_norm.nvrtc.cubin": elf(EM_CUDA)}],
        "amd": [{"rms_norm.hsaco": elf(EM_AMDGPU)}],
        "sim": [{"kernels.so": elf(EM_X86_64)}],
    }[target.vendor]
    package = f"lucebox_{target.slug}"
    made = manifest(target, *generations, **kernel)
    return {
        f"{package}/__init__.py": b"",
        f"{package}/manifest.json": json.dumps(made).encode(),
        **{f"{package}/{file}": content for files in generations for file, content in files.items()},
        f"{info(name)}/METADATA": metadata(target.project, f"Requires-Dist: lucebox=={VERSION}"),
        f"{info(name)}/licenses/LICENSE": b"Apache-2.0\n",
        f"{info(name)}/sboms/{target.project}.cdx.json": sbom.dump(sbom.of_pack(made)).encode(),
        f"{info(name)}/entry_points.txt": f"[lucebox.packs]\n{name} = {package}\n".encode(),
    }


def info(name: str) -> str:
    return f"lucebox_{name.replace('_', '')}-{VERSION}.dist-info"


def metadata(project: str, *more: str) -> bytes:
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project}",
        f"Version: {VERSION}",
        "Summary: kernels",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE",
        "Requires-Python: >=3.10",
        *more,
    ]
    return ("\n".join(lines) + "\n").encode()


def write(folder: Path, members: dict[str, bytes], tag: str = "py3-none-any") -> Path:
    """The wheel of these members; WHEEL and RECORD are written to fit."""
    own = next(name.split("/")[0] for name in members if ".dist-info/" in name)
    python, abi, platforms = tag.split("-")
    tags = "".join(f"Tag: {python}-{abi}-{one}\n" for one in platforms.split("."))
    head = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\n{tags}"
    members = {f"{own}/WHEEL": head.encode()} | members
    record = f"{own}/RECORD"
    if record not in members:
        rows = [f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in members.items()]
        members = {**members, record: ("".join(rows) + f"{record},,\n").encode()}
    file = folder / f"{own.removesuffix('.dist-info')}-{tag}.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return file


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
