"""Models whose layers are on GPUs of two vendors, in a process that finds stand-ins for both drivers:

two_vendors.py PACK MODEL DRAFTER    prints what each pair of devices computed, as JSON

test_two_vendors.py runs it and checks the numbers. Each device has the simulator's pack under its vendor's name."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
from engines import largest_difference, logits_of, open_engine, random_ids
from lucebox import _engine
from lucebox.errors import UnsupportedError
from lucebox.packs import open_folder

VENDORS = {"cuda": "nvidia", "hip": "amd", "sim": "sim"}
PAIRS = (("cuda", "hip"), ("hip", "sim"))
PROMPT = 20


def load(folder: Path, backend: str) -> _engine.gpu.Pack:
    manifest = gpu_packs.manifest_of(folder) | {"vendor": VENDORS[backend]}
    return _engine.gpu.Pack(_engine.gpu.Device(backend, 0), json.dumps(manifest), open_folder(folder).images())


def write(engine: _engine.Engine, n: int) -> list[int]:
    """Ids after a prompt: the likeliest ones."""
    session, vocab = _engine.Session(engine), engine.info["vocab"]
    ids, sampler = random_ids(PROMPT, vocab).tolist(), _engine.Sampler(vocab)
    for _ in range(n):
        session.sync(np.array(ids, np.int32))
        ids.append(session.sample(sampler))
    return [int(one) for one in ids[-n:]]


def main(folder: Path, model: Path, drafter: str) -> None:
    cuda, hip = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libamdhip64.so.7")
    cuda.standin_set(1, 13000, b"9.0")
    hip.standin_set(1, 70125424, b"gfx1151")
    packs = {backend: load(folder, backend) for backend in VENDORS}
    alone = open_engine(model, pack=packs["sim"], decode_path="graph")
    vocab = alone.info["vocab"]
    texts = [(chunk, random_ids(n, vocab, n)) for chunk, n in ((64, 70), (7, 14), (1, 4))]
    expected = [logits_of(alone, ids, chunk) for chunk, ids in texts]
    report: dict[str, Any] = {"alone": write(alone, 4), "pairs": {}}
    for first, second in PAIRS:
        on = {"pack": packs[first], "others": [packs[second]]}
        split = open_engine(model, split="layer", **on)
        apart = open_engine(model, draft=drafter, pack=packs[first], draft_pack=packs[second], decode_path="graph")
        logits = [logits_of(split, ids, chunk) for chunk, ids in texts]
        chunk, ids = texts[0]
        try:
            open_engine(model, split="tensor", **on)
            refusal = ""
        except UnsupportedError as error:
            refusal = str(error)
        report["pairs"][f"{first},{second}"] = {
            "links": split.links + apart.links,
            "differences": [float(largest_difference(*each)) for each in zip(logits, expected, strict=True)],
            "is_repeatable": np.array_equal(logits_of(split, ids, chunk), logits[0]),
            "text": write(split, 4),
            "text_with_drafts": write(apart, 4),
            "refusal": refusal,
        }
    report["registered"] = [
        driver.standin_calls(name) for driver, name in ((cuda, b"cuMemHostRegister"), (hip, b"hipHostRegister"))
    ]
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
