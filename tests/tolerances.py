"""Reads tolerances.toml, the only place a tolerance may be written."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TABLE = tomllib.loads((Path(__file__).parent / "tolerances.toml").read_text())


def tolerance(section: str, name: str) -> float:
    """One value; a name that is not there is a KeyError."""
    return float(_TABLE[section][name])
