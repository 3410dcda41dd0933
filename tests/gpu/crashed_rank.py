"""A rank's kernel writes to an address without memory: what the next two requests of the engine do, as JSON. A process
of its own, because a GPU is lost to the process whose kernel failed.

crashed_rank.py PACK_FOLDER MODEL RANK
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import gpu_packs
from engines import open_engine, random_ids
from lucebox import _engine
from lucebox._kernels.ops import crash_rank
from lucebox.errors import LuceboxError


def main() -> None:
    packs = gpu_packs.load_on_devices(Path(sys.argv[1]), 2)
    engine = open_engine(Path(sys.argv[2]), pack=packs[0], others=packs[1:], split="tensor")
    prompt = random_ids(12, engine.info["vocab"])
    session = _engine.Session(engine)
    session.sync(prompt)
    crash_rank(engine, int(sys.argv[3]))
    requests = []
    for _ in range(2):
        start, error = time.monotonic(), ""
        try:
            session.reset()
            session.sync(prompt)
        except LuceboxError as caught:
            error = str(caught)
        requests.append({"s": time.monotonic() - start, "error": error})
    print(json.dumps(requests), flush=True)


if __name__ == "__main__":
    main()
