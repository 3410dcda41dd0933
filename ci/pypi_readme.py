"""Makes the long description of the wheel and the sdist from README.md. PyPI hosts only the page, so relative links
become absolute: they point into the repository in [project.urls], at the version's tag. Without a repository, links are
reduced to their text and pictures are dropped.

A provider of scikit-build-core's dynamic metadata: it runs in every build of the host, and imports nothing of ci/."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^][]*)\]\(([^()\s]+)\)")
ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
REPOSITORY = "Source"  # the name in [project.urls]


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """The `readme` field of [project]; called in the project's folder."""
    text = Path("README.md").read_text(encoding="utf-8")
    described = long_description(text, project.get("urls", {}).get(REPOSITORY), f"v{project['version']}")
    return {"readme": {"content-type": "text/markdown", "text": described}}


def long_description(text: str, repository: str | None, tag: str) -> str:
    """The page with absolute links, or with none. Fenced code stays unchanged."""

    def absolute(found: re.Match[str]) -> str:
        mark, words, target = found.groups()
        if ABSOLUTE.match(target):
            return found[0]
        if repository is None:
            return "" if mark else words
        path = f"README.md{target}" if target.startswith("#") else target
        kind = "raw" if mark else "blob"
        return f"{mark}[{words}]({repository.rstrip('/')}/{kind}/{tag}/{path})"

    made, end = "", 0
    for fence in FENCE.finditer(text):
        made += LINK.sub(absolute, text[end : fence.start()]) + fence[0]
        end = fence.end()
    made += LINK.sub(absolute, text[end:])
    return re.sub(r"\n{3,}", "\n\n", made)
