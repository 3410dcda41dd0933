"""Decodes PNG, JPEG and WebP with Pillow. The size is read from the header, and checked, before anything is decoded."""

from __future__ import annotations

import io
import struct
import warnings
from typing import TYPE_CHECKING, Any

from lucebox.errors import InvalidRequestError, UnsupportedError
from lucebox.images.source import ImageSource

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["MAX_PIXELS", "decode"]

MAX_PIXELS = 40_000_000
"""Pixels of an image as it is sent: a screen of 8K has 33 million."""
_FORMATS = ("PNG", "JPEG", "WEBP")
_WEBP_HEAD = 30


def decode(source: ImageSource) -> Image:
    """The image in RGB, turned as its EXIF orientation says. Transparency is dropped, 16 bits become 8.

    Raises:
        InvalidRequestError: not an image of these formats, a damaged one, or one of too many pixels.
        UnsupportedError: Pillow is not installed.
    """
    pil = _pillow()
    where = source.where
    if (size := _webp_size(source.data)) is not None:  # Pillow's decoder allocates the canvas when it opens a file
        _check_size(size, where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pil.Image.DecompressionBombWarning)
            image = pil.Image.open(io.BytesIO(source.data), formats=_FORMATS)
            _check_size(image.size, where)
            image.load()
            turned = pil.ImageOps.exif_transpose(image)
            if turned.mode.startswith("I"):  # 16 bits of grey, which convert() would clip
                turned = turned.point(lambda value: value / 256).convert("L")
            result: Image = turned.convert("RGB")
            return result
    except InvalidRequestError:
        raise
    except (pil.Image.DecompressionBombError, pil.Image.DecompressionBombWarning):  # Pillow's own limit, of the header
        raise InvalidRequestError(
            f"{where}: the image has too many pixels; at most {MAX_PIXELS} pixels are decoded"
        ) from None
    except pil.UnidentifiedImageError:
        raise InvalidRequestError(f"{where}: not an image: expected a PNG, JPEG or WebP file") from None
    except Exception as error:  # Pillow raises many kinds for damaged files
        raise InvalidRequestError(
            f"{where}: the image is damaged: {str(error)[:200] or type(error).__name__}"
        ) from None


def _check_size(size: tuple[int, int], where: str) -> None:
    width, height = size
    if width < 1 or height < 1 or width * height > MAX_PIXELS:
        raise InvalidRequestError(
            f"{where}: the image has {width} x {height} pixels; at most {MAX_PIXELS} pixels are decoded"
        )


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """Width and height in the header of a WebP file; None: another file."""
    if len(data) < _WEBP_HEAD or data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        return None
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF


def _pillow() -> Any:
    try:
        import PIL
        import PIL.Image
        import PIL.ImageOps
    except ModuleNotFoundError as error:
        raise UnsupportedError("images need Pillow; run: pip install 'lucebox[vision]'") from error
    return PIL
