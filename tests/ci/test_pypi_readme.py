"""The long description on PyPI: no link of it leads nowhere, whether the repository's address is known or not."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any

import pytest
from project import ROOT
from pypi_readme import ABSOLUTE, FENCE, LINK, dynamic_metadata, long_description

README = (ROOT / "README.md").read_text()
REPOSITORY = "https://example.org/owner/name"


def relative(text: str) -> list[str]:
    """The targets that are meant for files or headings beside the page."""
    return [found[3] for found in LINK.finditer(FENCE.sub("", text)) if not ABSOLUTE.match(found[3])]


def test_the_page_has_links_to_change() -> None:
    assert len(relative(README)) > 10 and "docs/images/serve-1024.png" in relative(README)


def test_every_link_leads_to_a_file_at_the_tag() -> None:
    text = long_description(README, REPOSITORY, "v0.1.0")
    assert relative(text) == []
    paths = re.findall(rf"{REPOSITORY}/(?:blob|raw)/v0\.1\.0/([^)#]+)", text)
    assert len(paths) == len(relative(README)) and all((ROOT / path).exists() for path in paths)
    assert f"]({REPOSITORY}/raw/v0.1.0/docs/images/serve-1024.png)" in text
    assert f"[what runs where]({REPOSITORY}/blob/v0.1.0/README.md#what-runs-where)" in text


def test_without_an_address_the_words_stay() -> None:
    text = long_description(README, None, "v0.1.0")
    assert relative(text) == [] and "serve-1024.png" not in text and "on the CPU (what runs where)." in text
    assert LINK.sub(lambda found: "" if found[1] else found[2], FENCE.sub("", README)).split() == (
        FENCE.sub("", text).split()
    )


@pytest.mark.parametrize("repository", [None, REPOSITORY])
def test_code_and_absolute_links_stay(repository: str | None) -> None:
    text = "[a](https://example.org/a)\n\n```python\nx[0](y)\n```\n\n<mailto:a@example.org>\n"
    assert long_description(text, repository, "v1") == text


def test_a_link_over_two_lines() -> None:
    assert long_description("See [the\npage](docs/a.md#b).", REPOSITORY, "v1") == (
        f"See [the\npage]({REPOSITORY}/blob/v1/docs/a.md#b)."
    )


def test_the_build_takes_the_address_of_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    project: dict[str, Any] = {"version": "7.8.9", "urls": {"Source": f"{REPOSITORY}/"}}
    made = dynamic_metadata({}, project)["readme"]
    assert made["content-type"] == "text/markdown" and f"{REPOSITORY}/blob/v7.8.9/docs/doctor.md" in made["text"]


def test_the_installed_wheel_has_it() -> None:
    described = metadata.metadata("lucebox")
    text = described.get_payload()
    assert isinstance(text, str) and described["Description-Content-Type"] == "text/markdown"
    assert "## What runs where" in text and relative(text) == []
