"""Matrix products of the CPU target, per type and shape: GB/s of weights for one row, 10^9 multiply-adds/s for many.

    python benchmarks/linear_cpu.py --threads 1 2 --types Q4_1 Q8_0 Q4_K Q6_K

The ceiling of the first table is the read bandwidth measured in the same run. Every product streams through enough
copies of its weights that they come from memory and not from a cache.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from lucebox import _engine

BLOCKS = {"Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34), "Q2_K": (256, 84),
          "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210), "IQ4_NL": (32, 18),
          "IQ4_XS": (256, 136), "MXFP4": (32, 17), "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2)}  # fmt: skip
SHAPES = ((1536, 576), (576, 1536), (3584, 1024), (1024, 3584), (49152, 576))  # (n_out, n_in)
STREAM_BYTES = 192 << 20  # of weights a decode measurement runs through: several times the last-level cache


def best_seconds(run: Callable[[], None], repeats: int) -> float:
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def weights(dtype: str, n_bytes: int) -> np.ndarray:
    """Random codes; the scales of a block are whatever bytes make them finite."""
    return (np.random.default_rng(0).integers(0, 256, n_bytes, dtype=np.uint8) & 0x3B).astype(np.uint8)


def decode_gb_s(dtype: str, n_out: int, n_in: int, threads: int, activations: str, isa: str, rows: int) -> float:
    values, block_bytes = BLOCKS[dtype]
    matrix_bytes = n_out * n_in // values * block_bytes
    copies = max(1, STREAM_BYTES // matrix_bytes)
    w = weights(dtype, copies * matrix_bytes)
    x = np.random.default_rng(1).normal(size=(rows, n_in)).astype(np.float32)
    y = [np.zeros((rows, n_out), np.float32) for _ in range(copies)]
    parts = [w[i * matrix_bytes : (i + 1) * matrix_bytes] for i in range(copies)]
    groups = [_engine.ops.LinearGroup([p], [dtype], [n_out], n_in, rows, activations, isa, threads) for p in parts[:1]]
    group = groups[0] if copies == 1 else _engine.ops.LinearGroup(parts, [dtype] * copies, [n_out] * copies, n_in, rows,
                                                                  activations, isa, threads)
    return copies * matrix_bytes / best_seconds(lambda: group.run(x, y[:copies]), 5) / 1e9


def prefill_gmac_s(dtype: str, n_out: int, n_in: int, threads: int, activations: str, isa: str, rows: int) -> float:
    values, block_bytes = BLOCKS[dtype]
    w = weights(dtype, n_out * n_in // values * block_bytes)
    x = np.random.default_rng(1).normal(size=(rows, n_in)).astype(np.float32)
    y = [np.zeros((rows, n_out), np.float32)]
    group = _engine.ops.LinearGroup([w], [dtype], [n_out], n_in, rows, activations, isa, threads)
    return rows * n_out * n_in / best_seconds(lambda: group.run(x, y), 5) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", default=["Q4_1", "Q8_0", "Q4_K", "Q6_K"], choices=BLOCKS)
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 8, 16, 512], help="up to 4: GB/s, more: GMAC/s")
    parser.add_argument("--shapes", type=int, nargs="+", default=range(len(SHAPES)), help="indices of the shapes")
    parser.add_argument("--activations", default="int8", choices=["int8", "f32"])
    parser.add_argument("--isa", default="auto")
    args = parser.parse_args()
    for threads in args.threads:
        ceiling = _engine.read_bandwidth(threads, 512 << 20)
        print(f"threads {threads}, read bandwidth {ceiling:.1f} GB/s, activations {args.activations}, isa {args.isa}; n_out x n_in")
        for rows in args.rows:
            measure, unit = (decode_gb_s, "GB/s") if rows <= 4 else (prefill_gmac_s, "GMAC/s")
            for dtype in args.types:
                shapes = [SHAPES[i] for i in args.shapes if SHAPES[i][1] % BLOCKS[dtype][0] == 0]
                cells = [f"{n}x{k} {measure(dtype, n, k, threads, args.activations, args.isa, rows):7.1f}" for n, k in shapes]
                print(f"  rows {rows:4d} {dtype:7s} {unit:7s} " + "   ".join(cells), flush=True)


if __name__ == "__main__":
    main()
