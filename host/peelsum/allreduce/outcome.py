"""The outcome of a step: its tensors' results, what is told of them, and what they show for the next step."""

from __future__ import annotations

import math
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.choosing import Chooser
from peelsum.allreduce.exchange import Exchange
from peelsum.allreduce.plan import Plan
from peelsum.allreduce.result import Results, Tally, TensorResult, TensorTally
from peelsum.codec import BLOCK_SIZES, NON_FINITE, FixedPoint, Memory, Selection, kernels
from peelsum.codec.block_scales import ZERO
from peelsum.codec.cpu import occupied
from peelsum.codec.segments import Counts

#: Above this density, the positions of the non-zeros do not affect the choice of a form.
_DENSE = 1 / 4
_Numbers = NDArray[np.int64]


class Outcome:
    """The outcome of a step with a plan. Without `take`, no tensor has elements."""

    def __init__(self, plan: Plan, chooser: Chooser, memory: Memory) -> None:
        self._plan, self._chooser, self._memory = plan, chooser, memory
        self._divisor = plan.workers if plan.settings.average else 1
        count = len(plan.layout.table)
        self._fields, self._scales = np.zeros(count, np.int32), np.zeros(0, np.int32)
        self._counts = Counts(*np.zeros((3, count), np.int64))
        self._values: list[Any] = []
        #: Candidates, cells and left-over of the sketch.
        self._sketch = 0, 0, 0
        #: Each tensor's segment, or -1 without elements.
        self._segments = np.full(len(plan.tensors), -1)
        self._segments[plan.layout.order] = np.arange(count)

    def take(self, exchange: Exchange) -> None:
        """Decode the sums of an exchange that has ended, and tell the chooser what they show."""
        codec, dense, sparse = exchange.codec, exchange.dense, exchange.sparse
        self._exchange = exchange
        self._values = list(codec.read(dense, sparse, self._divisor))
        self._fields, self._scales = codec.fields, codec.scales
        self._counts = codec.counts(dense, sparse, exchange.quantized)
        if self._chooser.sparse_form == "sketch":
            left = exchange.left_over
            self._sketch = len(sparse), exchange.value_words - left, left
        self._learn(exchange)

    def _learn(self, exchange: Exchange) -> None:
        layout = exchange.layout
        table, counts = layout.table, self._counts
        wanted = self._chooser.wanted(layout.keys)
        sparse = np.arange(len(table)) >= table.dense
        found = np.where(sparse, counts.sent, counts.total)
        density = np.where(wanted, found / table.elements, 1.0)
        density[self._fields == ZERO] = 0.0
        seen = _uniformly(table.elements, density)
        close = (density <= _DENSE) & (density > 0)
        asked = close & sparse
        if asked.any():
            counted = exchange.codec.occupied(exchange.sparse, asked.astype(np.int64), known=exchange.known)
            seen[asked] = counted[asked]
        ends = np.cumsum(counts.sent)
        few = np.flatnonzero(close & ~sparse).tolist()
        sums = self._memory.on_host(exchange.dense) if few else np.empty(0, np.int32)
        for s in few:
            seen[s] = occupied(np.flatnonzero(sums[ends[s] - counts.sent[s] : ends[s]]))
        self._chooser.history.learn(layout.keys, self._fields != NON_FINITE, seen)

    def results(self) -> Results:
        """Return the tensors' results, each made when it is first read."""
        return Results(len(self._plan.tensors), self._result)

    @property
    def tally(self) -> Tally:
        """Counts of the step's tensors, without arrays of elements."""
        plan = self._plan
        non_finite = int(np.count_nonzero(self._fields == NON_FINITE))
        rest = self._segments, self._fields, self._lowest(), self._counts, self._divisor
        tallies = partial(_tallies, plan, *rest)
        elements = int(plan.layout.table.begins[-1])
        return Tally(plan.names, self._words_by_name, elements, non_finite, *self._sketch, tallies)

    def _words_by_name(self) -> dict[str, int]:
        words = (
            np.append(self._words, 0)[self._segments].tolist() if self._values else [0] * len(self._segments)
        )
        return dict(zip(self._plan.names, words, strict=True))

    @cached_property
    def _words(self) -> _Numbers:
        """The words that this worker has sent for each segment."""
        return _words_of(self._exchange, self._counts)

    def _lowest(self) -> NDArray[np.int32]:
        """Return the least scale of each segment."""
        blocks = self._plan.layout.table.blocks
        return np.minimum.reduceat(self._scales, blocks[:-1]) if self._scales.size else self._scales

    def _result(self, number: int) -> TensorResult:
        plan, s = self._plan, int(self._segments[number])
        tensor = plan.tensors[number]
        if s < 0:
            return _empty(plan, number, self._divisor, self._memory)
        exchange, table = self._exchange, plan.layout.table
        sent, index = int(self._counts.sent[s]), tensor.choice.index
        fixed = None
        if self._fields[s] not in (ZERO, NON_FINITE):
            scales = self._scales[table.blocks[s] : table.blocks[s + 1]]
            fixed = FixedPoint(int(scales.min()), scales - scales.min(), int(table.block[s]))
        dense = s < table.dense
        first = int(self._counts.sent[0 if dense else table.dense : s].sum())
        total, border = exchange.dense if dense else exchange.sparse, len(exchange.dense)
        own = exchange.quantized[:border] if dense else exchange.quantized[border:]
        place = slice(first, first + sent) if fixed is not None else slice(0, 0)
        return TensorResult(
            name=tensor.name,
            form=tensor.choice.form,
            index=index.form if index else None,
            shape=tensor.shape,
            values=self._values[s].reshape(tensor.shape),
            finite=bool(self._fields[s] != NON_FINITE),
            fixed=fixed,
            fan_in=plan.workers,
            divisor=self._divisor,
            words_sent=int(self._words[s]),
            selection=None if dense else self._selection(s, sent if fixed is not None else 0),
            quantized_at=own[place],
            total_at=total[place],
            occupied=int((self._counts.total if dense else self._counts.sent)[s]) if fixed else 0,
            own=int(self._counts.own[s]),
        )

    def _selection(self, s: int, count: int) -> Selection:
        table, ops = self._plan.layout.table, kernels("cpu")
        if not count:
            return Selection(0, lambda: np.empty(0, np.int64))
        first, end = table.first_words[s - table.dense :][:2]
        union, memory, elements = self._exchange.union[first:end], self._memory, int(table.elements[s])
        return Selection(count, lambda: ops.positions(memory.on_host(union), elements, count=count))


def _words_of(exchange: Exchange, counts: Counts) -> _Numbers:
    """Return the words that this worker has sent for each segment: its own, and its share of the common ones.

    An index is shared by elements, a sketch by candidates.
    """
    layout = exchange.layout
    table, first = layout.table, layout.table.dense
    words = 1 + np.diff(table.blocks)
    words[:first] += counts.sent[:first]
    for part, sent in zip(layout.parts, exchange.index_words, strict=True):
        begins = table.first_words[part.segments.start - first : part.segments.stop - first + 1]
        cut = begins - part.words.start
        words[part.segments] += np.diff(sent * cut // cut[-1])
    cut = np.concatenate([[0], np.cumsum(counts.sent[first:])])
    words[first:] += np.diff(exchange.value_words * cut // max(int(cut[-1]), 1))
    return words


def _uniformly(elements: _Numbers, density: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what is expected of tensors whose elements are non-zero with these probabilities."""
    size = 2.0 ** np.arange(BLOCK_SIZES)
    seen: NDArray[np.float64] = elements[:, np.newaxis] / size * (1 - (1 - density[:, np.newaxis]) ** size)
    return seen


def _tallies(
    plan: Plan,
    segments: _Numbers,
    fields: NDArray[np.int32],
    lowest: NDArray[np.int32],
    counts: Counts,
    divisor: int,
) -> dict[str, TensorTally]:
    """Return each tensor's tally, by name."""
    tallies, dense = {}, plan.layout.table.dense
    for tensor, s in zip(plan.tensors, segments.tolist(), strict=True):
        bound = share = own = 0.0
        summed = s >= 0 and fields[s] not in (ZERO, NON_FINITE)
        if summed:
            found = counts.total[s] if s < dense else counts.sent[s]
            bound = FixedPoint(int(lowest[s])).error_bound(plan.workers, divisor)
            share, own = float(found / tensor.elements), float(counts.own[s] / tensor.elements)
        elif s >= 0 and fields[s] == NON_FINITE:
            bound, share, own = math.inf, math.nan, math.nan
        index = tensor.choice.index if s >= 0 else None  # none is sent without elements
        block = tensor.choice.scale_block if summed else None
        tallies[tensor.name] = TensorTally(
            tensor.elements, tensor.choice.form, index.form if index else None, share, own, bound, block
        )
    return tallies


def _empty(plan: Plan, number: int, divisor: int, memory: Memory) -> TensorResult:
    """Return the result of a tensor without elements."""
    tensor, nothing = plan.tensors[number], memory.integers(0)
    return TensorResult(
        name=tensor.name,
        form=tensor.choice.form,
        index=None,
        shape=tensor.shape,
        values=memory.floats(0).reshape(tensor.shape),
        finite=True,
        fixed=None,
        fan_in=plan.workers,
        divisor=divisor,
        words_sent=0,
        selection=None,
        quantized_at=nothing,
        total_at=nothing,
        occupied=0,
        own=0,
    )
