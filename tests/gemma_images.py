"""The golden files of Gemma 4 with images, and an engine for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lucebox import _engine
from numpy.typing import NDArray

PAD = 130
F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Golden:
    folder: Path
    ids: NDArray[np.int32]  # with PAD for each row of an image
    logits: F32
    pixels: list[NDArray[np.uint8]]
    features: list[F32]

    def encoded(self, engine: _engine.Engine) -> list[_engine.EncodedImage]:
        return [engine.encode_image(f"image {i}", rgb) for i, rgb in enumerate(self.pixels)]

    def ids_with(self, images: list[_engine.EncodedImage]) -> NDArray[np.int32]:
        result = self.ids.copy()
        result[result == PAD] = np.concatenate([image.ids for image in images])
        return result

    def text_ends(self) -> list[int]:
        """Lengths of prompts that end with text, a few of them."""
        ends = [i + 1 for i in range(len(self.ids)) if self.ids[i] != PAD]
        return [*ends[::4], len(self.ids)]


def golden_of(data: Path, name: str) -> Golden:
    arrays = np.load(data / "tiny" / f"{name}.npz")
    n = sum(key.startswith("rgb") for key in arrays.files)
    return Golden(
        data / "tiny" / name,
        arrays["ids"],
        arrays["logits"],
        [arrays[f"rgb{i}"] for i in range(n)],
        [arrays[f"features{i}"] for i in range(n)],
    )


def open_gemma(model: Path, mmproj: str | None = None, **options: Any) -> _engine.Engine:
    defaults = {"context": 256, "threads": 1, "activations": "f32", "kv": "f32", "prefill_chunk": 128, "sessions": 4}
    return _engine.Engine.open(str(model), mmproj=mmproj or str(model), **(defaults | options))
