"""Attention of a kernel pack over a deep cache: decoding and small batches as a share of the read bandwidth measured in
the same run, prefill as a matrix rate.

attention_gpu.py --pack build/sm_90/pack/lucebox_sm90                  the shapes, depths and rows below
attention_gpu.py --pack FOLDER --types f16 q8_0 q8_0/q4_0 wht4         types of K and V
attention_gpu.py --pack FOLDER --shapes 24/4x256 --depths 32768 --rows 1 22 2048 --csv out.csv

A shape is query heads / KV heads x head_dim. Decoding rotates its caches, so no launch finds its own in the L2 cache.
Times are device times of a graph of all of them, the best of several tries, the merge included.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from lucebox import _engine, _kernels
from matvec_gpu import commit, load

SHAPES = ("16/8x128", "24/4x256", "9/3x64")
DEPTHS = (0, 8192, 30720)
ROWS = (1, 8, 16, 22, 64, 512, 2048)


@dataclass(frozen=True)
class Row:
    """One measurement."""

    date: str
    commit: str
    target: str
    device: str
    type: str
    shape: str
    depth: int
    rows: int
    us: float
    gb_s: float
    share: float
    """Share of the measured read bandwidth, K and V read once."""
    tflop_s: float
    launch: str
    command: str


def measure(
    pack: _engine.gpu.Pack, info: _engine.gpu.DeviceInfo, dtype: str, shape: str, depth: int, rows: int, peak: float
) -> Row:
    heads, rest = shape.split("/")
    kv_heads, head_dim = rest.split("x")
    capacity = -(-(depth + rows) // 64) * 64
    what = (pack, dtype, rows, int(heads), int(kv_heads), int(head_dim), depth, capacity)
    cache_bytes = _kernels.gpu_ops.time_attention(*what, 1, 1, 1)["bytes"]
    sets = int(4 * info.l2_bytes / cache_bytes) + 1 if rows <= 64 else 1
    got = _kernels.gpu_ops.time_attention(*what, min(sets, 64), 5 if rows <= 64 else 2, 4)
    row = Row(
        date=date.today().isoformat(),
        commit=commit(),
        target=pack.target,
        device=info.name,
        type=dtype,
        shape=shape,
        depth=depth,
        rows=rows,
        us=got["seconds"] * 1e6,
        gb_s=got["bytes"] / got["seconds"] / 1e9,
        share=got["bytes"] / got["seconds"] / peak,
        tflop_s=got["flops"] / got["seconds"] / 1e12,
        launch=got["launch"],
        command=" ".join(["attention_gpu.py", *sys.argv[1:]]),
    )
    print(
        f"{dtype:11} {shape:>9} depth {depth:6} {rows:5} rows {row.us:10.2f} us {row.gb_s:8.1f} GB/s {row.share:6.1%} "
        f"{row.tflop_s:7.2f} TFLOP/s   {row.launch}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, required=True, help="folder with manifest.json")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--types", nargs="+", default=["f16"], help="of K and V, or K/V")
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--depths", nargs="+", type=int, default=DEPTHS)
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()

    pack, info = load(options.pack, options.device)
    peak = _kernels.gpu_ops.read_bandwidth(pack, 1 << 30)
    print(f"{info.name}, pack {pack.target}, reads {peak / 1e9:.1f} GB/s")
    rows = [
        measure(pack, info, dtype, shape, depth, n, peak)
        for dtype in options.types
        for shape in options.shapes
        for depth in options.depths
        for n in options.rows
    ]
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(asdict(rows[0])))
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)


if __name__ == "__main__":
    main()
