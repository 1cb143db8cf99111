"""Memory that an array leaves is used again, and never while anything refers to it."""

import gc
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from peelsum import buffers
from peelsum.allreduce import Allreduce, LocalSummation

COUNT = 2**17


def address(array) -> int:
    return array.ctypes.data


@pytest.fixture(autouse=True)
def none_kept(monkeypatch):
    monkeypatch.setattr(buffers, "_free", {})


def test_a_new_array_takes_the_pages_of_one_that_nothing_refers_to():
    array = buffers.empty(COUNT, np.uint32)
    before = address(array)
    del array
    assert address(buffers.empty(COUNT - 5, np.int32)) == before


@pytest.mark.parametrize(
    "part",
    [
        lambda array: array,
        lambda array: array[7:9],
        lambda array: array.reshape(2, -1)[1],
        lambda array: array[1:].view(np.int32)[5:],
        lambda array: memoryview(array),
    ],
    ids=["itself", "slice", "row", "view", "buffer"],
)
def test_pages_are_not_used_again_while_a_part_of_the_array_lives(part):
    array = buffers.empty(COUNT, np.uint32)
    array[:] = np.arange(COUNT)
    kept, before = part(array), address(array)
    del array
    gc.collect()
    other = buffers.empty(COUNT, np.uint32)
    other[:] = 0
    assert address(other) != before
    assert np.asarray(kept).max() > 0


@pytest.mark.parametrize(
    ("bytes_", "kept"), [(2**16 - 4, False), (2**16, True), (2**22, True), (2**22 + 4, False)]
)
def test_arrays_of_64_kib_to_4_mib_are_kept(bytes_, kept):
    array = buffers.empty(bytes_ // 4, np.float32)
    assert (array.size, array.dtype, array.flags.owndata) == (bytes_ // 4, np.float32, not kept)
    assert array.flags.writeable
    del array
    assert sum(map(len, buffers._free.values())) == kept


@pytest.mark.parametrize("count", [5, COUNT, 2**20 + 1])
def test_zeros_are_zeros_also_in_pages_that_had_other_words(count):
    buffers.empty(count, np.float32)[:] = 7
    array = buffers.zeros(count, np.float32)
    assert (array.size, array.dtype, array.any()) == (count, np.float32, False)


def test_at_most_four_blocks_of_a_size_are_kept():
    arrays = [buffers.empty(COUNT, np.uint32) for _ in range(6)]
    assert len({address(array) for array in arrays}) == 6
    del arrays
    assert [len(free) for free in buffers._free.values()] == [4]
    assert not buffers._lent


@pytest.mark.parametrize("size", [2**16, 2**16 + 1, 5 * 2**14 + 1, 2**17 - 1, 3 * 2**18, 2**22])
def test_blocks_hold_the_array_and_at_most_a_quarter_more(size):
    assert size <= buffers._rounded(size) <= 1.25 * size


def test_threads_never_share_an_array():
    def fill(number: int) -> bool:
        for _ in range(200):
            array = buffers.empty(COUNT // 4, np.uint32)
            array[:] = number
            if (array != number).any():
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(fill, range(8)))


def test_results_of_earlier_steps_keep_their_sums():
    (summation,) = LocalSummation.group(1)
    allreduce = Allreduce(summation, forms="sparse")
    rng, results = np.random.default_rng(0), []
    for step in range(6):
        tensor = np.where(rng.random(2**18) < 0.2, np.float32(step + 1), np.float32(0))
        results.append((allreduce.sum({"a": tensor})["a"], np.flatnonzero(tensor)))
    places = [address(result.total_at) for result, _ in results]
    assert all(a != b for a, b in pairwise(sorted(places)))
    for step, (result, support) in enumerate(results):
        assert np.array_equal(result.positions, support)
        assert (result.values[support] == step + 1).all()
        assert (result.total_at == result.quantized_at).all()
