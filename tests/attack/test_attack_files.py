"""Ten thousand damaged GGUF files through the public entry points: an own error or an answer, no crash and no hang."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest
from lucebox import _engine
from lucebox.errors import LuceboxError
from reference.gguf_files import Shape, metadata, tensors, write

pytestmark = pytest.mark.slow  # 40 s: ten thousand files

N_FILES = 10_000
EXTREMES = [0, 1, 2, 7, 8, 31, 32, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]


def header_fields(data: bytes) -> list[int]:
    """Offsets of the header where a length, a type or a count stands: 8-byte values below 2^32 at any offset."""
    end = data.find(b"blk.0.") + 4096
    return [at for at in range(8, min(end, len(data) - 8)) if struct.unpack_from("<Q", data, at)[0] < 2**32]


def mutated(data: bytes, fields: list[int], rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.choice(fields)
        match rng.randrange(6):
            case 0:
                struct.pack_into("<Q", changed, at, rng.choice(EXTREMES))
            case 1:
                struct.pack_into("<I", changed, at, rng.choice(EXTREMES) & 0xFFFFFFFF)
            case 2:
                changed[at] ^= 1 << rng.randrange(8)
            case 3:
                other = rng.choice(fields)
                changed[at : at + 8] = changed[other : other + 8]
            case 4:
                value = struct.unpack_from("<Q", changed, at)[0]
                struct.pack_into("<Q", changed, at, (value + rng.choice([-1, 1, 8, -8])) % 2**64)
            case 5:
                place = rng.randrange(len(changed) - 8)
                changed[place : place + 4] = struct.pack("<f", rng.choice([float("nan"), float("inf"), -3e38, 1e-45]))
    if rng.random() < 0.1:
        del changed[rng.randrange(len(changed)) :]
    return bytes(changed)


def test_mutated_files(tmp_path: Path) -> None:
    shape = Shape(n_layers=2, recurrent=(True, False))
    data = write(tmp_path / "model.gguf", metadata(shape), tensors(shape)).read_bytes()
    fields, rng, path = header_fields(data), random.Random(1), tmp_path / "mutated.gguf"
    opened, ids = 0, np.arange(1, 4, dtype=np.int32)
    for _ in range(N_FILES):
        path.write_bytes(mutated(data, fields, rng))
        try:
            engine = _engine.Engine.open(str(path), context=64, threads=1)
            opened += 1
            session = _engine.Session(engine)
            session.sync(ids)
            session.sample(_engine.Sampler(engine.info["vocab"]))
            session.score(ids)
        except LuceboxError:
            pass
    assert 0 < opened < N_FILES  # some damage does not matter, some is seen
