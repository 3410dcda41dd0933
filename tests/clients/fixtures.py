"""Shortens recorded requests to fixtures: `python tests/clients/fixtures.py RECORDED tests/serve/traffic`.

Everything the server reads stays: fields, types, roles, names, order, matching ids. Long texts are truncated, and data
of the machine or a person is replaced. A request keeps only what differs from the request before it.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

MAX_TEXT = 60  # characters of a text
MARKERS = re.compile(r"lucebox-(?:test-passed|client-ok|thought)|return a - b")  # the tests search for these
PATHS = re.compile(r"/(?:tmp|root|work|home|Users|private)\b[\w./~+-]*")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{64}")
PRIVATE = frozenset({"user_id", "client_metadata", "prompt_cache_key"})


def shortened(value: Any, key: str = "") -> Any:
    if key in PRIVATE:
        return {} if isinstance(value, dict) else "someone"
    if isinstance(value, dict):
        return {name: shortened(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [shortened(item) for item in value]
    if not isinstance(value, str):
        return value
    text = UUID.sub("00000000-0000-4000-8000-000000000000", PATHS.sub("/project", value))
    if (
        len(text) <= MAX_TEXT
        or key in ("arguments", "id", "call_id", "tool_use_id", "tool_call_id")
        or MARKERS.search(text)
    ):
        return text
    return text[:MAX_TEXT].rstrip() + " ..."


def difference(body: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """A request's body without what the one before has: equal fields, and equal items at the start of lists."""
    changed, kept = {}, {}
    for name, value in body.items():
        known = before.get(name)
        if isinstance(value, list) and isinstance(known, list):
            pairs = zip(value, known, strict=False)
            kept[name] = next((i for i, (new, old) in enumerate(pairs) if new != old), min(len(value), len(known)))
            value = value[kept[name] :]
        elif name in before and value == known:
            kept[name] = 0
            continue
        changed[name] = value
    return {"kept": kept, "body": changed}


def whole(difference: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """The body that difference() shortened."""
    kept, changed = difference["kept"], difference["body"]
    body = {name: before[name][:n] if name in changed else before[name] for name, n in kept.items()}
    return {**body, **{name: body.get(name, []) + value if name in kept else value for name, value in changed.items()}}


def main() -> None:
    recorded, fixtures = map(Path, sys.argv[1:])
    fixtures.mkdir(parents=True, exist_ok=True)
    for file in sorted(recorded.glob("*.json")):
        document = json.loads(file.read_text())
        posts = [request for request in document.pop("requests") if request["body"] is not None]
        bodies: list[dict[str, Any]] = [{}, *(shortened(request["body"]) for request in posts)]
        document["requests"] = [
            {"path": request["path"], "headers": request["headers"], **difference(body, before)}
            for request, before, body in zip(posts, bodies, bodies[1:], strict=False)
        ]
        (fixtures / file.name).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
