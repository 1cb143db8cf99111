"""Memory that an array leaves is used again, and never while anything refers to it."""

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from peelsum import buffers

COUNT = 2**17


def address(array):
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


def test_threads_never_share_an_array():
    def fill(number):
        for _ in range(200):
            array = buffers.empty(COUNT // 4, np.uint32)
            array[:] = number
            if (array != number).any():
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(fill, range(8)))
