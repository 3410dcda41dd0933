"""The stand-in for NVML: one NVIDIA GPU whose power limit is a file (tests/standin/nvml.cpp)."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from lucebox.measure.power_limit import Named
from once import compile_library, once

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = "libnvidia-ml.so.1"
GPU = Named("cuda", "0000:0c:00.0")
HIGHEST_W, LOWEST_W = 400.0, 100.0


class StandinNvml:
    """Scripts the library, for this process and those it starts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made = once("nvml", _compile)
        self._limit = folder / "limit"
        self._limit.write_text("400000\n")
        monkeypatch.setenv("STANDIN_NVML", str(folder))
        monkeypatch.setenv("LD_LIBRARY_PATH", str(made))  # of the processes that this one starts
        ctypes.CDLL(str(made / LIBRARY))  # known by its soname from now on

    @property
    def limit_w(self) -> float:
        return int(self._limit.read_text()) / 1000

    def deny(self) -> None:
        """No user may set the limit."""
        self._limit.with_name("limit.denied").touch()


def _compile(folder: Path) -> None:
    folder.mkdir()
    compile_library(folder / LIBRARY, [ROOT / "tests/standin/nvml.cpp"], f"-Wl,-soname,{LIBRARY}")
