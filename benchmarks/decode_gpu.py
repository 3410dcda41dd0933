#!/usr/bin/env python3
"""Whole models on one device, as `lucebox bench` measures them, beside what other engines did on such a device.

decode_gpu.py MODEL.gguf [MODEL.gguf ...]                     prefill, decoding and small batches of each, on cuda:0
decode_gpu.py MODEL.gguf --prefill 0 --depth 32768            decoding and small batches deep in a context
decode_gpu.py MODEL.gguf --path megakernel                    decoding by that path, or an error
decode_gpu.py MODEL.gguf --device hip:0 --csv out.csv

Rows go to benchmarks/results/<pack>_models.csv. A peer's number, from peers.csv, stands beside a test when device,
shape of the model, type of most weights and test are the same; "x peer" above 1 means that lucebox is faster.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import lucebox
from lucebox.cli.bench import parse_sizes
from lucebox.measure.bench import Measurement, Report, context_for, measure

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Row:
    """One test of one model."""

    date: str
    commit: str
    pack: str
    device: str
    model: str
    weights: str
    """Type of most weights."""
    test: str
    runs: int
    tok_s: float
    tok_s_min: float
    tok_s_max: float
    ms: float
    of_one_row: float | None
    share: float | None
    """Share of the read bandwidth measured in the same process."""
    tok_j: float | None
    command: str


@dataclass(frozen=True)
class Peer:
    """One line of peers.csv: a speed, or the time of an append."""

    device: str
    peer: str
    model: str
    architecture: str
    n_layers: str
    hidden: str
    weights: str
    test: str
    tok_s: str
    ms: str
    tok_j: str
    source: str

    def speedup(self, measurement: Measurement) -> float:
        """How many times faster the measurement is than the peer."""
        if self.ms:
            return float(self.ms) / measurement.ms.median
        return measurement.tok_s.median / float(self.tok_s)


def commit() -> str:
    """Commit of the sources this runs from; "unknown" outside a git checkout."""
    git = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    done = subprocess.run(git, cwd=FOLDER, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def read_peers() -> list[Peer]:
    with (FOLDER / "peers.csv").open(newline="") as file:
        return [Peer(**line) for line in csv.DictReader(file)]


def peers_of(peers: Sequence[Peer], device: str, info: lucebox.ModelInfo, weights: str) -> list[Peer]:
    """The peers that measured this model on this device."""
    model = (device, info.architecture, str(info.n_layers), str(info.hidden), weights)
    return [p for p in peers if (p.device, p.architecture, p.n_layers, p.hidden, p.weights) == model]


def row_of(report: Report, m: Measurement, model: str, pack: str, weights: str) -> Row:
    return Row(
        date=date.today().isoformat(),
        commit=commit(),
        pack=pack,
        device=report.device_name,
        model=model,
        weights=weights,
        test=m.label,
        runs=len(m.seconds),
        tok_s=round(m.tok_s.median, 2),
        tok_s_min=round(m.tok_s.min, 2),
        tok_s_max=round(m.tok_s.max, 2),
        ms=round(m.ms.median, 4),
        of_one_row=rounded(report.of_one_row(m)),
        share=rounded(report.share(m)),
        tok_j=rounded(m.tok_j),
        command=" ".join(["decode_gpu.py", *(Path(word).name for word in sys.argv[1:])]),
    )


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def line_of(row: Row, m: Measurement, peers: Sequence[Peer]) -> str:
    def shown(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    text = f"{row.test:14} {row.tok_s:11,.1f} {row.ms:11.3f} {shown(row.of_one_row, '.2f'):>9}"
    text += f" {shown(row.share, '.0%'):>9} {shown(row.tok_j, '.3g'):>7}"
    for peer in peers:
        if peer.test == row.test:
            theirs = f"{peer.ms} ms" if peer.ms else f"{float(peer.tok_s):,.1f} tok/s"
            text += f"   {peer.peer} {theirs}, x peer {peer.speedup(m):.2f}"
    return text


def append(path: Path, rows: Sequence[Row]) -> None:
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(Row.__annotations__), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def bench_model(path: Path, args: argparse.Namespace, peers: Sequence[Peer]) -> tuple[str, list[Row]]:
    """The pack that ran the model, and its rows, which are printed too."""
    start = time.perf_counter()
    context = context_for(args.prefill, args.decode, args.batch, args.depth, args.runs)
    with lucebox.LLM(path, device=args.device, context=context, decode_path=args.path, draft="none") as llm:
        seconds = time.perf_counter() - start
        if llm.pack is None:
            raise SystemExit(f"{args.device} is no GPU")
        weights = max(llm.info.quant_mix, key=lambda dtype: llm.info.quant_mix[dtype])
        report = measure(
            llm, prefill=args.prefill, decode=args.decode, batch=args.batch, depth=args.depth, runs=args.runs
        )
        theirs = peers_of(peers, report.device_name, llm.info, weights)
        rows = [row_of(report, m, path.name, llm.pack, weights) for m in report.measurements]
        rate = llm.info.file_bytes / seconds / 1e9
        print(
            f"\n{path.name} on {report.device_name}, pack {llm.pack}: loaded in {seconds:.1f} s ({rate:.2f} GB/s); "
            f"it reads {report.bandwidth_gb_s:.0f} GB/s; energy: {report.energy_source or 'not readable'}"
        )
        print(f"{'test':14} {'tok/s':>11} {'ms':>11} {'x one row':>9} {'of reads':>9} {'tok/J':>7}")
        for row, m in zip(rows, report.measurements, strict=True):
            print(line_of(row, m, theirs), flush=True)
        return llm.pack, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--prefill", type=parse_sizes, default=(520, 2048))
    parser.add_argument("--decode", type=parse_sizes, default=(128,))
    parser.add_argument("--batch", type=parse_sizes, default=(1, 8, 16, 22, 32, 64))
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--path", choices=("auto", "graph", "megakernel"), default="auto", help="of decoding")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--csv", type=Path, help="append the rows to this file instead")
    args = parser.parse_args()

    peers = read_peers()
    for path in args.models:
        pack, rows = bench_model(path, args, peers)
        append(args.csv or FOLDER / "results" / f"{pack}_models.csv", rows)


if __name__ == "__main__":
    main()
