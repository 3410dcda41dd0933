"""DFlash 2's convolution over a block, against fp64."""

from __future__ import annotations

import numpy as np
import pytest
from block_conv_data import SHAPES, block
from lucebox.selftest import ops
from reference import block_conv as reference
from tolerances import check


@pytest.mark.parametrize("adds", (False, True))
@pytest.mark.parametrize(("rows", "taps", "dim", "group"), SHAPES)
def test_block_conv(isa: str, rows: int, taps: int, dim: int, group: int, adds: bool) -> None:
    arguments, size = block(np.random.default_rng(dim), rows, taps, dim, group, adds)
    got = ops.block_conv(*arguments, isa=isa)
    check("linear", got, reference.block_conv(*arguments), size)
