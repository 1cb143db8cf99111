"""Some elements of a tensor, whose positions are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


class Selection:
    """`count` elements of a tensor, in ascending order.

    find: returns their positions, int64[count]; called when they are first read.
    """

    def __init__(self, count: int, find: Callable[[], NDArray[np.int64]]) -> None:
        self._count, self._find = count, find

    def __len__(self) -> int:
        """Return the number of selected elements."""
        return self._count

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """The elements' positions: int64[count]."""
        return self._find()
