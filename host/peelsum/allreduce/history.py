"""The statistics of tensors from past steps, which are the same on all workers: a row of numbers for each."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import history_loops as loops
from peelsum.allreduce import level_loops
from peelsum.allreduce.levels import BlockExponents, Key
from peelsum.codec import BLOCK_SIZES
from peelsum.codec.segments import SegmentTable

#: Sizes of tensors of the same name that are kept, and the capacity of the cache of rows by sequence of keys.
_SIZES, _CACHED_SEQUENCES = 8, 256
#: Float64 holds every integer below this.
_MOST_ELEMENTS = 2**53
_Rows = NDArray[np.int64]
_Counts = NDArray[np.float64]
_Exponents = NDArray[np.int32]


class StepStatistics(NamedTuple):
    """The statistics of a step's tensors."""

    finite: NDArray[np.bool_]
    """bool[tensors]: whether they were finite."""
    unions: _Counts
    """float64[tensors, BLOCK_SIZES]: their unions, as `UnionCounts.occupied`."""
    exponents: _Exponents
    """int32[blocks]: exponent fields of their blocks, 0 for those that were zero or not finite."""
    overflow: _Counts
    """float64[tensors]: elements of blocks that exceeded their predicted exponent."""
    resent_words: int | None
    """Words that were sent again because a prediction did not fit; None if nothing was predicted."""


class History:
    """Unions and exponents of past steps, and how well predictions were met, by name and number of elements.

    A union, where any worker's tensor is not zero, is kept as counts of blocks (`UnionCounts.occupied`),
    without elements whose sum is 0.

    Several `Allreduce` that never sum the same tensor at the same time can share a history.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The rows of each name's sizes, by number of elements; the newest size is the last.
        self._rows: dict[str, dict[int, int]] = {}
        #: The cache of rows by sequence of keys.
        self._rows_of_keys: dict[tuple[Key, ...], _Rows] = {}
        #: A row for each size of each name: see `history_loops`.
        self._state = np.zeros((0, loops.COLUMNS))
        self._levels = BlockExponents()

    def basis(self, keys: tuple[Key, ...]) -> _Counts:
        """Return the statistics from which forms are chosen: float64[tensors, BASIS_COLUMNS].

        They change only when a tensor's statistics have drifted since its form was last chosen; a tensor
        without history is planned again after its first step. -1 for a tensor without a union.
        The first columns are the estimated unions of a step in two rounds, and of one in one round,
        BLOCK_SIZES counts each. Then follow the share of steps that sent blocks again, the words that they
        sent again, the elements of blocks that exceeded their predicted exponent, and the words that wrong
        estimates cost a step in two rounds, and one in one round.
        """
        with self._lock:
            rows, basis = self._known(keys), np.empty((len(keys), loops.BASIS_COLUMNS))
            loops.basis(self._state, rows, basis)
            return basis

    def expected(self, keys: tuple[Key, ...]) -> tuple[_Counts, float]:
        """Return the estimated unions of a one-round step: float64[tensors, BLOCK_SIZES].

        Return also how many elements of blocks exceeded the predicted exponent, in the worse of two steps.
        """
        with self._lock:
            rows, unions = self._known(keys), np.empty((len(keys), BLOCK_SIZES))
            return unions, loops.expected(self._state, rows, unions)

    def levels(self, keys: tuple[Key, ...], table: SegmentTable) -> _Exponents:
        """Return the exponent fields of a table's blocks, int32[blocks]; see `BlockExponents`."""
        with self._lock:
            return self._levels.of(keys, table)

    def filled(self, keys: tuple[Key, ...]) -> float:
        """Return the sum of the tensors' non-zeros, each in its last step with any."""
        with self._lock:
            rows = self._known(keys)
            return float(self._state[rows, loops.LAST_NON_ZEROS].sum())

    def record(
        self, keys: tuple[Key, ...], table: SegmentTable, step: StepStatistics, prices: tuple[float, float]
    ) -> None:
        """Record a step of these tensors, the segments of `table`.

        prices: as `NetworkModel.prices`.
        """
        with self._lock:
            resent_words = -1 if step.resent_words is None else step.resent_words
            rows = self._known(keys)
            loops.record_step(
                self._state, rows, step.finite, step.unions, step.overflow, resent_words, table.dense, *prices
            )
            level_loops.update_exponents(self._levels.of(keys, table), step.exponents, table.blocks)

    def saved(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return what later choices depend on: `unions` and `levels`, each an array by tensors' names."""
        with self._lock:
            unions = {name: self._saved_rows(sizes) for name, sizes in self._rows.items()}
            return {"unions": unions, "levels": self._levels.saved()}

    def restore(self, values: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
        """Replace the statistics by what `saved` returned. Raises ValueError for other arrays."""
        columns, unions = 1 + loops.COLUMNS, values.get("unions", {})
        for name, rows in unions.items():
            if rows.ndim != 2 or rows.shape[1] != columns or rows.dtype != np.float64:
                raise ValueError(
                    f"{name!r} has an array {rows.dtype}{list(rows.shape)}, not float64[sizes, {columns}]"
                )
            if not _possible(rows):
                raise ValueError(f"{name!r} has counts that no tensor of its sizes can have")
        levels = BlockExponents.restored(values.get("levels", {}))
        with self._lock:
            self._rows, self._rows_of_keys, self._levels = {}, {}, levels
            self._state[:] = 0.0
            for name, rows in unions.items():
                for elements, *numbers in rows:
                    row = self._row((name, int(elements)))  # which may replace the array
                    self._state[row] = numbers

    def _saved_rows(self, sizes: Mapping[int, int]) -> _Counts:
        """Return the rows of a name's sizes, each behind its number of elements."""
        return np.column_stack([np.array(list(sizes), np.float64), self._state[list(sizes.values())]])

    def _known(self, keys: tuple[Key, ...]) -> _Rows:
        """Return the numbers of tensors' rows; add rows for new tensors."""
        rows = self._rows_of_keys.get(keys)
        if rows is None:
            rows = np.array([self._row(key) for key in keys], np.int64)
            if len(self._rows_of_keys) == _CACHED_SEQUENCES:
                self._rows_of_keys.clear()
            self._rows_of_keys[keys] = rows
        return rows

    def _row(self, key: Key) -> int:
        """Return the number of a tensor's row. If its name has too many sizes, replace the oldest one.

        Which one is the oldest depends only on what is saved, not on the cache.
        """
        name, elements = key
        sizes = self._rows.setdefault(name, {})
        if elements in sizes:
            return sizes[elements]
        if len(sizes) == _SIZES:
            oldest = next(iter(sizes))
            row = sizes.pop(oldest)
            self._rows_of_keys.clear()
            self._levels.forget((name, oldest))
            self._state[row] = 0.0
        else:
            row = self._add_row()
        sizes[elements] = row
        return row

    def _add_row(self) -> int:
        """Return the number of a new row; enlarge the array if it is full."""
        count = sum(map(len, self._rows.values()))
        if count >= len(self._state):
            self._state = np.concatenate([self._state, np.zeros((max(count, 16), loops.COLUMNS))])
        return count


def _possible(rows: _Counts) -> bool:
    """Return whether all counts of a saved array are finite, and from 0 to the tensor's elements."""
    elements, facts, unions = np.split(rows, [1, 1 + loops.FACTS], axis=1)
    counted = np.hstack([unions, facts[:, [loops.OVERFLOW_BEFORE, loops.OVERFLOW, loops.LAST_NON_ZEROS]]])
    sizes = (elements < _MOST_ELEMENTS) & (elements == np.floor(elements))
    back = facts[:, loops.STEPS_BACK : loops.STEPS_BACK + loops.ESTIMATES]
    possible = sizes.all() and (back < loops.RING).all() and (counted <= elements).all()
    return bool(np.isfinite(rows).all() and (rows >= 0).all() and possible)
