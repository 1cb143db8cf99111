"""Arrays in memory that earlier arrays have left: the kernel need not map and clear pages again.

The first write to a new page costs as much as summing its words, and an allreduce needs arrays of the same
sizes in every step. A block of memory returns here once nothing refers to its array, or to a slice of it.
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
#: Bytes of the smallest and of the largest arrays that are kept. Smaller ones cost little; larger ones get
#: huge pages from NumPy.
_LEAST, _MOST = 2**16, 2**22
#: Blocks kept of each size; together they take at most 104 MiB.
_KEPT = 4
_Free = deque[_Block]
_free: dict[int, _Free] = {}
#: The arrays that are in use, by the id of their block.
_lent: dict[int, weakref.ref[NDArray[np.generic]]] = {}


def keeps(count: int, dtype: type[np.generic]) -> bool:
    """Return whether the memory of an array dtype[count] is kept."""
    return _LEAST <= count * np.dtype(dtype).itemsize <= _MOST


def empty(count: int, dtype: type[_T]) -> NDArray[_T]:
    """Return an uninitialized array dtype[count], as `numpy.empty` does. Threads can call this at once."""
    size = count * np.dtype(dtype).itemsize
    if not _LEAST <= size <= _MOST:
        return np.empty(count, dtype)
    size = _rounded(size)
    free = _free.get(size)
    if free is None:
        free = _free.setdefault(size, deque(maxlen=_KEPT))
    try:
        block = free.pop()
    except IndexError:
        # Slices of an array made from a buffer keep it alive. Slices of a view would keep only its base.
        block = memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]
    array = np.frombuffer(block, dtype, count)
    _lent[id(block)] = weakref.ref(array, partial(_take_back, free, block))
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


def _take_back(free: _Free, block: _Block, _: object) -> None:
    del _lent[id(block)]
    free.append(block)


def _rounded(size: int) -> int:
    """Return the next number of three significant bits: sizes that differ little share blocks."""
    step = 1 << (size.bit_length() - 3)
    return -(-size // step) * step
