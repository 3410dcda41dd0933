"""Weights that the tests keep compressed."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import pytest


def unpack(packed: Path, to: Path) -> None:
    with lzma.open(packed) as compressed, to.open("wb") as out:
        shutil.copyfileobj(compressed, out)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """tiny-hybrid, the bf16 weights as trained."""
    folder, source = tmp_path_factory.mktemp("tiny-hybrid"), data / "tiny-hybrid-hf"
    for file in source.glob("*.json"):
        shutil.copy(file, folder)
    unpack(source / "model.safetensors.xz", folder / "model.safetensors")
    return folder


@pytest.fixture(scope="session")
def mtp_head(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """The prediction block that was trained for it."""
    folder, source = tmp_path_factory.mktemp("tiny-hybrid-mtp"), data / "tiny-hybrid-hf"
    shutil.copy(source / "config.json", folder)
    unpack(source / "mtp.safetensors.xz", folder / "model.safetensors")
    return folder
