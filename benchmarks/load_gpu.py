"""How fast a model's weights come from the page cache to a device.

load_gpu.py --pack build/sm_90/pack/lucebox_sm90 --model model.gguf
load_gpu.py --pack FOLDER --model model.gguf --threads 1 4 16 --slot-kb 1024 2048 4096 --json out.json

The file is read once before the measurements, so they include no disk; it must fit the free memory. A measurement
reserves device memory, copies every weight there and waits. The best of several tries counts, in bytes of tensors in
the file. The last line opens a whole engine: plan, weights, state and buffers.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from lucebox import _engine, _kernels
from lucebox.packs import open_folder

DEVICES = {"nvidia": "cuda", "amd": "hip", "sim": "sim"}
READ_BYTES = 16 << 20


@dataclass(frozen=True)
class Row:
    """One setting."""

    device: str
    threads: int
    slot_bytes: int
    bytes: int
    seconds: float
    gb_s: float


def load_pack(folder: Path, index: int) -> tuple[_engine.gpu.Pack, _engine.gpu.DeviceInfo]:
    """The pack in a folder, on a device of its vendor."""
    text = (folder / "manifest.json").read_text()
    manifest = json.loads(text)
    device = _engine.gpu.Device(DEVICES[manifest["vendor"]], index)
    files = open_folder(folder).images()
    return _engine.gpu.Pack(device, text, files), device.info


def warm(path: Path) -> float:
    """Brings the file into the page cache; GB/s of one thread reading it."""
    buffer, began, size = bytearray(READ_BYTES), time.perf_counter(), 0
    with path.open("rb", buffering=0) as file:
        while n := file.readinto(buffer):
            size += n
    return size / (time.perf_counter() - began) / 1e9


def measure(
    pack: _engine.gpu.Pack, info: _engine.gpu.DeviceInfo, model: Path, threads: int, slot_bytes: int, tries: int
) -> Row:
    """The best of several tries."""
    total = 0

    def seen(done: int, of: int) -> None:
        nonlocal total
        total = of

    times = [
        _kernels.weights.time_load(pack, str(model), threads, slot_bytes, progress=seen)["seconds"]
        for _ in range(tries)
    ]
    return Row(info.name, threads, slot_bytes, total, min(times), total / min(times) / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, required=True, help="folder with manifest.json")
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--slot-kb", type=int, nargs="+", default=[2048])
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    pack, info = load_pack(options.pack, options.device)
    warm(options.model)
    print(f"{info.name}; one thread reads the file from the page cache at {warm(options.model):.1f} GB/s")
    rows = []
    for threads in options.threads:
        for slot_kb in options.slot_kb:
            row = measure(pack, info, options.model, threads, slot_kb << 10, options.tries)
            rows.append(row)
            print(
                f"{row.bytes / 1e9:.2f} GB, {threads:2} threads, slots of {slot_kb:5} KiB: "
                f"{row.seconds:7.3f} s {row.gb_s:6.2f} GB/s",
                flush=True,
            )
    began = time.perf_counter()
    _engine.Engine.open(str(options.model), context=4096, pack=pack)
    print(f"Engine.open, 4096 tokens of context: {time.perf_counter() - began:.3f} s")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
