#!/usr/bin/env python3
"""A mixture with parts of its experts on the device: decoding by share, and prompts where few experts are there.

expert_slots.py MODEL.gguf                                  decoding with 100, 60, 40 and 20 % of the experts, on cuda:0
expert_slots.py MODEL.gguf --shares 100,50 -n 256 -d 2048   other shares, tokens and depth
expert_slots.py MODEL.gguf --json out.json

Successive tokens of a model of `make_synthetic_gguf.py --local-routes` share experts as tokens of a text do; the
routes of other synthetic mixtures are uniform. As in `lucebox bench`, decoding is greedy, and prompts are consecutive
token ids. The first run of a test is not timed and fills the slots. A share below the experts of one token stands for
these.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import lucebox
from lucebox.cli.bench import parse_sizes
from lucebox.measure.bench import Measurement, context_for, measure
from lucebox.models.planning import plan_memory


@dataclass(frozen=True)
class Row:
    """One test of one model with one number of slots: prompt or decode, tok/s over the timed runs."""

    model: str
    device: str
    test: str
    slots: int
    n_experts: int
    tok_s: float
    tok_s_min: float
    tok_s_max: float
    hits: float | None
    """Share of the chosen experts that were on the device; None if all are."""
    mb_per_token: float | None
    """Megabytes of experts copied from host memory; None if all are on the device."""


def row_of(m: Measurement, llm: lucebox.LLM) -> Row:
    plan = llm.memory_plan.experts
    assert plan is not None
    return Row(
        model=llm.info.name,
        device=llm.device_name,
        test=m.label,
        slots=plan.slots,
        n_experts=plan.experts,
        tok_s=m.tok_s.median,
        tok_s_min=m.tok_s.min,
        tok_s_max=m.tok_s.max,
        hits=None if m.experts is None else m.experts.hit_rate,
        mb_per_token=None if m.link_bytes is None else m.link_bytes / 1e6,
    )


def measure_shares(args: argparse.Namespace) -> list[Row]:
    """Prompts are measured with the largest and with the smallest share."""
    context = context_for(args.prefill, args.decode, (), args.depth, args.runs)
    options = {"device": args.device, "context": context, "draft": "none"}
    # The counts of experts are in the plan for any card.
    plan = plan_memory(args.model, board="H200 SXM", memory_limit="1TiB", context=context, draft="none")
    planned = plan.memory.experts
    if planned is None:
        sys.exit(f"{args.model} is no mixture of experts")
    rows: list[Row] = []
    for share in args.shares:
        prompts = args.prefill if share in (max(args.shares), min(args.shares)) else ()
        slots = max(planned.used, round(planned.experts * share / 100))
        with lucebox.LLM(args.model, **options, expert_slots=slots) as llm:
            report = measure(llm, prefill=prompts, decode=args.decode, depth=args.depth, runs=args.runs)
            for m in report.measurements:
                rows.append(row_of(m, llm))
                print(line(rows[-1]), flush=True)
    return rows


def line(row: Row) -> str:
    slots = f"{row.slots} of {row.n_experts}"
    spread = f"{row.tok_s_min:,.1f}..{row.tok_s_max:,.1f}"
    found = "" if row.hits is None else f"{row.hits:7.1%} {row.mb_per_token or 0:10,.1f}"
    return f"{row.test:14} {slots:>12} {row.tok_s:12,.1f} {spread:>22} {found}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--shares", type=parse_sizes, default=(100, 60, 40, 20), help="per cent of the experts")
    parser.add_argument("-p", "--prefill", type=parse_sizes, default=(2048,))
    parser.add_argument("-n", "--decode", type=parse_sizes, default=(256,))
    parser.add_argument("-d", "--depth", type=int, default=520, help="tokens in the context before decoding")
    parser.add_argument("-r", "--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file to write")
    args = parser.parse_args()
    print(f"{'test':14} {'slots':>12} {'tok/s':>12} {'min..max':>22} {'found':>7} {'MB/token':>10}")
    rows = measure_shares(args)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
