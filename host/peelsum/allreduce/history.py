"""The statistics of tensors from past steps, which are the same on all workers.

They are a row of numbers for each tensor, and the exponent fields of its blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import history_loops as loops
from peelsum.codec import BLOCK_SIZES
from peelsum.codec.segments import ROW, SegmentTable

#: Sizes of tensors of the same name that are kept, and the capacity of the cache of rows by sequence of keys.
_SIZES, _CACHED_SEQUENCES = 8, 256
#: Names that are kept by default; beyond them, the oldest eighth is forgotten.
MOST_NAMES = 1 << 14
#: Float64 holds every integer below this.
_MOST_ELEMENTS = 2**53
#: Columns of a saved array before the exponent fields: elements, and elements of a block.
_HEAD = 2
#: A tensor's name, and its number of elements.
Key = tuple[str, int]
_Rows = NDArray[np.int64]
_Counts = NDArray[np.float64]
_Exponents = NDArray[np.int32]


class BlockExponents:
    """For each tensor, its blocks' exponent fields in their last steps with a non-zero, or 0: int32[blocks].

    If a block's field falls, the mean of the old and the new one is kept. No field is kept that is far above
    the largest one of the tensor's last step with a non-zero.
    """

    def __init__(self) -> None:
        #: For each tensor, the elements of a block, and the fields of its blocks: a view of the array of the
        #: step with which it was last summed.
        self._parts: dict[Key, tuple[int, _Exponents]] = {}
        #: The arrays of steps, by the keys of their tensors, of which no two steps have one in common.
        self._steps: dict[tuple[Key, ...], tuple[SegmentTable, _Exponents]] = {}
        #: The keys of the step that each tensor was last in; there may be no array of that step any more.
        self._step_of: dict[Key, tuple[Key, ...]] = {}

    def of(self, keys: tuple[Key, ...], table: SegmentTable) -> _Exponents:
        """Return the fields of a table's blocks, int32[blocks], which the caller may change in place.

        keys: of the tensors. If a tensor had blocks of another size, its fields are converted.
        """
        cached = self._steps.get(keys)
        if cached is not None and (cached[0] is table or np.array_equal(cached[0].block, table.block)):
            self._steps[keys] = table, cached[1]
            return cached[1]
        fields = np.zeros(int(table.blocks[-1]), np.int32)
        for s, key in enumerate(keys):
            self._forget_step(key)
            self._step_of[key] = keys
            block, part = int(table.block[s]), fields[table.blocks[s] : table.blocks[s + 1]]
            if key in self._parts:
                kept_block, kept = self._parts[key]
                if block >= kept_block:  # the largest field of each new block
                    part[:] = np.maximum.reduceat(kept, np.arange(0, len(kept), block // kept_block))
                else:
                    part[:] = kept[np.arange(len(part)) // (kept_block // block)]
            self._parts[key] = block, part
        self._steps[keys] = table, fields
        return fields

    def forget(self, key: Key) -> None:
        """Forget a tensor."""
        self._parts.pop(key, None)
        self._forget_step(key)

    def _forget_step(self, key: Key) -> None:
        """Forget the step that a tensor was last in; the fields of its tensors remain."""
        self._steps.pop(self._step_of.pop(key, ()), None)

    def saved(self) -> dict[str, NDArray[np.int32]]:
        """Return an array for each name: for each of its sizes the elements, those of a block, and fields."""
        arrays: dict[str, list[NDArray[np.int32]]] = {}
        for (name, elements), (block, fields) in self._parts.items():
            head = np.array([elements, block], np.int64).view(np.int32)
            arrays.setdefault(name, []).append(np.concatenate([head, fields]))
        return {name: np.concatenate(sizes) for name, sizes in arrays.items()}

    @classmethod
    def restored(cls, values: Mapping[str, NDArray[np.int32]]) -> BlockExponents:
        """Return the object of which `values` were `saved`. Raises ValueError for other arrays."""
        levels = cls()
        for name, rest in values.items():
            if rest.ndim != 1 or rest.dtype != np.int32:
                raise ValueError(f"{name!r} has an array {rest.dtype}{list(rest.shape)}, not int32[fields]")
            while rest.size:
                elements, block = (
                    rest[: 2 * _HEAD].copy().view(np.int64).tolist() if rest.size > 2 * _HEAD else (0, 0)
                )
                end = 2 * _HEAD + (-(-elements // block) if block >= ROW else 0)
                fields = rest[2 * _HEAD : end]
                valid = fields.size > 0 and int(fields.min()) >= 0 and int(fields.max()) <= 255
                if elements < 1 or block & block - 1 or rest.size < end or not valid:
                    raise ValueError(f"{name!r} has {rest.size} fields that are not those of its blocks")
                levels._parts[name, elements] = block, fields.copy()
                rest = rest[end:]
        return levels


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
    """Statistics of past steps, by a tensor's name and size: unions, exponents, and errors of predictions.

    A union is the set of elements that are not zero on some worker. It is kept as counts of blocks
    (`UnionCounts.occupied`), without elements whose sum is 0.

    Several objects `Allreduce` can share a history if they never sum the same tensor at the same time.

    most_names: the most names of tensors that are kept. Beyond them, the names that came first are forgotten,
    except those of the step; their tensors are new then. All workers must add names in the same order.
    """

    def __init__(self, most_names: int = MOST_NAMES) -> None:
        self._most_names = most_names
        self._lock = threading.Lock()
        #: The rows of each name's sizes, by number of elements; the newest size is the last.
        self._rows: dict[str, dict[int, int]] = {}
        #: The cache of rows by sequence of keys.
        self._rows_of_keys: dict[tuple[Key, ...], _Rows] = {}
        #: A row for each size of each name: see `history_loops`.
        self._state = np.zeros((0, loops.COLUMNS))
        #: The number of rows that have been used, and those of them that are free again.
        self._used, self._free = 0, list[int]()
        self._levels = BlockExponents()

    def basis(self, keys: tuple[Key, ...]) -> _Counts:
        """Return the statistics from which forms are chosen: float64[tensors, BASIS_COLUMNS].

        A tensor's row changes only when its statistics have drifted since its form was chosen. A tensor
        without history is planned again after its first step.

        The first columns are the estimated union of a two-round step, as a count for each of BLOCK_SIZES, and
        that of a one-round step; they are -1 for a tensor without a union. The next columns are the share of
        steps that sent blocks again, the words of these blocks, and the elements of blocks that exceeded
        their predicted exponent. The last two are the words that a wrong estimate costs a two-round step,
        and a one-round step.
        """
        with self._lock:
            rows, basis = self._known(keys), np.empty((len(keys), loops.BASIS_COLUMNS))
            loops.basis(self._state, rows, basis)
            return basis

    def predict(self, keys: tuple[Key, ...], table: SegmentTable) -> tuple[_Exponents, _Counts, float]:
        """Return the exponent fields that a table's blocks will probably not exceed, int32[blocks].

        Return also the estimated unions of a one-round step, float64[tensors, BLOCK_SIZES]; and how many
        elements of blocks exceeded the predicted exponent, in the worse of two steps.
        """
        with self._lock:
            levels, rows = self._levels.of(keys, table), self._known(keys)
            fields, unions = np.empty(len(levels), np.int32), np.empty((len(keys), BLOCK_SIZES))
            loops.predict_exponents(levels, table.blocks, fields)
            return fields, unions, loops.expected(self._state, rows, unions)

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
            rows, levels = self._known(keys), self._levels.of(keys, table)
            loops.record_step(
                self._state, rows, step.finite, step.unions, step.overflow, resent_words, table.dense, *prices
            )
            loops.update_exponents(levels, step.exponents, table.blocks)

    def saved(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return what later choices depend on: `unions` and `levels`, each an array by tensors' names."""
        with self._lock:
            unions = {  # of each size, its row behind the number of elements
                name: np.column_stack([np.array(list(sizes), np.float64), self._state[list(sizes.values())]])
                for name, sizes in self._rows.items()
            }
            return {"unions": unions, "levels": self._levels.saved()}

    def restore(self, values: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
        """Replace the statistics by what `saved` returned. Raises ValueError for other arrays."""
        columns, unions = 1 + loops.COLUMNS, values.get("unions", {})
        for name, rows in unions.items():
            if rows.ndim != 2 or rows.shape[1] != columns or rows.dtype != np.float64:
                raise ValueError(
                    f"{name!r} has an array {rows.dtype}{list(rows.shape)}, not float64[sizes, {columns}]"
                )
            elements, facts, counts = np.split(rows, [1, 1 + loops.FACTS], axis=1)
            others = facts[:, [loops.OVERFLOW_BEFORE, loops.OVERFLOW, loops.LAST_NON_ZEROS]]
            back = facts[:, loops.STEPS_BACK : loops.STEPS_BACK + loops.ESTIMATES]
            possible = np.isfinite(rows).all() and (rows >= 0).all() and (back < loops.RING).all()
            possible &= ((elements < _MOST_ELEMENTS) & (elements == np.floor(elements))).all()
            if not possible or (np.hstack([counts, others]) > elements).any():
                raise ValueError(f"{name!r} has counts that no tensor of its sizes can have")
        levels = BlockExponents.restored(values.get("levels", {}))
        with self._lock:
            self._rows, self._rows_of_keys, self._levels = {}, {}, levels
            self._used, self._free = 0, []
            self._state[:] = 0.0
            for name, rows in unions.items():
                for elements, *numbers in rows:
                    row = self._row((name, int(elements)))  # which may replace the array
                    self._state[row] = numbers

    def keep_only(self, names: Collection[str]) -> None:
        """Forget all other tensors. All workers must do so between the same steps."""
        with self._lock:
            self._forget([name for name in self._rows if name not in names])

    def _forget(self, names: Iterable[str]) -> None:
        self._rows_of_keys.clear()
        for name in names:
            for elements, row in self._rows.pop(name, {}).items():
                self._levels.forget((name, elements))
                self._state[row] = 0.0
                self._free.append(row)

    def _known(self, keys: tuple[Key, ...]) -> _Rows:
        """Return the indexes of tensors' rows; add rows for new tensors."""
        rows = self._rows_of_keys.get(keys)
        if rows is None:
            rows = np.array([self._row(key) for key in keys], np.int64)
            if len(self._rows) > self._most_names:
                count = len(self._rows) - self._most_names + self._most_names // 8
                oldest, needed = list(islice(self._rows, count)), {name for name, _ in keys}
                self._forget(name for name in oldest if name not in needed)
            if len(self._rows_of_keys) == _CACHED_SEQUENCES:
                self._rows_of_keys.clear()
            self._rows_of_keys[keys] = rows
        return rows

    def _row(self, key: Key) -> int:
        """Return the index of a tensor's row in the table of statistics; add a row if there is none.

        A name that has _SIZES sizes already gives up the row of its oldest size. The order of sizes is in
        checkpoints, so all ranks give up the same row.
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
        elif self._free:
            row = self._free.pop()
        else:
            row, self._used = self._used, self._used + 1
            if row >= len(self._state):
                self._state = np.concatenate([self._state, np.zeros((max(row, 16), loops.COLUMNS))])
        sizes[elements] = row
        return row
