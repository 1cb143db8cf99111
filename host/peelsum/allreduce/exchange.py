"""One tensor's part in a step, as a generator: it yields rounds of words to sum and receives their sums.

All workers go through the same rounds, because every decision follows from sums.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, assert_never

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.costs import Seen, block_width
from peelsum.allreduce.indexes import BitmapIndex, BloomIndex, Index
from peelsum.allreduce.plan import Choice, Form, Settings
from peelsum.allreduce.refinement import Refinement
from peelsum.allreduce.staging import PAUSE, Round, Rounds, Sums, staged
from peelsum.codec import (
    EXPONENT_WORDS,
    NON_FINITE,
    SAMPLE,
    SAMPLE_WORDS,
    FixedPoint,
    HostMemory,
    Kernels,
    Memory,
    Packed,
    Selection,
    SketchLayout,
    fixed_point,
    index_words,
    largest_exponent_field,
    sample,
)
from peelsum.summation import Words

T = TypeVar("T")
Positions = NDArray[np.int64]
#: int32[k].
Numbers = NDArray[np.int32]
#: Cells per candidate with which a sketch that was sent ahead can do without refining its index.
_PEELABLE = 1.25
#: Above this density, the positions of the non-zeros do not affect the choice of a form.
DENSE = 1 / 4
#: A tensor of which a smaller share is sampled as non-zero is not sent dense. With a true share of 20 %, a
#: sample of 256 elements reaches it once in 20,000 steps.
DENSE_SAMPLE = 0.3


@dataclass(frozen=True)
class Setting:
    """The parameters of one tensor's exchange in one step."""

    ops: Kernels
    fan_in: int
    """Number of workers."""
    lanes: int
    """Words per chunk."""
    settings: Settings
    seed: int
    """Seed of the tensor's index and sketch in this step."""
    memory: Memory = field(default_factory=HostMemory)
    refinement: Refinement = field(default_factory=Refinement)
    count_ahead: bool = False
    """Whether a device counts for `occupied` in advance, so that reading the counts does not wait."""


class TensorExchange:
    """The exchange of values[n]. After its last round, its attributes hold the outcome."""

    def __init__(
        self,
        choice: Choice,
        values: NDArray[np.float32],
        setting: Setting,
        *,
        out: NDArray[np.float32] | None = None,
    ) -> None:
        """out: float32[n] to which `floats` writes. If it is `values`, zeros outside the union stay."""
        self._choice, self._values, self._setting = choice, values, setting
        self._ops, self._elements = setting.ops, len(values)
        self._memory, self._out, self._over = setting.memory.beside(values), out, out is values
        self._on_device = not isinstance(setting.memory, HostMemory)
        # Other workers may have zeros of the other sign.
        self._index = self._ops.index_over if self._over else self._ops.index
        #: Elements in a block with its own scale, or None; and how many such blocks there are.
        self._block = None if choice.prediction else choice.scale_block
        self._blocks = -(-self._elements // self._block) if self._block else 0
        self._guess = self._fixed_point(choice.prediction.exponent_field) if choice.prediction else None
        #: How the values were sent, and the first index, if there is one.
        self.form: Form = choice.form
        self.index: Index | None = choice.index
        #: Whether every worker's values are finite.
        self.finite = True
        #: The largest exponent field of all workers; None if all values are zero.
        self.exponent_field: int | None = None
        #: Fixed-point format; None if no values are exchanged, because all are zero or some are not finite.
        self.fixed: FixedPoint | None = None
        #: The elements to which `quantized` and `total` belong; None means all.
        self.selection: Selection | None = None
        #: int32[k]: what this worker contributed, and the sum over workers.
        self.quantized = self.total = self._memory.integers(0)
        #: The host's copies of `quantized` and `total`, if those are on a device; None without a copy.
        self.near_quantized: Numbers | None = None
        self.near_total: Numbers | None = None
        #: Returns the counts for `occupied`; None until counting has started.
        self._counted: Callable[[], NDArray[np.int64]] | None = None
        #: Share of a dense tensor's elements that are not zero, if it was sampled.
        self.sampled_share = 0.0
        #: Whether `positions` has no false positives.
        self._known = False
        # This worker's non-zeros, from the header until their integers are written.
        self._packed = Packed()
        self._decoded: NDArray[np.float32] | None = None
        #: The names of its tensors, for messages.
        self.label = ""
        #: Words that this worker has sent; `Step` counts them.
        self.words_sent = 0

    def rounds(self) -> Rounds:
        """Yield every round of the exchange; send each round's sums back into the generator."""
        return staged(self.lone_rounds(), self._memory)

    def lone_rounds(self) -> Rounds:
        """Yield the same rounds as `rounds`, with words in the tensor's memory."""
        return self._rounds()

    def _rounds(self) -> Rounds:
        match self._choice.form:
            case "dense":
                yield from self._dense()
            case "compact" | "sketch":
                assert self.index is not None
                self.selection = Selection(0, partial(self._memory.positions, self._values[:0]))
                yield from self._sparse(self.index)
            case unknown:
                assert_never(unknown)

    def _dense(self) -> Rounds:
        guess, words = self._guess, self._elements
        sampled, begin = SAMPLE_WORDS if self._choice.sampled else 0, EXPONENT_WORDS + self._blocks

        def header(ored: Words, added: Words) -> None:
            if guess is not None:
                magnitude = self._write(guess, added)
            elif self._block:
                magnitude = self._ops.block_exponents(self._values, self._block, ored[EXPONENT_WORDS:begin])
            else:
                magnitude = self._ops.magnitude(self._values)
            self._memory.write_exponent(magnitude, ored[:EXPONENT_WORDS])
            if sampled:
                drawn = self._memory.receive(sample(self._elements, self._setting.seed))
                self._ops.index(self._values[drawn], ored[begin:])

        sums = yield Round(begin + sampled, words if guess else 0, header)
        exponents, drawn = yield from self._on_host(sums.near.ored[:EXPONENT_WORDS], sums.near.ored[begin:])
        self._agree(sums, exponents)
        if self.fixed is None:
            return
        share = self._ops.count(drawn, SAMPLE) / SAMPLE if sampled else 1.0
        if share < DENSE_SAMPLE:
            yield from self._not_dense(self.fixed, share)
            return
        self.sampled_share = share if sampled else 0.0
        if self.fixed is not guess:
            sums = yield Round(0, words, partial(self._write_again, self.fixed))
        self._receive(sums)

    def _not_dense(self, fixed: FixedPoint, share: float) -> Rounds:
        """Send the values compact, since about this share of them is not zero."""
        n, seed = self._elements, self._setting.seed
        own = self._memory.words(index_words(n))
        self._index(self._values, own)
        index = self._setting.refinement.first(n, max(share, 0.5 / SAMPLE), 1)
        self.form, self.index = "compact", index
        sums = yield Round(index.words(n), 0, partial(self._write_index, index, own, n, seed))
        selection = yield from self._union(own, index, sums, 0, None)
        yield from self._compact(fixed, selection)

    def _write(self, fixed: FixedPoint, added: Words) -> int:
        self.quantized = self._memory.signed(added)
        return self._ops.quantize(self._values, fixed, self.quantized)

    def _write_again(self, fixed: FixedPoint, ored: Words, added: Words) -> None:
        self._write(fixed, added)

    def _sparse(self, index: Index) -> Rounds:
        n, ops, seed, guess = self._elements, self._ops, self._setting.seed, self._guess
        layout = self._predicted_layout()
        # A bitmap is written where it is sent from, and is not refined.
        sent_as_it_is = isinstance(index, BitmapIndex)
        own = self._memory.words(0 if sent_as_it_is else index_words(n))
        begin = EXPONENT_WORDS + self._blocks

        def header(ored: Words, added: Words) -> None:
            bitmap = ored[begin:] if sent_as_it_is else own
            if layout and guess:
                if self._over:
                    self._index(self._values, bitmap)
                magnitude = ops.index_sketch(layout, self._values, guess, bitmap, added)
            elif self._block:
                given = self._values, self._block, bitmap, ored[EXPONENT_WORDS:begin]
                magnitude = ops.index_exponents(*given, over=self._over, packed=self._packed)
            else:
                magnitude = self._index(self._values, bitmap)
            self._memory.write_exponent(magnitude, ored[:EXPONENT_WORDS])
            if not sent_as_it_is:
                index.encode(ops, own, n, seed, ored[begin:])

        cells = layout.cells if layout else 0
        sums = yield Round(begin + index.words(n), cells, header)
        (exponents,) = yield from self._on_host(sums.near.ored[:EXPONENT_WORDS])
        self._agree(sums, exponents)
        if self.fixed is None:
            return
        sent = layout if self.fixed is guess else None
        selection = yield from self._union(own, index, sums, begin, sent)
        if sent:
            quantized = self._quantized(self.fixed, selection)
            yield from self._peeled(sent, sums.added, selection.positions, quantized)
        elif self.form == "sketch" and not layout:
            yield from self._sketched(self.fixed, selection)
        else:
            yield from self._compact(self.fixed, selection)

    def _union(
        self, own: Words, index: Index, sums: Sums, begin: int, sketch: SketchLayout | None
    ) -> Generator[Round, Sums, Selection]:
        """Refine the index, given the OR of its words from `begin` on, until few false positives are left.

        `own` is this worker's bitmap. Return the candidates, and set `selection` to them.
        """
        n, ops, level = self._elements, self._ops, 0
        words, near, elements = sums.ored[begin:], sums.near.ored[begin:], n
        union = index.decode(ops, words, n, self._setting.seed, self._memory)
        while True:
            passed, filled = yield from self._passed(index, near, elements, union)
            following = self._following(index, filled, passed, sketch, level)
            if following is None:
                break
            index, level, elements = following, level + 1, passed
            seed = (self._setting.seed + level) % 2**64
            inner = self._memory.words(index_words(passed))
            scan = ops.gather_bits(own, union, inner)
            sums = yield Round(index.words(passed), 0, partial(self._write_index, index, inner, passed, seed))
            near, mask = sums.near.ored, union
            inner = index.decode(ops, sums.ored, passed, seed, self._memory)
            union = self._memory.words(len(mask))
            ops.scatter_bits(inner, mask, union, scan)
        self._known = isinstance(index, BitmapIndex)
        self.selection = Selection(passed, partial(ops.positions, union, n, count=passed), union)
        if self._known:
            self._count_ahead()
        return self.selection

    def _passed(
        self, index: Index, words: Words, elements: int, union: Words
    ) -> Generator[Round, Sums, tuple[int, int]]:
        """Return the number of candidates in `union`, and that of the bits set in a Bloom filter's words."""
        ops, known = self._ops, None
        if isinstance(words, np.ndarray):
            known = index.passed(ops, words, elements)
        filter_bits = 32 * len(words) if isinstance(index, BloomIndex) else 0
        counts = [] if known is not None else [ops.counted(union, self._elements)]
        counts += [ops.counted(words, filter_bits)] if filter_bits else []
        read = yield from self._read(counts)
        passed = read.pop(0) if known is None else known
        return passed, read.pop() if read else 0

    def _read(self, copies: Sequence[Callable[[], T]]) -> Generator[Round, Sums, list[T]]:
        """Return what functions such as those of `Memory.later` return."""
        if copies and self._on_device:
            yield PAUSE
        return [copied() for copied in copies]

    def _on_host(self, *words: Words) -> Generator[Round, Sums, list[Words]]:
        """Return words on the host, where they are unless they were summed on a device."""
        if isinstance(words[0], np.ndarray):
            return list(words)
        copies = yield from self._read([self._memory.later(one) for one in words])
        return [copied.view(np.uint32) for copied in copies]

    def _write_index(
        self, index: Index, bitmap: Words, elements: int, seed: int, ored: Words, added: Words
    ) -> None:
        index.encode(self._ops, bitmap, elements, seed, ored)

    def _following(
        self, index: Index, filled: int, passed: int, sketch: SketchLayout | None, level: int
    ) -> Index | None:
        """Return the next index; None if few of the elements that passed `index` are false positives."""
        if isinstance(index, BitmapIndex):
            return None
        per_candidate = 1.0
        if sketch:
            if sketch.cells >= _PEELABLE * passed:
                return None
        elif self.form == "sketch":
            per_candidate = self._setting.settings.cells(passed, ahead=False)
        return self._setting.refinement.after(index, filled, passed, per_candidate, level)

    def _compact(self, fixed: FixedPoint, selection: Selection) -> Rounds:
        def write(ored: Words, added: Words) -> None:
            self.quantized = self._memory.signed(added)
            self._gather(selection, fixed, self.quantized)

        sums = yield Round(0, len(selection), write)
        self._receive(sums)

    def _sketched(self, fixed: FixedPoint, selection: Selection) -> Rounds:
        per_candidate = self._setting.settings.cells(len(selection), ahead=False)
        positions, seed = selection.positions, self._setting.seed
        (layout,) = yield from self._read(
            [_segmented_layout(self._ops, self._memory, positions, seed, per_candidate)]
        )
        quantized = self._quantized(fixed, selection)

        def write(ored: Words, added: Words) -> None:
            self._ops.sketch_encode(layout, positions, quantized, added)

        sums = yield Round(0, layout.cells, write)
        yield from self._peeled(layout, sums.added, positions, quantized)

    def _peeled(self, layout: SketchLayout, words: Words, positions: Positions, quantized: Numbers) -> Rounds:
        """Peel the summed sketch; exchange the left-over."""
        self.quantized, self.total = quantized, self._memory.integers(len(positions))
        peeled = self._ops.peeled(layout, words, positions, self.total)
        if not self._known:
            self._count_ahead()  # again, if something is left over
        (left,) = yield from self._read([peeled])
        if not len(left):
            return

        def write(ored: Words, added: Words) -> None:
            self._memory.signed(added)[:] = quantized[left]

        sums = yield Round(0, len(left), write)
        self.total[left] = self._memory.signed(sums.added)
        if not self._known:
            self._count_ahead()

    def floats(self, divisor: int) -> NDArray[np.float32]:
        """Return float32[n]: the sum divided by `divisor`, or NaN if some worker's values are not finite."""
        if self._decoded is None:
            self.decode(divisor)
            assert self._decoded is not None
        return self._decoded

    def decode(self, divisor: int) -> None:
        """Begin to write what `floats` returns."""
        self._decoded = self._dequantized(divisor)

    def _dequantized(self, divisor: int) -> NDArray[np.float32]:
        if not self.finite or self.fixed is None:
            value = 0.0 if self.finite else np.nan
            if self._out is None:
                return self._memory.floats(self._elements, value)
            self._out[:] = value
            return self._out
        out, clear = (
            (self._out, not self._over) if self._out is not None else self._memory.result(self._elements)
        )
        if self.selection is None:
            self._ops.dequantize(self.total, self.fixed, divisor, out)
        else:
            self._ops.scatter(self.total, self.selection, self.fixed, divisor, out, clear=clear)
        return out

    def occupied(self) -> tuple[int, ...]:
        """Count the blocks of 2**b elements that hold a non-zero of the union, for each b.

        The union is not known of a dense tensor, nor if there are false positives among the candidates. Then
        the sum's non-zeros are counted, unless most of the candidates were rounded to 0.
        """
        counted = self._counted or self._memory.later(self._ops.occupied_by(self._non_zeros()))
        return tuple(counted().tolist())

    def _count_ahead(self) -> None:
        """Start counting for `occupied`, if the setting wants it and there are few non-zeros."""
        if not self._setting.count_ahead:
            return
        summed, most = self.selection, DENSE * self._elements
        if self._known or summed is None or self.near_total is not None:
            found = self._non_zeros()
            if len(found) <= most:
                self._counted = self._memory.later(self._ops.occupied_by(found))
        elif len(summed) <= most:
            self._counted = self._counting_sums(summed)

    def _counting_sums(self, candidates: Selection) -> Callable[[], NDArray[np.int64]]:
        """Start counting by sums of which only the device knows how many are not zero."""
        ops, later, positions = self._ops, self._memory.later, candidates.positions
        all_of_them = later(ops.occupied_by(candidates))
        not_zero = later(ops.occupied(positions, self.total))

        def counted() -> NDArray[np.int64]:
            found = not_zero()
            return found if 2 * found[0] > len(candidates) else all_of_them()

        return counted

    def _non_zeros(self) -> Selection:
        """Return the elements that `occupied` counts, if the union is not known."""
        if self._known and self.selection is not None:
            return self.selection
        total = self.total if self.near_total is None else self.near_total
        where = self._memory.positions(total != 0)
        if self.selection is None:
            return Selection(len(where), lambda: where)
        if 2 * len(where) <= len(self.selection):
            return self.selection
        summed = self.selection.positions[where]
        return Selection(len(summed), lambda: summed)

    def _receive(self, sums: Sums) -> None:
        """Set `total` to the sums of a round, and start counting for `occupied`."""
        self.total = self._memory.signed(sums.added)
        if sums.near is not sums:
            self.near_total = sums.near.added.view(np.int32)
            if sums.near_sent is not None:
                self.near_quantized = sums.near_sent.view(np.int32)
        if self._counted is None and (self.selection is not None or self.near_total is not None):
            self._count_ahead()

    def _agree(self, sums: Sums, exponents: Words) -> None:
        """Set `exponent_field`, `finite` and `fixed` from all workers' headers; the host has `exponents`."""
        self.exponent_field = field = largest_exponent_field(exponents)
        self.finite = field != NON_FINITE
        if field is None or not self.finite:
            self.quantized = self._memory.integers(0)
        elif self._choice.prediction and self._choice.prediction.holds(field):
            self.fixed = self._guess
        else:
            self.fixed = self._fixed_point(field)
            if self._block:
                octaves = self._memory.integers(self._blocks)
                levels = sums.ored[EXPONENT_WORDS : EXPONENT_WORDS + self._blocks]
                self._ops.block_octaves(levels, field, octaves)
                self.fixed = FixedPoint(self.fixed.scale, octaves, self._block)

    def _fixed_point(self, exponent_field: int) -> FixedPoint:
        return fixed_point(exponent_field, self._setting.fan_in)

    def _layout(self, candidates: int, lanes: int) -> SketchLayout:
        per_candidate = self._setting.settings.cells(candidates, ahead=True)
        return SketchLayout.ahead(candidates, lanes, self._setting.seed, per_candidate)

    def _predicted_layout(self) -> SketchLayout | None:
        prediction, lanes = self._choice.prediction, self._choice.lanes or self._setting.lanes
        if prediction is None or self._choice.form != "sketch":
            return None
        return self._layout(prediction.candidates, lanes)

    def _quantized(self, fixed: FixedPoint, selection: Selection) -> Numbers:
        out = self._memory.integers(len(selection))
        self._gather(selection, fixed, out)
        return out

    def _gather(self, selection: Selection, fixed: FixedPoint, out: Numbers) -> None:
        self._ops.gather(self._values, selection, fixed, out, self._packed)
        self._packed = Packed()


def segmented_layout(
    ops: Kernels, memory: Memory, positions: Positions, seed: int, cells_per_candidate: float
) -> SketchLayout:
    """Return the layout of a sketch of a known union; the segment with the narrowest blocks sets `lanes`."""
    return _segmented_layout(ops, memory, positions, seed, cells_per_candidate)()


def _segmented_layout(
    ops: Kernels, memory: Memory, positions: Positions, seed: int, cells_per_candidate: float
) -> Callable[[], SketchLayout]:
    """Start counting for a `segmented_layout`; return a function that returns it."""
    k = len(positions)
    segments = SketchLayout.segmented(k, 1, seed, cells_per_candidate).slices(k)
    counted = [memory.later(ops.occupied(positions[a:b])) for a, b in segments]

    def layout() -> SketchLayout:
        lanes = min(block_width(Seen(0, tuple(read().tolist()))) for read in counted)
        return SketchLayout.segmented(k, lanes, seed, cells_per_candidate)

    return layout
