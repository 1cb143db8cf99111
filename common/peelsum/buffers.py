"""A pool of NumPy buffers, which avoids page faults: a new array reuses the memory of a released one.

The first write to a new page costs as much as summing its words, and an allreduce needs arrays of the same
sizes in every step. A block of memory returns to the pool once nothing refers to its array or to a slice.
"""

from __future__ import annotations

import weakref
from collections import deque
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_T = TypeVar("_T", bound=np.generic)
_Block = memoryview
#: Sizes of the smallest and the largest array of the pool, in bytes. Smaller arrays cost little; larger ones
#: get huge pages from NumPy.
_MIN_BYTES, _MAX_BYTES = 2**16, 2**22
#: Free blocks that the pool keeps of each size; all sizes together take at most 104 MiB.
_BLOCKS_PER_SIZE = 4
_Free = deque[_Block]
_free: dict[int, _Free] = {}
#: The arrays in use, by the id of their memory block.
_in_use: dict[int, weakref.ref[NDArray[np.generic]]] = {}


def keeps(count: int, dtype: type[np.generic]) -> bool:
    """Return whether an array dtype[count] takes its memory from the pool."""
    return _MIN_BYTES <= count * np.dtype(dtype).itemsize <= _MAX_BYTES


def empty(count: int, dtype: type[_T]) -> NDArray[_T]:
    """Return an uninitialized array dtype[count], as `numpy.empty` does. Threads can call this at once."""
    size = count * np.dtype(dtype).itemsize
    if not _MIN_BYTES <= size <= _MAX_BYTES:
        return np.empty(count, dtype)
    # Round up to three significant bits, so that arrays of similar sizes can share blocks.
    step = 1 << (size.bit_length() - 3)
    size = -(-size // step) * step
    free = _free.get(size)
    if free is None:
        free = _free.setdefault(size, deque(maxlen=_BLOCKS_PER_SIZE))
    try:
        block = free.pop()
    except IndexError:
        # Slices of an array made from a buffer keep it alive. Slices of a view would keep only its base.
        block = memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]
    array = np.frombuffer(block, dtype, count)
    _in_use[id(block)] = weakref.ref(array, partial(_return_to_pool, free, block))
    return array


def zeros(count: int, dtype: type[_T]) -> NDArray[_T]:
    """Return an array dtype[count] of zeros, as `numpy.zeros` does. Threads can call this at once."""
    if not keeps(count, dtype):
        return np.zeros(count, dtype)
    array = empty(count, dtype)
    array[:] = 0
    return array


def frozen(array: NDArray[_T]) -> NDArray[_T]:
    """Return a read-only view.

    Numba compiles a function once for writable and once for read-only arrays; callers pass both.
    """
    view = array.view()
    view.setflags(write=False)  # half the time of `view.flags.writeable`
    return view


def _return_to_pool(free: _Free, block: _Block, _: object) -> None:
    """Free a block whose array was garbage-collected."""
    del _in_use[id(block)]
    free.append(block)
