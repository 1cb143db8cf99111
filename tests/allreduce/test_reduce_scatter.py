"""Each worker's piece of a sum has the bits of an all-reduce of the pieces."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from peelsum.allreduce import Allreduce, InvalidRequestError, LocalSummation, reduce_scatter


def drawn(workers, size, seed):
    """Draw tensors of many magnitudes, with a piece of zeros, and one that is not finite on worker 0."""
    numbers = np.random.default_rng(seed)
    each = numbers.standard_normal((workers, workers * size)) * np.exp(
        4 * numbers.standard_normal(workers * size)
    )
    tensors = each.astype(np.float32)
    if workers > 2:
        tensors[:, size : 2 * size] = 0
        tensors[0, 2 * size] = np.inf
    return list(tensors)


@pytest.mark.covering(2)
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [1, 31, 32, 33, 1000, 70_001])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("implementation", ["cpu", "reference"])
def test_a_piece_has_the_bits_of_an_allreduce(workers, size, average, implementation):
    tensors = drawn(workers, size, workers + size)

    def work(summation):
        mine = summation.worker_id
        given = tensors[mine].copy()
        piece = reduce_scatter(summation, given, average=average, implementation=implementation)
        np.testing.assert_array_equal(given.view(np.uint32), tensors[mine].view(np.uint32))
        step = Allreduce(summation, forms="dense", average=average).sum(np.split(tensors[mine], workers))
        return piece, list(step.values())[mine].values

    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(work, LocalSummation.group(workers)))
    for mine, (piece, expected) in enumerate(found):
        assert piece.shape == (size,)
        if workers > 2 and mine == 2:
            assert np.isnan(piece).all()
        np.testing.assert_array_equal(np.isnan(piece), np.isnan(expected))
        finite = ~np.isnan(piece)
        np.testing.assert_array_equal(piece[finite].view(np.uint32), expected[finite].view(np.uint32))
        exact = np.sum([one[mine * size :][:size] for one in tensors], axis=0, dtype=np.float64)
        exact /= workers if average else 1
        largest = max(np.abs(one[mine * size :][:size]).max(initial=0) for one in tensors)
        if np.isfinite(largest):
            np.testing.assert_allclose(piece, exact, rtol=1e-6, atol=float(largest) * workers * 2.0**-27)


@pytest.mark.parametrize(
    "values", [np.zeros(3, np.float32), np.zeros(4, np.float64), np.zeros((2, 2), np.float32)], ids=str
)
def test_what_has_no_pieces_is_refused(values):
    with pytest.raises(InvalidRequestError, match="values: "):
        reduce_scatter(LocalSummation.group(2)[0], values)


def test_nothing_is_sent_of_nothing():
    assert reduce_scatter(LocalSummation.group(2)[0], np.zeros(0, np.float32)).size == 0
