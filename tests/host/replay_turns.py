"""Runs a conversation of many turns through a prefix cache on disk, restarts the cache in the middle, and compares with
cold runs. Prints the reused tokens and the memory used as JSON.

    PYTHONPATH=python python tests/host/replay_turns.py MODEL --turns 100 --cold-every 1
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from conversations import Conversation, replay
from engines import open_engine, random_ids
from lucebox import _engine
from lucebox.generation.prefix_cache import PrefixCache, fingerprint, state_bytes

SETTLED = 10  # turns
SPREAD = range(0, 1 << 20, 64)  # boundaries


def resident_bytes() -> int:
    fields = Path("/proc/self/status").read_text().split()
    return 1024 * int(fields[fields.index("VmRSS:") + 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--longest-turn", type=int, default=16)
    parser.add_argument("--cold-every", type=int, default=1)
    parser.add_argument("--context", type=int, default=1280)
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--budget-mib", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    engine = open_engine(
        options.model, activations="int8", kv="f16", threads=0, context=options.context, prefill_chunk=options.chunk
    )
    vocab = engine.info["vocab"]
    reused: list[int] = []
    resident: list[int] = []
    with tempfile.TemporaryDirectory() as folder:

        def open_cache() -> PrefixCache:
            return PrefixCache(options.budget_mib << 20, folder, fingerprint(engine), disk_bytes=1 << 30)

        talk = Conversation(vocab, np.random.default_rng(options.seed), options.longest_turn, options.context)
        sessions = _engine.Session(engine), _engine.Session(engine)
        half, damaged = options.turns // 2, 0
        for turns in (half, options.turns - half):
            cache = open_cache()
            # Fills the sessions and the cache, so that the measured memory includes both from the first turn on.
            for filler in range(1, 1000):
                ids = random_ids(options.context, vocab, options.seed + len(reused) + filler)
                list(cache.prefill(sessions[filler % 2], ids, SPREAD))
                if filler > 1 and cache.stats().evicted:
                    break
            for n_reused in replay(
                engine, cache, talk, turns, n_answer=3, cold_every=options.cold_every, sessions=sessions
            ):
                reused.append(n_reused)
                resident.append(resident_bytes())
            damaged += cache.stats().damaged
            cache.close()
    lives = resident[:half], resident[half:]  # of the cache, before and after the restart
    print(
        json.dumps(
            {
                "turns": len(reused),
                "tokens": len(talk.ids),
                "reused": reused,
                "settled_bytes": [life[SETTLED] for life in lives],
                "largest_bytes": [max(life[SETTLED:]) for life in lives],
                "state_bytes": state_bytes(sessions[0]),
                "damaged": damaged,
            }
        )
    )


if __name__ == "__main__":
    main()
