"""tiny-vl: real weights of a model that reads images, and its projector."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "models" / "tiny-hybrid" / "lucebox_tiny"
MODEL, MMPROJ = FOLDER / "tiny-vl.Q8_0.gguf", FOLDER / "tiny-vl.mmproj.gguf"
