"""The sum in one round: header, dense numbers and sketch travel together, by what the steps before showed.

Theory of operation. It is used once all tensors are known, where a round trip takes longer than the words
that guesses cost.

    round        op   words                                                     when
    first        OR   scales of blocks; indexes of the sparse vector            always
                 ADD  dense numbers, the candidates' sketch, a sketch of        always
                      upper parts, all laid out for what is expected
    refinement   OR   the candidates' own bits                                  if it holds many zeros
                 ADD  a second sketch                                           if the first one is overfull
    left-over    ADD  what was not as expected, and what peeling left over      if there is any

Nobody knows the step's scales and union yet, so earlier steps tell what to expect of them. A number is
rint(value * 2**scale), by the scale that fits its block's expected field, modulo 2**32. If a block exceeds
that field on a worker, the worker also sends the upper parts of the block's numbers, in a sketch of their
own. The header shows all workers which blocks these are: their elements are the candidates of that sketch.

What does not fit travels in another round: candidates that peeling left over, and blocks that are far above
or below what was expected. If there are more candidates than the sketch has room for, some of them, drawn by
a hash of their places, are sent in a second sketch. Their sums are subtracted from the first sketch, which
then has few enough candidates to be peeled.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum import buffers
from peelsum.allreduce import level_loops
from peelsum.allreduce.choosing import Chooser
from peelsum.allreduce.costs import TOLERANCE, Seen
from peelsum.allreduce.costs import expected as index_expected
from peelsum.allreduce.history import History
from peelsum.allreduce.history_loops import DEVIATIONS, FIT
from peelsum.allreduce.plan import Plan
from peelsum.allreduce.protocol import Refinement, Round, Rounds, SumProtocol, Sums, Wide
from peelsum.codec import FEWEST_CELLS, HOST, MANY_CANDIDATES, Device, SketchLayout
from peelsum.codec.arrays import Integers
from peelsum.codec.segments import ROW, Located, SegmentCodec
from peelsum.summation import Words

_Places = NDArray[np.int64]
_WORD = 2**32
#: Numbers of a block, about.
_PER_BLOCK = 32
#: The second sketch has room for the number of candidates that is likely, times this.
_SPARE = 1.03
#: A place's hash is its product with this number, 2**32 over the golden ratio, modulo 2**32.
_HASH_FACTOR = 0x9E3779B1
#: Room for elements of blocks that exceed what was expected: so much of the last steps' count, and so many.
_WIDE_SPARE, _WIDE_MORE = 1.5, 64


@dataclass(frozen=True)
class Expected:
    """What earlier steps tell of a step."""

    fields: Integers
    """int32[blocks]: the exponent fields that blocks are expected not to exceed."""
    sketch: SketchLayout
    """The layout of the candidates' sketch; not used without sparse segments."""
    upper: SketchLayout
    """The layout of the sketch of upper parts."""
    candidates: int
    """For how many candidates the sketch has room."""
    wide: int
    """For how many elements with upper parts the other one has."""

    @property
    def agreed(self) -> tuple[SketchLayout, SketchLayout, int]:
        """Everything that the meaning of words depends on, to be part of what workers agree on."""
        return self.sketch, self.upper, zlib.crc32(self.fields.astype(np.uint8).data)

    @classmethod
    def of(cls, plan: Plan, history: History, seed: int) -> Expected:
        """Return what is expected of a step of a plan, from the steps before."""
        layout, settings = plan.layout, plan.settings
        keys, table = layout.keys, layout.table
        fields = buffers.empty(int(table.blocks[-1]), np.int32)
        level_loops.expect(history.levels(keys, table), table.blocks, fields)
        (unions, exceeded), first = history.expected(keys), table.dense
        count = 0.0
        for part in layout.parts:
            seen = Seen(tuple(unions[part.segments].sum(axis=0).tolist()))
            # More that pass an index, which was chosen for fewer, are refined: no sketch has room for them.
            passed = index_expected(part.index, part.elements, seen)[1]
            count += min(passed, (1 + TOLERANCE) * seen.candidates)
        room = math.ceil(count)
        if room < MANY_CANDIDATES:
            room += math.ceil(DEVIATIONS * math.sqrt(room))
        wide = min(_WIDE_MORE, int(table.begins[first]) + room) + math.ceil(_WIDE_SPARE * exceeded)
        sketch = SketchLayout.sized(room, seed, settings.cells(room))
        upper = SketchLayout.sized(wide, seed, settings.cells(MANY_CANDIDATES))  # there is room already
        return cls(fields, sketch, upper, room, wide)


class OneRound(SumProtocol):
    """See `SumProtocol`. `expected` is the same on all workers."""

    def __init__(
        self, plan: Plan, chooser: Chooser, device: Device, codec: SegmentCodec, expected: Expected
    ) -> None:
        super().__init__(plan, chooser, device, codec, expected.sketch.seed)
        layout, table = plan.layout, plan.layout.table
        self._expected, self._far = expected, 0
        #: This worker's numbers that are in the sketch.
        self._in_sketch: Integers = self.own_sparse
        self._scales: Integers = self._highest - expected.fields
        #: A worker's numbers fit so many bits, beside a sign; upper parts are those above.
        self._bits = self._highest - 126
        #: The first element of the sparse segments, and their first place in rows.
        self._border, self._first = int(table.begins[table.dense]), ROW * int(table.rows[table.dense])
        self.cells = expected.sketch.cells if layout.parts else 0
        #: The sketch can hardly be peeled with more candidates; a small one has more than 1.3 cells for each.
        self._peelable = FIT * max(expected.candidates, self.cells / FEWEST_CELLS)

    def rounds(self) -> Rounds:
        """See `SumProtocol.rounds`."""
        table, upper, device = self.layout.table, self._expected.upper, self._device
        end = self._border + self.cells
        sums = yield Round(self.layout.header_words, end + upper.cells, self._write)
        exceeding, far = self._judge(device.on_host(sums.near[: table.scale_words]))
        places, unpeeled = yield from self._decode(sums)
        again, above = self._elements(far), self._elements(exceeding)
        parts = np.zeros(len(above.elements), np.int32)
        words = device.on_host(sums.added[end:])
        lost = HOST.sketch_decode(upper, words, above.places, parts)
        near = ~far[above.blocks] & (self.levels[above.blocks] > 0)
        lost, wide, numbers = lost[near[lost]], above.take(near), self._numbers(above)
        self._renew(far, wide, numbers[near], places)
        in_dense, in_sparse = self._places(again, places)
        self.beside_words += upper.cells + len(lost) + len(in_dense)
        self.value_words += len(in_sparse) + (self.cells + self.left_over if len(places) else 0)
        above_word = device.signed(device.placed(self._upper(numbers[lost]).view(np.uint32)))
        sparse = self.own_sparse[unpeeled], self.own_sparse[in_sparse]
        resent = [*sparse, self.own_dense[in_dense], above_word]
        if any(map(len, resent)):
            self.sparse[unpeeled], far_sparse, far_dense, above_word = yield from self._exchanged(resent)
            self._write_dense_sums(in_dense, far_dense)
            self.sparse[in_sparse] = far_sparse
            parts[lost] = device.on_host(above_word).view(np.int32)
        self.wide = Wide(wide, self._totals(wide, places, parts[near]), numbers[near])

    def again(self, wide: int) -> int:
        """See `SumProtocol.again`."""
        return _PER_BLOCK * self._far + (wide if wide > FIT * self._expected.wide else 0)

    def _write(self, ored: Words, added: Words) -> None:
        codec, device = self.codec, self._device
        self._write_header(ored, added)
        self._read_scales(device.on_host(ored[: self.layout.table.scale_words]))
        exceeding = self.levels > self._expected.fields
        codec.use(np.zeros_like(codec.fields), self._scales)
        dense, count = codec.place(self._own)
        self.own_dense, sparse = device.signed(added)[:dense], device.integers(count)
        codec.write_dense(self.own_dense)
        codec.gather(sparse)
        places = device.positions(self._own, ROW * len(self._own), count=count)
        above = self.layout.table.located(exceeding)
        above = above.take(np.flatnonzero(codec.values_at(above.elements)))
        numbers = self._numbers(above)
        self._put(numbers, above, places, sparse)
        self._in_sketch = sparse
        if self.cells:
            device.sketch_encode(self._expected.sketch, places, sparse, added[dense : dense + self.cells])
        self._write_upper(above, numbers, added[dense + self.cells :])

    def _write_upper(self, above: Located, numbers: _Places, out: Words) -> None:
        upper, words = self._upper(numbers), np.empty(len(out), np.uint32)
        sent = np.flatnonzero(upper)
        HOST.sketch_encode(self._expected.upper, above.places[sent], upper[sent], words)
        out[:] = self._device.placed(words)

    def _judge(self, words: Words) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Compare the blocks with what was expected of them, and set the scales of the step.

        Return which exceed that, and which are sent again, with scales of their own: bool[blocks] each. The
        first may be of tensors that are not finite on some worker: others have sent upper parts.
        """
        codec, table, blocks = self.codec, self.layout.table, len(self._scales)
        self._read_scales(words)
        scales, self.bounds = codec.scales, buffers.empty(blocks, np.int32)
        exceeding, again = buffers.empty(blocks, np.bool), buffers.empty(blocks, np.bool)
        self._far = level_loops.judge(
            buffers.frozen(words[len(table) :]), table.blocks, self.levels, self._expected.fields,
            self._highest, self._bits, scales, self.bounds, exceeding, again,
        )  # fmt: skip
        codec.use(codec.fields, scales)
        return exceeding, again

    def _decode(self, sums: Sums) -> Generator[Round, Sums, tuple[_Places, _Places]]:
        """Place and peel the sums; return the candidates' places, and which of them are left over."""
        codec, device, room = self.codec, self._device, self._expected.candidates
        self._unite(sums)
        dense, candidates = codec.place(self.union)
        overfull = candidates > self._peelable
        refinements = self._refinements(sums) if overfull else []
        if refinements and not self._size_is_known(refinements, candidates):
            yield from self._refine(refinements)
            refinements, (dense, candidates) = [], codec.place(self.union)
            overfull = candidates > self._peelable
        likely = candidates - sum(part.candidates - part.non_zeros for part in refinements)
        share = max(1 - room / (_SPARE * likely), 0.0) if overfull else 0.0
        second: tuple[SketchLayout, Words] | None = None
        if refinements and share:
            layout = self._second_layout(share * likely)
            write = partial(self._write_second, layout, share)
            second = layout, (yield from self._refine(refinements, layout.cells, write))
        elif refinements:
            yield from self._refine(refinements)
        if refinements:
            dense, candidates = codec.place(self.union)
        self.dense = self._present(dense, device.signed(sums.added[: self._border]))
        self.own_dense = self._present(dense, self.own_dense)
        self.sparse, self.own_sparse = device.integers(candidates), device.integers(candidates)
        codec.gather(self.own_sparse)
        self.beside_words = self._border - dense  # zeros, and what is not finite
        places = self._device.positions(self.union, ROW * len(self.union), count=candidates)
        sketch = sums.added[self._border : self._border + self.cells]
        if not candidates:
            self.beside_words += self.cells
            return places, np.empty(0, np.int64)
        if share:
            return places, (yield from self._peel_both(sketch, places, second, share))
        unpeeled: _Places = self._device.sketch_decode(self._expected.sketch, sketch, places, self.sparse)
        self.left_over = len(unpeeled)
        return places, unpeeled

    def _size_is_known(self, refinements: Sequence[Refinement], candidates: int) -> bool:
        """Return whether a second sketch can be laid out before the candidates' bits are known."""
        per_candidate = self.plan.settings.cells(MANY_CANDIDATES)
        counted = all(refinement.counted for refinement in refinements)
        return counted and SketchLayout.holds(2 * candidates, per_candidate)

    def _second_layout(self, candidates: float) -> SketchLayout:
        """Return the layout of a second sketch of about `candidates` candidates."""
        count = math.ceil(_SPARE * candidates + DEVIATIONS * math.sqrt(candidates))
        return SketchLayout.sized(count, self._seed ^ 1, self.plan.settings.cells(count))

    def _write_second(self, layout: SketchLayout, share: float, out: Words) -> None:
        """Write the second sketch: this worker's numbers, as in the first one, at the places `_drawn`."""
        own = self._device.positions(self._own, ROW * len(self._own), count=len(self._in_sketch))
        drawn = _drawn(own, share)
        self._device.sketch_encode(layout, own[drawn], self._in_sketch[drawn], out)

    def _peel_both(
        self, sketch: Words, places: _Places, second: tuple[SketchLayout, Words] | None, share: float
    ) -> Generator[Round, Sums, _Places]:
        """Peel the second sketch, and the first one without its candidates; return which are left over.

        second: layout and sum of the second sketch; None exchanges its candidates' numbers as they are.
        share: of the places, those in the second sketch.
        """
        device, drawn = self._device, _drawn(places, share)
        in_second, in_first = places[drawn], places[~drawn]
        numbers, remainder = device.integers(len(in_second)), device.words(len(sketch))
        if second:
            self.cells += len(second[1])
            unpeeled = device.sketch_decode(*second, in_second, numbers)
            self.left_over += len(unpeeled)
        else:
            unpeeled = device.placed(np.arange(len(in_second)))
            self.value_words += len(unpeeled)
        if len(unpeeled):
            own = device.positions(self._own, ROW * len(self._own), count=len(self._in_sketch))
            sent = device.integers(len(places))
            sent[:] = 0
            sent[device.search(places, own)] = self._in_sketch
            (numbers[unpeeled],) = yield from self._exchanged([sent[drawn][unpeeled]])
        device.sketch_encode(self._expected.sketch, in_second, numbers, remainder)
        remainder[:] = sketch - remainder
        self.sparse[drawn], numbers = numbers, device.integers(len(in_first))
        unpeeled = device.sketch_decode(self._expected.sketch, remainder, in_first, numbers)
        self.sparse[~drawn] = numbers
        self.left_over += len(unpeeled)
        return device.search(places, in_first[unpeeled])

    def _present(self, count: int, numbers: Integers) -> Integers:
        """Return the numbers of the dense segments that are neither zero nor not finite."""
        if count == len(numbers):
            return numbers
        begins, present = self.layout.table.begins, np.flatnonzero(self.codec.sent[: self.layout.table.dense])
        parts = zip(begins[present].tolist(), begins[present + 1].tolist(), strict=True)
        return self._device.joined([numbers[:0], *(numbers[begin:end] for begin, end in parts)])

    def _skipped(self) -> _Places:
        """Return how many elements of dense segments before each segment have no numbers: int64[segments]."""
        table = self.layout.table
        missing = table.elements[: table.dense] - self.codec.sent[: table.dense]
        return np.concatenate([[0], np.cumsum(missing), np.zeros(len(table) - table.dense, np.int64)])

    def _elements(self, blocks: NDArray[np.bool_]) -> Located:
        """Return the elements of blocks whose numbers are sent: all of dense ones, candidates of others."""
        found = self.layout.table.located(blocks)
        border = int(np.searchsorted(found.elements, self._border))
        if border == len(found.elements):
            return found
        bits = found.places[border:] - self._first
        words = self._device.on_host(self.union[self._device.placed(bits // ROW)])
        sent = words >> (bits % ROW).astype(np.uint32) & np.uint32(1) != 0
        return found.take(np.concatenate([np.ones(border, np.bool_), sent]))

    def _places(self, at: Located, places: _Places) -> tuple[Any, Any]:
        """Return where the numbers of elements are, in the dense and in the sparse vector's, in device."""
        device, border = self._device, int(np.searchsorted(at.elements, self._border))
        dense = at.elements[:border] - self._skipped()[at.segments[:border]]
        return device.placed(dense), device.search(places, device.placed(at.places[border:] - self._first))

    def _numbers(self, at: Located) -> _Places:
        """Return this worker's numbers of elements, or 0 for those that no upper part could hold."""
        numbers = np.empty(len(at.elements), np.int64)
        values = self.codec.values_at(at.elements)
        level_loops.numbers_of(values, at.blocks, self._scales, self._bits, numbers)
        return numbers

    def _upper(self, numbers: _Places) -> Integers:
        return (numbers + (1 << self._bits - 1) >> self._bits).astype(np.int32)

    def _put(self, numbers: _Places, at: Located, places: _Places, sparse: Integers) -> None:
        """Write the lower words of this worker's numbers of some elements."""
        if not len(numbers):
            return
        lower, (in_dense, in_sparse) = (numbers % _WORD).astype(np.uint32), self._places(at, places)
        lower, border = lower.view(np.int32), len(in_dense)
        self.own_dense[in_dense] = self._device.placed(lower[:border])
        sparse[in_sparse] = self._device.placed(lower[border:])

    def _renew(self, far: NDArray[np.bool_], wide: Located, own: _Places, places: _Places) -> None:
        """Write this worker's numbers by the step's scales; those of the elements `wide` are `own`."""
        if far[: self.layout.table.blocks[self.layout.table.dense]].any():
            self.own_dense = self._device.integers(len(self.own_dense))
            self.codec.write_dense(self.own_dense)
        self._put(own, wide, places, self.own_sparse)

    def _write_dense_sums(self, places: _Places, sums: Integers) -> None:
        """Replace the first round's sums at `places` of the dense vector.

        They lie in the backend's memory, so `dense` becomes a copy.
        """
        if len(places):
            received, self.dense = self.dense, self._device.integers(len(self.dense))
            self.dense[:] = received
            self.dense[places] = sums

    def _totals(self, wide: Located, places: _Places, upper: Integers) -> _Places:
        """Return sums of the elements `wide`, from their lower words and the sums of upper parts."""
        if not len(upper):
            return np.empty(0, np.int64)
        device, (in_dense, in_sparse) = self._device, self._places(wide, places)
        parts = device.on_host(self.dense[in_dense]), device.on_host(self.sparse[in_sparse])
        lower = np.concatenate([one.view(np.int32) for one in parts]).astype(np.int64)
        above = upper.astype(np.int64) << self._bits
        below: _Places = (lower - above + _WORD // 2) % _WORD - _WORD // 2
        return above + below


def _drawn(places: _Places, share: float) -> Any:
    """Return which of places[k] a hash draws, about `share` of them: bool[k], in the places' device."""
    return (places * _HASH_FACTOR & _WORD - 1) < int(share * _WORD)
