"""The GEMV of a kernel pack as a share of the read bandwidth measured in the same run.

matvec_gpu.py --pack build/sm_90/pack/lucebox_sm90                     the types and shapes of the table below
matvec_gpu.py --pack FOLDER --types Q4_K --shapes 4096x4096 --csv out.csv --json out.json

A shape is n_out x n_in. Weights rotate through enough sets that no launch finds its own in the L2 cache. Times are
device times of a graph of all sets, the best of several tries. There are two ceilings: the read bandwidth of one large
buffer, and that of launches that read no more than the product, rotating the same way. The second ceiling leaves out
the cost of starting and ending a launch.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from lucebox import _engine, _kernels
from lucebox.packs import open_folder

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
         "IQ4_XS", "MXFP4", "NVFP4", "F8_E4M3")  # fmt: skip
SHAPES = ("4096x4096", "5120x17408", "17408x5120", "1024x1024", "5120x5120")
DEVICES = {"nvidia": "cuda", "amd": "hip", "sim": "sim"}


@dataclass(frozen=True)
class Row:
    """One measurement."""

    date: str
    commit: str
    target: str
    device: str
    type: str
    activations: str
    n_out: int
    n_in: int
    rows: int
    us: float
    gb_s: float
    share: float
    """Share of the measured read bandwidth."""
    share_of_size: float
    """Share of the read bandwidth of launches of the same size."""
    launch: str
    command: str


def commit() -> str:
    """Commit of the sources this runs from; "unknown" outside a git checkout."""
    git = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    done = subprocess.run(git, cwd=Path(__file__).parent, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def load(folder: Path, index: int) -> tuple[_engine.gpu.Pack, _engine.gpu.DeviceInfo]:
    """The pack in a folder, on a device of its vendor."""
    text = (folder / "manifest.json").read_text()
    manifest = json.loads(text)
    device = _engine.gpu.Device(DEVICES[manifest["vendor"]], index)
    files = open_folder(folder).images()
    return _engine.gpu.Pack(device, text, files), device.info


def time_product(
    pack: _engine.gpu.Pack, dtype: str, n_out: int, n_in: int, rows: int, activations: str, sets: int
) -> dict[str, Any]:
    """Times a product of random weights. x has values of magnitude 1 to 2: zeros would draw less power, so the chip
    would be faster."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, (rows, n_in), np.uint32)
    x = (bits & np.uint32(0x807F_FFFF) | np.uint32(0x3F80_0000)).view(np.float32)
    fields = {"w": 1, "type": dtype, "n_out": n_out, "n_in": n_in, "x": x, "activations": activations}
    got: dict[str, Any] = _kernels.ops.time([("linear", [fields], [])], pack, sets=sets)
    return got


def measure(
    pack: _engine.gpu.Pack,
    info: _engine.gpu.DeviceInfo,
    dtype: str,
    shape: str,
    activations: str,
    peak: float,
) -> Row:
    """One type and shape."""
    n_out, n_in = (int(part) for part in shape.split("x"))
    weights = _kernels.weights.plane_layout(dtype, n_out, n_in)[1]
    sets = max(4, int(4 * info.l2_bytes / weights) + 1) if info.l2_bytes else 2
    got = time_product(pack, dtype, n_out, n_in, 1, activations, sets)
    rate = got["bytes"] / got["seconds"]
    same_size = _kernels.ops.read_bandwidth(pack, got["bytes"], sets=sets)
    return Row(
        date=date.today().isoformat(),
        commit=commit(),
        target=pack.target,
        device=info.name,
        type=dtype,
        activations=activations,
        n_out=n_out,
        n_in=n_in,
        rows=1,
        us=got["seconds"] * 1e6,
        gb_s=rate / 1e9,
        share=rate / peak,
        share_of_size=rate / same_size,
        launch=got["launches"][-1],
        command=" ".join(["matvec_gpu.py", *sys.argv[1:]]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, required=True, help="folder with manifest.json")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--types", nargs="+", default=TYPES, choices=TYPES)
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--activations", nargs="+", default=["int8"], choices=["int8", "f32"])
    parser.add_argument("--read-mb", type=int, default=1024, help="buffer of the bandwidth measurement")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()

    pack, info = load(options.pack, options.device)
    peak = _kernels.ops.read_bandwidth(pack, options.read_mb << 20)
    print(f"{info.name}, pack {pack.target}: reads {peak / 1e9:.0f} GB/s; shares of that, of reads of the same size")
    rows = []
    for dtype in options.types:
        for activations in options.activations if dtype.startswith("Q") else ["f32"]:
            for shape in options.shapes:
                row = measure(pack, info, dtype, shape, activations, peak)
                rows.append(row)
                print(
                    f"{row.type:5} {row.activations:4} {shape:>12} {row.us:9.2f} us {row.gb_s:8.1f} GB/s "
                    f"{row.share:6.1%} {row.share_of_size:6.1%}   {row.launch}",
                    flush=True,
                )
    if options.json:
        report = {
            "device": info.name,
            "target": pack.target,
            "read_gb_s": peak / 1e9,
            "rows": [asdict(r) for r in rows],
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(asdict(rows[0])))
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)


if __name__ == "__main__":
    main()
