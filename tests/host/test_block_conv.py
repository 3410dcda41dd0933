"""DFlash 2's convolution over a block, against fp64."""

from __future__ import annotations

import numpy as np
import op_cases
import pytest
from lucebox.selftest import shapes


@pytest.mark.parametrize("adds", (False, True))
@pytest.mark.parametrize("shape", shapes.BLOCK_CONVS)
def test_block_conv(isa: str, shape: tuple[int, int, int, int], adds: bool) -> None:
    op_cases.block_conv(np.random.default_rng(shape), *shape, adds, isa=isa)
