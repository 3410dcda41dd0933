"""DFlash 2's selector, against fp64 from the decoded tables."""

from __future__ import annotations

import numpy as np
import op_cases
import pytest
from lucebox.selftest import shapes


@pytest.mark.parametrize("dtype", ("F32", "F16", "BF16", "Q8_0", "Q4_K"))
@pytest.mark.parametrize("shape", shapes.SELECTIONS)
def test_select_candidates(isa: str, dtype: str, shape: tuple[int, int, int]) -> None:
    op_cases.select_candidates(np.random.default_rng(shape), dtype, *shape, isa=isa)


def test_equal_scores_stay_in_order(isa: str) -> None:
    op_cases.equal_scores_stay_in_order(isa=isa)
