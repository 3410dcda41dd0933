"""Embedding on a device."""

from __future__ import annotations

import numpy as np
import pytest
from lucebox import _engine
from lucebox.selftest import ops
from reference import linear as linear_reference


@pytest.mark.parametrize("dtype", linear_reference.PLAIN_TYPES + linear_reference.BLOCK_TYPES)
@pytest.mark.parametrize("blocks", [1, 3])
def test_embed(pack: _engine.gpu.Pack, dtype: str, blocks: int, seed: int) -> None:
    values = linear_reference.block_size(dtype)[0]
    dim = blocks * (values if values > 1 else 37)
    table = linear_reference.random_weights(dtype, 11 * dim, np.random.default_rng(seed))
    ids = np.array([10, 0, 3, 3], np.int32)
    got = ops.embed(table, dtype, dim, ids, pack=pack)
    assert np.array_equal(got, linear_reference.decode(table, dtype).reshape(11, dim)[ids])
    assert np.array_equal(got, ops.embed(table, dtype, dim, ids))


def test_embed_of_every_exponent(pack: _engine.gpu.Pack) -> None:
    """All scales of MXFP4, including the two subnormal ones and 2^127."""
    table = np.full((256, 17), 0x71, np.uint8)
    table[:, 0] = np.arange(256)
    ids = np.arange(256, dtype=np.int32)
    got = ops.embed(table.reshape(-1), "MXFP4", 32, ids, pack=pack)
    assert np.array_equal(got, ops.embed(table.reshape(-1), "MXFP4", 32, ids))
