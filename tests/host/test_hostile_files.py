"""The corpus of hostile model files: each is refused with its kind of error, naming the file and the place."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lucebox import _engine
from lucebox.errors import FormatError, LuceboxError, UnsupportedError

U32, STRING, ARRAY, U64, F32, Q8_0, Q4_K = 4, 8, 9, 10, 0, 8, 12
BOOL = 7
HUGE = 2**63


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def key(name: str | bytes, value_type: int, value: bytes) -> bytes:
    return text(name) + u32(value_type) + value


def tensor(name: str | bytes, ne: list[int], type_id: int, offset: int) -> bytes:
    return text(name) + u32(len(ne)) + b"".join(map(u64, ne)) + u32(type_id) + u64(offset)


def gguf(keys: list[bytes], tensors: list[bytes], data: bytes = b"", version: int = 3, counts: Any = None) -> bytes:
    """A GGUF file; `counts` overrides the true numbers of tensors and keys."""
    n_tensors, n_keys = counts or (len(tensors), len(keys))
    head = b"GGUF" + u32(version) + u64(n_tensors) + u64(n_keys) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data if tensors else head


GOOD_KEYS = [
    key("general.name", STRING, text("x")),
    key("words", ARRAY, u32(STRING) + u64(2) + text("a") + text("bc")),
    key("flags", ARRAY, u32(BOOL) + u64(2) + b"\0\1"),
    key("empty", ARRAY, u32(U32) + u64(0)),
    key("nested", ARRAY, u32(ARRAY) + u64(1) + u32(U32) + u64(1) + u32(9)),
    key("n", U64, u64(HUGE)),
]
GOOD = gguf(GOOD_KEYS, [tensor("a", [32, 2], Q8_0, 0), tensor("b", [3], F32, 96)], bytes(96 + 12))


def one(ne: list[int], type_id: int = F32, offset: int = 0, data: int = 64, name: str | bytes = "t") -> bytes:
    return gguf([], [tensor(name, ne, type_id, offset)], bytes(data))


def nested(depth: int) -> bytes:
    return key("deep", ARRAY, (u32(ARRAY) + u64(1)) * depth + u32(U32) + u64(0))


def alignment(value: int) -> bytes:
    return gguf([key("general.alignment", U32, u32(value))], [tensor("t", [1], F32, 0)], bytes(64))


BAD_GGUF: dict[str, tuple[bytes, type[LuceboxError], str]] = {
    "empty": (b"", FormatError, r"at byte 0: expected 4 bytes of the magic, found 0"),
    "not a gguf": (b"GGML" + GOOD[4:], FormatError, r"at byte 0: not a GGUF file"),
    "version 0": (gguf([], [], version=0), UnsupportedError, r"at byte 4: expected GGUF version 2 or 3, found 0"),
    "version 1": (gguf([], [], version=1), UnsupportedError, r"at byte 4: GGUF version 1 is not supported"),
    "version 4": (gguf([], [], version=4), UnsupportedError, r"at byte 4: expected GGUF version 2 or 3, found 4"),
    "big endian": (gguf([], [], version=3 << 24), UnsupportedError, r"at byte 4: this GGUF is big endian"),
    "tensor count": (gguf([], [], counts=(2**64 - 1, 0)), FormatError, r"at byte 8: expected at most 1048576 tensors"),
    "tensors that cannot fit": (
        gguf([], [], counts=(9, 0)),
        FormatError,
        r"at byte 8: 9 tensors cannot fit into the 8 bytes",
    ),
    "key count": (gguf([], [], counts=(0, HUGE)), FormatError, r"at byte 16: expected at most 1048576 metadata keys"),
    "keys that cannot fit": (
        gguf([], [], counts=(0, 1)),
        FormatError,
        r"at byte 16: 1 metadata keys cannot fit into the 0",
    ),
    "key length overflows": (
        gguf([u64(2**64 - 1) + bytes(20)], []),
        FormatError,
        r"at byte 32: metadata key number 0: expected 18446744073709551615 bytes",
    ),
    "empty key": (
        gguf([key("", U32, u32(1))], []),
        FormatError,
        r"at byte 24: metadata key number 0: expected 1 to 65535",
    ),
    "key is not text": (
        gguf([key(b"\xff", U32, u32(1))], []),
        FormatError,
        r'at byte 24: .*"\\xff" is not valid UTF-8',
    ),
    "duplicate key": (
        gguf([key("k", U32, u32(1)), key("j", U32, u32(1)), key("k", STRING, text("2"))], []),
        FormatError,
        r'at byte 58: duplicate key "k", already at byte 24',
    ),
    "value type": (
        gguf([key("k", 13, u32(1))], []),
        FormatError,
        r'at byte 33: metadata key "k": expected a value type below 13',
    ),
    "bool of 2": (
        gguf([key("k", BOOL, b"\2" * 8)], []),
        FormatError,
        r'at byte 37: metadata key "k": expected a bool of 0 or 1',
    ),
    "bool of 2 in an array": (
        gguf([key("k", ARRAY, u32(BOOL) + u64(2) + b"\1\2")], []),
        FormatError,
        r'at byte 50: metadata key "k": expected a bool',
    ),
    "string longer than the file": (
        gguf([key("k", STRING, u64(9) + b"x")], []),
        FormatError,
        r'at byte 45: metadata key "k": expected 9 bytes of a string, found 1',
    ),
    "array longer than the file": (
        gguf([key("k", ARRAY, u32(U32) + u64(2) + u32(1))], []),
        FormatError,
        r'metadata key "k": an array of 2 x u32 cannot fit',
    ),
    "array whose bytes overflow": (
        gguf([key("k", ARRAY, u32(U64) + u64(2**61 + 1) + u64(1))], []),
        FormatError,
        r'"k": an array of 2305843009213693953 x u64',
    ),
    "array of strings that overflows": (
        gguf([key("k", ARRAY, u32(STRING) + u64(2**64 - 1))], []),
        FormatError,
        r'"k": an array of 18446744073709551615 x string',
    ),
    "array element type": (
        gguf([key("k", ARRAY, u32(99) + u64(0))], []),
        FormatError,
        r"expected a value type below 13, found 99",
    ),
    "arrays nested too deep": (gguf([nested(4)], []), FormatError, r'metadata key "deep": arrays nested deeper than 4'),
    "arrays nested 5000 deep": (
        gguf([nested(5000)], []),
        FormatError,
        r'metadata key "deep": arrays nested deeper than 4',
    ),
    "alignment 0": (
        alignment(0),
        FormatError,
        r'metadata key "general.alignment": expected a power of two of at least 8, found 0',
    ),
    "alignment 4": (alignment(4), FormatError, r'metadata key "general.alignment": expected a power of two .*found 4'),
    "alignment 48": (
        alignment(48),
        FormatError,
        r'metadata key "general.alignment": expected a power of two .*found 48',
    ),
    "alignment 2^31": (alignment(2**31), FormatError, r"expected tensor data from byte 2147483648, the file ends at"),
    "alignment is a string": (
        gguf([key("general.alignment", STRING, text("32"))], []),
        FormatError,
        r'metadata key "general.alignment": expected an integer >= 0, found string',
    ),
    "empty tensor name": (
        one([1], name=""),
        FormatError,
        r"at byte 24: tensor number 0: expected 1 to 1024 bytes of a tensor name",
    ),
    "long tensor name": (
        one([1], name="n" * 1025),
        FormatError,
        r"expected 1 to 1024 bytes of a tensor name, found 1025",
    ),
    "tensor name is not text": (
        one([1], name=b"\xc0\x80"),
        FormatError,
        r'a tensor name "\\xc0\\x80" is not valid UTF-8',
    ),
    "five dimensions": (one([1] * 5), FormatError, r'tensor "t": expected at most 4 dimensions, found 5'),
    "dimension above 2^63": (one([HUGE]), FormatError, r'tensor "t": the size 1 x 9223372036854775808 overflows'),
    "dimensions overflow": (
        one([2**32, 2**32]),
        FormatError,
        r'tensor "t": the size 4294967296 x 4294967296 overflows',
    ),
    "dimensions wrap to a small size": (one([2**33, 2**31 + 1]), FormatError, r'tensor "t": the size .* overflows'),
    "bytes overflow": (one([2**62]), FormatError, r'tensor "t": the size 4611686018427387904 x 4 overflows'),
    "part of a block": (
        one([33], Q8_0),
        FormatError,
        r'tensor "t": a row of 33 values is not a whole number of Q8_0 blocks of 32',
    ),
    "rows share a block": (one([128, 2], Q4_K), FormatError, r'tensor "t": a row of 128 values .* Q4_K blocks of 256'),
    "part of a codebook block": (one([33], 16), FormatError, r'tensor "t": a row of 33 .* IQ2_XXS blocks of 256'),
    "removed type": (one([4], 4), UnsupportedError, r'at byte 45: tensor "t": tensor type number 4 is not supported'),
    "unknown type": (
        one([4], 2**32 - 1),
        UnsupportedError,
        r'tensor "t": tensor type number 4294967295 is not supported',
    ),
    "misaligned": (
        one([4], offset=16),
        FormatError,
        r'tensor "t": data offset 16 is not a multiple of the alignment 32',
    ),
    "past the end": (
        one([17]),
        FormatError,
        r'tensor "t": expected 68 bytes at data offset 0 .*the data section has 64',
    ),
    "starts past the end": (one([1], offset=96), FormatError, r'tensor "t": expected 4 bytes at data offset 96'),
    "offset wraps into the header": (
        one([1], offset=2**64 - 32),
        FormatError,
        r'tensor "t": expected 4 bytes at data offset 18446744073709551584',
    ),
    "offset plus size wraps": (
        one([2**60], offset=2**64 - 2**62),
        FormatError,
        r'tensor "t": expected 4611686018427387904 bytes',
    ),
    "overlap": (
        gguf([], [tensor("b", [9], F32, 32), tensor("a", [9], F32, 0)], bytes(96)),
        FormatError,
        r'tensor "b" in .* at byte 128: overlaps tensor "a" in .* at byte 96, which has 36 bytes',
    ),
    "one tensor inside another": (
        gguf([], [tensor("a", [64], F32, 0), tensor("b", [1], F32, 64)], bytes(256)),
        FormatError,
        r'tensor "b" .*overlaps tensor "a"',
    ),
    "the same place twice": (
        gguf([], [tensor("a", [1], F32, 0), tensor("b", [1], F32, 0)], bytes(64)),
        FormatError,
        r'overlaps tensor "',
    ),
    "duplicate tensor": (
        gguf([], [tensor("a", [1], F32, 0), tensor("a", [1], F32, 32)], bytes(64)),
        FormatError,
        r'tensor "a" in .* at byte 128: duplicate name, already tensor "a" in .* at byte 96',
    ),
    "split count without its name": (
        gguf([key("split.count", U32, u32(2))], []),
        FormatError,
        r'metadata key "split.count" says 2 parts, the file name says 1',
    ),
}


def refused(error: type[LuceboxError], message: str, path: Path, open_it: Callable[[], object]) -> None:
    with pytest.raises(error) as caught:
        open_it()
    assert type(caught.value) is error
    assert str(path) in str(caught.value)
    assert re.search(message, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("name", BAD_GGUF)
def test_hostile_gguf(name: str, tmp_path: Path) -> None:
    data, error, message = BAD_GGUF[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    refused(error, message, path, lambda: _engine.GgufFile(path))


def test_the_good_gguf_is_good(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(GOOD)
    file = _engine.GgufFile(path)
    assert file.metadata == {
        "general.name": "x", "words": ["a", "bc"], "flags": [False, True], "empty": [], "nested": [[9]], "n": HUGE,
    }  # fmt: skip
    assert [(name, shape, size) for name, _, shape, _, _, size in file.tensors] == [("a", (2, 32), 68), ("b", (3,), 12)]


def test_gguf_cut_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for length in range(len(GOOD)):
        path.write_bytes(GOOD[:length])
        refused(FormatError, r"at byte \d+|data section has", path, lambda: _engine.GgufFile(path))


@pytest.mark.parametrize("value", [0x00, 0x7F, 0x80, 0xFF])
def test_gguf_with_any_byte_changed_is_read_or_refused(tmp_path: Path, value: int) -> None:
    path = tmp_path / "model.gguf"
    opened = 0
    for at in range(len(GOOD)):
        path.write_bytes(GOOD[:at] + bytes([value]) + GOOD[at + 1 :])
        try:
            file = _engine.GgufFile(path)
            opened += all(len(file.read_tensor(tensor_name)) == size for tensor_name, *_, size in file.tensors)
            assert len(file.metadata) == 6
        except (FormatError, UnsupportedError) as error:
            assert str(path) in str(error)
    assert 0 < opened < len(GOOD)


def test_gguf_string_that_is_not_text_names_its_key(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([key("bad.words", ARRAY, u32(STRING) + u64(1) + text(b"a\xff"))], []))
    file = _engine.GgufFile(path)
    refused(FormatError, r'metadata key "bad.words": "a\\xff" is not valid UTF-8', path, lambda: file.metadata)


def safetensors(header: Any, data: int = 0, length: int | None = None) -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    return u64(len(encoded) if length is None else length) + encoded + bytes(data)


def entry(begin: int, end: int, shape: Any = (2,), dtype: str = "F32", **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]} | more


GOOD_SAFETENSORS = safetensors({"a": entry(0, 8), "b": entry(8, 12, [1, 2], "BF16")}, 12)

BAD_SAFETENSORS: dict[str, tuple[bytes, type[LuceboxError], str]] = {
    "empty": (b"", FormatError, r"at byte 0: expected 8 bytes of header length"),
    "length past the end": (safetensors({}, length=9), FormatError, r"at byte 0: expected a header of at most 8 bytes"),
    "length overflows": (
        safetensors({}, length=2**64 - 1),
        FormatError,
        r"at byte 0: .*found a length of 18446744073709551615",
    ),
    "length zero": (u64(0), FormatError, r"at byte 8: expected '{'"),
    "space before the header": (safetensors(b" {}"), FormatError, r"at byte 8: expected '{'"),
    "not an object": (safetensors(b"[1]"), FormatError, r"at byte 8: expected '{'"),
    "text after the header": (safetensors(b"{}x"), FormatError, r"at byte 10: expected the end of the JSON text"),
    "duplicate tensor": (
        safetensors(
            b'{"a":' + json.dumps(entry(0, 8)).encode() + b',"a":' + json.dumps(entry(8, 16)).encode() + b"}", 16
        ),
        FormatError,
        r'at byte 8: this object has the key "a" more than once',
    ),
    "key hidden by an escape": (
        safetensors(b'{"__metadata__":{"a":"1","\\u0061":"2"}}'),
        FormatError,
        r'the key "a" more than once',
    ),
    "nested too deep": (safetensors(b'{"a":' + b"[" * 100_000 + b"}"), FormatError, r"nested deeper than 64 levels"),
    "broken UTF-8": (safetensors(b'{"\xed\xa0\x80":1}'), FormatError, r"at byte 9: this string is not valid UTF-8"),
    "lone surrogate": (safetensors(b'{"\\ud800":1}'), FormatError, r"at byte 10: a high surrogate without a low one"),
    "unfinished string": (safetensors(b'{"a'), FormatError, r"at byte 9: this string has no end"),
    "metadata is not text": (
        safetensors({"__metadata__": {"n": 1}}),
        FormatError,
        r"at byte \d+: expected a string, found an integer",
    ),
    "entry is not an object": (
        safetensors({"a": 1}),
        FormatError,
        r"at byte \d+: expected an object, found an integer",
    ),
    "missing field": (
        safetensors({"a": {"dtype": "F32", "shape": [1]}}),
        FormatError,
        r'the key "data_offsets", which is missing',
    ),
    "unknown field": (safetensors({"a": entry(0, 8, more=1)}, 8), FormatError, r'tensor "a": unknown field "more"'),
    "size of another type": (
        safetensors({"a": entry(0, 8, dtype="I64")}, 8),
        FormatError,
        r'tensor "a": shape \[2\] needs 16 bytes, the data offsets span 8',
    ),
    "name of a type": (
        safetensors({"a": entry(0, 8, dtype="x" * 99)}, 8),
        FormatError,
        r'tensor "a": "x+" is no name of a dtype',
    ),
    "nine dimensions": (
        safetensors({"a": entry(0, 4, [1] * 9)}, 4),
        FormatError,
        r'tensor "a": expected at most 8 dimensions',
    ),
    "negative dimension": (safetensors({"a": entry(0, 8, [-2])}, 8), FormatError, r"expected a number >= 0, found -2"),
    "fractional dimension": (
        safetensors({"a": entry(0, 8, [2.0])}, 8),
        FormatError,
        r"expected an integer, found a number",
    ),
    "dimensions overflow": (
        safetensors({"a": entry(0, 8, [2**32, 2**32])}, 8),
        FormatError,
        r'tensor "a": the size of shape .* overflows',
    ),
    "dimension above 2^63": (
        safetensors({"a": entry(0, 8, [HUGE])}, 8),
        FormatError,
        r"expected an integer, found a number",
    ),
    "one offset": (
        safetensors({"a": entry(0, 8) | {"data_offsets": [0]}}, 8),
        FormatError,
        r'tensor "a": expected two data offsets, found 1',
    ),
    "offsets reversed": (
        safetensors({"a": entry(8, 0)}, 8),
        FormatError,
        r'tensor "a": data offsets \[8, 0\] do not lie in the 8 bytes',
    ),
    "past the end": (
        safetensors({"a": entry(0, 16, [4])}, 8),
        FormatError,
        r'tensor "a": data offsets \[0, 16\] do not lie in the 8',
    ),
    "offsets above 2^62": (
        safetensors({"a": entry(2**62, 2**62 + 8)}, 8),
        FormatError,
        r'tensor "a": data offsets .* do not lie in the 8 bytes',
    ),
    "size differs": (
        safetensors({"a": entry(0, 8, [3])}, 8),
        FormatError,
        r'tensor "a": shape \[3\] needs 12 bytes, .* span 8',
    ),
    "overlap": (
        safetensors({"a": entry(0, 8), "b": entry(4, 12)}, 12),
        FormatError,
        r'tensor "b" in .* at byte \d+: .*overlaps the tensor before',
    ),
    "hole": (
        safetensors({"a": entry(0, 8), "b": entry(12, 20)}, 20),
        FormatError,
        r'tensor "b" in .* at byte \d+: .*there is a hole before it',
    ),
    "hole at the start": (
        safetensors({"a": entry(4, 12)}, 12),
        FormatError,
        r'tensor "a" in .*there is a hole before it',
    ),
    "bytes left over": (
        safetensors({"a": entry(0, 8)}, 9),
        FormatError,
        r"at byte \d+: expected the end of the file, found 1 bytes",
    ),
    "bytes without a tensor": (safetensors({}, 1), FormatError, r"expected the end of the file, found 1 bytes"),
    "misaligned": (
        safetensors({"h": entry(0, 2, [1], "F16"), "f": entry(2, 10)}, 10),
        UnsupportedError,
        r'tensor "f": its data is not aligned',
    ),
}


def write_checkpoint(folder: Path, data: bytes) -> Path:
    (folder / "config.json").write_text("{}")
    path = folder / "model.safetensors"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", BAD_SAFETENSORS)
def test_hostile_safetensors(name: str, tmp_path: Path) -> None:
    data, error, message = BAD_SAFETENSORS[name]
    path = write_checkpoint(tmp_path, data)
    refused(error, message, path, lambda: _engine.Safetensors(tmp_path))


def test_safetensors_cut_at_every_byte(tmp_path: Path) -> None:
    for length in range(len(GOOD_SAFETENSORS)):
        path = write_checkpoint(tmp_path, GOOD_SAFETENSORS[:length])
        refused(FormatError, r"at byte \d+", path, lambda: _engine.Safetensors(tmp_path))
    write_checkpoint(tmp_path, GOOD_SAFETENSORS)
    assert [name for name, *_ in _engine.Safetensors(tmp_path).tensors] == ["a", "b"]


BAD_CONFIGS = {
    "empty": (b"", r"at byte 0: expected a JSON value, found the end"),
    "not an object": (b"[]", r"at byte 0: expected an object"),
    "duplicate key": (b'{"a": 1, "b": {"c": 1, "c": 2}}', r'at byte 14: this object has the key "c" more than once'),
    "trailing comma": (b'{"a": 1,}', r"at byte 8: expected a key in double quotes"),
    "leading zero": (b'{"a": 01}', r"at byte 6: a number must not start with 0"),
    "number out of range": (b'{"a": 1e999}', r"at byte 6: this number is out of range"),
    "bare point": (b'{"a": 1.}', r"at byte 8: expected a digit after the decimal point"),
    "nan in another spelling": (b'{"a":nan}', "at byte 5: expected null"),
    "control character": (b'{"a": "\n"}', r"at byte 7: a control character"),
    "unknown escape": (b'{"a": "\\x"}', r"at byte 7: unknown escape"),
    "short escape": (b'{"a": "\\u12"}', r"at byte 7: expected four hex digits"),
    "two low surrogates": (b'{"a": "\\udc00\\udc00"}', r"at byte 7: a low surrogate without a high one"),
    "too many values": (b'{"a": [' + b"0," * 2_000_000 + b"0]}", r"more than 2000000 values"),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_hostile_config(name: str, tmp_path: Path) -> None:
    data, message = BAD_CONFIGS[name]
    write_checkpoint(tmp_path, GOOD_SAFETENSORS)
    path = tmp_path / "config.json"
    path.write_bytes(data)
    refused(FormatError, message, path, lambda: _engine.Safetensors(tmp_path))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_not_a_regular_file(make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    make(path)
    refused(FormatError, r"expected a regular file, found", path, lambda: _engine.GgufFile(path))


def test_a_path_with_odd_bytes_gives_a_readable_error(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b.gguf"))
    with pytest.raises(FormatError, match=r"/\\xff\\x1b.gguf: cannot open: No such file"):
        _engine.GgufFile(path)


MEMORY_PROBE = """
import resource, sys
from lucebox import _engine
from lucebox.errors import LuceboxError
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), used + (16 << 20)))
for path in sys.argv[1:]:
    try:
        _engine.open_model_file(path)
    except LuceboxError:
        continue
    sys.exit(f"{path} was opened")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space by what /proc says is in use")
def test_hostile_files_are_refused_within_16_megabytes(tmp_path: Path) -> None:
    paths = []
    for number, (data, *_) in enumerate(BAD_GGUF.values()):
        paths.append(tmp_path / f"{number}.gguf")
        paths[-1].write_bytes(data)
    for number, (data, *_) in enumerate(BAD_SAFETENSORS.values()):
        paths.append(tmp_path / str(number))
        paths[-1].mkdir()
        write_checkpoint(paths[-1], data)
    subprocess.run([sys.executable, "-c", MEMORY_PROBE, *map(str, paths)], check=True, timeout=60)
