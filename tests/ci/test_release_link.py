"""release_link.py sees what a module exports."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import release_link

SOURCE = """
#include <string>
template class std::basic_string<char, std::char_traits<char>, std::allocator<char>>;  // emits every member
extern "C" int PyInit__engine() { return 0; }
extern "C" int PyInit__kernels() { return 0; }
"""


def problems(folder: Path, visibility: str) -> list[str]:
    source, module = folder / "engine.cpp", folder / "_engine.so"
    source.write_text(SOURCE)
    subprocess.run(["g++", "-shared", "-fPIC", f"-fvisibility={visibility}", source, "-o", module], check=True)
    return release_link.problems(release_link.exports(module))


def test_a_library_inside_the_module_is_seen(tmp_path: Path) -> None:
    found = problems(tmp_path, "default")
    assert found and all("of the C++ library" in problem for problem in found)


@pytest.mark.parametrize("name", ["_Znwm", "_ZTIN8nanobind4abi112python_errorE", "_ZN2lb5StateC1Ev"])
def test_other_names_are_no_part_of_the_library(name: str) -> None:
    assert release_link.problems([*release_link.ENTRIES, name]) == []


@pytest.mark.parametrize(
    "name", ["_ZNSt6vectorIiE", "_ZNKSs4sizeEv", "_ZSt4cout", "_ZTINSt3__115basic_stringE", "_ZTISt9exception"]
)
def test_names_of_the_library(name: str) -> None:
    assert release_link.problems([*release_link.ENTRIES, name]) == [f"exports {name} of the C++ library"]


@pytest.mark.parametrize("missing", ["PyInit__engine", "PyInit__kernels"])
def test_both_entries_must_be_there(missing: str) -> None:
    names = [entry for entry in release_link.ENTRIES if entry != missing]
    assert release_link.problems(names) == [f"does not export {missing}"]
