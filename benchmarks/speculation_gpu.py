#!/usr/bin/env python3
"""The time of a speculative step on one device, and the speed at replayed acceptance.

speculation_gpu.py MODEL.gguf suffix                        the width of each step chosen
speculation_gpu.py MODEL.gguf DRAFTER.gguf -b 22,15,0       trees of 22 and 15 nodes, then the width chosen
speculation_gpu.py MODEL.gguf mtp -b 3 --device cuda:0 --csv out.csv

Each budget decodes the same prompt plain and with drafts, with greedy and with sampled tokens. Synthetic weights accept
nothing, so a step of a fixed budget costs a draft, a verify, a walk that ends at the root, and the loop around them.
For real weights the row says how many tokens a step gave. Further rows replay histograms of accepted lengths: those of
`lucebox bench --replay` that were made for the kind of drafter, or a file's. There plain_ms / drafting_ms is the ratio
of speeds, end to end, at this acceptance. Rows go to benchmarks/results/<pack>_speculation.csv.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path

import numpy as np
from lucebox import LLM, _engine, _kernels
from lucebox.measure.accepted_lengths import BUNDLED, AcceptedLengths, load_lengths

FOLDER = Path(__file__).resolve().parent
PROMPT_TOKENS, WARM_UP, PART_TOKENS = 520, 30, 40
SEED = 42  # of the replayed lengths
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
    replay: str
    """The histogram that accepted lengths were drawn from; empty: drafts are right or wrong by themselves."""
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
    part_draft_ms: float | None
    """Parts of a step, from a run of its own in which the host waits behind each part; None where nothing verified."""
    part_tree_ms: float | None
    part_verify_ms: float | None
    part_walk_ms: float | None
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


@dataclass(frozen=True)
class Run:
    """One way to decode the prompt."""

    ms: float
    """Time of a token."""
    verifies: int
    accepted: int
    parts: dict[str, float | None]


class Bench:
    """A session that decodes the same prompt again and again."""

    def __init__(self, llm: LLM, n_tokens: int) -> None:
        self.session, self.vocab, self.n_tokens = _engine.Session(llm.engine), llm.info.vocab, n_tokens
        self.prompt = np.random.default_rng(0).integers(0, 200, PROMPT_TOKENS).tolist()

    def run(self, sampling: dict[str, float], *, drafts: bool, by_length: tuple[int, ...] = ()) -> Run:
        """by_length: the histogram of a replay."""
        session = self.session
        session.set_drafting(drafts)
        _kernels.SessionProbe(session).replay(by_length, SEED)
        self._decode(WARM_UP, sampling)
        before = session.draft_counts
        seconds = self._decode(self.n_tokens, sampling)
        after = session.draft_counts
        verifies, accepted = (after[key] - before[key] for key in ("verified", "accepted"))
        return Run(round(seconds * 1e3, 4), verifies, accepted, self._parts(sampling))

    def _parts(self, sampling: dict[str, float]) -> dict[str, float | None]:
        probe, before = _kernels.SessionProbe(self.session), self.session.draft_counts["verified"]
        probe.time_parts(True)
        self._decode(PART_TOKENS, sampling)
        n = self.session.draft_counts["verified"] - before
        seconds = probe.part_seconds
        probe.time_parts(False)
        return {f"part_{part}_ms": round(1e3 * seconds[part] / n, 4) if n else None for part in seconds}

    def _decode(self, n: int, sampling: dict[str, float]) -> float:
        self.session.reset()
        return decode(self.session, self.prompt, n, self.vocab, **sampling)


def measure(args: argparse.Namespace, budget: int) -> Iterator[Row]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=FOLDER, capture_output=True, text=True)
    context = PROMPT_TOKENS + max(args.tokens, WARM_UP, PART_TOKENS) + 128
    with LLM(args.model, device=args.device, context=context, draft=args.draft, draft_budget=budget or None) as llm:
        bench, costs = Bench(llm, args.tokens), llm.engine.step_costs
        assert costs is not None  # the first session measured them
        for name, sampling in SAMPLINGS.items():
            plain = bench.run(sampling, drafts=False)
            for replay in (None, *histograms(args, llm)):
                run = bench.run(sampling, drafts=True, by_length=replay.by_length if replay else ())
                yield Row(
                    date=date.today().isoformat(),
                    commit=args.commit or commit.stdout.strip() or "unknown",
                    pack=llm.pack or "cpu",
                    device=llm.device_name,
                    model=Path(args.model).stem,
                    draft=llm.draft_label,
                    budget=budget,
                    replay=replay.name if replay else "",
                    sampling=name,
                    tokens=args.tokens,
                    plain_ms=plain.ms,
                    draft_ms=round(costs["draft_ms"], 4),
                    drafting_ms=run.ms,
                    verifies=run.verifies,
                    accepted=run.accepted,
                    **run.parts,
                    command=" ".join(Path(word).name for word in sys.argv),
                )


def histograms(args: argparse.Namespace, llm: LLM) -> list[AcceptedLengths]:
    if args.replay:
        return load_lengths(args.replay)
    return [one for one in load_lengths(BUNDLED) if one.drafter == llm.engine.draft_kind]


def add_row(path: Path, row: Row) -> None:
    columns = [field.name for field in fields(Row)]
    is_new = not path.exists()
    if not is_new and path.read_text().partition("\n")[0].split(",") != columns:
        raise SystemExit(f"{path} has other columns than {', '.join(columns)}; name a new file with --csv")
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(asdict(row))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("draft", help="suffix, mtp, a drafter's file, or either of the last two with +suffix")
    parser.add_argument(
        "-b", "--budgets", default="0", help="nodes of a tree, several with commas; 0: chosen (default)"
    )
    parser.add_argument("-n", "--tokens", type=int, default=200, help="tokens decoded (default 200)")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="histograms, as of lucebox bench --replay")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--commit", help="of the tree that was built, where this folder is no checkout of it")
    parser.add_argument("--csv", type=Path, help="file to add rows to")
    args = parser.parse_args()
    for budget in map(int, args.budgets.split(",")):
        for row in measure(args, budget):
            step = "" if row.step_ms is None else f" of {row.step_ms:.3f} ms ({row.draft_ms:.3f} drafting)"
            replay = f" replay {row.replay}" if row.replay else ""
            print(
                f"{row.model} {row.draft} budget {row.budget} {row.sampling}{replay}: plain {row.plain_ms:.3f} ms, "
                f"drafting {row.drafting_ms:.3f} ms a token, {row.verifies} verifies{step}, "
                f"{row.accepted} accepted, speed {row.plain_ms / row.drafting_ms:.3f}",
                flush=True,
            )
            add_row(args.csv or FOLDER / "results" / f"{row.pack}_speculation.csv", row)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
