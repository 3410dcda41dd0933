"""The CPU kernels that the engine takes by itself are the fastest that the processor runs. A wheel of another compiler
could find fewer instruction sets and give the same numbers, slowly."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest
from lucebox import _engine

AVX2 = {"avx2", "fma", "f16c"}
AVX512 = AVX2 | {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512vbmi", "avx512_vnni"}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 has instruction sets to choose from")
def test_the_fastest_that_linux_reports() -> None:
    found = re.search(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    assert found is not None
    flags = set(found[1].split())
    assert _engine.best_isa() == ("avx512" if flags >= AVX512 else "avx2" if flags >= AVX2 else "portable")
