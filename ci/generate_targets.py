"""Generates files from targets/*/target.toml and the host's version and URLs: presets, the projects of packs,
lucebox-kernels and lucebox-tiny, the host wheel's extras and table, docs/targets.md.

generate_targets.py        writes them all; ci/check_generated.py detects drift
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import targets
from targets import ROOT, Target

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SOURCE = "ci/generate_targets.py"
BEGIN = f"# The demo's model, the kernel sources and one extra per pack, from targets/ by {SOURCE}."
END = "# End of the packs."
CUDA = [f"nvidia-{name}==13.0.*" for name in ("cuda-nvcc", "nvvm", "cuda-crt", "cuda-runtime", "cuda-cccl")]
COMPILER = {"nvidia": CUDA, "amd": [targets.ZIG], "sim": []}  # sim: the machine's C++ compiler
NVRTC = "nvidia-cuda-nvrtc-cu12=={}.*"
NVCC = "lucebox.nvcc"  # the pip setting that adds nvcc's code to a pack with NVRTC's code
CLASSIFIERS = (
    "Development Status :: 4 - Beta",
    "Environment :: GPU",
    "Intended Audience :: Developers",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Python :: 3 :: Only",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
)
PACK_SOURCES = (
    "CMakeLists.txt",
    "pyproject.toml",
    "ci",
    "cmake",
    "python/lucebox/packs/nvrtc.py",
    "src",
)  # the inputs of a pack's build
OWN_SOURCES = ("target.toml", "pyproject.toml")  # in the target's folder
VENDOR_CLASSIFIERS = {"nvidia": ("Environment :: GPU :: NVIDIA CUDA",)}
VENDOR = {"nvidia": "NVIDIA", "amd": "AMD", "sim": "Simulator"}


def files(root: Path = ROOT) -> dict[str, str]:
    """Every generated file: path from the root, and content."""
    known = targets.load_all(root)
    released = [target for target in known if not target.variant]  # variants are private
    host = (root / "pyproject.toml").read_text()
    version, urls = host_version(host), host_urls(host)
    made = {
        "CMakePresets.json": presets(known),
        "pyproject.toml": with_extras(host, released, version),
        "python/lucebox/packs/targets.json": table(released),
        "python/lucebox/packs/pci_ids.json": pci_table(targets.load_pci_ids(root)),
        "docs/targets.md": page(released),
        "models/tiny-hybrid/pyproject.toml": tiny_project(version, urls),
    }
    licence = (root / "LICENSE").read_text()  # a build takes it only from the project's folder
    made["kernels/pyproject.toml"] = kernels_project(known, version, urls)
    made["kernels/LICENSE"] = licence
    for target in known:
        made[f"targets/{target.name}/pyproject.toml"] = pack_project(target, version, urls)
        made[f"targets/{target.name}/LICENSE"] = licence
    return made


def present(root: Path = ROOT) -> set[str]:
    """The files in the tree whose paths this script generates."""
    folders = root / "targets"
    return {
        file.relative_to(root).as_posix()
        for name in ("pyproject.toml", "LICENSE")
        for file in folders.glob(f"*/{name}")
    }


def host_version(pyproject: str) -> str:
    found = re.search(r'^version = "(.+)"$', pyproject, re.MULTILINE)
    if not found:
        raise targets.TargetError('pyproject.toml: expected a line version = "...", found none')
    return found[1]


def host_urls(pyproject: str) -> dict[str, str]:
    """[project.urls] of the host."""
    urls: dict[str, str] = tomllib.loads(pyproject)["project"].get("urls", {})
    return urls


def about(target: Target) -> str:
    """One sentence on the pack."""
    if target.vendor == "sim":
        return "The GPU kernels compiled for the CPU: every barrier and access checked, nothing fast."
    return f"GPU kernels for {', '.join(board.name for board in target.boards)}."


# CMakePresets.json


def presets(known: list[Target]) -> str:
    """`cmake --preset NAME`, `cmake --build --preset NAME` and `cmake --workflow --preset NAME`, which ends with the
    pack's wheel."""
    sanitized = {
        "name": "sanitized",
        "hidden": True,
        "inherits": "base",
        "cacheVariables": {
            "CMAKE_BUILD_TYPE": "Debug",
            "CMAKE_CXX_FLAGS_DEBUG": "-Og -g1",
            "LUCEBOX_SANITIZE": "ON",
        },
    }
    base = {
        "name": "base",
        "hidden": True,
        "generator": "Ninja",
        "binaryDir": "${sourceDir}/build/${presetName}",
        "cacheVariables": {"CMAKE_BUILD_TYPE": "Release", "CMAKE_EXPORT_COMPILE_COMMANDS": "ON"},
    }
    shown = [
        {"name": "cpu", "inherits": "base", "displayName": "CPU", "description": "The host engine, optimised"},
        {
            "name": "cpu-asan",
            "inherits": "sanitized",
            "displayName": "CPU, sanitizers",
            "description": "The host engine and the fuzz drivers with address and undefined-behaviour sanitizers",
            "cacheVariables": {"LUCEBOX_FUZZ": "ON"},
        },
    ]
    for target in known:
        shown.append(
            {
                "name": target.name,
                "inherits": "base",
                "displayName": f"{VENDOR[target.vendor]} {target.name}",
                "description": f"The kernels, compiled for {target.architecture}",
                "cacheVariables": {"LUCEBOX_TARGET": target.name},
            }
        )
    shown.append(
        {
            "name": "sim-asan",
            "inherits": "sanitized",
            "displayName": "Simulator, sanitizers",
            "description": "The kernels on the CPU with address and undefined-behaviour sanitizers",
            "cacheVariables": {"LUCEBOX_TARGET": "sim"},
        }
    )
    names = ["cpu", "cpu-asan", *(target.name for target in known), "sim-asan"]
    steps = ("configure", "build")
    whole = {
        "version": 6,
        "cmakeMinimumRequired": {"major": 3, "minor": 25, "patch": 0},
        "vendor": {"lucebox": f"Generated by {SOURCE} from targets/*/target.toml."},
        "configurePresets": [base, sanitized, *shown],
        "buildPresets": [{"name": name, "configurePreset": name} for name in names],
        "workflowPresets": [
            {"name": name, "steps": [{"type": step, "name": name} for step in steps]} for name in names
        ],
    }
    return as_json(whole) + "\n"


def as_json(value: Any, indent: int = 0) -> str:
    """JSON that keeps every value on one line if it fits."""
    flat = json.dumps(value)
    if not isinstance(value, (dict, list)) or (indent and len(flat) + indent <= 118):
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        rows = [f"{pad}{json.dumps(key)}: {as_json(item, indent + 2)}" for key, item in value.items()]
    else:
        rows = [pad + as_json(item, indent + 2) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n" + ",\n".join(rows) + f"\n{' ' * indent}{closing}"


# The Python projects


def pack_project(target: Target, version: str, urls: Mapping[str, str]) -> str:
    """The project of one pack. All packs but sim hold only device code and fit any host."""
    compiler = [NVRTC.format(target.nvrtc.version)] if target.nvrtc else COMPILER[target.vendor]
    requires = ["scikit-build-core==1.1.*", "tomli>=2; python_version < '3.11'", *compiler]
    what = "the GPU kernels compiled for the CPU" if target.vendor == "sim" else f"kernels for {target.architecture}"
    inherited = OWN_SOURCES if target.inherits else ()
    tag = [] if target.vendor == "sim" else ["wheel.platlib = false"]
    lines = [
        f"# Generated by {SOURCE} from target.toml.",
        "[build-system]",
        f"requires = {strings(requires)}",
        'build-backend = "scikit_build_core.build"',
        "",
        "[project]",
        f'name = "{target.project}"',
        f'version = "{version}"',
        f'description = "lucebox: {what}"',
        f'readme = {{ text = "{about(target)}", content-type = "text/plain" }}',
        'license = "Apache-2.0"',
        'license-files = ["LICENSE"]',
        'authors = [{ name = "The lucebox authors" }]',
        f"keywords = {json.dumps(sorted(['gpu', 'inference', 'kernels', 'llm', VENDOR[target.vendor].lower()]))}",
        f"classifiers = {strings(sorted([*CLASSIFIERS, *VENDOR_CLASSIFIERS.get(target.vendor, ())]))}",
        'requires-python = ">=3.10"',
        f'dependencies = ["lucebox == {version}"]  # an upgrade of the host alone is an error of `pip check`',
        *urls_table(urls),
        "",
        '[project.entry-points."lucebox.packs"]',
        f'{target.name} = "lucebox_{target.slug}"',
        "",
        "[tool.scikit-build]",
        'minimum-version = "1.1"',
        'cmake.version = ">=3.27"',
        'cmake.build-type = "Release"',
        'cmake.source-dir = "../.."',
        f'cmake.define = {{ LUCEBOX_TARGET = "{target.name}", LUCEBOX_PYTHON = "OFF" }}',
        'install.components = ["pack"]',
        'wheel.py-api = "py3"',
        *tag,
        "wheel.packages = []",
        "wheel.reproducible = true",
        *(with_nvcc() if target.nvrtc and target.has_nvcc else ()),
        "",
        "[tool.scikit-build.sdist.force-include]  # an sdist has all that a build reads",
        *(f'"../../{name}" = "source/{name}"' for name in PACK_SOURCES),
        *(f'"{name}" = "source/targets/{target.name}/{name}"' for name in OWN_SOURCES),
        *(f'"../{target.inherits}/{name}" = "source/targets/{target.inherits}/{name}"' for name in inherited),
        "",
        "[[tool.scikit-build.overrides]]",
        "if.from-sdist = true",
        'cmake.source-dir = "source"',
    ]
    return "\n".join(lines) + "\n"


def urls_table(urls: Mapping[str, str]) -> list[str]:
    return (
        ["", "[project.urls]", *(f"{json.dumps(name)} = {json.dumps(url)}" for name, url in urls.items())]
        if urls
        else []
    )


TINY = """# Generated by {source} from the host's pyproject.toml.
[build-system]
requires = ["scikit-build-core==1.1.*"]
build-backend = "scikit_build_core.build"

[project]
name = "lucebox-tiny"
version = "{version}"
description = "The models that lucebox demos and tests run: tiny-hybrid with its drafter, tiny-vl with its vision tower"
readme = "README.md"
license = "Apache-2.0"
license-files = ["LICENSE"]
authors = [{{ name = "The lucebox authors" }}]
keywords = ["gguf", "llm", "model"]
classifiers = [
  "Development Status :: 4 - Beta",
  "Intended Audience :: Developers",
  "Programming Language :: Python :: 3 :: Only",
  "Topic :: Scientific/Engineering :: Artificial Intelligence",
]
requires-python = ">=3.10"
{urls}
[tool.scikit-build]
minimum-version = "1.1"
wheel.cmake = false
wheel.packages = ["lucebox_tiny"]
wheel.py-api = "py3"
wheel.reproducible = true
sdist.reproducible = true
"""


def tiny_project(version: str, urls: Mapping[str, str]) -> str:
    """The project of lucebox-tiny, which has the host's version like every project of a release."""
    return TINY.format(source=SOURCE, version=version, urls="".join(f"{line}\n" for line in urls_table(urls)))


KERNELS = """# Generated by {source} from targets/ and the host's pyproject.toml.
[build-system]
requires = ["scikit-build-core==1.1.*"]
build-backend = "scikit_build_core.build"

[project]
name = "lucebox-kernels"
version = "{version}"
description = "lucebox: kernel sources, for tuning a pack on your own chip"
readme = "README.md"
license = "Apache-2.0"
license-files = ["LICENSE"]
authors = [{{ name = "The lucebox authors" }}]
keywords = ["gpu", "kernels", "llm"]
classifiers = [
  "Development Status :: 4 - Beta",
  "Environment :: GPU",
  "Intended Audience :: Developers",
  "Operating System :: POSIX :: Linux",
  "Programming Language :: Python :: 3 :: Only",
]
requires-python = ">=3.10"
dependencies = ["lucebox == {version}", "tomli>=2; python_version < '3.11'"]
{urls}
[tool.scikit-build]
minimum-version = "1.1"
wheel.cmake = false
wheel.packages = ["lucebox_kernels"]
wheel.py-api = "py3"
wheel.reproducible = true
wheel.exclude = [  # host code
  "lucebox_kernels/source/src/cpp/**/*.cpp",
  "lucebox_kernels/source/src/cpp/**/CMakeLists.txt",
  "lucebox_kernels/source/src/gpu/**/choose*",
  "lucebox_kernels/source/src/**/README.md",
  "**/__pycache__/**",
]

[tool.scikit-build.wheel.force-include]
{files}
"""
KERNEL_SOURCES = (
    "LICENSE",
    *(f"ci/{name}" for name in ("compile_kernels.py", "make_pack.py", "pack", "sbom.py", "targets.py")),
    "python/lucebox/packs/nvrtc.py",
    *(f"src/cpp/{name}" for name in ("base", "device/sim_abi.h", "device/sim_fault.h", "ops", "quant")),
    *(f"src/{name}" for name in ("cuda", "gpu", "hip", "sim")),
)


def kernels_project(known: list[Target], version: str, urls: Mapping[str, str]) -> str:
    """The project of lucebox-kernels."""
    targets_of = [f"targets/{target.name}/target.toml" for target in known if not target.variant]
    rows = [f'"../{name}" = "lucebox_kernels/source/{name}"' for name in (*KERNEL_SOURCES, *targets_of)]
    table = "".join(f"{line}\n" for line in urls_table(urls))
    return KERNELS.format(source=SOURCE, version=version, urls=table, files="\n".join(rows))


def with_nvcc() -> list[str]:
    """nvcc is optional: NVRTC's code runs on every driver, and needs a sixth of the download and no C++ compiler."""
    return [
        "",
        f"[tool.scikit-build.config-setting.{json.dumps(NVCC)}]",
        'type = "bool"',
        'help = "also compile by nvcc, for new drivers; needs g++"',
        "",
        "[[tool.scikit-build.overrides]]",
        f"if.config-setting.{json.dumps(NVCC)} = true",
        f"build.requires = {strings(CUDA)}",
        'inherit.cmake.define = "append"',
        'cmake.define.LUCEBOX_NVCC = "ON"',
    ]


def strings(items: list[str]) -> str:
    """A TOML list, one item a line."""
    return "[\n" + "".join(f"  {json.dumps(item)},\n" for item in items) + "]"


def with_extras(pyproject: str, known: list[Target], version: str) -> str:
    """The host's pyproject.toml with the extras between the markers, each pinned to the host's version."""
    before, begin, rest = pyproject.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise targets.TargetError(f"pyproject.toml: expected the lines {BEGIN!r} and {END!r} around the extras")
    extras = [f'demo = ["lucebox-tiny == {version}", "lucebox[vision]"]', f'tune = ["lucebox-kernels == {version}"]']
    for target in known:
        # lucebox[sm86], and lucebox[sm_86], which index and installer know as sm-86.
        names = dict.fromkeys((target.slug, target.name.replace("_", "-")))
        extras += [f'{name} = ["lucebox-{target.slug} == {version}"]' for name in names]
    return before + "\n".join([BEGIN, *extras, END]) + after


# Pages for people


def table(known: list[Target]) -> str:
    """python/lucebox/packs/targets.json: the installed host's table of targets."""
    rows = []
    for target in known:
        whole = asdict(target)
        row = {key: whole[key] for key in ("name", "vendor", "architecture", "hosts", "capabilities")}
        more = {"slug": target.slug, "min_driver": target.oldest_driver, "boards": targets.published_boards(target)}
        rows.append(row | more)
    return as_json({"targets": rows}) + "\n"


def pci_table(known: list[targets.PciId]) -> str:
    """python/lucebox/packs/pci_ids.json: name and architecture by PCI id, for machines without a working driver."""
    return as_json({one.id: [one.name, one.architecture] for one in known}) + "\n"


PAGE = """<!-- Generated by {source} from targets/*/target.toml; change those, then run `make generate`. -->
# Targets

A pack is the kernels of one GPU family, compiled ahead of time. It is installed as an extra of the host wheel,
`pip install 'lucebox[sm86]'`, or built here, `pip wheel --no-deps ./targets/sm_86`: the compilers come from PyPI. Packs
stand side by side, and one process may use several. `lucebox targets` lists those of the installed version, `lucebox
doctor` says which one a machine needs, and [adding a target](adding-a-target.md) says how one is made.

Which pack a chip gets: its own. Without that, and between NVIDIA desktop chips only, code without an `a` suffix for
the same major and the nearest lower minor compute capability, as the CUDA programming guide documents: `sm_70` serves
7.5, `sm_80` serves 8.6 and 8.9, `sm_86` serves 8.9. Code with the suffix runs on its own chip alone; Tegra (`sm_87`,
`sm_110`) and AMD chips run nothing but their own.

`sm_70` and `sm_75` multiply f16 and bytes, so bf16 weights and caches are converted to f16. Their packs have no skinny
GEMM, no matrix units for heads of 512, and no rows of a tree computed as single steps (`--batch-invariant`).

`sm_70` multiplies f16 by `mma.m8n8k4`, and bytes by `dp4a`. All of its code is by NVRTC, because CUDA 13 does not
compile for this chip, and drivers from r525 to the r580 branch load it. No V100 has run it: tests run its layouts of
matrix products on the simulator.

## What a pack is compiled for

Shared memory is the most one block may have. The driver is the oldest that loads some code of the pack; NVIDIA packs
are [compiled by CUDA 12](building-packs.md#nvidia-one-compiler-for-all-drivers), for newer drivers, too. Hosts are the
machines the chip is found in; a pack itself holds no host code.

| target | extra | architecture | matrix | bf16 | async copy | FP8 | FP4 | TMA | clusters | shared | driver | hosts |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
{capabilities}

## Boards

SM is compute units on AMD. A figure that has no source is left out.

| target | board | SM | memory | bandwidth | source |
|---|---|---|---|---|---|
{boards}

## Start values

Constants that the host reads when it loads a pack. The target files say which are measured; [`lucebox tune`](tuning.md)
measures them on your own chip.

| constant | what |
|---|---|
| `matvec_threads_per_sm` | threads of the one-row product that an SM holds at once |
| `speculation_budget` | rows of a draft tree; no code reads it, as a step chooses its draft |
| `prefill_chunk` | rows of a prompt computed at once, where the user names none |
| `megakernel_max_mib` | weights of a token up to which one launch for a whole step is faster than a graph |
| `megakernel_max_kv_mib` | K and V of a context up to which it still is, in heads of 256 columns; of 128: half of it |

| target | {tuning_names} |
|---|--:|--:|--:|--:|--:|
{tuning}
"""


def page(known: list[Target]) -> str:
    """docs/targets.md."""
    capabilities, boards, tuning = [], [], []
    for target in known:
        can = target.capabilities
        flags = [("no", "yes")[flag] for flag in (can.bf16, can.async_copy, can.fp8, can.fp4, can.tma, can.clusters)]
        shared = f"{can.shared_block_bytes // 1024} KiB"
        driver = {"nvidia": f"r{target.oldest_driver}", "amd": f"HIP {target.min_driver}", "sim": ""}[target.vendor]
        names = [f"`{name}`" for name in (target.name, target.slug, target.architecture, can.matrix)]
        capabilities.append(row(*names, *flags, shared, driver, ", ".join(target.hosts)))
        tuning.append(row(names[0], *map(str, asdict(target.tuning).values())))
        for board in target.boards:
            figures = [
                number(board.sm_count, ""),
                number(board.memory_gb, " GB"),
                number(board.bandwidth_gb_s, " GB/s"),
            ]
            boards.append(row(names[0], board.name, *figures, board.source))
    return PAGE.format(
        source=SOURCE,
        capabilities="\n".join(capabilities),
        boards="\n".join(boards),
        tuning="\n".join(tuning),
        tuning_names=" | ".join(f"`{name}`" for name in targets.TUNING),
    )


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def number(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:,}{unit}"


def main() -> None:
    for name, text in files().items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(text)


if __name__ == "__main__":
    main()
