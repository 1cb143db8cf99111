"""Where results are written; `test_random_jobs` compares their bits, signs of zeros included."""

import numpy as np
import pytest

from peelsum.allreduce import InvalidRequestError


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ({"h": np.zeros(6, np.float32)}, "out: 'h' is not a tensor; leave it out"),
        ({"g": np.zeros(7, np.float32)}, r"out: 'g' cannot take the sum; .* of shape \(6,\)"),
        ({"g": np.zeros((6, 1), np.float32)}, r"out: 'g' cannot take the sum; .* of shape \(6,\)"),
        ({"g": np.zeros(6)}, "out: 'g' cannot take the sum; pass a writable float32 array in C order"),
        ({"g": np.zeros(12, np.float32)[::2]}, "out: 'g' cannot take the sum"),
        ({"g": np.broadcast_to(np.float32(0), 6)}, "out: 'g' cannot take the sum"),
        ({"g": [0.0] * 6}, "out: 'g' cannot take the sum"),
    ],
)
def test_an_array_that_cannot_take_the_sum_is_refused(make_workers, out, message):
    with pytest.raises(InvalidRequestError, match=message):
        make_workers(1).each(lambda w, reduce: reduce.sum({"g": np.ones(6, np.float32)}, out=out))


Places = dict[str, tuple[int, int, int]]
APART = {"g": (0, 6, 1), "h": (6, 12, 1)}


@pytest.mark.parametrize(
    ("tensors", "out", "pair"),
    [
        (APART, {"g": (12, 18, 1), "h": (12, 18, 1)}, "'g' shares memory with 'h'"),
        (APART, {"g": (12, 18, 1), "h": (17, 23, 1)}, "'g' shares memory with 'h'"),
        (APART, {"g": (6, 12, 1)}, "'g' shares memory with 'h'"),
        (APART, {"h": (5, 11, 1), "g": (12, 18, 1)}, "'h' shares memory with 'g'"),
        ({"g": (0, 6, 1), "h": (20, 24, 1)}, {"g": (5, 11, 1)}, "'g' shares memory with 'g'"),
        ({"g": (12, 18, 1), "h": (0, 24, 4)}, {"g": (18, 24, 1)}, "'g' shares memory with 'h'"),
    ],
)
def test_arrays_that_share_memory_are_refused_and_nothing_is_lost(make_workers, tensors, out, pair):
    """Places are slices of one array: first, behind the last, step."""
    workers, memory = make_workers(1), np.arange(24, dtype=np.float32)
    given, into = (
        {name: memory[slice(*place)] for name, place in places.items()} for places in (tensors, out)
    )
    with pytest.raises(InvalidRequestError, match=f"out: {pair}; pass an array of its own"):
        workers.each(lambda w, reduce: reduce.sum(given, out=into))
    assert memory.tolist() == list(range(24))
    (result,) = workers.each(lambda w, reduce: reduce.sum(given))
    assert all(np.array_equal(result[name].values, tensor) for name, tensor in given.items())


def test_neighbours_in_one_array_do_not_share_memory(make_workers):
    memory = np.arange(24, dtype=np.float32)
    g, h, i = memory[:6], memory[6:12], memory[12:18]
    empty = memory[3:3]
    (result,) = make_workers(1).each(
        lambda w, reduce: reduce.sum({"g": g, "h": h, "none": empty}, out={"g": g, "h": i, "none": empty})
    )
    assert np.shares_memory(result["g"].values, g)
    assert memory.tolist() == [*range(12), *range(6, 12), *range(18, 24)]
