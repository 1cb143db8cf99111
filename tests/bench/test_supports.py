"""The benchmarks' supports have the requested density and kind, and as many blocks as formulas predict."""

from __future__ import annotations

import numpy as np
import pytest

from peelsum.bench.codec import SUPPORTS, Support, seen, tensor
from peelsum.codec import kernels

N = 1 << 20


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("density", [0.01, 0.2])
def test_formulas_foretell_blocks_that_hold_non_zeros(support: Support, density: float) -> None:
    counts = np.mean([kernels().occupied(tensor(support, N, density, seed)[1]) for seed in range(4)], axis=0)
    np.testing.assert_allclose(seen(support, N, density).occupied, counts, rtol=0.05)


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("elements", [1, 63, 65, 100_001])
def test_positions_are_the_non_zeros(support: Support, elements: int) -> None:
    values, positions = tensor(support, elements, 0.3, 1)
    assert values.shape == (elements,)
    np.testing.assert_array_equal(np.flatnonzero(values), positions)
    np.testing.assert_array_equal(values, tensor(support, elements, 0.3, 1)[0])


def test_rows_and_columns_are_what_they_are_called() -> None:
    _, rows = tensor("rows", N, 0.05, 2)
    assert set(np.bincount(rows // 64, minlength=1).tolist()) == {0, 64}
    _, columns = tensor("columns", N, 0.05, 2)
    assert np.count_nonzero(np.bincount(columns % 256, minlength=256)) == 128
