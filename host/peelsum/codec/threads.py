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


def each(
    items: int, work: Callable[[int, int], _T], elements: int | None = None, *, copies_of: int = 0
) -> list[_T]:
    """work(begin, end) of consecutive slices of range(items), at once on up to NUMBA_NUM_THREADS cores.

    Items are a tensor's elements, or candidates of a tensor of so many `elements`. copies_of: words that each
    slice but the first needs for a result of its own; all of them together take no more than the tensor.
    Results in order; one slice, in this thread, if more are not worth while.
    """
    parts = slices(items, elements, copies_of=copies_of)
    if len(parts) == 1:
        return [work(*parts[0])]
    return list(_pool(os.getpid()).map(lambda part: work(*part), parts))


def slices(items: int, elements: int | None = None, *, copies_of: int = 0) -> list[tuple[int, int]]:
    """The slices that `each` takes."""
    size = items if elements is None else elements
    cores = min(_CORES, size // PER_CORE, 1 + size // max(copies_of, 1))
    if cores < 2:
        return [(0, items)]
    grain = _GRAIN if elements is None else 1
    step = max(-(-items // cores // grain) * grain, 1)
    return [(begin, min(begin + step, items)) for begin in range(0, max(items, 1), step)]


@cache
def _pool(process_id: int) -> ThreadPoolExecutor:
    """The threads of this process: a forked one inherits none."""
    return ThreadPoolExecutor(_CORES, "peelsum-codec")
