"""Replicas of `lucebox serve` under Ray Serve; needs `pip install 'lucebox[ray]'`.

serve.run(lucebox.ray.app({"models": {"coder": {"model": "qwen3.5-27b"}}, "ray": {"max_replicas": 4}}))
"""

from __future__ import annotations

import sys
from typing import Any

from lucebox.errors import UnsupportedError
from lucebox.ray.settings import RaySettings

__all__ = ["RaySettings", "app"]

NEWEST_PYTHON = (3, 14)
"""The newest Python for which the pinned Ray has wheels."""


def __getattr__(name: str) -> Any:
    """Imports app on first use, so that RaySettings needs no Ray.

    Raises:
        UnsupportedError: Ray is not installed.
    """
    if name == "app":
        try:
            from lucebox.ray.application import app
        except ModuleNotFoundError as error:
            raise missing(error) from error
        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def missing(error: ModuleNotFoundError) -> UnsupportedError:
    """The error that says how to install a missing library."""
    if (error.name or "").startswith("lucebox"):
        raise error
    if sys.version_info[:2] > NEWEST_PYTHON:
        running, newest = (".".join(map(str, version)) for version in (sys.version_info[:2], NEWEST_PYTHON))
        return UnsupportedError(f"Ray has no wheel for Python {running}; use Python {newest} or older")
    return UnsupportedError(f"{error.name} is not installed; run: pip install 'lucebox[ray]'")
