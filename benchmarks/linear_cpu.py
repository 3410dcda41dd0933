"""Matrix products of the CPU target, per type and shape: GB/s of weights for one row, 10^9 multiply-adds/s for many.

    python benchmarks/linear_cpu.py --threads 1 2 --types Q4_1 Q8_0 Q4_K Q6_K

The ceiling of the first table is the read bandwidth measured in the same run. Every product streams through enough
copies of its weights that they come from memory, not from a cache.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from lucebox import _engine, _kernels

BLOCKS = {"Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34), "Q2_K": (256, 84),
          "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210), "IQ4_NL": (32, 18),
          "IQ4_XS": (256, 136), "MXFP4": (32, 17), "NVFP4": (64, 36), "F8_E4M3": (128, 132),
          "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2)}  # fmt: skip
SHAPES = ((1536, 576), (576, 1536), (3584, 1024), (1024, 3584), (49152, 576))  # (n_out, n_in)
MOST_STREAMED_ROWS = 4
STREAM_BYTES = 192 << 20  # of weights a decode measurement runs through: several times the last-level cache


@dataclass(frozen=True)
class Case:
    dtype: str
    n_out: int
    n_in: int
    rows: int
    threads: int
    activations: str
    isa: str


def seconds(case: Case, copies: int) -> float:
    """Seconds of one product: the mean over `copies`, each with its own weights."""
    values, block_bytes = BLOCKS[case.dtype]
    n_bytes = case.n_out * case.n_in // values * block_bytes
    # Random codes; with these bits clear no scale of any block is an infinity or a NaN.
    w = np.random.default_rng(0).integers(0, 256, copies * n_bytes, dtype=np.uint8) & np.uint8(0x3B)
    x = np.random.default_rng(1).normal(size=(case.rows, case.n_in)).astype(np.float32)
    fields = {"type": case.dtype, "n_out": case.n_out, "n_in": case.n_in, "x": x, "activations": case.activations}
    calls = [("linear", [fields | {"w": w[i * n_bytes : (i + 1) * n_bytes]}], []) for i in range(copies)]
    timed = _kernels.ops.time(calls, replays=1, tries=5, threads=case.threads, isa=case.isa)
    return float(timed["seconds"]) / copies


def measure(case: Case) -> float:
    """GB/s of weights from memory where rows are few, 10^9 multiply-adds/s where they are many."""
    values, block_bytes = BLOCKS[case.dtype]
    n_bytes = case.n_out * case.n_in // values * block_bytes
    if case.rows <= MOST_STREAMED_ROWS:
        return n_bytes / seconds(case, max(1, STREAM_BYTES // n_bytes)) / 1e9
    return case.rows * case.n_out * case.n_in / seconds(case, 1) / 1e9


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
        print(f"threads {threads}, read bandwidth {ceiling:.1f} GB/s, {args.activations}, isa {args.isa}; n_out x n_in")
        for rows in args.rows:
            unit = "GB/s" if rows <= MOST_STREAMED_ROWS else "GMAC/s"
            for dtype in args.types:
                cells = []
                for n_out, n_in in (SHAPES[i] for i in args.shapes):
                    if n_in % BLOCKS[dtype][0] == 0:
                        value = measure(Case(dtype, n_out, n_in, rows, threads, args.activations, args.isa))
                        cells.append(f"{n_out}x{n_in} {value:7.1f}")
                print(f"  rows {rows:4d} {dtype:7s} {unit:7s} " + "   ".join(cells), flush=True)


if __name__ == "__main__":
    main()
