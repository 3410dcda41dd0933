"""Pins of the oldest versions that pyproject.toml allows."""

from __future__ import annotations

import re

import pytest
import test_oldest
from project import ROOT

PROJECT = """
[project]
dependencies = ["numpy>=1.24", "huggingface_hub>=0.30"]
optional-dependencies.serve = ["uvloop>=0.19; sys_platform != 'win32'"]
"""


def test_pins_are_the_lower_bounds() -> None:
    assert test_oldest.oldest(PROJECT) == ["numpy==1.24", "huggingface_hub==0.30", "uvloop==0.19"]
    ours = test_oldest.oldest((ROOT / "pyproject.toml").read_text())
    assert len(ours) > 10 and all(re.fullmatch(r"[\w-]+==[\d.]+", pin) for pin in ours)


@pytest.mark.parametrize("requirement", ["numpy", "numpy<3", "numpy==1.24"])
def test_a_requirement_without_a_bound_is_an_error(requirement: str) -> None:
    with pytest.raises(ValueError, match=f"'{requirement}' has no lower bound"):
        test_oldest.oldest(PROJECT.replace("numpy>=1.24", requirement))
