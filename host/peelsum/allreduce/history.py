"""What all workers know of tensors from past steps: a row of arrays for each, because most do not change."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from peelsum.codec import BLOCK_SIZES

#: A tensor's name, and its number of elements.
Key = tuple[str, int]
#: Unions whose counts differ by less than this part of them are alike.
_RESEMBLING = 16
#: Sizes of one name that are remembered, and sequences of keys whose rows are.
_SIZES, _SEQUENCES = 8, 256
#: Arrays of unions: the last, the one before, the last with a non-zero, and the one of the last choice.
_UNIONS = 4
_LAST, _BEFORE, _FILLED, _BASIS = range(_UNIONS)
_Rows = NDArray[np.int64]
_Counts = NDArray[np.float64]


class History:
    """Unions of past steps, without elements whose sum is 0, by name and number of elements.

    A union is kept as counts of occupied blocks (`Seen.occupied`).

    Several `Allreduce` that never sum the same tensor at the same time can share one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The rows of each name's sizes, the one added last at the end.
        self._rows: dict[str, dict[int, int]] = {}
        self._of: dict[tuple[Key, ...], _Rows] = {}
        self._unions = np.zeros((_UNIONS, 0, BLOCK_SIZES))
        self._steps = np.zeros(0, np.int64)
        #: Whether the last choice knew a union.
        self._informed = np.zeros(0, np.bool_)

    def fewest(self, keys: tuple[Key, ...]) -> _Counts:
        """Return the unions of the last two steps with fewer candidates: float64[tensors, BLOCK_SIZES].

        An index that is too small costs an exchange; one that is too large costs words that cannot be saved.
        """
        with self._lock:
            return self._fewest(self._known(keys))

    def differ(self, keys: tuple[Key, ...]) -> NDArray[np.bool_]:
        """Return whether each tensor's `fewest` differs from the union for which its form was chosen.

        A tensor whose form was chosen for no union differs once it has one, of whatever count.
        """
        with self._lock:
            rows = self._known(keys)
            basis = self._unions[_BASIS, rows]
            moved = (np.abs(self._fewest(rows) - basis) * _RESEMBLING > basis).any(axis=1)
            different: NDArray[np.bool_] = moved | (~self._informed[rows] & (self._steps[rows] > 0))
            return different

    def basis(self, keys: tuple[Key, ...]) -> _Counts:
        """Return the unions for which forms were chosen last, all -1 of a tensor that had none."""
        with self._lock:
            rows = self._known(keys)
            return np.where(self._informed[rows, np.newaxis], self._unions[_BASIS, rows], -1.0)

    def chosen(self, keys: tuple[Key, ...]) -> None:
        """Note that forms are chosen for these tensors' `fewest` unions."""
        with self._lock:
            rows = self._known(keys)
            self._unions[_BASIS, rows], self._informed[rows] = self._fewest(rows), self._steps[rows] > 0

    def filled(self, keys: tuple[Key, ...]) -> float:
        """Return the non-zeros of all these tensors' unions in their last steps with any."""
        with self._lock:
            return float(self._unions[_FILLED, self._known(keys), 0].sum())

    def learn(self, keys: tuple[Key, ...], finite: NDArray[np.bool_], seen: _Counts) -> None:
        """Record a step: which tensors were finite, and their unions, float64[tensors, BLOCK_SIZES]."""
        with self._lock:
            rows, seen = self._known(keys)[finite], seen[finite]
            first = self._steps[rows] == 0
            self._unions[_BEFORE, rows] = np.where(first[:, np.newaxis], seen, self._unions[_LAST, rows])
            self._unions[_LAST, rows] = seen
            filled = seen[:, 0] > 0
            self._unions[_FILLED, rows[filled]] = seen[filled]
            self._steps[rows] += 1

    def saved(self) -> dict[str, _Counts]:
        """Return what later choices depend on, by name: a row for each size."""
        with self._lock:
            return {name: self._written(sizes) for name, sizes in self._rows.items()}

    def restore(self, values: Mapping[str, _Counts]) -> None:
        """Continue with what `saved` returned. Raises ValueError for arrays of another shape."""
        columns = 3 + _UNIONS * BLOCK_SIZES
        for name, rows in values.items():
            if rows.ndim != 2 or rows.shape[1] != columns or not np.isfinite(rows).all():
                raise ValueError(f"{name!r} has an array of shape {rows.shape}, not (sizes, {columns})")
        with self._lock:
            self._rows, self._of = {}, {}
            self._unions[:], self._steps[:], self._informed[:] = 0.0, 0, False
            for name, rows in values.items():
                for one in rows:
                    at = self._row((name, int(one[0])))
                    self._steps[at], self._informed[at] = int(one[1]), bool(one[2])
                    self._unions[:, at] = one[3:].reshape(_UNIONS, BLOCK_SIZES)

    def _written(self, sizes: Mapping[int, int]) -> _Counts:
        rows, elements = list(sizes.values()), np.array(list(sizes), np.float64)
        unions = self._unions[:, rows].swapaxes(0, 1).reshape(len(rows), -1)
        return np.column_stack([elements, self._steps[rows], self._informed[rows], unions])

    def _fewest(self, rows: _Rows) -> _Counts:
        last, before = self._unions[_LAST, rows], self._unions[_BEFORE, rows]
        fewest: _Counts = np.where(last[:, :1] <= before[:, :1], last, before)
        return fewest

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
            row = sizes.pop(next(iter(sizes)))
            self._of.clear()
            self._unions[:, row], self._steps[row], self._informed[row] = 0.0, 0, False
        else:
            row = self._added()
        sizes[elements] = row
        return row

    def _added(self) -> int:
        count = sum(map(len, self._rows.values()))
        if count >= len(self._steps):
            more = max(count, 16)
            self._unions = np.concatenate([self._unions, np.zeros((_UNIONS, more, BLOCK_SIZES))], axis=1)
            self._steps = np.append(self._steps, np.zeros(more, np.int64))
            self._informed = np.append(self._informed, np.zeros(more, np.bool_))
        return count
