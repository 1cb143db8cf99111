"""The outcome of a step: its tensors' results, what is told of them, and what they show for the next step."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import history_loops
from peelsum.allreduce.history import Learned
from peelsum.allreduce.plan import Plan
from peelsum.allreduce.protocol import SumProtocol, Wide
from peelsum.allreduce.result import Contribution, Results, Tally, TensorResult, TensorTally
from peelsum.codec import BLOCK_SIZES, HOST, NON_FINITE, Device, FixedPoint, Selection, occupied
from peelsum.codec.scales import ZERO
from peelsum.codec.segments import ROW

_Numbers = NDArray[np.int64]


class Outcome:
    """The outcome of a step with a plan. Without `take`, no tensor has elements."""

    def __init__(self, plan: Plan, device: Device) -> None:
        self._plan, self._device = plan, device
        self._divisor = plan.workers if plan.settings.average else 1
        self._fields = np.zeros(0, np.int32)
        #: The elements of each segment whose sums may need more than 32 bits.
        self._wide: dict[int, Wide] = {}
        #: Candidates, cells and left-over of the sketch.
        self._sketch = 0, 0, 0
        self._segments = plan.layout.segments

    def take(self, protocol: SumProtocol) -> None:
        """Decode the sums of a protocol that has ended, and tell its chooser what they show."""
        codec, dense, sparse = protocol.codec, protocol.dense, protocol.sparse
        self._protocol = protocol
        self._values = list(codec.read(dense, sparse, self._divisor, self._widen()))
        self._fields, self._scales = codec.fields, codec.scales
        self._counts = codec.counts(dense, sparse, (protocol.own_dense, protocol.own_sparse))
        if protocol.cells:
            self._sketch = len(sparse), protocol.cells, protocol.left_over
        self._learn()

    def _widen(self) -> tuple[_Numbers, NDArray[np.float32]] | None:
        """Sort the sums that need more than 32 bits by segment; return their elements and results."""
        wide, table = self._protocol.wide, self._plan.layout.table
        if wide is None or not len(wide.totals):
            return None
        begins = np.searchsorted(wide.at.segments, np.arange(len(table) + 1))
        for s in np.flatnonzero(np.diff(begins)).tolist():
            own = slice(begins[s], begins[s + 1])
            self._wide[s] = Wide(wide.at.take(own), wide.totals[own], wide.own[own])
        with np.errstate(over="ignore"):
            scales = self._protocol.codec.scales[wide.at.blocks]
            results = np.ldexp(_to_odd(wide.totals).astype(np.float64), -scales) / self._divisor
            return wide.at.elements, results.astype(np.float32)

    def _learn(self) -> None:
        layout, protocol, chooser = self._plan.layout, self._protocol, self._protocol.chooser
        table, counts, wanted = layout.table, self._counts, chooser.wanted(layout.keys)
        # Sums that are not 0 count, not candidates: these depend on seeds, and on the filter's other tensors.
        counted = np.zeros((len(table), BLOCK_SIZES), np.int64)
        if len(protocol.sparse):
            counted = protocol.codec.occupied(protocol.sparse, wanted)
        seen = np.empty((len(table), BLOCK_SIZES))
        open_count = history_loops.unions(
            table.elements, table.dense, self._fields, wanted, counts.total, counted, seen
        )
        if open_count:
            ends = np.cumsum(counts.sent)
            sums = self._device.on_host(protocol.dense)
            for s in np.flatnonzero(seen[:, 0] < 0).tolist():
                seen[s] = occupied(np.flatnonzero(sums[ends[s] - counts.sent[s] : ends[s]]))
        wide = np.zeros(len(table))
        for s, one in self._wide.items():
            wide[s] = len(one.totals) if s < table.dense else np.count_nonzero(one.totals)
        again = protocol.again(int(wide.sum()))
        step = Learned(self._fields != NON_FINITE, seen, protocol.levels, wide, again)
        chooser.history.learn(layout.keys, table, step, chooser.prices)

    @property
    def results(self) -> Results:
        """The tensors' results, each made when it is first read. They are not kept."""
        return Results(len(self._plan.tensors), self._result)

    @property
    def tally(self) -> Tally:
        """Counts of the step's tensors."""
        return Tally(
            self._plan.names,
            self._words_by_name,
            int(self._plan.layout.table.begins[-1]),
            int(np.count_nonzero(self._fields == NON_FINITE)),
            *self._sketch,
            self._tallies,
        )

    def _tallies(self) -> dict[str, TensorTally]:
        return {
            one.name: TensorTally(
                one.elements,
                one.form,
                one.index,
                one.density,
                one.density_worker,
                one.error_bound,
                one.fixed.block if one.fixed else None,
            )
            for one in self.results
        }

    def contributions(self) -> dict[str, Contribution]:
        """Return what this worker contributed to the sum of each tensor, by name."""
        plan, table = self._plan, self._plan.layout.table
        nothing = Contribution(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))
        if not len(table):
            return dict.fromkeys(plan.names, nothing)
        protocol, device = self._protocol, self._device
        own = [device.on_host(one).view(np.int32) for one in (protocol.own_dense, protocol.own_sparse)]
        numbers, elements = np.concatenate(own, dtype=np.int64), self._sent_elements()
        if protocol.wide is not None:
            numbers[np.searchsorted(elements, protocol.wide.at.elements)] = protocol.wide.own
        at = np.flatnonzero(numbers)
        elements, numbers = elements[at], numbers[at]
        scales = self._scales[table.blocks_at(elements)]
        ends = np.searchsorted(elements, table.begins)
        elements -= np.repeat(table.begins[:-1], np.diff(ends))
        places, summed = ends.tolist(), ~np.isin(self._fields, (ZERO, NON_FINITE))
        found = {}
        for name, s in zip(plan.names, self._segments.tolist(), strict=True):
            cut = slice(places[s], places[s + 1])
            whole = s >= 0 and summed[s]
            found[name] = Contribution(elements[cut], numbers[cut], scales[cut]) if whole else nothing
        return found

    def _sent_elements(self) -> _Numbers:
        """Return the elements, among those of all segments, whose numbers were sent: int64[k], ascending."""
        table, union = self._plan.layout.table, self._protocol.union
        present = np.flatnonzero(self._counts.sent[: table.dense]).tolist()
        dense = [np.arange(table.begins[s], table.begins[s + 1]) for s in present]
        words = self._device.on_host(union)
        places = HOST.positions(words, 32 * len(words), count=len(self._protocol.own_sparse))
        rows = table.rows[table.dense] + places // ROW
        return np.concatenate([*dense, table.begin_of_row[rows] + places % ROW])

    def _words_by_name(self) -> dict[str, int]:
        words = np.append(self._words, 0)[self._segments].tolist()
        return dict(zip(self._plan.names, words, strict=True))

    @cached_property
    def _words(self) -> _Numbers:
        """The words that this worker has sent for each segment: its own, and its share of the common ones.

        An index, and what is sent beside, are shared by elements, a sketch by candidates.
        """
        layout = self._plan.layout
        table, first = layout.table, layout.table.dense
        words: _Numbers = 1 + np.diff(table.blocks)
        if not len(table):
            return words
        protocol, sent = self._protocol, self._counts.sent
        words[:first] += sent[:first]
        for part, of_index in zip(layout.parts, protocol.index_words, strict=True):
            begins = table.first_words[part.segments.start - first : part.segments.stop - first + 1]
            cut = begins - part.words.start
            words[part.segments] += np.diff(of_index * cut // cut[-1])
        cut = np.concatenate([[0], np.cumsum(sent[first:])])
        words[first:] += np.diff(protocol.value_words * cut // max(int(cut[-1]), 1))
        words += np.diff(protocol.beside_words * table.begins // table.begins[-1])
        return words

    def _result(self, number: int) -> TensorResult:
        plan, device, s = self._plan, self._device, int(self._segments[number])
        tensor, table, nothing = plan.tensors[number], plan.layout.table, device.integers(0)
        index = tensor.choice.index if s >= 0 else None  # none is sent without elements
        field = self._fields[s] if s >= 0 else ZERO
        values = self._values[s] if s >= 0 else device.placed(np.empty(0, np.float32))
        fixed, bound, count, own_count = None, math.inf if field == NON_FINITE else 0.0, 0, 0
        total, own, selection = nothing, nothing, None
        if field not in (ZERO, NON_FINITE):
            blocks = slice(table.blocks[s], table.blocks[s + 1])
            scales, lowest = self._scales[blocks], int(self._protocol.bounds[blocks].min())
            bound = FixedPoint(lowest).error_bound(plan.workers, self._divisor)
            fixed = FixedPoint(int(scales.min()), scales - scales.min(), int(table.block[s]))
            total, own = self._numbers(s)
            count, own_count = self._occupied(s, own)
        if index:
            selection = self._selection(s, count)
        if s in self._wide:
            total, own = self._widened(s, selection, total, own)
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
            quantized_at=own,
            total_at=total,
            error_bound=bound,
            occupied=count,
            own=own_count,
        )

    def _occupied(self, s: int, numbers: Any) -> tuple[int, int]:
        """Return a segment's non-zeros in all workers' numbers, or its candidates, and those of this worker.

        The codec saw the lower 32 bits of `numbers` and of their sums.
        """
        dense, wide = s < self._plan.layout.table.dense, self._wide.get(s)
        count, own = int((self._counts.total if dense else self._counts.sent)[s]), int(self._counts.own[s])
        if wide:
            own = int((numbers != 0).sum()) + _above(wide.own)
            count += _above(wide.totals) if dense else 0
        return count, own

    def _numbers(self, s: int) -> tuple[Any, Any]:
        """Return a segment's sums, and this worker's numbers."""
        protocol, dense = self._protocol, self._plan.layout.table.dense
        first = int(self._counts.sent[0 if s < dense else dense : s].sum())
        place = slice(first, first + int(self._counts.sent[s]))
        if s < dense:
            return protocol.dense[place], protocol.own_dense[place]
        return protocol.sparse[place], protocol.own_sparse[place]

    def _widened(self, s: int, selection: Selection | None, total: Any, own: Any) -> tuple[Any, Any]:
        """Return a segment's sums and own numbers as int64, with those of its `wide` elements."""
        wide, device = self._wide[s], self._device
        places = wide.at.elements - self._plan.layout.table.begins[s]
        if selection is not None:
            places = np.searchsorted(selection.positions, places)
        with device.beside(total):
            at = device.placed(places)
            whole = [device.placed(np.empty(len(one), np.int64)) for one in (total, own)]
            for wide_numbers, numbers in zip(whole, (total, own), strict=True):
                wide_numbers[:] = numbers
            total, own = whole
            total[at], own[at] = device.placed(wide.totals), device.placed(wide.own)
        return total, own

    def _selection(self, s: int, count: int) -> Selection:
        table = self._plan.layout.table
        if not count:
            return Selection(0, lambda: np.empty(0, np.int64))
        first, end = table.first_words[s - table.dense :][:2]
        union, device, elements = self._protocol.union[first:end], self._device, int(table.elements[s])
        return Selection(count, lambda: HOST.positions(device.on_host(union), elements, count=count))


def _to_odd(totals: _Numbers) -> _Numbers:
    """Return totals that float64 can hold; of two around another one, the odd: it is then rounded only once.

    float64 has 53 bits, and sums have up to 62.
    """
    held = totals >> 10 << 10 | ((totals & 0x3FF) != 0).astype(np.int64) << 10
    return np.where(np.abs(totals) < 2**53, totals, held)


def _above(numbers: _Numbers) -> int:
    """Return how many numbers are not 0 in the bits above the lower 32 alone."""
    return int(np.count_nonzero((numbers != 0) & (numbers % 2**32 == 0)))
