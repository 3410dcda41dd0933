"""Shortens recorded requests to fixtures: `python tests/clients/fixtures.py RECORDED tests/serve/traffic`.

Everything the server reads stays: fields, types, roles, names, order, matching ids. Long texts are truncated, and data
of the machine or a person is replaced.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

MAX_TEXT = 60  # characters of a text
MARKERS = re.compile(r"lucebox-(?:tool-ran|client-ok)")  # the tests search for these
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


def main() -> None:
    recorded, fixtures = map(Path, sys.argv[1:])
    fixtures.mkdir(parents=True, exist_ok=True)
    for file in sorted(recorded.glob("*.json")):
        document = json.loads(file.read_text())
        posts = [request for request in document.pop("requests") if request["body"] is not None]
        document["requests"] = [{**request, "body": shortened(request["body"])} for request in posts]
        (fixtures / file.name).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
