"""The sum in one round: header, dense numbers and sketch travel together, as predicted from earlier steps.

Theory of operation. It is used once all tensors are known, where a round trip takes longer than the words
that wrong predictions cost.

    round        op   words                                                     when
    first        OR   scales of blocks; indexes of the sparse vector            always
                 ADD  dense numbers, the candidates' sketch, a sketch of        always
                      high bits, all laid out as predicted
    refinement   OR   the candidates' own bits                                  if it holds many zeros
                 ADD  a second sketch                                           if the first one is overfull
    left-over    ADD  numbers of mispredicted blocks, and of unpeeled           if there are any
                      candidates

When workers send the first round, they know neither the step's scales nor its union, and predict both from
earlier steps. A number is rint(value * 2**scale), by the scale for its block's predicted exponent, modulo
2**32. If a block exceeds that exponent on a worker, its numbers may overflow 32 bits. Then the worker also
sends their high bits, in a sketch of their own. The header shows all workers which blocks these are: their
elements are the candidates of that sketch.

What the prediction missed travels in another round: unpeeled candidates, and blocks that are far above or
below their predicted exponent. If there are more candidates than the sketch has room for, some of them, drawn
by a hash of their positions, are sent in a second sketch. Their sums are subtracted from the first sketch,
which then has few enough candidates to be peeled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import history_loops
from peelsum.allreduce.choosing import Chooser
from peelsum.allreduce.costs import TOLERANCE
from peelsum.allreduce.history import History
from peelsum.allreduce.history_loops import DEVIATIONS, FIT
from peelsum.allreduce.indexes import UnionCounts
from peelsum.allreduce.plan import Plan
from peelsum.allreduce.protocol import Overflow, StepExchanges, SumProtocol, Sums
from peelsum.codec import HOST, MANY_CANDIDATES, MIN_CELLS_PER_CANDIDATE, SketchLayout
from peelsum.codec.arrays import Integers, Numbers
from peelsum.codec.cpu.segments import SegmentCodec
from peelsum.codec.segments import ROW, ElementLocations
from peelsum.summation import Words

_Flags = NDArray[np.bool_]
_WORD = 2**32
#: About how many numbers a block has.
_BLOCK_NUMBERS = 32
#: The second sketch has room for the estimated number of its candidates, times this.
_SPARE = 1.03
#: A position's hash is its product with this number, 2**32 over the golden ratio, modulo 2**32.
_HASH_FACTOR = 0x9E3779B1
#: Room for overflowing elements in the sketch of high bits: this multiple of the last steps' count, plus this
#: many.
_OVERFLOW_SPARE, _OVERFLOW_EXTRA = 1.5, 64


@dataclass(frozen=True)
class Prediction:
    """The prediction of a step, from earlier steps: the same on all workers."""

    fields: Integers
    """int32[blocks]: the exponent fields that blocks will probably not exceed."""
    sketch: SketchLayout
    """The layout of the candidates' sketch; not used without sparse segments."""
    high_bits: SketchLayout
    """The layout of the sketch of high bits."""
    candidates: int
    """How many candidates the sketch has room for."""
    overflow: int
    """How many overflowing elements the sketch of high bits has room for."""

    @classmethod
    def of(cls, plan: Plan, history: History, seed: int) -> Prediction:
        """Return the prediction of a step of a plan. seed: of its sketches."""
        layout, settings = plan.layout, plan.settings
        keys, table = layout.keys, layout.table
        fields, unions, last_overflow = history.predict(keys, table)
        count = 0.0
        for part in layout.parts:
            occupied, index = tuple(np.add.reduce(unions[part.segments]).tolist()), part.index
            non_zeros = passed = occupied[0]
            if not index.refined and index.form != "bitmap":
                # If more elements pass it, it is refined: it was chosen for fewer, as is the sketch.
                passed = index.passed(part.elements, UnionCounts(occupied))
            count += min(passed, (1 + TOLERANCE) * non_zeros)
        room = math.ceil(count)
        if room < MANY_CANDIDATES:
            room += math.ceil(DEVIATIONS * math.sqrt(room))
        overflow = min(_OVERFLOW_EXTRA, int(table.begins[table.dense]) + room)
        overflow += math.ceil(_OVERFLOW_SPARE * last_overflow)
        cells = settings.cells_per_candidate
        sketch = SketchLayout.sized(room, seed, cells)
        # `overflow` has a margin already: its sketch needs no more cells per candidate than a large one.
        high_bits = SketchLayout.sized(overflow, seed, cells or MIN_CELLS_PER_CANDIDATE)
        return cls(fields, sketch, high_bits, room, overflow)


class OneRound(SumProtocol):
    """Sums a step's tensors in one round, as predicted: `expected` is the same on all workers.

    More rounds follow only for what the prediction missed.
    """

    def __init__(
        self,
        plan: Plan,
        chooser: Chooser,
        codec: SegmentCodec,
        exchanges: StepExchanges,
        expected: Prediction,
    ) -> None:
        super().__init__(plan, chooser, codec, exchanges, expected.sketch.seed)
        layout, table = plan.layout, plan.layout.table
        self._expected = expected
        #: How many blocks were sent again.
        self._resent_blocks = 0
        #: This worker's numbers that are in the sketch, and their positions, once they are listed.
        self._sketched_numbers: Integers
        self._sketched_positions: Numbers
        self._scales: Integers = self._highest - expected.fields
        #: The low bits of a worker's number, beside a sign; a number's high bits are those above.
        self._bits = self._highest - 126
        #: The sparse vector's first element among those of all segments, and its first padded position, see
        #: `ElementLocations`.
        self._sparse_begin = int(table.begins[table.dense])
        self._sparse_padded_begin = ROW * int(table.rows[table.dense])
        self.cells = expected.sketch.cells if layout.parts else 0
        #: With more candidates, the sketch can hardly be peeled. A small one has more than 1.3 cells each.
        self._peelable = FIT * max(expected.candidates, self.cells / MIN_CELLS_PER_CANDIDATE)

    def run(self) -> None:
        """Go through the first round, then through those that the prediction makes necessary."""
        table, expected = self.layout.table, self._expected
        dense, end = self._sparse_begin, self._sparse_begin + self.cells
        # Header, dense numbers, and the sketches of the candidates' numbers and of high bits.
        sent = self.exchanges.room(self.layout.header_words, end + expected.high_bits.cells)
        self._local_bitmap, self.local_dense = self._bitmap_room(sent.ored), sent.added[:dense]
        sent.added[dense:] = 0
        self.codec.write_ahead(
            sent.ored[: table.scale_words], self._local_bitmap, self._scales, expected.sketch,
            self.local_dense, sent.added[dense:end],
        )  # fmt: skip
        if self.layout.bitmap_in_header is None:
            self._write_indexes(sent.ored)
        sums = self.exchanges.sum(sent, self._add_high_bits)
        exceeding, resent = self._compare_blocks(self._device.to_host(sums.or_on_host[: table.scale_words]))
        missed = True in exceeding or True in resent
        if self._device.ahead and not missed and self._decode_ahead(sums):
            return
        positions, unpeeled = self._decode_numbers(sums)
        self.common_words += expected.high_bits.cells
        self.value_words += self.cells + self.left_over if len(positions) else 0
        if missed:
            words = self._device.to_host(sums.added[end:])
            self._correct_blocks(exceeding, resent, words, positions, unpeeled)
        elif len(unpeeled):
            (self.sparse[unpeeled],) = self._exchange_numbers([self.local_sparse[unpeeled]])

    def _correct_blocks(
        self, exceeding: _Flags, resent: _Flags, words: Words, positions: Numbers, unpeeled: Numbers
    ) -> None:
        """Correct the sums of blocks whose exponents the prediction missed; exchange what is left over.

        exceeding, resent: as `_compare_blocks` returns them. words: the sum of the sketches of high bits, on
        the host. positions, unpeeled: as `_decode_numbers` returns them.
        """
        device, codec, table = self._device, self.codec, self.layout.table
        resent_elements, exceeding_elements = self._sent_elements(resent), self._sent_elements(exceeding)
        high_bits = np.zeros(len(exceeding_elements.elements), np.int32)
        unpeeled_high = HOST.sketch_decode(
            self._expected.high_bits, words, exceeding_elements.padded, high_bits
        )
        blocks = exceeding_elements.blocks
        used = ~resent[blocks] & (self.exponents[blocks] > 0)
        unpeeled_high, overflow = unpeeled_high[used[unpeeled_high]], exceeding_elements.take(used)
        numbers = self._quantize(exceeding_elements)
        # This worker's numbers by the scales of the step.
        if resent[: table.blocks[table.dense]].any():
            self.local_dense = device.integers(len(self.local_dense))
            codec.write_dense(self.local_dense)
        in_dense, in_sparse = self._number_indices(overflow, positions)
        low_bits = (numbers[used] % _WORD).astype(np.uint32).view(np.int32)
        if len(low_bits):
            self.local_dense[in_dense] = device.to_device(low_bits[: len(in_dense)])
            self.local_sparse[in_sparse] = device.to_device(low_bits[len(in_dense) :])
        in_dense, in_sparse = self._number_indices(resent_elements, positions)
        self.common_words += len(unpeeled_high) + len(in_dense)
        self.value_words += len(in_sparse)
        local_high = self._high_bits(numbers[unpeeled_high])
        left_over = [
            *(self.local_sparse[unpeeled], self.local_sparse[in_sparse]),
            *(self.local_dense[in_dense], device.to_device(local_high)),
        ]
        if any(map(len, left_over)):
            totals = self._exchange_numbers(left_over)
            self.sparse[unpeeled], self.sparse[in_sparse], resent_dense, high_sums = totals
            if len(in_dense):  # the first round's sums lie in the backend's memory, which is not overwritten
                received, self.dense = self.dense, device.integers(len(self.dense))
                self.dense[:] = received
                self.dense[in_dense] = resent_dense
            high_bits[unpeeled_high] = device.to_host(high_sums).view(np.int32)
        # The sums of overflowing elements, from those of low and of high bits.
        in_dense, in_sparse = self._number_indices(overflow, positions)
        parts = device.to_host(self.dense[in_dense]), device.to_host(self.sparse[in_sparse])
        low_sums = np.concatenate([part.view(np.int32) for part in parts]).astype(np.int64)
        high = high_bits[used].astype(np.int64) << self._bits
        low: Numbers = (low_sums - high + _WORD // 2) % _WORD - _WORD // 2
        self.overflow = Overflow(overflow, high + low, numbers[used])

    def resent_words(self, overflow: int) -> int:
        """Return how many words were sent again because predicted scales did not fit."""
        too_many = overflow if overflow > FIT * self._expected.overflow else 0
        return _BLOCK_NUMBERS * self._resent_blocks + too_many

    def _add_high_bits(self, ored: Words, added: Integers) -> None:
        """Add the sketch of high bits, if a block exceeds its predicted exponent on this worker."""
        device, table, layout = self._device, self.layout.table, self._expected.high_bits
        words = device.to_host(ored[: table.scale_words])
        if history_loops.exceed(words, table.blocks, self._expected.fields, self._highest):
            self._read_scales(words)
            high_words = np.empty(layout.cells, np.int32)
            overflow = table.locate_elements(self.exponents > self._expected.fields)
            high_bits = self._high_bits(self._quantize(overflow))
            sent = np.flatnonzero(high_bits)
            HOST.sketch_encode(layout, overflow.padded[sent], high_bits[sent], high_words)
            added[self._sparse_begin + self.cells :] = (
                high_words if isinstance(added, np.ndarray) else device.to_device(high_words)
            )

    def _decode_ahead(self, sums: Sums) -> bool:
        """Decode the sums of the first round, if nothing was mispredicted; return whether it was so."""
        codec: Any = self.codec
        begin, end = self._sparse_begin, self._sparse_begin + self.cells
        dense: Any = sums.added[:begin]
        self._set_union(sums)
        divisor = self.plan.workers if self.plan.settings.average else 1
        room = math.floor(self._peelable) if self.cells else 0
        decoded = codec.decode_ahead(dense, sums.added[begin:end], self.union, room, divisor)
        if decoded is None:
            return False
        self.sparse, self.local_sparse = decoded
        count, self.dense = int(np.add.reduce(codec.sent[: self.layout.table.dense])), dense
        if count != begin:
            self._select_sent()
        # Dense tensors that are zero or not finite, the sketch of high bits, and a sketch of nothing.
        self.common_words = begin - count + self._expected.high_bits.cells
        if self.sparse.shape[0]:
            self.value_words = self.cells
        else:
            self.common_words += self.cells
        return True

    def _compare_blocks(self, words: Words) -> tuple[_Flags, _Flags]:
        """Compare the blocks' exponents with the predicted ones, and set the scales of the step.

        Return two arrays bool[blocks]: which blocks exceed the prediction, so that workers may have sent high
        bits; and which are sent again, with scales that fit. The former include blocks of tensors that are
        not finite on some worker: others have sent high bits. words: the OR of the words of scales.
        """
        codec, blocks = self.codec, len(self._scales)
        codec.read_scales(words)
        self.bounds, self.exponents = np.empty((2, blocks), np.int32)
        exceeding, resent = np.empty((2, blocks), np.bool)
        self._resent_blocks = history_loops.flag_blocks(
            words[len(codec.fields) :], self.layout.table.blocks, codec.fields, self.exponents,
            self._expected.fields, self._highest, self._bits, codec.scales, self.bounds, exceeding, resent,
        )  # fmt: skip
        return exceeding, resent

    def _decode_numbers(self, sums: Sums) -> tuple[Numbers, Numbers]:
        """Set `dense` and `sparse` to the sums of the first round; refine the index if that is needed.

        Return the candidates' positions in the sparse vector, and the indices of those that are not peeled.
        """
        codec, device = self.codec, self._device
        self._set_union(sums)
        dense, candidates = codec.set_candidates(self.union)
        share, second = 0.0, None
        if candidates > self._peelable:
            share, second = self._refine(sums, candidates)
            dense, candidates = codec.set_candidates(self.union)
        self.dense = sums.added[: self._sparse_begin]
        if dense != self._sparse_begin:
            self._select_sent()
        self.sparse, self.local_sparse = device.integers(2 * candidates).reshape(2, candidates)
        codec.gather(self.local_sparse)
        self.common_words = self._sparse_begin - dense  # dense tensors that are zero or not finite
        positions = codec.positions()
        sketch = sums.added[self._sparse_begin : self._sparse_begin + self.cells]
        if not candidates:
            self.common_words += self.cells
            return positions, np.empty(0, np.int64)
        if share:
            return positions, self._peel_both(sketch, positions, second, share)
        unpeeled: Numbers = device.sketch_decode(self._expected.sketch, sketch, positions, self.sparse)
        self.left_over = len(unpeeled)
        return positions, unpeeled

    def _refine(self, sums: Sums, candidates: int) -> tuple[float, tuple[SketchLayout, Integers] | None]:
        """Refine the index of a sketch with too many candidates, and sum a second sketch of some of them.

        Return the share of the candidates that are in the second sketch, and its layout and sum. These are
        None if the candidates were not known in time; the share is 0 if few enough are left after all.
        """
        self._list_sketched()
        refinements, second = self._refinements(sums.or_on_host), None
        per_candidate = self.plan.settings.cells_per_candidate or MIN_CELLS_PER_CANDIDATE
        known = all(refinement.counted for refinement in refinements)
        if refinements and not (known and SketchLayout.holds(2 * candidates, per_candidate)):
            # A second sketch cannot be laid out before the candidates' bits are known.
            self._exchange_refinements(refinements)
            refinements, (_, candidates) = [], self.codec.set_candidates(self.union)
        estimate = candidates - sum(part.candidates - part.non_zeros for part in refinements)
        share = 0.0
        if candidates > self._peelable:
            share = max(1 - self._expected.candidates / (_SPARE * estimate), 0.0)
        if refinements and share:
            count = math.ceil(_SPARE * share * estimate + DEVIATIONS * math.sqrt(share * estimate))
            layout = SketchLayout.sized(count, self._seed ^ 1, self.plan.settings.cells_per_candidate)

            def write(out: Integers) -> None:
                positions, numbers = self._sketched_positions, self._sketched_numbers
                drawn = _in_second_sketch(positions, share)
                self._device.sketch_encode(layout, positions[drawn], numbers[drawn], out)

            second = layout, self._exchange_refinements(refinements, layout.cells, write)
        elif refinements:
            self._exchange_refinements(refinements)
        return share, second

    def _list_sketched(self) -> None:
        """List this worker's numbers that are in the sketch."""
        codec = self.codec
        scales = codec.fields, codec.scales
        codec.set_scales(np.zeros_like(codec.fields), self._scales)
        self._sketched_numbers = self._device.integers(codec.set_candidates(self._local_bitmap)[1])
        codec.gather(self._sketched_numbers)
        self._sketched_positions = codec.positions()
        codec.set_scales(*scales)
        codec.set_candidates(self.union)

    def _peel_both(
        self, sketch: Integers, positions: Numbers, second: tuple[SketchLayout, Integers] | None, share: float
    ) -> Numbers:
        """Peel the second sketch, then the first one without its candidates; set `sparse`.

        Return the indices of the candidates that are not peeled. second: layout and sum of the second sketch;
        if None, its candidates' numbers are exchanged as they are. share: of the candidates that are in it.
        """
        device, drawn = self._device, _in_second_sketch(positions, share)
        in_second, in_first = positions[drawn], positions[~drawn]
        numbers, remainder = device.integers(len(in_second)), device.integers(len(sketch))
        if second:
            self.cells += len(second[1])
            unpeeled = device.sketch_decode(*second, in_second, numbers)
            self.left_over += len(unpeeled)
        else:
            unpeeled = device.to_device(np.arange(len(in_second)))
            self.value_words += len(unpeeled)
        if len(unpeeled):
            sent = device.integers(len(positions))
            sent[:] = 0
            sent[device.searchsorted(positions, self._sketched_positions)] = self._sketched_numbers
            (numbers[unpeeled],) = self._exchange_numbers([sent[drawn][unpeeled]])
        device.sketch_encode(self._expected.sketch, in_second, numbers, remainder)
        remainder[:] = sketch - remainder
        self.sparse[drawn], numbers = numbers, device.integers(len(in_first))
        unpeeled = device.sketch_decode(self._expected.sketch, remainder, in_first, numbers)
        self.sparse[~drawn] = numbers
        self.left_over += len(unpeeled)
        return device.searchsorted(positions, in_first[unpeeled])

    def _select_sent(self) -> None:
        """Take out of `dense` and `local_dense` the numbers of segments that are zero or not finite."""
        begins, sent = self.layout.table.begins.tolist(), self.codec.sent[: self.layout.table.dense].tolist()
        ranges = [slice(*begins[s : s + 2]) for s, count in enumerate(sent) if count]
        dense, local = self.dense, self.local_dense
        self.dense = self._device.concatenate([dense[:0], *map(dense.__getitem__, ranges)])
        self.local_dense = self._device.concatenate([local[:0], *map(local.__getitem__, ranges)])

    def _sent_elements(self, blocks: _Flags) -> ElementLocations:
        """Return the elements of flagged blocks; of sparse segments, only the candidates."""
        elements = self.layout.table.locate_elements(blocks)
        begin = int(np.searchsorted(elements.elements, self._sparse_begin))
        if begin == len(elements.elements):
            return elements
        bits = elements.padded[begin:] - self._sparse_padded_begin
        words = self._device.to_host(self.union[self._device.to_device(bits // ROW)])
        candidates = words >> (bits % ROW).astype(np.uint32) & np.uint32(1) != 0
        return elements.take(np.concatenate([np.ones(begin, np.bool_), candidates]))

    def _number_indices(self, elements: ElementLocations, positions: Numbers) -> tuple[Any, Any]:
        """Return the indices of elements' numbers in the dense and in the sparse numbers, on the device."""
        device, begin = self._device, int(np.searchsorted(elements.elements, self._sparse_begin))
        table, sent = self.layout.table, self.codec.sent
        # How many dense elements before each segment have no numbers.
        missing = np.cumsum(table.elements[: table.dense] - sent[: table.dense])
        dense = elements.elements[:begin] - np.append(0, missing)[elements.segments[:begin]]
        sparse = device.to_device(elements.padded[begin:] - self._sparse_padded_begin)
        return device.to_device(dense), device.searchsorted(positions, sparse)

    def _quantize(self, elements: ElementLocations) -> Numbers:
        """Return this worker's numbers of elements, int64[k]; 0 for those of too many bits for two words."""
        numbers = np.empty(len(elements.elements), np.int64)
        values = self.codec.values_at(elements.elements)
        history_loops.quantize_by_block(values, elements.blocks, self._scales, self._bits, numbers)
        return numbers

    def _high_bits(self, numbers: Numbers) -> Integers:
        """Return the high bits of numbers: what remains of each without its low `_bits` bits, rounded."""
        return (numbers + (1 << self._bits - 1) >> self._bits).astype(np.int32)


def _in_second_sketch(positions: Numbers, share: float) -> Any:
    """Return which of positions[k] are in the second sketch, bool[k]: about `share` of them, by a hash."""
    return (positions * _HASH_FACTOR & _WORD - 1) < int(share * _WORD)
