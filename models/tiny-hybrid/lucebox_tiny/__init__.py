"""The files of tiny-hybrid and tiny-vl. `lucebox` finds them by the catalog names; other programs ask for the paths."""

from __future__ import annotations

from pathlib import Path

__all__ = ["drafter_path", "path", "vl_path", "vl_projector_path"]


def path() -> Path:
    """tiny-hybrid, Q8_0 GGUF."""
    return Path(__file__).with_name("tiny-hybrid.Q8_0.gguf")


def drafter_path() -> Path:
    """The DFlash drafter of tiny-hybrid, BF16 GGUF."""
    return Path(__file__).with_name("tiny-hybrid-dflash.BF16.gguf")


def vl_path() -> Path:
    """tiny-vl, Q8_0 GGUF."""
    return Path(__file__).with_name("tiny-vl.Q8_0.gguf")


def vl_projector_path() -> Path:
    """The vision tower of tiny-vl, a multimodal projector, Q8_0 GGUF."""
    return Path(__file__).with_name("tiny-vl.mmproj.gguf")
