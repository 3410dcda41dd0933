"""GGUF files against the gguf package: what it writes is read back the same, and what it reads is what we read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from lucebox import _engine
from lucebox.errors import FormatError

REPOSITORY = Path(__file__).parents[2]
TYPES = [
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ4_NL", "IQ4_XS", "MXFP4",
]  # fmt: skip
ROW = 512


def random_tensor(rng: np.random.Generator, type_name: str, rows: int) -> np.ndarray[Any, Any]:
    """Rows of ROW values as the raw bytes of the type: a reader does not look inside blocks."""
    block, size = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
    return rng.integers(0, 256, (rows, ROW // block * size), dtype=np.uint8)


def add_raw(writer: GGUFWriter, name: str, type_name: str, data: np.ndarray[Any, Any]) -> None:
    if type_name in ("F32", "F16"):  # the writer wants these as numbers
        writer.add_tensor(name, data.view(np.float32 if type_name == "F32" else np.float16))
    else:
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[type_name])


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def all_types(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    rng = np.random.default_rng(1)
    path = tmp_path / "types.gguf"
    writer = GGUFWriter(path, "llama")
    content: dict[str, bytes] = {}
    for rows, type_name in enumerate(TYPES, start=1):
        data = random_tensor(rng, type_name, rows)
        add_raw(writer, f"w.{type_name}", type_name, data)
        content[f"w.{type_name}"] = data.tobytes()
    writer.add_tensor("four", np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5))
    content["four"] = np.arange(120, dtype=np.float32).tobytes()
    finish(writer)
    return path, content


def same_as_gguf_package(path: Path) -> None:
    ours, theirs = _engine.GgufFile(path), GGUFReader(path)
    expected = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == expected
    assert [
        (t.name, t.tensor_type.name, tuple(int(n) for n in reversed(t.shape)), str(path), t.data_offset, t.n_bytes)
        for t in theirs.tensors
    ] == ours.tensors
    for tensor in theirs.tensors:
        assert ours.read_tensor(tensor.name) == tensor.data.tobytes()


def test_every_tensor_type(all_types: tuple[Path, dict[str, bytes]]) -> None:
    path, content = all_types
    file = _engine.GgufFile(path)
    assert file.version == 3
    assert file.alignment == 32
    assert {name: file.read_tensor(name) for name, *_ in file.tensors} == content
    assert [type_name for _, type_name, *_ in file.tensors[:-1]] == TYPES
    assert file.tensors[-1][2] == (2, 3, 4, 5)
    same_as_gguf_package(path)


def test_every_metadata_type(tmp_path: Path) -> None:
    path = tmp_path / "metadata.gguf"
    writer = GGUFWriter(path, "llama")
    expected: dict[str, Any] = {"general.architecture": "llama"}
    scalars = {
        GGUFValueType.UINT8: 255, GGUFValueType.INT8: -128, GGUFValueType.UINT16: 65535, GGUFValueType.INT16: -32768,
        GGUFValueType.UINT32: 2**32 - 1, GGUFValueType.INT32: -(2**31), GGUFValueType.UINT64: 2**64 - 1,
        GGUFValueType.INT64: -(2**63), GGUFValueType.FLOAT32: 0.15625, GGUFValueType.FLOAT64: 1e300,
        GGUFValueType.BOOL: True, GGUFValueType.STRING: "déjà €😀\n",
    }  # fmt: skip
    for value_type, value in scalars.items():
        key = f"scalar.{value_type.name.lower()}"
        writer.add_key_value(key, value, value_type)
        expected[key] = value
    arrays: dict[str, list[Any]] = {
        "ints": [1, -2, 3], "floats": [0.5, -1.0], "bools": [True, False], "words": ["a", "", "Ġthe"], "none": [],
        "nested": [[1, 2], [3]],
    }  # fmt: skip
    for key, items in arrays.items():
        writer.add_array(f"array.{key}", items)
        if items:  # the writer leaves an empty array out
            expected[f"array.{key}"] = items
    finish(writer)
    file = _engine.GgufFile(path)
    assert file.metadata == expected
    assert type(file.metadata["scalar.bool"]) is bool
    assert file.tensors == []


def test_large_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.gguf"
    tokens = [f"token {i}" for i in range(100_000)]
    writer = GGUFWriter(path, "llama")
    writer.add_token_list(tokens)
    finish(writer)
    assert _engine.GgufFile(path).metadata["tokenizer.ggml.tokens"] == tokens


def test_own_alignment(tmp_path: Path) -> None:
    path = tmp_path / "aligned.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_custom_alignment(256)
    for name in ("a", "b"):
        writer.add_tensor(name, np.ones(3, dtype=np.float32))
    finish(writer)
    file = _engine.GgufFile(path)
    assert file.alignment == 256
    assert [offset % 256 for *_, offset, _ in file.tensors] == [0, 0]
    same_as_gguf_package(path)


def test_version_2_is_read(all_types: tuple[Path, dict[str, bytes]]) -> None:
    path, content = all_types
    data = bytearray(path.read_bytes())
    data[4] = 2
    path.write_bytes(data)
    file = _engine.GgufFile(path)
    assert file.version == 2
    assert file.read_tensor("w.Q4_K") == content["w.Q4_K"]


@pytest.mark.first_case
@pytest.mark.parametrize("path", sorted((REPOSITORY / "models").rglob("*.gguf")), ids=lambda path: path.name)
def test_shipped_models_read_as_by_the_gguf_package(path: Path) -> None:
    same_as_gguf_package(path)


@pytest.fixture
def split(tmp_path: Path) -> tuple[list[Path], dict[str, bytes]]:
    rng = np.random.default_rng(2)
    writer = GGUFWriter(tmp_path / "model.gguf", "llama", split_max_tensors=2)
    content = {}
    for i in range(5):
        data = random_tensor(rng, "Q8_0", i + 1)
        add_raw(writer, f"w.{i}", "Q8_0", data)
        content[f"w.{i}"] = data.tobytes()
    finish(writer)
    return [tmp_path / f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)], content


def test_split_set_opens_from_its_first_part(split: tuple[list[Path], dict[str, bytes]]) -> None:
    parts, content = split
    file = _engine.GgufFile(parts[0])
    assert {name: file.read_tensor(name) for name, *_ in file.tensors} == content
    assert {file_name for *_, file_name, _, _ in file.tensors} == {str(part) for part in parts}
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["split.count"] == 3


def test_second_part_names_the_first(split: tuple[list[Path], dict[str, bytes]]) -> None:
    parts, _ = split
    with pytest.raises(FormatError, match=f"this is part 2 of 3; open the first part, .*{parts[0].name}"):
        _engine.GgufFile(parts[1])


def test_missing_part(split: tuple[list[Path], dict[str, bytes]]) -> None:
    parts, _ = split
    parts[2].unlink()
    with pytest.raises(FormatError, match=f"part 3 of {len(parts)}, .*{parts[2].name}, is missing"):
        _engine.GgufFile(parts[0])


def test_part_in_the_wrong_place(split: tuple[list[Path], dict[str, bytes]]) -> None:
    parts, _ = split
    parts[2].write_bytes(parts[1].read_bytes())
    with pytest.raises(FormatError, match=f'{parts[2].name}: metadata key "split.no": expected 2 .*found 1'):
        _engine.GgufFile(parts[0])


def test_part_that_is_its_own_successor(split: tuple[list[Path], dict[str, bytes]]) -> None:
    parts, _ = split
    parts[1].unlink()
    parts[1].symlink_to(parts[0])
    with pytest.raises(FormatError, match=f'{parts[1].name}: metadata key "split.no": expected 1 .*found 0'):
        _engine.GgufFile(parts[0])


def test_renamed_part(split: tuple[list[Path], dict[str, bytes]]) -> None:
    parts, _ = split
    renamed = parts[0].rename(parts[0].with_name("other.gguf"))
    with pytest.raises(FormatError, match=r'other.gguf: metadata key "split.count" says 3 parts, the file name says 1'):
        _engine.GgufFile(renamed)


def test_folder_with_one_model(split: tuple[list[Path], dict[str, bytes]]) -> None:
    parts, content = split
    assert len(_engine.open_model_file(parts[0].parent).tensors) == len(content)


def test_folder_with_two_models(split: tuple[list[Path], dict[str, bytes]]) -> None:
    parts, _ = split
    finish(GGUFWriter(parts[0].with_name("second.gguf"), "llama"))
    with pytest.raises(FormatError, match=r"found 2 \(model-00001-of-00003.gguf, second.gguf\); name one of them"):
        _engine.open_model_file(parts[0].parent)


def test_folder_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing here")
    with pytest.raises(FormatError, match=r"expected config.json with model.safetensors.*found notes.txt"):
        _engine.open_model_file(tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"absent.gguf: no such file or folder"):
        _engine.open_model_file(tmp_path / "absent.gguf")
