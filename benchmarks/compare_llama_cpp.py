#!/usr/bin/env python3
"""Compare lucebox with llama.cpp on one GGUF file, both on the CPU with the same number of threads.

Runs alternate, one subprocess each: lucebox, llama.cpp, lucebox, llama.cpp, ... so that a change in the machine's
speed meets both sides of a pair. Each process does one run that is not measured, then one that is: a prefill from an
empty context, then single-token decoding after a prompt. Neither side tokenizes or samples, and both compute logits
for the last row of a batch only. The ratio of a pair is lucebox over llama.cpp: above 1, lucebox is faster.
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

from lucebox.measure.bench import Summary
from lucebox.packs.machine import processor_name

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "cpu.csv"
TESTS = ("prefill", "decode")


@dataclass(frozen=True)
class Row:
    """One line of results/cpu.csv: one test of one file."""

    date: str
    commit: str
    device: str
    threads: int
    model: str
    test: str
    pairs: int
    lucebox_tok_s: float
    lucebox_min: float
    lucebox_max: float
    llama_cpp_tok_s: float
    llama_cpp_min: float
    llama_cpp_max: float
    ratio: float
    ratio_min: float
    ratio_max: float
    llama_cpp: str
    command: str


def output_of(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
    return done.stdout


def measure_lucebox(args: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "lucebox", "bench", str(args.model), "--json", "--runs", "1"]
    command += ["--threads", str(args.threads), "--activations", args.activations]
    command += ["--prefill", str(args.prefill), "--decode", str(args.decode), "--depth", str(args.depth)]
    return dict(json.loads(output_of(command)))


def measure_llama_cpp(args: argparse.Namespace) -> dict[str, Any]:
    command = [args.peer_python, str(ROOT / "benchmarks" / "llama_cpp_side.py"), str(args.model)]
    command += ["--threads", str(args.threads)]
    command += ["--prefill", str(args.prefill), "--decode", str(args.decode), "--depth", str(args.depth)]
    return dict(json.loads(output_of(command)))


def rows_of(
    args: argparse.Namespace, ours: dict[str, list[float]], theirs: dict[str, list[float]], peer_version: str
) -> list[Row]:
    command = f"compare_llama_cpp.py {args.model.name} --threads {args.threads} --pairs {args.pairs}"
    command += f" --prefill {args.prefill} --decode {args.decode} --depth {args.depth} --activations {args.activations}"
    commit = output_of(["git", "describe", "--always", "--dirty", "--abbrev=10"]).strip()
    labels = {"prefill": f"prefill {args.prefill}", "decode": f"decode {args.decode} after {args.depth}"}
    rows = []
    for test in TESTS:
        a, b = Summary.of(ours[test]), Summary.of(theirs[test])
        ratio = Summary.of([x / y for x, y in zip(ours[test], theirs[test], strict=True)])
        rows.append(
            Row(
                date=date.today().isoformat(),
                commit=commit,
                device=processor_name(),
                threads=args.threads,
                model=args.model.name,
                test=labels[test],
                pairs=args.pairs,
                lucebox_tok_s=round(a.median, 2),
                lucebox_min=round(a.min, 2),
                lucebox_max=round(a.max, 2),
                llama_cpp_tok_s=round(b.median, 2),
                llama_cpp_min=round(b.min, 2),
                llama_cpp_max=round(b.max, 2),
                ratio=round(ratio.median, 3),
                ratio_min=round(ratio.min, 3),
                ratio_max=round(ratio.max, 3),
                llama_cpp=f"llama-cpp-python {peer_version}",
                command=command,
            )
        )
    return rows


def append(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(Row.__annotations__), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def table(rows: list[Row]) -> str:
    lines = [f"{'test':24} {'lucebox tok/s':>26} {'llama.cpp tok/s':>26} {'ratio per pair':>24}"]
    for row in rows:
        ours = f"{row.lucebox_tok_s:.1f} ({row.lucebox_min:.1f}..{row.lucebox_max:.1f})"
        theirs = f"{row.llama_cpp_tok_s:.1f} ({row.llama_cpp_min:.1f}..{row.llama_cpp_max:.1f})"
        ratio = f"{row.ratio:.2f} ({row.ratio_min:.2f}..{row.ratio_max:.2f})"
        lines.append(f"{row.test:24} {ours:>26} {theirs:>26} {ratio:>24}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--peer-python", required=True, help="interpreter that has llama-cpp-python installed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--depth", type=int, default=128, help="tokens in the context before the first decoded one")
    parser.add_argument("--activations", default="int8")
    parser.add_argument("--json", action="store_true", help="print everything measured as one JSON object")
    parser.add_argument("--csv", type=Path, help=f"append the rows to this file (the record is {RESULTS.name})")
    args = parser.parse_args()
    if args.pairs < 1:
        parser.error("--pairs must be at least 1")
    args.model = args.model.resolve()

    ours: dict[str, list[float]] = {test: [] for test in TESTS}
    theirs: dict[str, list[float]] = {test: [] for test in TESTS}
    for pair in range(args.pairs):
        our_report, peer_report = measure_lucebox(args), measure_llama_cpp(args)
        for measurement in our_report["measurements"]:
            ours[measurement["test"]].append(measurement["tok_s"]["median"])
        for test in TESTS:
            theirs[test] += peer_report[f"{test}_tok_s"]
        latest = ", ".join(f"{test} {ours[test][-1]:.1f} / {theirs[test][-1]:.1f}" for test in TESTS)
        print(f"pair {pair + 1} of {args.pairs}: {latest} tok/s", file=sys.stderr)

    rows = rows_of(args, ours, theirs, peer_report["version"])
    if args.csv:
        append(args.csv, rows)
    if args.json:
        settings = {
            "lucebox": {k: our_report[k] for k in ("kernels", "activations")},
            "llama.cpp": peer_report["settings"],
        }
        runs = {"lucebox": ours, "llama.cpp": theirs}
        print(json.dumps({"rows": [asdict(row) for row in rows], "runs": runs, "settings": settings}, indent=2))
    else:
        print(f"{args.model.name}, {args.threads} threads, {processor_name()}, {args.pairs} pairs")
        print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
