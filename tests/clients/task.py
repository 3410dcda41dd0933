"""A task for a coding agent: a project with a bug, and the answers of the model that mends it.

`python task.py MODEL FILE` serves a model that writes the answers in FILE (a JSON list), read again for each request.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripted import call_text, serve_scripted

CONTEXT = 65536
WRONG = "    return a - b"
RIGHT = "    return a + b"
PASSED = "lucebox-test-passed"
SAID = "lucebox-client-ok"  # in the last answer
THOUGHT = "lucebox-thought"
FILES = {
    "calc.py": f"def add(a, b):\n{WRONG}\n",
    "test_calc.py": f'from calc import add\n\nassert add(2, 2) == 4\nprint("{PASSED}")\n',
}
PROMPT = "The test in test_calc.py fails. Find out why, mend calc.py, and run the test again."
TEST = "python3 test_calc.py"


@dataclass(frozen=True)
class Step:
    """An answer of the model: text, and a call of a tool of the client."""

    text: str
    tool: str = ""
    arguments: Mapping[str, Any] | None = None

    def answer(self) -> str:
        call = "" if not self.tool else f"\n\n{call_text(self.tool, self.arguments or {})}"
        return f"{THOUGHT}: {self.text}\n</think>\n\n{self.text}{call}"


def make_project(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).write_text(text)


def script_of(steps: Sequence[Step]) -> list[list[str]]:
    """Each answer with its text, by which a later prompt shows that it was given."""
    return [[step.text, step.answer()] for step in steps]


def next_answer(prompt: str, script: Sequence[Sequence[str]], *, has_tools: bool) -> str | None:
    """The first answer whose text is not in the prompt. None for side requests, such as for a title."""
    if has_tools and "<tools>" not in prompt:
        return None
    return next((answer for text, answer in script if text not in prompt), None)


def main() -> None:
    model, file = sys.argv[1:]

    def answer(prompt: str) -> str | None:
        task = json.loads(Path(file).read_text())
        return next_answer(prompt, task["script"], has_tools=task["has_tools"])

    serve_scripted(answer, {}, model=model, context=CONTEXT, max_tokens=512)


if __name__ == "__main__":
    main()
