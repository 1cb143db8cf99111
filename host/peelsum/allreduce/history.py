"""What all workers know of tensors from past steps: a row of arrays for each, because most do not change."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import history_loops as loops
from peelsum.allreduce import level_loops
from peelsum.allreduce.levels import Key, Levels
from peelsum.codec import BLOCK_SIZES
from peelsum.codec.segments import Table

#: Sizes of one name that are remembered, and sequences of keys whose rows are.
_SIZES, _SEQUENCES = 8, 256
#: Float64 holds all numbers of elements below this.
_MOST_ELEMENTS = 2**53
_Rows = NDArray[np.int64]
_Counts = NDArray[np.float64]
_Levels = NDArray[np.int32]


class Learned(NamedTuple):
    """What a step shows of its tensors."""

    finite: NDArray[np.bool_]
    """bool[tensors]: whether they were finite."""
    unions: _Counts
    """float64[tensors, BLOCK_SIZES]: their unions, as `Seen.occupied`."""
    levels: _Levels
    """int32[blocks]: exponent fields of their blocks, 0 for those that were zero or not finite."""
    wide: _Counts
    """float64[tensors]: elements of blocks that exceeded what was expected."""
    again: int | None
    """Words that were sent again because something was not as expected; None if nothing was expected."""


class History:
    """Unions and levels of past steps, and how well steps were as expected, by name and number of elements.

    A union is kept as counts of occupied blocks (`Seen.occupied`), without elements whose sum is 0.

    Several `Allreduce` that never sum the same tensor at the same time can share one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The rows of each name's sizes, the one added last at the end.
        self._rows: dict[str, dict[int, int]] = {}
        self._of: dict[tuple[Key, ...], _Rows] = {}
        #: A row for each size of each name: see `history_loops`.
        self._state = np.zeros((0, loops.COLUMNS))
        self._levels = Levels()

    def basis(self, keys: tuple[Key, ...]) -> _Counts:
        """Return the unions for which forms are chosen, and how well steps were as expected.

        They are those of the last choice, or, of a tensor whose unions or fit call for a new one, what it has
        had since. A tensor whose form was chosen for no union differs once it has one, of whatever count.
        The result is float64[tensors, BASIS_COLUMNS], -1 for a tensor without a union. It has the expected
        union of steps whose numbers follow the index and of steps ahead, BLOCK_SIZES counts each. Its last
        columns are how often blocks were sent again, how many words, the elements of blocks that exceeded
        what was expected, and the words that wrong expectations cost a step of each kind.
        """
        with self._lock:
            rows, basis = self._known(keys), np.empty((len(keys), loops.BASIS_COLUMNS))
            loops.basis(self._state, rows, basis)
            return basis

    def expected(self, keys: tuple[Key, ...]) -> tuple[_Counts, float]:
        """Return the unions that are expected of a step ahead: float64[tensors, BLOCK_SIZES].

        Return also the elements of blocks that exceeded what was expected, in the worse of two steps.
        """
        with self._lock:
            rows, unions = self._known(keys), np.empty((len(keys), BLOCK_SIZES))
            return unions, loops.expected(self._state, rows, unions)

    def levels(self, keys: tuple[Key, ...], table: Table) -> _Levels:
        """Return `Levels` of the table's blocks: int32[blocks]."""
        with self._lock:
            return self._levels.of(keys, table)

    def filled(self, keys: tuple[Key, ...]) -> float:
        """Return the non-zeros of all these tensors' unions in their last steps with any."""
        with self._lock:
            rows = self._known(keys)
            return float(self._state[rows, loops.FILLED].sum())

    def learn(self, keys: tuple[Key, ...], table: Table, step: Learned, prices: tuple[float, float]) -> None:
        """Record a step of these tensors, the segments of `table`.

        prices: as `NetworkModel.prices`.
        """
        with self._lock:
            again = -1 if step.again is None else step.again
            rows = self._known(keys)
            loops.learn(self._state, rows, step.finite, step.unions, step.wide, again, table.dense, *prices)
            level_loops.learn(self._levels.of(keys, table), step.levels, table.blocks)

    def saved(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return what later choices depend on: `unions` and `levels`, by name."""
        with self._lock:
            unions = {name: self._written(sizes) for name, sizes in self._rows.items()}
            return {"unions": unions, "levels": self._levels.saved()}

    def restore(self, values: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
        """Continue with what `saved` returned. Raises ValueError for arrays that it does not return."""
        columns, unions = 1 + loops.COLUMNS, values.get("unions", {})
        for name, rows in unions.items():
            if rows.ndim != 2 or rows.shape[1] != columns or rows.dtype != np.float64:
                raise ValueError(
                    f"{name!r} has an array {rows.dtype}{list(rows.shape)}, not float64[sizes, {columns}]"
                )
            if not _possible(rows):
                raise ValueError(f"{name!r} has counts that no tensor of its sizes can have")
        levels = Levels.restored(values.get("levels", {}))
        with self._lock:
            self._rows, self._of, self._levels = {}, {}, levels
            self._state[:] = 0.0
            for name, rows in unions.items():
                for one in rows:
                    row = self._row((name, int(one[0])))
                    self._state[row] = one[1:]

    def _written(self, sizes: Mapping[int, int]) -> _Counts:
        return np.column_stack([np.array(list(sizes), np.float64), self._state[list(sizes.values())]])

    def _known(self, keys: tuple[Key, ...]) -> _Rows:
        """Return the rows of tensors, new ones for those that have none."""
        rows = self._of.get(keys)
        if rows is None:
            rows = np.array([self._row(key) for key in keys], np.int64)
            if len(self._of) == _SEQUENCES:
                self._of.clear()
            self._of[keys] = rows
        return rows

    def _row(self, key: Key) -> int:
        """Return a tensor's row; the oldest of too many sizes of its name loses its own.

        Which one that is follows from what is saved, whatever rows `_of` knows.
        """
        name, elements = key
        sizes = self._rows.setdefault(name, {})
        if elements in sizes:
            return sizes[elements]
        if len(sizes) == _SIZES:
            oldest = next(iter(sizes))
            row = sizes.pop(oldest)
            self._of.clear()
            self._levels.forget((name, oldest))
            self._state[row] = 0.0
        else:
            row = self._added()
        sizes[elements] = row
        return row

    def _added(self) -> int:
        count = sum(map(len, self._rows.values()))
        if count >= len(self._state):
            self._state = np.concatenate([self._state, np.zeros((max(count, 16), loops.COLUMNS))])
        return count


def _possible(rows: _Counts) -> bool:
    """Return whether no count of a saved array is negative, infinite, or more than there are elements."""
    elements, facts, unions = np.split(rows, [1, 1 + loops.FACTS], axis=1)
    counted = np.hstack([unions, facts[:, [loops.WIDE_BEFORE, loops.WIDE, loops.FILLED]]])
    sizes = (elements < _MOST_ELEMENTS) & (elements == np.floor(elements))
    back = facts[:, loops.BACK : loops.BACK + loops.ESTIMATES]
    possible = sizes.all() and (back < loops.RING).all() and (counted <= elements).all()
    return bool(np.isfinite(rows).all() and (rows >= 0).all() and possible)
