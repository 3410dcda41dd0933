"""The files of tiny-hybrid. `lucebox` finds them by the catalog name; other programs can ask for the paths."""

from __future__ import annotations

from pathlib import Path

__all__ = ["drafter_path", "path"]


def path() -> Path:
    """The model, Q8_0 GGUF."""
    return Path(__file__).with_name("tiny-hybrid.Q8_0.gguf")


def drafter_path() -> Path:
    """Its DFlash drafter, BF16 GGUF."""
    return Path(__file__).with_name("tiny-hybrid-dflash.BF16.gguf")
