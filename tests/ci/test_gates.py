"""Each gate of ci/gates.py finds what it is there to find, and accepts what is right."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import gates
import pytest

Gate = Callable[[Path, list[Path]], list[str]]


@pytest.fixture
def check(tmp_path: Path) -> Callable[[Gate, str, str], list[str]]:
    """Runs a gate on a tree of one interesting file; the headers it may include exist."""

    def run(gate: Gate, name: str, text: str) -> list[str]:
        for folder in gates.RANK:
            header = tmp_path / ("src" if folder == "gpu" else "src/cpp") / folder / "x.h"
            header.parent.mkdir(parents=True, exist_ok=True)
            header.touch()
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return gate(tmp_path, [file])

    return run


@pytest.mark.parametrize(
    ("gate", "name", "line"),
    [
        (gates.include_direction, "src/cpp/format/a.cpp", '#include "cpu/x.h"'),
        (gates.include_direction, "src/cpp/base/a.h", '#  include "format/x.h"'),
        (gates.include_direction, "src/cpp/sampling/a.h", '#include "bindings/x.h"'),
        (gates.include_direction, "src/cpp/cpu/a.h", '#include "../base/x.h"'),
        (gates.include_direction, "src/cpp/utils/a.h", '#include "base/x.h"'),
        (gates.include_direction, "src/cpp/pack/a.h", '#include "gpu/x.h"'),
        (gates.include_direction, "src/gpu/gemm/a.h", '#include "dispatch/x.h"'),
        (gates.include_direction, "src/gpu/gemm/a.h", '#include "x.h"'),
        (gates.vendor_headers, "src/cpp/device/a.cpp", "#include <cuda.h>"),
        (gates.vendor_headers, "src/gpu/a.h", "#include <hip/hip_runtime.h>"),
        (gates.vendor_headers, "src/cpp/engine/a.cpp", "#include <nanobind/nanobind.h>"),
        (gates.environment_reads, "src/cpp/base/a.cpp", 'const char* x = std::getenv("X");'),
        (gates.environment_reads, "python/lucebox/api.py", 'x = os.environ["X"]'),
        (gates.environment_reads, "python/lucebox/api.py", "from os import path, getenv"),
        (gates.host_flags, "src/cpp/CMakeLists.txt", "target_compile_options(x PRIVATE -march=" + "native)"),
        (gates.machine_paths, "README.md", "see /ro" + "ot/x"),
        (gates.machine_paths, "docs/a.md", "from https://py" + "pi.org/simple"),
    ],
)
def test_violation_is_found(check: Callable[[Gate, str, str], list[str]], gate: Gate, name: str, line: str) -> None:
    (problem,) = check(gate, name, f"first\n{line}\n")
    assert problem.startswith(name)


@pytest.mark.parametrize(
    ("gate", "name", "line"),
    [
        (gates.include_direction, "src/cpp/cpu/a.cpp", '#include "ops/x.h"'),
        (gates.include_direction, "src/cpp/device/a.h", '#include "ops/x.h"'),
        (gates.include_direction, "src/cpp/dispatch/a.h", '#include "gpu/x.h"'),
        (gates.include_direction, "src/gpu/gemm/a.cpp", '#include "dialect.h"'),
        (gates.vendor_headers, "src/cuda/a.h", "#include <cuda.h>"),
        (gates.vendor_headers, "src/cpp/bindings/a.cpp", "#include <nanobind/nanobind.h>"),
        (gates.environment_reads, "python/lucebox/cache.py", 'x = os.environ["X"]'),
        (gates.host_flags, "src/cpp/CMakeLists.txt", "-mavx2"),
        (gates.machine_paths, "docs/a.md", "a URL with /x/ro" + "ot/y, and ~/wo" + "rk/x"),
    ],
)
def test_right_is_accepted(check: Callable[[Gate, str, str], list[str]], gate: Gate, name: str, line: str) -> None:
    assert check(gate, name, f"{line}\n") == []


@pytest.fixture
def package(tmp_path: Path) -> Callable[[dict[str, str]], list[Path]]:
    """Writes modules of python/lucebox."""

    def write(modules: dict[str, str]) -> list[Path]:
        files = []
        for name, text in modules.items():
            file = tmp_path / gates.PACKAGE / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            files.append(file)
        return files

    return write


ROOMS = {
    "errors.py": "",
    "text/__init__.py": "",
    "text/a.py": "class A: ...",
    "serve/__init__.py": "",
    "serve/b.py": "",
}


@pytest.mark.parametrize(
    ("module", "text", "n_problems"),
    [
        ("text/x.py", "from lucebox.errors import LuceboxError", 0),
        ("text/x.py", "from lucebox.text import a", 0),
        ("text/x.py", "from lucebox.text.a import A", 0),
        ("serve/x.py", "from lucebox.text import A", 0),
        ("cli/x.py", "import lucebox.serve.b", 0),
        ("text/x.py", "from lucebox import LLM, _engine", 0),
        ("text/x.py", "import lucebox", 0),
        ("text/x.py", "from lucebox.serve import b", 1),
        ("text/x.py", "from lucebox.serve.b import B", 1),
        ("text/x.py", "import lucebox.serve.b as b", 1),
        ("text/x.py", "from ..serve.b import B", 1),
        ("text/x.py", "def f():\n    from lucebox.serve import b", 1),
        ("text/x.py", "if TYPE_CHECKING:\n    from lucebox.serve.b import B", 1),
        ("errors.py", "from lucebox.text import a", 1),
        ("probe/x.py", "from lucebox.serve import b", 1),  # of the same row
        ("utils/x.py", "", 1),
        ("utils.py", "", 1),
    ],
)
def test_room_direction(
    tmp_path: Path, package: Callable[[dict[str, str]], list[Path]], module: str, text: str, n_problems: int
) -> None:
    found = gates.room_direction(tmp_path, package(ROOMS | {module: text}))
    assert len(found) == n_problems and all(module.removesuffix(".py").replace("/", ".") in one for one in found)


def test_import_circles(tmp_path: Path, package: Callable[[dict[str, str]], list[Path]]) -> None:
    modules = {
        "text/__init__.py": "from lucebox.text.a import A",
        "text/a.py": "from lucebox.text.b import B",
        "text/b.py": "def f():\n    from lucebox.text import c",
        "text/c.py": "if TYPE_CHECKING:\n    from .a import A",
        "text/d.py": "from lucebox.text import A",
        "text/e.py": "from lucebox.text.f import F",
        "text/f.py": "import lucebox.text.e",
    }
    one, other = gates.import_circles(tmp_path, package(modules))
    assert one.endswith("a circle of imports: text.a, text.b, text.c")
    assert other.endswith("a circle of imports: text.e, text.f")
    assert gates.import_circles(tmp_path, package({"text/c.py": "", "text/f.py": ""} | {"text/a.py": ""})) == []


@pytest.mark.parametrize(
    ("source", "n_problems"),
    [
        ("extern const int table; const int table = 1; static int f() { return table; } int (*const p)() = f;", 0),
        ("extern const int a, b; const int a = 1, b = 2;", 1),
        ("int f() { return 1; }", 1),
        ("inline int f() { return 1; } extern int (*const t)(); int (*const t)() = f;", 1),
        ("template <class T> T twice(T x) { return x + x; } extern const int t; const int t = twice(rand_());", 1),
    ],
    ids=["a table", "two tables", "a function", "an inline function", "a template"],
)
def test_isa_objects(tmp_path: Path, source: str, n_problems: int) -> None:
    file = tmp_path / "isa_x.cpp"
    file.write_text(f"int rand_();\n{source}\n")
    compiled = tmp_path / "isa_x.cpp.o"
    subprocess.run(["g++", "-std=c++20", "-O0", "-c", file, "-o", compiled], check=True)
    assert len(gates.isa_objects([compiled])) == n_problems
