"""Decode the sums of a step: the tensors' results, statistics of them, and the update of the history."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import history_loops
from peelsum.allreduce.history import StepStatistics
from peelsum.allreduce.plan import Plan
from peelsum.allreduce.protocol import Overflow, SumProtocol
from peelsum.allreduce.result import Contribution, StepSummary, TensorResult, summaries
from peelsum.codec import BLOCK_SIZES, HOST, NON_FINITE, CodecDevice, FixedPoint, occupied
from peelsum.codec.fixed_point import ZERO, error_bound
from peelsum.codec.segments import ROW

_Numbers = NDArray[np.int64]


class Results(Sequence[TensorResult]):
    """The results of a step's tensors. `make` makes each, given its number, when it is first read."""

    def __init__(self, count: int, make: Callable[[int], TensorResult]) -> None:
        self._make = make
        self._made: list[TensorResult | None] = [None] * count

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        number = range(len(self))[at]
        made = self._made[number]
        if made is None:
            made = self._made[number] = self._make(number)
        return made

    def __len__(self) -> int:
        return len(self._made)


class StepDecoder:
    """Decodes the sums of a step of a plan. Without `decode`, no tensor has elements."""

    def __init__(self, plan: Plan, device: CodecDevice) -> None:
        self._plan, self._device = plan, device
        self._divisor = plan.workers if plan.settings.average else 1
        self._fields = np.zeros(0, np.int32)
        #: The elements of each segment whose sums may need more than 32 bits.
        self._overflow: dict[int, Overflow] = {}
        #: Candidates, cells and left-over of the sketch.
        self._sketch = 0, 0, 0
        self._segments = plan.layout.segments

    def decode(self, protocol: SumProtocol) -> None:
        """Decode the sums of a protocol that has ended, and record the step in its chooser's history."""
        codec, overflow, corrected = protocol.codec, protocol.overflow, None
        self._protocol = protocol
        if overflow is not None and len(overflow.sums):
            locations, sums, local = overflow
            begins = np.searchsorted(locations.segments, np.arange(len(codec.fields) + 1))
            for s in np.flatnonzero(np.diff(begins)).tolist():
                part = slice(begins[s], begins[s + 1])
                self._overflow[s] = Overflow(locations.take(part), sums[part], local[part])
            # Sums of up to 62 bits are rounded to the 53 bits of float64, to odd: of two neighbours, the one
            # that is odd. The conversion to float32 then rounds as if it were the only rounding.
            rounded = sums >> 10 << 10 | ((sums & 0x3FF) != 0).astype(np.int64) << 10
            rounded = np.where(np.abs(sums) < 2**53, sums, rounded)
            with np.errstate(over="ignore"):
                results = (
                    np.ldexp(rounded.astype(np.float64), -codec.scales[locations.blocks]) / self._divisor
                )
                corrected = locations.elements, results.astype(np.float32)
        self._values = list(codec.decode(protocol.dense, protocol.sparse, self._divisor, corrected))
        self._fields, self._scales, self._counts = codec.fields, codec.scales, codec.counts()
        if protocol.cells:
            self._sketch = protocol.sparse.shape[0], protocol.cells, protocol.left_over
        self._update_history()

    def _update_history(self) -> None:
        """Record the tensors' unions, exponents and overflow, from which later steps are planned."""
        layout, protocol, chooser = self._plan.layout, self._protocol, self._protocol.chooser
        table, counts, selected = layout.table, self._counts, chooser.needs_positions(layout.keys)
        # Count sums that are not 0, not candidates: these depend on seeds, and on the filter's other tensors.
        counted = np.zeros((len(self._fields), BLOCK_SIZES), np.int64)
        if protocol.sparse.shape[0]:
            counted = protocol.codec.occupied(protocol.sparse, selected)
        unions = np.empty((len(self._fields), BLOCK_SIZES))
        uncounted = history_loops.unions(
            table.elements, table.dense, self._fields, selected, counts.sums, counted, unions
        )
        if uncounted:
            ends = np.cumsum(counts.sent)
            sums = self._device.to_host(protocol.dense)
            for s in np.flatnonzero(unions[:, 0] < 0).tolist():
                unions[s] = occupied(sums[ends[s] - counts.sent[s] : ends[s]])
        overflows = np.zeros(len(self._fields))
        for s, overflow in self._overflow.items():
            overflows[s] = len(overflow.sums) if s < table.dense else np.count_nonzero(overflow.sums)
        resent = protocol.resent_words(int(overflows.sum()))
        step = StepStatistics(self._fields != NON_FINITE, unions, protocol.exponents, overflows, resent)
        chooser.history.record(layout.keys, table, step, chooser.prices)

    @property
    def results(self) -> Results:
        """The tensors' results, each made when it is first read."""
        return Results(len(self._plan.tensors), self._result)

    @property
    def tally(self) -> StepSummary:
        """Counts of the step's tensors."""
        return StepSummary(
            self._plan.names,
            lambda: dict(
                zip(self._plan.names, np.append(self._words, 0)[self._segments].tolist(), strict=True)
            ),
            int(self._plan.layout.table.begins[-1]),
            int(np.add.reduce(self._fields == NON_FINITE)),
            *self._sketch,
            lambda: summaries(self.results),
        )

    def contributions(self) -> dict[str, Contribution]:
        """Return what this worker contributed to the sum of each tensor, by name."""
        plan, table = self._plan, self._plan.layout.table
        empty = Contribution(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))
        if not table.segments:
            return dict.fromkeys(plan.names, empty)
        protocol, device = self._protocol, self._device
        parts = [
            device.to_host(part).view(np.int32) for part in (protocol.local_dense, protocol.local_sparse)
        ]
        numbers, elements = np.concatenate(parts, dtype=np.int64), self._sent_elements()
        if protocol.overflow is not None:
            overflow = protocol.overflow
            numbers[np.searchsorted(elements, overflow.locations.elements)] = overflow.local
        non_zeros = np.flatnonzero(numbers)
        elements, numbers = elements[non_zeros], numbers[non_zeros]
        scales = self._scales[table.blocks_at(elements)]
        ends = np.searchsorted(elements, table.begins)
        elements -= np.repeat(table.begins[:-1], np.diff(ends))
        bounds, summed = ends.tolist(), ~np.isin(self._fields, (ZERO, NON_FINITE))
        contributions = {}
        for name, s in zip(plan.names, self._segments.tolist(), strict=True):
            part = slice(bounds[s], bounds[s + 1])
            sent = s >= 0 and summed[s]
            contributions[name] = Contribution(elements[part], numbers[part], scales[part]) if sent else empty
        return contributions

    def _sent_elements(self) -> _Numbers:
        """Return the elements whose numbers were sent, numbered over all segments: int64[k], ascending."""
        table, union = self._plan.layout.table, self._protocol.union
        present = np.flatnonzero(self._counts.sent[: table.dense]).tolist()
        dense = [np.arange(table.begins[s], table.begins[s + 1]) for s in present]
        words = self._device.to_host(union)
        positions = HOST.positions(words, 32 * len(words), count=len(self._protocol.local_sparse))
        rows = table.rows[table.dense] + positions // ROW
        return np.concatenate([*dense, table.begin_of_row[rows] + positions % ROW])

    @cached_property
    def _words(self) -> _Numbers:
        """The words that this worker has sent for each segment, with its share of the words of several.

        The words of an index, and `common_words`, are divided by elements; those of a sketch by candidates.
        """
        layout = self._plan.layout
        table, first = layout.table, layout.table.dense
        words: _Numbers = 1 + np.diff(table.blocks)
        if not table.segments:
            return words
        protocol, sent = self._protocol, self._counts.sent
        words[:first] += sent[:first]
        for part, index_words in zip(layout.parts, protocol.index_words, strict=True):
            begins = table.first_words[part.segments.start - first : part.segments.stop - first + 1]
            bounds = begins - part.words.start
            words[part.segments] += np.diff(index_words * bounds // bounds[-1])
        bounds = np.concatenate([[0], np.cumsum(sent[first:])])
        words[first:] += np.diff(protocol.value_words * bounds // max(int(bounds[-1]), 1))
        words += np.diff(protocol.common_words * table.begins // table.begins[-1])
        return words

    def _result(self, number: int) -> TensorResult:
        """Return the result of the plan's tensor `number`."""
        plan, device, s = self._plan, self._device, int(self._segments[number])
        tensor, table, nothing = plan.tensors[number], plan.layout.table, device.integers(0)
        index = tensor.choice.index if s >= 0 else None  # none is sent without elements
        field = self._fields[s] if s >= 0 else ZERO
        values = self._values[s] if s >= 0 else device.to_device(np.empty(0, np.float32))
        fixed, bound, count, local_count = None, math.inf if field == NON_FINITE else 0.0, 0, 0
        sums, local, selection = nothing, nothing, None
        if field not in (ZERO, NON_FINITE):
            blocks = slice(table.blocks[s], table.blocks[s + 1])
            scales, lowest = self._scales[blocks], int(self._protocol.bounds[blocks].min())
            bound = error_bound(lowest, plan.workers, self._divisor)
            fixed = FixedPoint(int(scales.min()), scales - scales.min(), int(table.block[s]))
            sums, local, count, local_count = self._numbers(s)
        if index:
            selection = self._selection(s, count)
        if s in self._overflow:
            sums, local = self._with_overflow(s, selection, sums, local)
        return TensorResult(
            name=tensor.name,
            form=tensor.choice.form,
            index=index.form if index else None,
            shape=tensor.shape,
            values=values.reshape(tensor.shape),
            finite=bool(field != NON_FINITE),
            fixed=fixed,
            fan_in=plan.workers,
            divisor=self._divisor,
            words_sent=int(self._words[s]) if s >= 0 else 0,
            selection=selection,
            quantized_at=local,
            total_at=sums,
            error_bound=bound,
            union_size=count,
            local_non_zeros=local_count,
        )

    def _numbers(self, s: int) -> tuple[Any, Any, int, int]:
        """Return a segment's sums; this worker's numbers; how many sums of a dense segment are not 0, or how
        many candidates a sparse one has; and how many of this worker's numbers are not 0.
        """
        protocol, dense, counts = self._protocol, self._plan.layout.table.dense, self._counts
        first, count = int(counts.sent[0 if s < dense else dense : s].sum()), int(counts.sent[s])
        part, overflow, local_count = slice(first, first + count), self._overflow.get(s), int(counts.local[s])
        if s < dense:
            sums, local, count = protocol.dense[part], protocol.local_dense[part], int(counts.sums[s])
        else:
            sums, local = protocol.sparse[part], protocol.local_sparse[part]
        if overflow:  # the codec has counted by the low 32 bits of numbers
            local_count = int((local != 0).sum()) + _count_high_only(overflow.local)
            count += _count_high_only(overflow.sums) if s < dense else 0
        return sums, local, count, local_count

    def _selection(self, s: int, count: int) -> Callable[[], _Numbers]:
        """Return a function that computes the positions of a sparse segment's candidates, `count` of them.

        It keeps the bitmap, and no other array of the step.
        """
        table = self._plan.layout.table
        if not count:
            return lambda: np.empty(0, np.int64)
        first, end = table.first_words[s - table.dense :][:2]
        union, device, elements = self._protocol.union[first:end], self._device, int(table.elements[s])
        return lambda: HOST.positions(device.to_host(union), elements, count=count)

    def _with_overflow(
        self, s: int, selection: Callable[[], _Numbers] | None, sums: Any, local: Any
    ) -> tuple[Any, Any]:
        """Return a segment's sums and this worker's numbers as int64, with those of overflowing elements."""
        overflow, device = self._overflow[s], self._device
        indices = overflow.locations.elements - self._plan.layout.table.begins[s]
        if selection is not None:
            indices = np.searchsorted(selection(), indices)
        with device.device_context(sums):
            at, results = device.to_device(indices), []
            for numbers, corrected in ((sums, overflow.sums), (local, overflow.local)):
                numbers_64 = device.to_device(np.empty(len(numbers), np.int64))
                numbers_64[:] = numbers
                numbers_64[at] = device.to_device(corrected)
                results.append(numbers_64)
        return results[0], results[1]


def _count_high_only(numbers: _Numbers) -> int:
    """Return how many numbers are not 0, but have low 32 bits that are all 0."""
    return int(np.count_nonzero((numbers != 0) & (numbers % 2**32 == 0)))
