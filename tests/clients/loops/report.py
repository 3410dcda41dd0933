"""What a loop in Python prints: one JSON line per conversation, which ci/sdk_loops.py compares with the script."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

URL = sys.argv[1]
QUESTION = "How is the weather in Oslo and Zürich?"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
DESCRIPTION = "The weather of a city."
# Fields that differ between two answers to one request: ids, times, drafts, cached tokens.
VOLATILE = frozenset(
    {"id", "item_id", "call_id", "tool_call_id", "created", "created_at", "completed_at", "timings", "usage"}
)


def weather(city: str) -> str:
    return f"{city}: sunny"


def report(
    protocol: str, stream: bool, calls: Sequence[tuple[str, Any]], answer: str, *, text: str | None = None,
    thought: str | None = None,
) -> None:  # fmt: skip
    """text, thought: of the first turn, where the client has them."""
    said = {"protocol": protocol, "stream": stream, "thought": thought, "text": text, "calls": calls, "answer": answer}
    print(json.dumps(said), flush=True)


def report_versions(*packages: str) -> None:
    print(json.dumps({"versions": " ".join(f"{name} {version(name)}" for name in packages)}), flush=True)


def comparable(value: Any) -> Any:
    """A message without what differs between two answers to one request."""
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items() if key not in VOLATILE}
    return [comparable(item) for item in value] if isinstance(value, list) else value


def check_same(streamed: Any, whole: Any) -> None:
    """The SDK's accumulation of a stream is the document of the same request."""
    if comparable(streamed) != comparable(whole):
        sys.exit(f"the stream gave {comparable(streamed)}\nthe document     {comparable(whole)}")
