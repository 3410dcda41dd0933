"""`ImageSource`: the file of an image, from bytes, base64, a data URL, a path or a Pillow image."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import os
import re
import secrets
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lucebox.errors import FormatError, InvalidRequestError
from lucebox.regular_files import read_regular

__all__ = ["MARKER", "MAX_BYTES", "MAX_IMAGES", "ImageSource", "image_of", "image_of_base64", "image_of_url"]

MAX_IMAGES = 64
"""A conversation with more images is refused."""
MAX_BYTES = 32 << 20
"""A larger file is refused, before it is decoded."""

MARKER = re.compile(r"\[image:[0-9a-f]{32}\]")
_SECRET = secrets.token_bytes(32)  # so that no text can spell a marker


@dataclass(frozen=True)
class ImageSource:
    data: bytes
    """A PNG, JPEG or WebP file."""
    where: str
    """Names the image in errors: "messages[0].content[1]"."""
    placeholder: str = ""
    """What a model without a vision tower reads instead; empty: it refuses the image."""

    def __post_init__(self) -> None:
        if not self.data:
            raise InvalidRequestError(f"{self.where}: the image has no bytes")
        if len(self.data) > MAX_BYTES:
            raise InvalidRequestError(
                f"{self.where}: the image has {len(self.data)} bytes, more than {MAX_BYTES}; send a smaller file"
            )

    @cached_property
    def key(self) -> str:
        """Names the image: equal files have equal keys."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def marker(self) -> str:
        """Stands for the image in the text of its message until the prompt is tokenized."""
        return f"[image:{hashlib.sha256(_SECRET + self.key.encode()).hexdigest()[:32]}]"


def image_of(value: Any, where: str) -> ImageSource:
    """An image from a path, the bytes of a file, or a Pillow image. A text that begins with "data:" is a data URL.

    Raises:
        InvalidRequestError: none of these, or the file cannot be read or is too large.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return ImageSource(bytes(value), where)
    if isinstance(value, str) and value.startswith(("data:", "http://", "https://")):
        return image_of_url(value, where)
    if isinstance(value, str | os.PathLike):
        try:
            data = read_regular(Path(value).expanduser(), MAX_BYTES)
        except (OSError, ValueError, RuntimeError, FormatError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidRequestError(f"{where}: the image {os.fspath(value)!r} cannot be read: {reason}") from error
        return ImageSource(data, where)
    if hasattr(value, "save") and hasattr(value, "convert"):
        file = io.BytesIO()
        value.convert("RGB").save(file, "PNG", compress_level=1)
        return ImageSource(file.getvalue(), where)
    raise InvalidRequestError(
        f"{where}: the image is {type(value).__name__}, expected a path, the bytes of a file, a data URL or a Pillow "
        "image"
    )


def image_of_url(url: str, where: str, placeholder: str = "") -> ImageSource:
    """An image from a data URL with base64.

    Raises:
        InvalidRequestError: another URL: nothing is fetched; or the base64 is damaged or too long.
    """
    if not url.startswith("data:"):
        shown = url[:40] + "..." * (len(url) > 40)
        raise InvalidRequestError(
            f"{where}: images are not fetched from URLs, and {shown!r} is not a data URL; send the image itself as "
            "data:image/png;base64,..."
        )
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise InvalidRequestError(f"{where}: the data URL must have the form data:image/png;base64,...")
    return image_of_base64(data, where, placeholder)


def image_of_base64(data: str, where: str, placeholder: str = "") -> ImageSource:
    """An image from base64.

    Raises:
        InvalidRequestError: the base64 is damaged or too long.
    """
    if len(data) > MAX_BYTES * 4 // 3 + 4:
        raise InvalidRequestError(f"{where}: the image has more than {MAX_BYTES} bytes; send a smaller file")
    try:
        return ImageSource(base64.b64decode(data, validate=True), where, placeholder)
    except (binascii.Error, ValueError) as error:
        if isinstance(error, InvalidRequestError):
            raise
        raise InvalidRequestError(f"{where}: the base64 of the image is damaged: {error}") from None
