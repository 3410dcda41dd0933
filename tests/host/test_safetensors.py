"""Safetensors folders written by the safetensors package, single and sharded, and every way an index can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lucebox import _engine
from lucebox.errors import FormatError
from safetensors.numpy import save_file

Arrays = dict[str, np.ndarray[Any, Any]]
CONFIG = {"model_type": "qwen3", "hidden_size": 64, "eps": 1e-6, "tied": True, "none": None, "list": [1, 2.5, "é"]}
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def write_config(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG))


@pytest.fixture
def arrays() -> Arrays:
    rng = np.random.default_rng(3)
    return {
        "embed": rng.standard_normal((8, 16)).astype(np.float32),
        "half": rng.standard_normal((3, 5)).astype(np.float16),
        "conv": rng.standard_normal((4, 1, 2, 3, 2)).astype(np.float32),
        "scalar": np.array(2.0, dtype=np.float32),
    }


@pytest.fixture
def sharded(tmp_path: Path, arrays: Arrays) -> Path:
    write_config(tmp_path)
    placed = {"embed": FIRST, "half": SECOND, "conv": FIRST, "scalar": SECOND}
    for shard in (FIRST, SECOND):
        save_file({name: array for name, array in arrays.items() if placed[name] == shard}, tmp_path / shard)
    write_index(tmp_path, placed)
    return tmp_path


def write_index(folder: Path, placed: dict[str, Any]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": placed}))


def read_index(folder: Path) -> dict[str, Any]:
    placed: dict[str, Any] = json.loads((folder / INDEX).read_text())["weight_map"]
    return placed


def check_content(model: _engine.Safetensors, arrays: Arrays) -> None:
    names = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16"}
    assert {name: (dtype, shape) for name, dtype, shape, *_ in model.tensors} == {
        name: (names[array.dtype], array.shape) for name, array in arrays.items()
    }
    for name, array in arrays.items():
        assert model.read_tensor(name) == array.tobytes()
    for name, _, _, file, offset, size in model.tensors:
        assert Path(file).read_bytes()[offset : offset + size] == arrays[name].tobytes()


def test_single_file(tmp_path: Path, arrays: Arrays) -> None:
    write_config(tmp_path)
    save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = _engine.Safetensors(tmp_path)
    assert model.config == CONFIG
    check_content(model, arrays)
    check_content(_engine.open_model_file(tmp_path), arrays)


def test_bfloat16(tmp_path: Path) -> None:
    write_config(tmp_path)
    data = bytes(range(12))
    header = b'{"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}      '
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    model = _engine.Safetensors(tmp_path)
    assert model.tensors[0][:3] == ("w", "BF16", (2, 3))
    assert model.read_tensor("w") == data


def test_shards(sharded: Path, arrays: Arrays) -> None:
    check_content(_engine.Safetensors(sharded), arrays)


def test_shards_may_be_links_into_a_cache(sharded: Path, arrays: Arrays) -> None:
    (sharded / "blobs").mkdir()
    for shard in (FIRST, SECOND):
        blob = (sharded / shard).rename(sharded / "blobs" / shard[:11])
        (sharded / shard).symlink_to(blob)
    check_content(_engine.Safetensors(sharded), arrays)


def test_no_config(tmp_path: Path, arrays: Arrays) -> None:
    save_file(arrays, tmp_path / "model.safetensors")
    with pytest.raises(FormatError, match=r"config.json: cannot open: No such file"):
        _engine.Safetensors(tmp_path)


def test_missing_shard(sharded: Path) -> None:
    (sharded / SECOND).unlink()
    with pytest.raises(FormatError, match=f'{INDEX}: shard "{SECOND}" is listed but missing in {sharded}'):
        _engine.Safetensors(sharded)


def test_index_lists_a_tensor_the_shard_lacks(sharded: Path) -> None:
    write_index(sharded, read_index(sharded) | {"ghost": FIRST})
    with pytest.raises(
        FormatError, match=f'{INDEX}: at byte [0-9]+: tensor "ghost": expected in .*{FIRST}.* not have it'
    ):
        _engine.Safetensors(sharded)


def test_index_places_a_tensor_in_the_wrong_shard(sharded: Path) -> None:
    write_index(sharded, read_index(sharded) | {"embed": SECOND})
    with pytest.raises(FormatError, match=f'tensor "embed": expected in .*{SECOND}, found in .*{FIRST}'):
        _engine.Safetensors(sharded)


def test_shard_holds_a_tensor_the_index_lacks(sharded: Path) -> None:
    placed = read_index(sharded)
    del placed["conv"]
    write_index(sharded, placed)
    with pytest.raises(FormatError, match=f'tensor "conv" in .*{FIRST} at byte [0-9]+: not listed in .*{INDEX}'):
        _engine.Safetensors(sharded)


def test_the_same_tensor_in_two_shards(sharded: Path, arrays: Arrays) -> None:
    save_file({"embed": arrays["embed"], "half": arrays["half"], "scalar": arrays["scalar"]}, sharded / SECOND)
    with pytest.raises(FormatError, match=f'tensor "embed" in .*{SECOND} at byte [0-9]+: duplicate name, .*{FIRST}'):
        _engine.Safetensors(sharded)


@pytest.mark.parametrize(
    "shard",
    [
        "../up.safetensors",
        "/abs.safetensors",
        "sub/x.safetensors",
        "..\\x.safetensors",
        ".safetensors",
        "",
        ".h.safetensors",
        INDEX,
        "weights.bin",
        "a\0b.safetensors",
    ],
)
def test_shard_names_stay_inside_the_folder(sharded: Path, shard: str) -> None:
    write_index(sharded, read_index(sharded) | {"embed": shard})
    with pytest.raises(FormatError, match=f"{INDEX}: at byte [0-9]+: expected a shard name such as"):
        _engine.Safetensors(sharded)


def test_shard_name_of_the_wrong_kind(sharded: Path) -> None:
    write_index(sharded, {"embed": 7})
    with pytest.raises(FormatError, match=f"{INDEX}: at byte [0-9]+: expected a string, found an integer"):
        _engine.Safetensors(sharded)


@pytest.mark.parametrize("name", [INDEX, FIRST, "config.json"])
def test_a_link_to_itself_is_refused(sharded: Path, name: str) -> None:
    (sharded / name).unlink()
    (sharded / name).symlink_to(name)
    with pytest.raises(FormatError, match=f"{name}: cannot open: Too many levels of symbolic links"):
        _engine.Safetensors(sharded)


def test_one_shard_under_two_names(sharded: Path) -> None:
    (sharded / "again.safetensors").symlink_to(FIRST)
    write_index(sharded, read_index(sharded) | {"conv": "again.safetensors"})
    with pytest.raises(FormatError, match=r"duplicate name"):
        _engine.Safetensors(sharded)


def test_other_dtypes_are_listed_by_name(tmp_path: Path) -> None:
    """Only a tensor that is used must have a type that the engine computes with."""
    write_config(tmp_path)
    tensors = {"ids": np.arange(4, dtype=np.int64), "mask": np.ones((2, 3), np.bool_), "w": np.ones(2, np.float32)}
    save_file(tensors, tmp_path / "model.safetensors")
    model = _engine.Safetensors(tmp_path)
    found = {name: (dtype, shape, size) for name, dtype, shape, _, _, size in model.tensors}
    assert found == {"ids": ("I64", (4,), 32), "mask": ("BOOL", (2, 3), 6), "w": ("F32", (2,), 8)}
    assert model.read_tensor("ids") == tensors["ids"].tobytes()


def test_a_shard_is_opened_by_its_folder(sharded: Path) -> None:
    with pytest.raises(FormatError, match=r"opened by its folder"):
        _engine.open_model_file(sharded / FIRST)
