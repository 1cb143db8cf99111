"""Slices of long arrays on several cores: which slices, and running them. Knows nothing of the work itself.

Plain threads do, since compiled loops release the GIL; what they do to slices cannot depend on their number.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from numba import config

#: Elements that are worth waking another core for, though it may be at work for another process.
PER_CORE = 2**22
#: Slices begin at multiples of this, so that no two write to one word of a bitmap.
_GRAIN = 2**13
_CORES: int = config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]  # made at run time
_T = TypeVar("_T")


def each(elements: int, work: Callable[[int, int], _T]) -> list[_T]:
    """work(begin, end) of consecutive slices of range(elements), at once on up to NUMBA_NUM_THREADS cores.

    Results in order; one slice, in this thread, if more are not worth while.
    """
    slices = min(_CORES, elements // PER_CORE)
    if slices < 2:
        return [work(0, elements)]
    step = -(-elements // slices // _GRAIN) * _GRAIN
    begins = range(0, elements, step)
    return list(_pool(os.getpid()).map(lambda begin: work(begin, min(begin + step, elements)), begins))


@cache
def _pool(process_id: int) -> ThreadPoolExecutor:
    """The threads of this process: a forked one inherits none."""
    return ThreadPoolExecutor(_CORES, "peelsum-codec")
