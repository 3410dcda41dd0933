"""Attention of a kernel pack over a deep cache: decoding and small batches as a share of the read bandwidth measured in
the same run, prefill as a matrix rate.

attention_gpu.py --pack build/sm_90/pack/lucebox_sm90                  the shapes, depths and rows below
attention_gpu.py --pack FOLDER --types f16 q8_0 q8_0/q4_0 wht4         types of K and V
attention_gpu.py --pack FOLDER --shapes 24/4x256 --depths 32768 --rows 1 22 2048 --csv out.csv

A shape is query heads / KV heads x head_dim, for values in keys + the tail: 32/4x512+128. Decoding rotates its caches,
so no launch finds its own in the L2 cache. Times are device times of a graph of all of them, the best of several tries,
the merge included.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import numpy as np
from lucebox import _engine, _kernels
from matvec_gpu import commit, load
from numpy.typing import NDArray

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


def random_slots(kv: str, rng: np.random.Generator, *shape: int, dim: int) -> NDArray[np.generic]:
    """Keys or values [*shape, dim] without a pattern: numbers between 1/2 and 1 of either sign. Bytes of packed types
    are halves of f16 numbers of this kind, so that no scale is infinite."""
    name = kv.lower()
    dtype, keep, exponent = {
        "f32": (np.uint32, 0x807F_FFFF, 0x3F00_0000),
        "bf16": (np.uint16, 0x807F, 0x3F00),
    }.get(name, (np.uint16, 0x83FF, 0x3800))
    is_packed = name not in ("f32", "f16", "bf16")
    width = _engine.kv_slot_bytes(kv, dim) // 2 if is_packed else dim
    bits = rng.integers(0, np.iinfo(dtype).max, (*shape, width), dtype, endpoint=True) & dtype(keep) | dtype(exponent)
    return bits.view(np.uint8 if is_packed else np.float32 if name == "f32" else dtype)


def cache_fields(kv: str, kv_heads: int, head_dim: int, key_tail: int, capacity: int, n_past: int) -> dict[str, object]:
    """The fields of a full cache, its pages in reverse."""
    k_type, _, v_type = kv.partition("/")
    types, rng, n_pages = (k_type, v_type or k_type), np.random.default_rng(0), -(-capacity // 64)
    parts = zip(("k_pages",) if key_tail else ("k_pages", "v_pages"), types, strict=False)
    pages = {name: random_slots(one, rng, n_pages, kv_heads, 64, dim=head_dim + key_tail) for name, one in parts}
    table = np.arange(n_pages, dtype=np.int32)[::-1].copy()
    return {**pages, "k_type": types[0], "v_type": types[1], "page_table": table, "n_past": n_past,
            "head_dim": head_dim, "key_tail": key_tail}  # fmt: skip


def measure(
    pack: _engine.gpu.Pack, info: _engine.gpu.DeviceInfo, dtype: str, shape: str, depth: int, rows: int, peak: float
) -> Row:
    heads, rest = shape.split("/")
    kv_heads, dims = rest.split("x")
    head_dim, key_tail = map(int, f"{dims}+0".split("+")[:2])
    q = random_slots("f32", np.random.default_rng(1), rows, int(heads), dim=head_dim + key_tail)
    fields = {"q": q, "scale": 1 / head_dim, "first_slot": 0, "window": 0,
              **cache_fields(dtype, int(kv_heads), head_dim, key_tail, depth + rows, depth)}  # fmt: skip
    calls = [("attention", [fields], [])]
    cache_bytes = _kernels.ops.time(calls, pack, 1, 1, 1)["bytes"]
    sets = int(4 * info.l2_bytes / cache_bytes) + 1 if rows <= 64 else 1
    got = _kernels.ops.time(calls, pack, min(sets, 64), 5 if rows <= 64 else 2, 4)
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
        launch=got["launches"][0],
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
    peak = _kernels.ops.read_bandwidth(pack, 1 << 30)
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
