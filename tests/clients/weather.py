"""A server whose model asks for the weather of two cities; prints its URL and the script as JSON."""

from __future__ import annotations

import re
from typing import Any

from scripted import call_text, serve_scripted

THOUGHT = "I need the weather of both. 🌦"
TEXT = "Let me look: é…"
CITIES = ("Oslo", "Zürich")
RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


def answer(prompt: str) -> str:
    """Two calls; after their results, the results, and whether the prompt still has the thought of the first answer."""
    results = RESULT.findall(prompt)
    if results:
        kept = "with" if THOUGHT in prompt else "without"
        return f"Both are there.\n</think>\n\n{'; '.join(results)} ({kept} the thought)"
    calls = "\n".join(call_text("get_weather", {"city": city}) for city in CITIES)
    return f"{THOUGHT}\n</think>\n\n{TEXT}\n\n{calls}"


def expected() -> dict[str, Any]:
    """The thought, text, calls and answer that a client shows."""
    calls = [["get_weather", {"city": city}] for city in CITIES]
    return {"thought": THOUGHT, "text": TEXT, "calls": calls, "answer": "; ".join(f"{city}: sunny" for city in CITIES)}


if __name__ == "__main__":
    serve_scripted(answer, {"script": expected()})
