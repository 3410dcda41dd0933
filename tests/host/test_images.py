"""Files of images: sources, decoding, resizing; what is refused, and that nothing is decoded before."""

from __future__ import annotations

import base64
import io
import json
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lucebox.errors import FormatError, InvalidRequestError, UnsupportedError
from lucebox.images import ImageSource, Processor, image_of, image_of_url
from lucebox.images import decode as decoding
from lucebox.images.decode import decode
from lucebox.images.processor import smart_resize
from lucebox.images.source import MAX_BYTES
from PIL import Image

FORMATS = ("PNG", "JPEG", "WEBP")


def file_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def source(data: bytes) -> ImageSource:
    return ImageSource(data, "image")


def photo(height: int = 40, width: int = 50) -> Image.Image:
    y, x = np.indices((height, width))
    return Image.fromarray(np.stack([5 * y, 5 * x, 2 * (x + y)], -1).astype(np.uint8))


def test_sizes_are_those_of_transformers(data: Path) -> None:
    for case in json.loads((data / "tiny-vl" / "resize.json").read_text()):
        assert list(smart_resize(case["height"], case["width"], 32, 4096, 98304)) == case["to"], case


def test_a_side_is_at_most_200_times_the_other() -> None:
    assert smart_resize(20, 4000, 32, 4096, 1 << 22) == (32, 4000)
    with pytest.raises(InvalidRequestError, match=r"4001 x 20 pixels; a side is at most 200 times the other"):
        smart_resize(20, 4001, 32, 4096, 1 << 22)


@pytest.mark.parametrize("kind", FORMATS)
def test_formats(kind: str) -> None:
    decoded = decode(source(file_of(photo(), kind, **({"lossless": True} if kind == "WEBP" else {"quality": 95}))))
    difference = np.abs(np.asarray(decoded, int) - np.asarray(photo(), int))
    assert decoded.mode == "RGB" and difference.max() <= (12 if kind == "JPEG" else 0)


def test_grey_alpha_palette_cmyk_and_one_bit() -> None:
    grey = photo().convert("L")
    assert np.array_equal(decode(source(file_of(grey))), grey.convert("RGB"))
    alpha = photo().convert("RGBA")
    alpha.putalpha(0)
    assert np.array_equal(decode(source(file_of(alpha))), photo())  # as transformers: alpha is dropped
    palette = photo().quantize(16)
    assert np.array_equal(decode(source(file_of(palette))), palette.convert("RGB"))
    cmyk = decode(source(file_of(photo().convert("CMYK"), "JPEG", quality=95)))
    assert np.abs(np.asarray(cmyk, int) - np.asarray(photo(), int)).max() < 16
    bits = photo().convert("1")
    assert np.array_equal(decode(source(file_of(bits))), bits.convert("RGB"))


def test_sixteen_bits_of_grey_are_scaled() -> None:
    values = np.arange(0, 65536, 1024, dtype=np.uint16).reshape(8, 8)
    decoded = np.asarray(decode(source(file_of(Image.fromarray(values)))))
    assert np.array_equal(decoded, np.stack([values >> 8] * 3, -1))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_the_image(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = decode(source(file_of(photo(), "PNG", exif=exif)))
    pixels = np.asarray(photo())
    turns = {
        1: pixels, 2: pixels[:, ::-1], 3: pixels[::-1, ::-1], 4: pixels[::-1], 5: pixels.transpose(1, 0, 2),
        6: np.rot90(pixels, -1), 7: pixels[::-1, ::-1].transpose(1, 0, 2), 8: np.rot90(pixels),
    }  # fmt: skip
    assert np.array_equal(decoded, turns[orientation])


def test_pixels_of_a_fitting_image_are_unchanged() -> None:
    processor = Processor("qwen3_5", 32, 4096, 98304)
    image = photo(64, 96)
    assert np.array_equal(processor.pixels(source(file_of(image))), np.asarray(image))
    assert processor.pixels(source(file_of(photo(1, 1)))).shape == (64, 64, 3)
    assert processor.pixels(source(file_of(photo(20, 4000)))).shape == (32, 4416, 3)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def huge_png(side: int) -> bytes:
    """A PNG of a few hundred bytes whose pixels would fill gigabytes."""
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def huge_webp() -> bytes:
    canvas = (16382).to_bytes(3, "little") * 2
    body = b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + canvas + b"ANIM" + struct.pack("<IIH", 6, 0, 0)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def huge_jpeg() -> bytes:
    file = bytearray(file_of(photo(), "JPEG"))
    at = file.index(b"\xff\xc0")
    file[at + 5 : at + 9] = struct.pack(">HH", 60000, 60000)
    return bytes(file)


@pytest.mark.parametrize("file", [huge_png(20000), huge_jpeg(), huge_webp()], ids=FORMATS)
def test_too_many_pixels_are_refused_before_decoding(file: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("the image was decoded")

    monkeypatch.setattr(Image.Image, "load", fail)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", fail)
    with pytest.raises(InvalidRequestError, match=r"the image has (\d+ x \d+|too many) pixels; at most 40000000"):
        decode(source(file))


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_files_are_refused(kind: str) -> None:
    rng = np.random.default_rng(7)
    whole = file_of(photo(), kind)
    n_refused = 0
    for _ in range(300):
        file = bytearray(whole)
        for _ in range(rng.integers(1, 6)):
            file[rng.integers(len(file))] = rng.integers(256)
        if rng.random() < 0.3:
            del file[rng.integers(1, len(file)) :]
        try:
            decoded = decode(source(bytes(file)))
            assert decoded.mode == "RGB" and decoded.width * decoded.height <= decoding.MAX_PIXELS
        except InvalidRequestError as error:
            assert str(error).startswith("image: ")
            n_refused += 1
    assert n_refused > 30


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"hello", "expected a PNG, JPEG or WebP file"),
        (file_of(photo(), "GIF"), "expected a PNG, JPEG or WebP file"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "expected a PNG, JPEG or WebP file"),
        (file_of(photo())[:60], "the image is damaged"),
    ],
)
def test_other_files_are_refused(file: bytes, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        decode(source(file))


def test_sources(tmp_path: Path) -> None:
    file = file_of(photo())
    path = tmp_path / "photo.png"
    path.write_bytes(file)
    url = f"data:image/png;base64,{base64.b64encode(file).decode()}"
    for value in (path, str(path), file, bytearray(file), url):
        assert image_of(value, "x").data == file
    assert np.array_equal(decode(image_of(photo(), "x")), photo())
    assert source(file).marker == source(file).marker != source(file + b"x").marker


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "x: the image is int, expected a path"),
        ("no-such-file.png", "x: the image 'no-such-file.png' cannot be read: No such file"),
        (".", "x: the image '.' cannot be read"),
        (b"", "x: the image has no bytes"),
        (bytes(MAX_BYTES + 1), f"more than {MAX_BYTES}; send a smaller file"),
        ("https://example.org/a.png", r"x: images are not fetched from URLs, and 'https://example.org/a.png'"),
    ],
)
def test_sources_that_are_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        image_of(value, "x")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://localhost/x", "not a data URL"),
        ("file:///etc/passwd", "not a data URL"),
        ("/etc/passwd", "not a data URL"),
        ("data:image/png,abc", "must have the form data:image/png;base64"),
        ("data:image/png;base64,a?b", "the base64 of the image is damaged"),
        ("data:image/png;base64,", "the image has no bytes"),
        (f"data:image/png;base64,{'A' * (MAX_BYTES * 4 // 3 + 8)}", f"more than {MAX_BYTES} bytes"),
    ],
)
def test_urls_that_are_refused(url: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        image_of_url(url, "x")


def test_without_pillow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UnsupportedError, match=r"images need Pillow; run: pip install 'lucebox\[vision\]'"):
        decode(source(b"x"))


def test_the_processor_reads_the_models_limits(tmp_path: Path) -> None:
    assert Processor.read(tmp_path, "qwen3_5", 32, 4096) == Processor("qwen3_5", 32, 4096, 4096 * 1024)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({"size": {"shortest_edge": 65536, "longest_edge": 16777216}}))
    assert Processor.read(tmp_path, "qwen3_5", 32, 4096) == Processor("qwen3_5", 32, 65536, 4096 * 1024)
    file.write_text(json.dumps({"min_pixels": 3136, "max_pixels": 200704, "image_mean": [0.5, 0.5, 0.5]}))
    assert Processor.read(tmp_path, "qwen3_5", 32, 4096) == Processor("qwen3_5", 32, 3136, 200704)
    for wrong in ({"image_mean": [0.48, 0.46, 0.41]}, {"max_pixels": "many"}):
        file.write_text(json.dumps(wrong))
        with pytest.raises(FormatError, match=r"preprocessor_config\.json: "):
            Processor.read(tmp_path, "qwen3_5", 32, 4096)
