"""What ci/generate_options.py makes is checked in, and a field of each kind becomes a C++ field and its row."""

from __future__ import annotations

from pathlib import Path

import generate_options
import pytest
from dataclass_source import SourceField, read_classes
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
    """Where."""
    file: str | None = None
    """A file."""
    logprobs: int | None = field(default=None, metadata={"none": -1})
    """How many. None: none."""
    seed: int | None = field(default=None, metadata={"default": 7})
    """A seed. None: a fresh one."""
    is_on: bool = False
    """Whether."""
    share: float = 0.5
    """Which."""
    bias: Mapping[int, float] = field(default_factory=dict)
    """Why."""
'''


@pytest.fixture
def options(tmp_path: Path) -> list[SourceField]:
    (tmp_path / "options.py").write_text(SOURCE)
    (found,) = read_classes(tmp_path / "options.py")
    assert (found.name, found.doc) == ("Options", "Some options.")
    assert found.fields[0].metadata == {"readers": ("engine", "scorer"), "size": True}
    return list(found.fields)


def test_the_files_are_those_checked_in() -> None:
    for name, text in generate_options.files().items():
        assert (ROOT / name).read_text() == text, f"{name}: run python ci/generate_options.py"


def test_declarations(options: list[SourceField]) -> None:
    enum, struct = generate_options.declarations({"Some : Base": options})
    assert enum == "// How to decode.\nenum class DecodePath { kAuto, kGraph };\n"
    assert struct.splitlines() == [
        "struct Some : Base {",
        "// Most bytes. 0: all that is free.",
        "size_t size = 0;",
        "// How to decode.",
        "DecodePath decode_path = DecodePath::kAuto;",
        "// Where.",
        "Isa isa = best_isa();",
        "// A file.",
        "std::string file;",
        "// How many. -1: none.",
        "int logprobs = -1;",
        "// A seed.",
        "uint64_t seed = 7;",
        "// Whether.",
        "bool is_on = false;",
        "// Which.",
        "float share = 0.5;",
        "// Why.",
        "std::vector<std::pair<int32_t, float>> bias;",
        "};",
    ]


def test_rows(options: list[SourceField]) -> None:
    path, isa, rows = generate_options.bindings({"Some : Base": options})
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


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("when: datetime", r"when: no C\+\+ type for datetime; add one to TYPES"),
        ("n: int = 1 << 3", r"n: C\+\+ needs a literal default, got 1 << 3"),
        ("n: int = 1", "n: the string under the field has no sentence"),
    ],
)
def test_a_field_that_cpp_cannot_have_is_refused(tmp_path: Path, field: str, message: str) -> None:
    (tmp_path / "options.py").write_text(f"class Options:\n    {field}\n")
    (found,) = read_classes(tmp_path / "options.py")
    (one,) = found.fields
    with pytest.raises(SystemExit, match=message):
        generate_options.type_of(one), generate_options.default_of(one), generate_options.comment_of(one)
