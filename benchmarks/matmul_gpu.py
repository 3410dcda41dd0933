"""Skinny GEMM and GEMM of a kernel pack, beside the GEMV of the same weights.

matmul_gpu.py --pack build/sm_90/pack/lucebox_sm90                     the types, shapes and rows below
matmul_gpu.py --pack FOLDER --types Q4_K --shapes 5120x17408 --rows 22 2048 --csv out.csv

A shape is n_out x n_in. Weights rotate through enough sets that no launch finds its own in the L2 cache. Times are
device times of a graph of all sets, the best of several tries. x is rounded to 8 or 16 bits beforehand, as for the
GEMV; narrowing x to 16-bit numbers, which plain weights and prompts need, is within the time.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from lucebox import _engine
from matvec_gpu import SHAPES, commit, load, time_product

ROWS = (2, 4, 8, 16, 22, 32, 64, 128, 512, 2048)
# Bits of a value: the default of --types, then the other types.
BITS = {"F32": 32, "F16": 16, "BF16": 16, "Q8_0": 8.5, "Q4_0": 4.5, "Q4_K": 4.5, "Q6_K": 6.5625}
OTHER_BITS = {"Q4_1": 5, "Q5_0": 5.5, "Q5_1": 6, "IQ4_NL": 4.5, "MXFP4": 4.25, "NVFP4": 4.5, "F8_E4M3": 8.25}
OTHER_BITS |= {"Q2_K": 2.625, "Q3_K": 3.4375, "Q5_K": 5.5, "IQ4_XS": 4.25}


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
    tflop_s: float
    times_one_row: float
    """Multiple of the GEMV's time."""
    launch: str
    command: str


def measure(
    pack: _engine.gpu.Pack, info: _engine.gpu.DeviceInfo, dtype: str, shape: str, activations: str, all_rows: list[int]
) -> list[Row]:
    """One type and shape: one row first."""
    n_out, n_in = (int(part) for part in shape.split("x"))
    sets = max(4, int(4 * info.l2_bytes / (n_out * n_in * (BITS | OTHER_BITS)[dtype] / 8)) + 1) if info.l2_bytes else 2
    one = time_product(pack, dtype, n_out, n_in, 1, activations, sets)
    measured = []
    for rows in [1, *all_rows]:
        few = sets if rows <= 64 else 2  # reading the weights no longer bounds the time
        got = one if rows == 1 else time_product(pack, dtype, n_out, n_in, rows, activations, few)
        row = Row(
            date=date.today().isoformat(),
            commit=commit(),
            target=pack.target,
            device=info.name,
            type=dtype,
            activations=activations,
            n_out=n_out,
            n_in=n_in,
            rows=rows,
            us=got["seconds"] * 1e6,
            gb_s=got["bytes"] / got["seconds"] / 1e9,
            tflop_s=2 * rows * n_out * n_in / got["seconds"] / 1e12,
            times_one_row=got["seconds"] / one["seconds"],
            launch=next(launch for launch in got["launches"] if launch.startswith(("gemm", "gemv"))),
            command=" ".join(["matmul_gpu.py", *sys.argv[1:]]),
        )
        measured.append(row)
        print(
            f"{dtype:6} {activations:4} {shape:>12} {rows:5} rows {row.us:10.2f} us {row.gb_s:8.1f} GB/s "
            f"{row.tflop_s:7.2f} TFLOP/s {row.times_one_row:7.2f}x   {row.launch}",
            flush=True,
        )
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, required=True, help="folder with manifest.json")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--types", nargs="+", default=tuple(BITS), choices=tuple(BITS | OTHER_BITS))
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--activations", nargs="+", default=["int8"], choices=["int8", "f32"])
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()

    pack, info = load(options.pack, options.device)
    print(f"{info.name}, pack {pack.target}; times that of one row")
    rows: list[Row] = []
    for dtype in options.types:
        for activations in options.activations if dtype not in ("F32", "F16", "BF16") else ["f32"]:
            for shape in options.shapes:
                rows += measure(pack, info, dtype, shape, activations, options.rows)
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(asdict(rows[0])))
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)


if __name__ == "__main__":
    main()
