"""A gate: every kernel of every target's pack has a case in `lucebox selftest`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from kernel_sources import kernels_of_sources
from once import compile_library, once
from test_device import INCLUDES, ROOT, drivers, run  # noqa: F401 a fixture

KERNELS = """
#include "device/sim_abi.h"
constexpr lb_sim_kernel kKernels[] = {%s};
const lb_sim_kernel* lb_sim_kernels(int* count) {
  *count = sizeof kKernels / sizeof *kKernels;
  return kKernels;
}
int lb_sim_run(const lb_sim_launch*, char*, size_t) { return 0; }
"""


def compile_idle(out: Path, *more: str) -> None:
    """Every kernel of the sources, by names alone."""
    names = [name for kernels in kernels_of_sources().values() for name in kernels]
    source = out.with_suffix(".cpp")
    source.write_text(KERNELS % ", ".join(f'{{"{name}", 1024, 1, 0, 0}}' for name in (*names, *more)))
    compile_library(out, [source], *INCLUDES)


@pytest.mark.slow  # 20 s
def test_every_kernel_has_a_case(drivers: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """And one without a case is told."""
    extra = "kernel_without_a_case"
    library = once("idle_kernels.so", lambda out: compile_idle(out, extra))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / folder) for folder in ("ci", "tests")))
    untested = json.loads(run(drivers, ROOT / "tests/ci/idle_packs.py", library, extra))
    assert {"sm_75", "sm_80", "sm_90", "gfx1100", "sim"} <= untested.keys()
    assert untested == {name: [extra] for name in untested}, "add cases in python/lucebox/selftest"
