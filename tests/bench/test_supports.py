"""The benchmarks' supports: their density and kind, as many blocks as formulas predict, what is recovered."""

import numpy as np
import pytest

from benchmarks.experiments import recovery
from peelsum.bench.codec.timing import SUPPORTS, expected_statistics, tensor
from peelsum.codec import occupied

N = 1 << 20


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("density", [0.01, 0.2])
def test_formulas_foretell_blocks_that_hold_non_zeros(support, density):
    tensors = [tensor(support, N, density, seed)[0] for seed in range(4)]
    counts = np.mean([occupied((values != 0).astype(np.int32)) for values in tensors], axis=0)
    np.testing.assert_allclose(expected_statistics(support, N, density).occupied, counts, rtol=0.05)


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("elements", [1, 63, 65, 100_001])
def test_positions_are_the_non_zeros(support, elements):
    values, positions = tensor(support, elements, 0.3, 1)
    assert values.shape == (elements,)
    np.testing.assert_array_equal(np.flatnonzero(values), positions)
    np.testing.assert_array_equal(values, tensor(support, elements, 0.3, 1)[0])


def test_rows_and_columns_are_what_they_are_called():
    _, rows = tensor("rows", N, 0.05, 2)
    assert set(np.bincount(rows // 64, minlength=1).tolist()) == {0, 64}
    _, columns = tensor("columns", N, 0.05, 2)
    assert np.count_nonzero(np.bincount(columns % 256, minlength=256)) == 128


def test_recovery_of_tight_and_of_roomy_sketches(monkeypatch):
    monkeypatch.setattr(recovery, "ELEMENTS", 1 << 19)
    for support in SUPPORTS:
        tight, roomy = (recovery.measure(0, "table", support, 64, cells, 1) for cells in (1.0, 4.0))
        assert tight["ours"] > 0.1
        assert roomy["ours"] == 0
