"""Decoding at a depth that no prompt fills: decode_depth_gpu.py MODEL [--kv TYPES] [--depths N,N] [--paths auto,graph]

The context is zeros that are assembled, not computed: the time of a token does not depend on the values it reads.
Prints milliseconds of a token, tokens per second, and the time of an append of 22 rows. Rows go to
results/<pack>_decode_depth.csv.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import numpy as np
from lucebox import LLM, _engine, _kernels

RESULTS = Path(__file__).parent / "results"
COLUMNS = ["date", "commit", "pack", "device", "model", "kv", "path", "depth", "ms", "tok_s", "rows22_ms", "of_one_row"]
PIECE = 64  # pages that are assembled at once
RUNS, TOKENS, ROWS = 4, 24, 22


def fill(session: _engine.Session, ids: np.ndarray, chunk: int) -> None:
    """Makes the timeline ids, whole pages of them and more than a window, with K, V and recurrent state of zeros."""
    n_pages = len(ids) // 64
    zeros = np.zeros(PIECE * session.page_bytes, np.uint8)
    pages = [zeros] * (n_pages // PIECE)
    if n_pages % PIECE:
        pages.append(zeros[: n_pages % PIECE * session.page_bytes])
    ends = [*range(chunk, len(ids), chunk), len(ids)]
    session.reset()
    state, windows = (np.zeros(n, np.uint8) for n in (session.recurrent_bytes, session.window_bytes))
    session.assemble(ids, ends, 0, pages, state, windows)


def token_s(llm: LLM, session: _engine.Session, ids: np.ndarray, n: int) -> tuple[float, int]:
    """Seconds of a token after the first n of ids, of the fastest run, and the tokens then."""
    sampler = _engine.Sampler(llm.info.vocab)
    session.sync(ids[: n + 1])
    n += 1
    best = float("inf")
    for _ in range(RUNS):
        start = time.perf_counter()
        for _ in range(TOKENS):
            ids[n] = session.sample(sampler)
            n += 1
            session.sync(ids[:n])
        best = min(best, (time.perf_counter() - start) / TOKENS)
    return best, n


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kv", default="f16", help="types, separated by commas")
    parser.add_argument("--depths", default="32768")
    parser.add_argument("--paths", default="auto")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--commit", help="of the tree that was built, where this folder is no checkout of it")
    args = parser.parse_args()
    depths = [int(depth) // 64 * 64 for depth in args.depths.split(",")]
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=RESULTS, capture_output=True, text=True)
    commit = args.commit or git.stdout.strip() or "unknown"
    command = f"decode_depth_gpu.py {Path(args.model).name} {' '.join(sys.argv[2:])}"
    rows = []
    for kv in args.kv.split(","):
        for path in args.paths.split(","):
            options = {"kv": kv, "context": max(depths) + 256, "draft": "none", "decode_path": path}
            with LLM(args.model, device=args.device, **options) as llm, llm.locked_session() as session:
                for depth in depths:
                    ids = np.random.default_rng(0).integers(0, llm.info.vocab, depth + 256).astype(np.int32)
                    fill(session, ids[:depth], session.prefill_chunk)
                    seconds, n = token_s(llm, session, ids, depth)
                    way = session.decode_path.partition("<")[0].partition(",")[0]
                    session.logits()
                    probe = _kernels.SessionProbe(session)
                    few = min(probe.time_append(ids[n : n + ROWS], ROWS) for _ in range(RUNS))
                    print(f"{kv:6} {way:32} @{depth:<7} {seconds * 1e3:8.3f} ms {1 / seconds:8.1f} tok/s", end="")
                    print(f"   {ROWS} rows {few * 1e3:7.2f} ms, {few / seconds:.2f} of one", flush=True)
                    values = [f"{seconds * 1e3:.3f}", f"{1 / seconds:.1f}", f"{few * 1e3:.2f}", f"{few / seconds:.2f}"]
                    where = [date.today(), commit, llm.pack or "cpu", llm.device_name, Path(args.model).stem]
                    rows.append([*where, kv, way, depth, *values, command])
    file = RESULTS / f"{rows[0][2]}_decode_depth.csv"
    is_new = not file.exists()
    with file.open("a", newline="") as out:
        writer = csv.writer(out)
        if is_new:
            writer.writerow([*COLUMNS, "command"])
        writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
