#!/usr/bin/env python3
"""The time of a speculative step on one device, where drafts may be worthless.

speculation_gpu.py MODEL.gguf suffix                        the width of each step chosen
speculation_gpu.py MODEL.gguf DRAFTER.gguf -b 22,15,0       trees of 22 and 15 nodes, then the width chosen
speculation_gpu.py MODEL.gguf mtp -b 3 --device cuda:0 --csv out.csv

Each budget decodes the same prompt plain and with drafts, with greedy and with sampled tokens. Synthetic weights accept
nothing, so a step of a fixed budget costs a draft, a verify, a walk that ends at the root, and the loop around them. Of
real weights the row says how many tokens a step gave. Rows go to benchmarks/results/<pack>_speculation.csv.
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
from lucebox import LLM, _engine

FOLDER = Path(__file__).resolve().parent
PROMPT_TOKENS, WARM_UP = 520, 30
SAMPLINGS = {"greedy": {}, "T=1": {"temperature": 1.0, "seed": 3}}


@dataclass(frozen=True)
class Row:
    """One budget with one way to sample. Times in milliseconds."""

    date: str
    commit: str
    pack: str
    device: str
    model: str
    draft: str
    budget: int
    """Nodes below the root; 0: chosen for each step."""
    sampling: str
    tokens: int
    plain_ms: float
    """A token without drafts, in the same process."""
    draft_ms: float
    """One draft of the draft model, as the engine measured it at load; 0 without a draft model."""
    drafting_ms: float
    """A token with drafts."""
    verifies: int
    accepted: int
    command: str

    @property
    def step_ms(self) -> float | None:
        """A verified step, where every step of the row is one."""
        return self.drafting_ms * self.tokens / (self.tokens - self.accepted) if self.budget else None


def decode(session: _engine.Session, prompt: list[int], n: int, vocab: int, **sampling: float) -> float:
    """Seconds per token of n tokens after the first."""
    sampler = _engine.Sampler(vocab, **sampling)
    ids = np.empty(len(prompt) + n + 1, np.int32)
    ids[: len(prompt)] = prompt
    sampler.set_prompt(ids[: len(prompt)])
    start = 0.0
    for length in range(len(prompt), len(ids)):
        session.sync(ids[:length])
        ids[length] = session.sample(sampler)
        if length == len(prompt):
            start = time.perf_counter()
    return (time.perf_counter() - start) / n


def measure(args: argparse.Namespace, budget: int) -> list[Row]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=FOLDER, capture_output=True, text=True)
    rows = []
    context = PROMPT_TOKENS + max(args.tokens, WARM_UP) + 128
    with LLM(args.model, device=args.device, context=context, draft=args.draft, draft_budget=budget or None) as llm:
        session, vocab = _engine.Session(llm.engine), llm.info.vocab
        prompt = np.random.default_rng(0).integers(0, 200, PROMPT_TOKENS).tolist()
        costs = llm.engine.step_costs
        assert costs is not None  # the first session measured them
        for name, sampling in SAMPLINGS.items():
            seconds, counts = [], {"verified": 0, "accepted": 0}
            for drafts in (False, True):
                session.reset()
                session.set_drafting(drafts)
                decode(session, prompt, WARM_UP, vocab, **sampling)
                session.reset()
                before = session.draft_counts
                seconds.append(decode(session, prompt, args.tokens, vocab, **sampling))
                after = session.draft_counts
                counts = {key: after[key] - before[key] for key in counts}
            rows.append(
                Row(
                    date=date.today().isoformat(),
                    commit=args.commit or commit.stdout.strip() or "unknown",
                    pack=llm.pack or "cpu",
                    device=llm.device_name,
                    model=Path(args.model).stem,
                    draft=llm.draft_label,
                    budget=budget,
                    sampling=name,
                    tokens=args.tokens,
                    plain_ms=round(seconds[0] * 1e3, 4),
                    draft_ms=round(costs["draft_ms"], 4),
                    drafting_ms=round(seconds[1] * 1e3, 4),
                    verifies=counts["verified"],
                    accepted=counts["accepted"],
                    command=" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
                )
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("draft", help="suffix, mtp, a drafter's file, or either of the last two with +suffix")
    parser.add_argument(
        "-b", "--budgets", default="0", help="nodes of a tree, several with commas; 0: chosen (default)"
    )
    parser.add_argument("-n", "--tokens", type=int, default=200, help="tokens decoded (default 200)")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--commit", help="of the tree that was built, where this folder is no checkout of it")
    parser.add_argument("--csv", type=Path, help="file to add rows to")
    args = parser.parse_args()
    rows = []
    for budget in map(int, args.budgets.split(",")):
        for row in measure(args, budget):
            step = "" if row.step_ms is None else f" of {row.step_ms:.3f} ms ({row.draft_ms:.3f} drafting)"
            print(
                f"{row.model} {row.draft} budget {row.budget} {row.sampling}: plain {row.plain_ms:.3f} ms, "
                f"drafting {row.drafting_ms:.3f} ms a token, {row.verifies} verifies{step}, "
                f"{row.accepted} accepted, speed {row.plain_ms / row.drafting_ms:.3f}",
                flush=True,
            )
            rows.append(row)
    path = args.csv or FOLDER / "results" / f"{rows[0].pack}_speculation.csv"
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        if is_new:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
