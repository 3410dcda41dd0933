"""Files that a user names: absurd ones are one clear error, and damaged caches are rebuilt."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lucebox import local_files
from lucebox.cli.chat import read_conversation
from lucebox.compression.keep_ratio import KeepRatio
from lucebox.errors import FormatError, InvalidRequestError
from lucebox.measure.accepted_lengths import load_lengths
from lucebox.models.checksums import check_once
from lucebox.models.step_costs import OPTIONS, StepCostsFile
from lucebox.options import EngineOptions, parse_layers
from lucebox.regular_files import foreign_content

DEEP = "[" * 100_000


def test_content() -> None:
    assert local_files.decoded(b"\xef\xbb\xbfa\r\nb\r", "x") == "a\nb\r"
    for data, message in (
        ("é".encode("utf-16"), "x: it is UTF-16 text; convert it, for example: iconv -f utf-16 -t utf-8"),
        (b"\xfe\xff\x00a", "UTF-16"),
        ("a".encode("utf-32"), "UTF-32"),
        (b"ab\xff", "x is not UTF-8 text .byte 0xff at offset 2"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 5\n", "Git LFS pointer.* git lfs pull"),
        (b"\n <!DOCTYPE html><html>", "a web page"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            local_files.decoded(data, "x")
    assert foreign_content(b'{"a": 1}') is None


def test_pipes_and_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_files, "PIPE_SECONDS", 0.2)
    os.mkfifo(tmp_path / "fifo")
    for path, message in (
        (tmp_path / "fifo", "a pipe that stays silent"),
        ("/dev/zero", "found a device"),
        (tmp_path, "found a folder"),
        (tmp_path / "absent", "absent: No such file"),
        ("a\0b", "null"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            local_files.read_text(path)
    (tmp_path / "large").write_bytes(b"x" * 101)
    with pytest.raises(InvalidRequestError, match="more than 100 bytes"):
        local_files.read_text(tmp_path / "large", 100)
    monkeypatch.setattr(local_files, "PIPE_SECONDS", 20.0)
    writer = threading.Thread(target=(tmp_path / "fifo").write_text, args=("text",))  # as in <(command)
    writer.start()
    assert local_files.read_text(tmp_path / "fifo") == "text"
    writer.join()


@pytest.mark.parametrize(
    ("text", "message"),
    [(DEEP, "nested too deeply"), ("{", "is not JSON"), ("9" * 5000, "is not JSON"), ("[1]", "holds list")],
    ids=["deep", "cut", "long number", "list"],
)
def test_json(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        local_files.json_object(text, "x")
    (tmp_path / "saved.json").write_text(text)
    with pytest.raises(InvalidRequestError, match=message):
        read_conversation(tmp_path / "saved.json")
    with pytest.raises(FormatError):
        load_lengths(tmp_path / "saved.json")


@pytest.mark.parametrize(
    "histogram",
    [
        [{"name": "a", "by_length": [10**400, 1]}],
        {"speculation": [{"suite": "a", "temperature": "hot", "model": "m", "draft": "d", "by_length": [1]}]},
    ],
)
def test_histograms_with_absurd_values(tmp_path: Path, histogram: Any) -> None:
    (tmp_path / "lengths.json").write_text(json.dumps(histogram))
    with pytest.raises(FormatError):
        load_lengths(tmp_path / "lengths.json")


@pytest.mark.parametrize("text", ["9" * 5000, "99999999999", "1,", "-1", "1.5", "1," * 5000 + "1"])
def test_layers(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="prefill_layers are the numbers of layers") as error:
        EngineOptions(prefill_layers=text)
    assert len(str(error.value)) < 200
    assert parse_layers(" 2, 17,1023") == (2, 17, 1023)


def test_keep_ratios() -> None:
    with pytest.raises(InvalidRequestError, match="token counts of a keep ratio must be below"):
        KeepRatio.parse(f"8000:0.5,{10**30}:0.1")


@pytest.mark.parametrize(
    "content", [DEEP, "\xff", "[]", '{"key": {}}', None], ids=["deep", "bytes", "list", "key", "fifo"]
)
def test_damaged_caches_are_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None) -> None:
    monkeypatch.setattr("lucebox.models.measured_file.step_costs_folder", lambda: tmp_path)
    options = dict.fromkeys(OPTIONS)
    engine = cast(Any, SimpleNamespace(layout="x", options=options, step_costs={"a": 1}, draft_experience={}))
    costs = StepCostsFile(engine, "suffix", "cpu", "")
    big = tmp_path / "weights"
    big.write_bytes(b"weights")
    records = tmp_path / "records"
    with pytest.raises(OSError, match="has sha256"):
        check_once(big, "0" * 64, records)
    digest = hashlib.sha256(b"weights").hexdigest()
    check_once(big, digest, records)
    (record,) = records.iterdir()
    for path in (costs.path, record):
        path.unlink(missing_ok=True)
        os.mkfifo(path) if content is None else path.write_bytes(content.encode("latin-1"))
    assert not costs.load(engine)
    check_once(big, digest, records)
    if content is not None:
        costs.save(engine)
        assert json.loads(costs.path.read_text())["costs"] == {"a": 1}
