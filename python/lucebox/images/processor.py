"""The pixels that a vision tower reads: an image resized as the model's processor does it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucebox.errors import FormatError, InvalidRequestError
from lucebox.images.decode import decode
from lucebox.images.source import ImageSource
from lucebox.local_files import json_object, read_text

__all__ = ["Processor", "gemma_resize", "smart_resize"]

CONFIG = "preprocessor_config.json"
JOINT_CONFIG = "processor_config.json"  # which may have the image processor's fields under this key:
IMAGE_PROCESSOR = "image_processor"
GEMMA_ROWS = 280  # of an image, by default
MAX_RATIO = 200  # of the sides
MIN_PIXELS = 4096
_HALF = [0.5, 0.5, 0.5]


def smart_resize(height: int, width: int, unit: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Height and width after resizing: multiples of `unit`, with nearly the same ratio, and pixels in this range.

    Raises:
        InvalidRequestError: one side is more than 200 times the other.
    """
    if max(height, width) > MAX_RATIO * min(height, width):
        raise InvalidRequestError(
            f"the image has {width} x {height} pixels; a side is at most {MAX_RATIO} times the other"
        )
    high, wide = round(height / unit) * unit, round(width / unit) * unit
    if high * wide > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        high = max(unit, math.floor(height / shrink / unit) * unit)
        wide = max(unit, math.floor(width / shrink / unit) * unit)
    elif high * wide < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        high, wide = math.ceil(height * grow / unit) * unit, math.ceil(width * grow / unit) * unit
    return high, wide


def gemma_resize(height: int, width: int, unit: int, max_rows: int) -> tuple[int, int]:
    """Height and width after resizing for Gemma 4: the largest multiples of `unit` of nearly the same ratio whose
    squares of unit x unit pixels are at most max_rows."""
    factor = math.sqrt(max_rows * unit * unit / (height * width))
    high, wide = (math.floor(factor * side / unit) * unit for side in (height, width))
    if high == 0:
        return unit, min(width // height, max_rows) * unit
    if wide == 0:
        return min(height // width, max_rows) * unit, unit
    return high, wide


@dataclass(frozen=True, slots=True)
class Processor:
    kind: str
    """The family of the tower: "qwen3_5" or "gemma4"."""
    unit: int
    """Sides are multiples of this: a row of the tower covers unit x unit pixels."""
    min_pixels: int
    max_pixels: int

    @classmethod
    def read(cls, folder: Path, kind: str, unit: int, max_rows: int) -> Processor:
        """The processor of the model in a folder, by its preprocessor_config.json or, of Gemma 4, processor_config.json
        if there is one. max_rows: of the tower.

        Raises:
            FormatError: the file is malformed, or has another normalisation.
        """
        if kind == "gemma4":
            most = _gemma_rows(folder, max_rows) * unit * unit
            return cls(kind, unit, most, most)
        file = folder / CONFIG
        limits: dict[str, Any] = {}
        if file.is_file():
            config = json_object(read_text(str(file)), str(file))
            for name in ("image_mean", "image_std"):
                if config.get(name, _HALF) != _HALF:
                    raise FormatError(f"{file}: {name} is {config[name]}, expected {_HALF}")
            size = config.get("size")
            limits = {"min": config.get("min_pixels"), "max": config.get("max_pixels")}
            if isinstance(size, dict):
                limits = {"min": size.get("shortest_edge"), "max": size.get("longest_edge")}
            for name, value in limits.items():
                if value is not None and (not isinstance(value, int) or value < 1):
                    raise FormatError(f"{file}: the {name} pixels are {value!r}, expected a positive number")
        most = max_rows * unit * unit
        return cls(kind, unit, min(limits.get("min") or MIN_PIXELS, most), min(limits.get("max") or most, most))

    def pixels(self, source: ImageSource) -> NDArray[np.uint8]:
        """[height, width, 3] the image, resized.

        Raises:
            InvalidRequestError, UnsupportedError: as `decode`, or one side is more than 200 times the other.
        """
        image = decode(source)
        try:
            height, width = self._size(image.height, image.width)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{source.where}: {error}") from None
        if (width, height) != image.size:
            from PIL.Image import Resampling

            image = image.resize((width, height), Resampling.BICUBIC)
        return np.ascontiguousarray(np.asarray(image, np.uint8))

    def _size(self, height: int, width: int) -> tuple[int, int]:
        if self.kind == "gemma4":
            return gemma_resize(height, width, self.unit, self.max_pixels // self.unit**2)
        return smart_resize(height, width, self.unit, self.min_pixels, self.max_pixels)


def _gemma_rows(folder: Path, max_rows: int) -> int:
    """Rows of an image of Gemma 4 at most: max_soft_tokens of the processor's file, or the maker's default."""
    for name in (CONFIG, JOINT_CONFIG):
        file = folder / name
        if not file.is_file():
            continue
        config = json_object(read_text(str(file)), str(file))
        nested = config.get(IMAGE_PROCESSOR, {})
        value = config.get("max_soft_tokens", nested.get("max_soft_tokens") if isinstance(nested, dict) else None)
        if value is None:
            continue
        if not isinstance(value, int) or not 1 <= value <= max_rows:
            raise FormatError(f"{file}: max_soft_tokens is {value!r}, expected a number from 1 to {max_rows}")
        return value
    return GEMMA_ROWS
