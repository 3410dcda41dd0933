"""What ci/generate_options.py makes is checked in, and a field of each kind becomes a C++ field and its row."""

from __future__ import annotations

from pathlib import Path

import generate_options
import pytest
from dataclass_source import read_classes
from generate_options import Option, Struct
from project import ROOT

SOURCE = '''
BOTH = {"readers": ("engine", "scorer")}
COMPUTED = {name: 1 for name in other}


@dataclass
class Options:
    """Some
    options."""

    size: str | int | None = field(default=None, metadata=BOTH | {"size": True})
    """Most bytes. More is refused. None: all that
    is free. Or less."""
    decode_path: Literal["auto", "graph"] = "auto"
    """How to decode."""
    isa: Literal["auto", "avx2"] = "auto"
    file: str | None = None
    """A file."""
    logprobs: int | None = field(default=None, metadata={"none": -1})
    """How many. None: none."""
    seed: int | None = field(default=None, metadata={"default": 7})
    """A seed. None: a fresh one."""
    is_on: bool = False
    share: float = 0.5
    bias: Mapping[int, float] = field(default_factory=dict)
'''


@pytest.fixture
def options(tmp_path: Path) -> list[Option]:
    (tmp_path / "options.py").write_text(SOURCE)
    (found,) = read_classes(tmp_path / "options.py")
    assert (found.name, found.doc) == ("Options", "Some options.")
    assert found.fields[0].metadata == {"readers": ("engine", "scorer"), "size": True}
    return [generate_options.option_of(field) for field in found.fields]


def test_the_files_are_those_checked_in() -> None:
    for name, text in generate_options.files().items():
        assert (ROOT / name).read_text() == text, f"{name}: run python ci/generate_options.py"


def test_declarations(options: list[Option]) -> None:
    enum, struct = generate_options.declarations([Struct("Some", "Of a test.", options, base="Base")])
    assert enum == "// How to decode.\nenum class DecodePath { kAuto, kGraph };\n"
    assert struct.splitlines() == [
        "// Of a test.",
        "struct Some : Base {",
        "// Most bytes. 0: all that is free.",
        "size_t size = 0;",
        "// How to decode.",
        "DecodePath decode_path = DecodePath::kAuto;",
        "Isa isa = best_isa();",
        "// A file.",
        "std::string file;",
        "// How many. -1: none.",
        "int logprobs = -1;",
        "// A seed.",
        "uint64_t seed = 7;",
        "bool is_on = false;",
        "float share = 0.5;",
        "std::vector<std::pair<int32_t, float>> bias;",
        "};",
    ]


def test_rows(options: list[Option]) -> None:
    path, isa, rows = generate_options.bindings([Struct("Some", "", options)])
    assert '{{"auto", DecodePath::kAuto}, {"graph", DecodePath::kGraph}}' in path
    assert '{{"auto", best_isa()}, {"avx2", Isa::kAvx2}}' in isa
    assert [line for line in rows.splitlines() if line.startswith("Field")] == [
        'Field{"size", &Some::size, 0},',
        'Field{"decode_path", &Some::decode_path},',
        'Field{"isa", &Some::isa},',
        'Field{"file", &Some::file, ""},',
        'Field{"logprobs", &Some::logprobs, -1},',
        'Field{"seed", &Some::seed},',
        'Field{"is_on", &Some::is_on},',
        'Field{"share", &Some::share},',
        'Field{"bias", &Some::bias},',
    ]


def test_a_type_without_a_cpp_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "options.py").write_text("class Options:\n    when: datetime\n")
    (found,) = read_classes(tmp_path / "options.py")
    with pytest.raises(SystemExit, match=r"when: no C\+\+ type for datetime; add one to TYPES"):
        generate_options.option_of(found.fields[0])
