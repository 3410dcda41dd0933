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

__all__ = ["Processor", "smart_resize"]

CONFIG = "preprocessor_config.json"
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


@dataclass(frozen=True, slots=True)
class Processor:
    unit: int
    """Sides are multiples of this: a row of the tower covers unit x unit pixels."""
    min_pixels: int
    max_pixels: int

    @classmethod
    def read(cls, folder: Path, unit: int, max_rows: int) -> Processor:
        """The processor of the model in a folder, by its preprocessor_config.json if there is one. max_rows: of the
        tower.

        Raises:
            FormatError: the file is malformed, or has another normalisation.
        """
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
        return cls(unit, min(limits.get("min") or MIN_PIXELS, most), min(limits.get("max") or most, most))

    def pixels(self, source: ImageSource) -> NDArray[np.uint8]:
        """[height, width, 3] the image, resized.

        Raises:
            InvalidRequestError, UnsupportedError: as `decode`, or one side is more than 200 times the other.
        """
        image = decode(source)
        try:
            height, width = smart_resize(image.height, image.width, self.unit, self.min_pixels, self.max_pixels)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{source.where}: {error}") from None
        if (width, height) != image.size:
            from PIL.Image import Resampling

            image = image.resize((width, height), Resampling.BICUBIC)
        return np.ascontiguousarray(np.asarray(image, np.uint8))
