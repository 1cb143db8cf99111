"""What all workers know of tensors from past steps: a row of arrays for each, because most do not change."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.levels import Key, Levels
from peelsum.codec import BLOCK_SIZES, cpu_block_loops
from peelsum.codec.segments import Table

#: Unions are alike if their counts differ by less than one part in so many, or by chance: by so many standard
#: deviations of a random union's.
_RESEMBLING, _BY_CHANCE = 16, 3
#: Sizes of one name that are remembered, and sequences of keys whose rows are.
_SIZES, _SEQUENCES = 8, 256
#: Arrays of unions: the last three, the last with a non-zero, and the one of the last choice.
_UNIONS = 5
_LAST, _BEFORE, _EARLIEST, _FILLED, _BASIS = range(_UNIONS)
#: Arrays of other facts: steps; whether the last choice knew a union; elements of blocks that exceeded what
#: was expected in the step before the last. Then how often something is sent again, and how many words, on
#: average, and elements that exceeded in the last step; and these three at the last choice.
_FACTS = 9
_STEPS, _INFORMED, _WIDE_BEFORE, _MISSED, _AGAIN, _WIDE, _BASES = range(7)
#: Part of `missed` that a step contributes, and a change of it that calls for another choice.
_RECENT, _MOVED = 0.125, 0.25
#: A change of the elements that exceed that calls for another choice: this part of them, and so many.
_WIDENED, _MANY_WIDE = 0.6, 4096
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
        self._unions = np.zeros((_UNIONS, 0, BLOCK_SIZES))
        self._facts = np.zeros((_FACTS, 0))
        self._levels = Levels()

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
            steps, informed = self._facts[: _INFORMED + 1, rows]
            alike = np.maximum(basis / _RESEMBLING, _BY_CHANCE * np.sqrt(basis))
            moved = (np.abs(self._fewest(rows) - basis) > alike).any(axis=1)
            different: NDArray[np.bool_] = moved | ((informed == 0) & (steps > 0))
            (missed, _, wide), then = self._facts[_MISSED:_BASES, rows], self._facts[_BASES:, rows]
            different |= np.abs(missed - then[0]) > _MOVED
            different |= np.abs(wide - then[2]) > np.maximum(_WIDENED * np.maximum(wide, then[2]), _MANY_WIDE)
            return different

    def basis(self, keys: tuple[Key, ...]) -> _Counts:
        """Return the unions for which forms were chosen last, and how well steps were as expected.

        They are float64[tensors, BLOCK_SIZES + 3], -1 for a tensor that had no union: how often something was
        sent again, how many words, and elements of blocks that exceeded what was expected.
        """
        with self._lock:
            rows = self._known(keys)
            basis = np.column_stack([self._unions[_BASIS, rows], self._facts[_BASES:, rows].T])
            return np.where(self._facts[_INFORMED, rows, np.newaxis] > 0, basis, -1.0)

    def chosen(self, keys: tuple[Key, ...]) -> None:
        """Note that forms are chosen for these tensors' `fewest` unions."""
        with self._lock:
            rows = self._known(keys)
            self._unions[_BASIS, rows] = self._fewest(rows)
            self._facts[_INFORMED, rows] = self._facts[_STEPS, rows] > 0
            self._facts[_BASES:, rows] = self._facts[_MISSED:_BASES, rows]

    def most(self, keys: tuple[Key, ...]) -> _Counts:
        """Return the unions of the last three steps with most candidates: float64[tensors, BLOCK_SIZES]."""
        with self._lock:
            rows = self._known(keys)
            unions = self._unions[: _EARLIEST + 1, rows]
            most: _Counts = unions[unions[:, :, 0].argmax(axis=0), np.arange(len(rows))]
            return most

    def wide(self, keys: tuple[Key, ...]) -> float:
        """Return the elements of blocks that exceeded what was expected, in the worse of two steps."""
        with self._lock:
            return float(self._facts[[_WIDE, _WIDE_BEFORE]][:, self._known(keys)].sum(axis=1).max())

    def levels(self, keys: tuple[Key, ...], table: Table) -> _Levels:
        """Return `Levels` of the table's blocks: int32[blocks]."""
        with self._lock:
            return self._levels.of(keys, table)

    def filled(self, keys: tuple[Key, ...]) -> float:
        """Return the non-zeros of all these tensors' unions in their last steps with any."""
        with self._lock:
            return float(self._unions[_FILLED, self._known(keys), 0].sum())

    def learn(self, keys: tuple[Key, ...], table: Table, step: Learned) -> None:
        """Record a step of these tensors, the segments of `table`."""
        with self._lock:
            rows, seen = self._known(keys)[step.finite], step.unions[step.finite]
            self._expect(rows, step)
            levels = self._levels.of(keys, table)
            cpu_block_loops.learn(levels, step.levels)
            first = self._facts[_STEPS, rows] == 0
            for older, newer in ((_EARLIEST, _BEFORE), (_BEFORE, _LAST)):
                self._unions[older, rows] = np.where(first[:, np.newaxis], seen, self._unions[newer, rows])
            self._unions[_LAST, rows] = seen
            filled = seen[:, 0] > 0
            self._unions[_FILLED, rows[filled]] = seen[filled]
            self._facts[_STEPS, rows] += 1

    def _expect(self, rows: _Rows, step: Learned) -> None:
        """Record how well the step was as expected."""
        facts = self._facts
        if step.again is None:
            facts[_MISSED:_WIDE, rows] *= 1 - _RECENT / 4
            facts[_WIDE, rows] *= 1 - 2 * _RECENT
            return
        facts[_WIDE_BEFORE, rows], facts[_WIDE, rows] = facts[_WIDE, rows], step.wide[step.finite]
        facts[_MISSED, rows] += _RECENT * ((step.again > 0) - facts[_MISSED, rows])
        facts[_AGAIN, rows] += _RECENT * (step.again - facts[_AGAIN, rows])

    def saved(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return what later choices depend on: `unions` and `levels`, by name."""
        with self._lock:
            unions = {name: self._written(sizes) for name, sizes in self._rows.items()}
            return {"unions": unions, "levels": self._levels.saved()}

    def restore(self, values: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
        """Continue with what `saved` returned. Raises ValueError for arrays that it does not return."""
        columns, unions = 1 + _FACTS + _UNIONS * BLOCK_SIZES, values.get("unions", {})
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
            self._unions[:], self._facts[:] = 0.0, 0.0
            for name, rows in unions.items():
                for one in rows:
                    at = self._row((name, int(one[0])))
                    self._facts[:, at] = one[1 : 1 + _FACTS]
                    self._unions[:, at] = one[1 + _FACTS :].reshape(_UNIONS, BLOCK_SIZES)

    def _written(self, sizes: Mapping[int, int]) -> _Counts:
        rows, elements = list(sizes.values()), np.array(list(sizes), np.float64)
        unions = self._unions[:, rows].swapaxes(0, 1).reshape(len(rows), -1)
        return np.column_stack([elements, self._facts[:, rows].T, unions])

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
            oldest = next(iter(sizes))
            row = sizes.pop(oldest)
            self._of.clear()
            self._levels.forget((name, oldest))
            self._unions[:, row], self._facts[:, row] = 0.0, 0.0
        else:
            row = self._added()
        sizes[elements] = row
        return row

    def _added(self) -> int:
        count = sum(map(len, self._rows.values()))
        if count >= self._facts.shape[1]:
            more = max(count, 16)
            self._unions = np.concatenate([self._unions, np.zeros((_UNIONS, more, BLOCK_SIZES))], axis=1)
            self._facts = np.concatenate([self._facts, np.zeros((_FACTS, more))], axis=1)
        return count


def _possible(rows: _Counts) -> bool:
    """Return whether no count of a saved array is negative, infinite, or more than there are elements."""
    elements, facts, unions = np.split(rows, [1, 1 + _FACTS], axis=1)
    counted = np.hstack([unions, facts[:, [_WIDE_BEFORE, _WIDE]]])
    sizes = (elements < _MOST_ELEMENTS) & (elements == np.floor(elements))
    return bool(np.isfinite(rows).all() and sizes.all() and (rows >= 0).all() and (counted <= elements).all())
