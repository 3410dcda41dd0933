"""Images on the command line."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import tiny_vl
from lucebox.cli import main

QUESTION = "What number is in the image?"


@pytest.fixture
def model(data: Path) -> str:
    return str(tiny_vl.MODEL)


@pytest.fixture
def image(data: Path) -> str:
    """An image of the number 941."""
    return str(data / "tiny-vl" / "images" / "02-number-96x64.png")


def test_run_with_an_image(model: str, image: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["-t", "0", "-c", "256", "--draft", "none", "-q"]
    assert main(["run", model, "--image", image, QUESTION, *flags]) == 0
    assert capsys.readouterr().out == "941\n"
    both = ["--image", image, "--image", image.replace("02-number-96x64", "05-word-160x160")]
    assert main(["run", model, *both, "What word is in the second image?", "--json", *flags]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["text"] == "APPLE" and answer["usage"]["prompt_tokens"] == 54


def test_the_model_of_the_demo(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    """tiny-hybrid is in the same folder and has the same width: the projector is not its own."""
    assert main(["run", "tiny-vl", "--image", image, QUESTION, "-t", "0", "-c", "256", "-q"]) == 0
    assert capsys.readouterr().out == "941\n"
    assert main(["inspect", "tiny-hybrid", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vision_tower"] is None


def test_chat_with_an_image(
    model: str, image: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = [f"/image {image}", QUESTION, "/regenerate", f"/save {tmp_path / 'saved.json'}", "/image missing.png"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    assert main(["chat", model, "-t", "0", "-c", "256", "--draft", "none"]) == 1
    out, notes = capsys.readouterr()
    assert out == "941\n941\n"
    assert f"{image} goes with the next message" in notes
    assert "a conversation with images cannot be saved" in notes
    assert "/image: the image 'missing.png' cannot be read: No such file or directory" in notes


def test_inspect_shows_the_tower(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", model]) == 0
    shown = capsys.readouterr().out
    assert "tiny-vl.mmproj.gguf, 6 layers of 192, " in shown and "image buffers" in shown
    assert main(["inspect", model, "--json", "--mmproj", "none"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["vision_tower"] is None
    assert "vision tower" not in [entry["name"] for entry in report["memory_plan"]["entries"]]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--image", "missing.png", "a"], "missing.png is not a file here"),
        (["--mmproj", "missing.gguf", "a"], "mmproj: 'missing.gguf' is not a file here"),
    ],
)
def test_files_that_are_missing(model: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", model, *flags]) != 0
    assert message in capsys.readouterr().err
