"""Prints what AMD's kernels do, by the counts of ci/pack/rdna.py, and the speeds that follow from them.

rdna_report.py gfx1100 gfx1151     of packs that were built in build/<name>: cmake --workflow --preset gfx1100

The speeds are predictions: no Radeon has run these kernels. Decode reads every weight once per token, at SHARE of the
board's bandwidth, unless the instructions of the GEMV take longer. Prefill multiplies at the board's peak, less the
time of the other vector instructions of the matrix kernel, as if none of them overlapped with the multiplications;
waits for memory and barriers are left out.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from math import prod
from pathlib import Path

import generate_predictions
from pack import rdna
from pack.gate import WAVE
from project import BUILD

import targets

MODEL, PRESET = "qwen35-27b", "Q4_K_M"
DECODE, PREFILL = "gemv_q4_k_int8_kernel", "gemm_wide_q4_k_kernel"
SHARE = 0.8  # of the datasheet's bandwidth; the best that engines have reached on a Radeon is 0.73 to 0.80
SIMDS = 2  # of a compute unit
# Cycles of v_wmma_*_16x16x16 with 16-bit operands, by AMD's matrix instruction calculator.
MATRIX_CYCLES = {"gfx11": 32, "gfx12": 16}
FLOPS = 2 * 16**3  # of that instruction
# Boost clock in GHz, from AMD's peak for dense FP16 matrices.
CLOCKS = {
    "Radeon RX 7900 XTX": 2.5,
    "Radeon PRO W7900": 2.495,
    "Ryzen AI Max+ 395 (Radeon 8060S)": 2.9,
    "Radeon RX 9070 XT": 2.97,
    "Radeon AI PRO R9700": 2.92,
}


@dataclass(frozen=True, slots=True)
class Predicted:
    """Tokens per second."""

    decode: float
    prefill: float
    prefill_peak: float


def issue_cycles(one: rdna.Counts) -> int:
    """Cycles of a SIMD for the vector instructions of a wave; a pair takes one."""
    return one.vector - one.paired // 2


def predict(
    target: targets.Target, board: targets.Board, decode: rdna.Counts, prefill: rdna.Counts, weights: int, size: int
) -> Predicted | None:
    """For a model of that many weights, of `size` bytes. None if a figure of the board is missing."""
    clock = CLOCKS.get(board.name)
    if clock is None or board.sm_count is None or board.bandwidth_gb_s is None:
        return None
    simds = board.sm_count * SIMDS
    issued = simds * clock * WAVE * decode.load_bytes / issue_cycles(decode)  # GB/s that the instructions allow
    cycles = MATRIX_CYCLES[target.architecture[:5]]
    peak = simds * clock * 1e9 * FLOPS / cycles / (2 * weights)
    matrix = prefill.matrix * cycles
    share = matrix / (matrix + issue_cycles(prefill))
    return Predicted(min(SHARE * board.bandwidth_gb_s, issued) * 1e9 / size, peak * share, peak)


def counts_of(folder: Path) -> dict[str, rdna.Counts]:
    """The counts of all kernels of a pack's build."""
    files = sorted(folder.glob("code/*.isa.json"))
    if not files:
        sys.exit(f"{folder} has no counts: build the pack there, cmake --workflow --preset {folder.name}")
    return {name: one for file in files for name, one in rdna.load(file.read_text()).items()}


def report(target: targets.Target, counts: dict[str, rdna.Counts]) -> str:
    rows = [
        f"| `{name}` | {one.instructions} | {one.paired_percent:.0f} % | {one.matrix} | {one.dots} "
        f"| {one.wide_percent:.0f} % | {one.load_bytes} | {one.waits} |"
        for name, one in counts.items()
    ]
    synthetic = generate_predictions.shapes()
    tensors = synthetic.tensors_of(synthetic.SHAPES[MODEL], PRESET)
    weights = sum(prod(tensor.dims) for tensor in tensors if tensor.name != "token_embd.weight")
    size, *_ = generate_predictions.costs()[f"{MODEL} {PRESET}"]
    speeds = []
    for board in target.boards:
        if found := predict(target, board, counts[DECODE], counts[PREFILL], weights, size):
            cells = (f"{found.decode:.1f}", f"{found.prefill:,.0f}", f"{found.prefill_peak:,.0f}")
            speeds.append(f"| {board.name} | {' | '.join(cells)} |")
    lines = [
        f"## {target.name}",
        "",
        "| kernel | instructions | in pairs | WMMA | dot products | bytes by loads of 16 | bytes loaded | waits |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
        *rows,
    ]
    if speeds:
        lines += [
            "",
            f"**Predicted, not measured**: tokens per second of {MODEL} {PRESET}, one sequence.",
            "",
            "| board | decode | prefill | prefill at the peak of the matrix units |",
            "|---|--:|--:|--:|",
            *speeds,
        ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Print the counts of AMD kernels and the predicted speeds.")
    parser.add_argument("targets", nargs="+", metavar="TARGET", help="AMD targets whose presets were built")
    for name in parser.parse_args().targets:
        target = targets.load(name)
        if target.vendor != "amd":
            parser.error(f"{name} is not AMD's")
        print(report(target, counts_of(BUILD / name)), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
