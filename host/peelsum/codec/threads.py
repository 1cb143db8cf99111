"""Divide long arrays into slices and process them on several cores.

Plain threads suffice, because compiled loops release the GIL. Results must not depend on the slices.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from numba import config

#: Elements per core: fewer are not worth waking another core, which may be busy with another process.
PER_CORE = 2**22
#: Slices begin at multiples of this, so that no two write to the same word of a bitmap.
_GRAIN = 2**13
_CORES: int = config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]  # made at run time
_T = TypeVar("_T")


def each(
    items: int, work: Callable[[int, int], _T], elements: int | None = None, *, copies_of: int = 0
) -> list[_T]:
    """Call work(begin, end) for consecutive slices of range(items), on up to NUMBA_NUM_THREADS cores.

    Return the results in order. Items are elements, unless `elements` says how many elements all items have.
    If every slice but the first allocates `copies_of` words for its result, there are at most so many slices
    that these copies together are no larger than the tensor. A single slice runs in the calling thread.
    """
    if (items if elements is None else elements) < 2 * PER_CORE:
        return [work(0, items)]
    return run_slices(slices(items, elements, copies_of=copies_of), work)


def run_slices(parts: Sequence[tuple[int, int]], work: Callable[[int, int], _T]) -> list[_T]:
    """Call work(begin, end) for all slices, each on a core; return the results in order."""
    if len(parts) == 1:
        return [work(*parts[0])]
    return list(_pool(os.getpid()).map(lambda part: work(*part), parts))


def slices(items: int, elements: int | None = None, *, copies_of: int = 0) -> list[tuple[int, int]]:
    """Return the slices (begin, end) that `each` uses."""
    size = items if elements is None else elements
    cores = min(_CORES, size // PER_CORE, 1 + size // max(copies_of, 1))
    if cores < 2:
        return [(0, items)]
    grain = _GRAIN if elements is None else 1
    step = max(-(-items // cores // grain) * grain, 1)
    return [(begin, min(begin + step, items)) for begin in range(0, max(items, 1), step)]


@cache
def _pool(process_id: int) -> ThreadPoolExecutor:
    """Return this process's thread pool. The id is the cache key, because a fork inherits no threads."""
    return ThreadPoolExecutor(_CORES, "peelsum-codec")
