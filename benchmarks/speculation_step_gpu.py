#!/usr/bin/env python3
"""A speculative step of a draft model on a GPU by its parts, and the time in which the GPU waits for the host.

speculation_step_gpu.py MODEL.gguf DRAFTER.gguf -r 16,24 --device cuda:0
speculation_step_gpu.py MODEL.gguf mtp -r 4

The parts are times of kernels that do not overlap: the draft, the tree, the verify with the head, the walk, the moves
of K and V. `packed_ms` is a step of a queue of steps whose tokens nobody reads, so nothing waits for the host.
`decode_ms` is a step of decoding through sessions as callers do it. The difference is the gap, with Python's loop in
it. Synthetic weights accept nothing, so the walk ends at the root. Rows go to
benchmarks/results/<pack>_speculation_steps.csv.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path

import numpy as np
from lucebox import LLM, _engine, _kernels

FOLDER = Path(__file__).resolve().parent
PROMPT_TOKENS, WARM_UP = 520, 10


@dataclass(frozen=True)
class Row:
    """One number of rows. Times in milliseconds, but for the gap in microseconds."""

    date: str
    commit: str
    pack: str
    device: str
    model: str
    draft: str
    rows: int
    """Rows of the verified tree, the root among them."""
    draft_ms: float
    tree_ms: float
    verify_ms: float
    walk_ms: float
    commit_ms: float
    packed_ms: float
    decode_ms: float
    gap_us: float
    accepted: int
    """Tokens accepted while decode_ms was measured."""
    command: str


def decode_step_ms(session: _engine.Session, prompt: list[int], steps: int, vocab: int) -> tuple[float, int]:
    """Milliseconds of a verified step, and the number of accepted tokens."""
    sampler, ids = _engine.Sampler(vocab), list(prompt)
    sampler.set_prompt(np.array(ids, np.int32))
    start, before = 0.0, session.draft_counts  # set again after the warm-up
    while session.draft_counts["verified"] - before["verified"] < steps:
        session.sync(np.array(ids, np.int32))
        ids.append(session.sample(sampler))
        if len(ids) == len(prompt) + WARM_UP:
            start, before = time.perf_counter(), session.draft_counts
    seconds = time.perf_counter() - start
    return seconds * 1e3 / steps, session.draft_counts["accepted"] - before["accepted"]


def measure(args: argparse.Namespace, rows: int) -> Row:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=FOLDER, capture_output=True, text=True)
    context = PROMPT_TOKENS + 64 * (args.steps + WARM_UP) + 128
    with LLM(args.model, device=args.device, context=context, draft=args.draft, draft_budget=rows - 1) as llm:
        session, vocab = _engine.Session(llm.engine), llm.info.vocab
        prompt = np.random.default_rng(0).integers(0, 200, PROMPT_TOKENS).tolist()
        parts = _kernels.SessionProbe(session).time_draft_step(np.array(prompt, np.int32), rows, args.steps)
        session.reset()
        decode_ms, accepted = decode_step_ms(session, prompt, args.steps, vocab)
        packed_ms = parts.pop("step_ms")
        return Row(
            date=date.today().isoformat(),
            commit=args.commit or commit.stdout.strip() or "unknown",
            pack=llm.pack or "cpu",
            device=llm.device_name,
            model=Path(args.model).stem,
            draft=llm.draft_label,
            rows=rows,
            packed_ms=round(packed_ms, 4),
            decode_ms=round(decode_ms, 4),
            gap_us=round(1e3 * (decode_ms - packed_ms), 1),
            accepted=accepted,
            command=" ".join(Path(word).name for word in sys.argv),
            **{name: round(ms, 4) for name, ms in parts.items()},
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("draft", help="mtp or a drafter's file")
    parser.add_argument("-r", "--rows", default="16,24", help="rows of the tree, several with commas (default 16,24)")
    parser.add_argument("-n", "--steps", type=int, default=100, help="steps to measure (default 100)")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--commit", help="of the tree that was built, where this folder is no checkout of it")
    parser.add_argument("--csv", type=Path, help="file to add rows to")
    args = parser.parse_args()
    measured = []
    for rows in map(int, args.rows.split(",")):
        row = measure(args, rows)
        ours = 1e3 * (row.tree_ms + row.walk_ms + row.commit_ms)
        print(
            f"{row.model} {row.draft} {rows} rows: {row.decode_ms:.3f} ms a step, {row.packed_ms:.3f} without gaps, "
            f"gap {row.gap_us:.0f} us; draft {row.draft_ms:.3f} ms, verify {row.verify_ms:.3f} ms, "
            f"tree {1e3 * row.tree_ms:.1f} us + walk {1e3 * row.walk_ms:.1f} us + commit {1e3 * row.commit_ms:.1f} us "
            f"= {ours:.1f} us",
            flush=True,
        )
        measured.append(row)
    path = args.csv or FOLDER / "results" / f"{measured[0].pack}_speculation_steps.csv"
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        if is_new:
            writer.writeheader()
        writer.writerows(asdict(row) for row in measured)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
