"""One tensor's part in a step, as a generator: it yields rounds of words to sum and receives their sums.

All workers go through the same rounds, because every decision follows from sums.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.indexes import BloomIndex, Index
from peelsum.allreduce.plan import Choice, Settings
from peelsum.allreduce.staging import Round, Rounds, Sums, staged
from peelsum.codec import (
    ESTIMABLE,
    EXPONENT_WORDS,
    NON_FINITE,
    FixedPoint,
    HostMemory,
    Kernels,
    Memory,
    SketchLayout,
    estimate_left_over,
    fixed_point,
    index_words,
    largest_exponent_field,
)
from peelsum.summation import Words

Positions = NDArray[np.int64]
#: int32[limbs, k].
Limbs = NDArray[np.int32]


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


class TensorExchange:
    """The exchange of values[n]. After its last round, its attributes hold the outcome."""

    def __init__(self, choice: Choice, values: NDArray[np.float32], setting: Setting) -> None:
        self._choice, self._values, self._setting = choice, values, setting
        self._ops, self._limbs, self._elements = setting.ops, setting.settings.limbs, len(values)
        self._memory = setting.memory.beside(values)
        self._guess = self._fixed_point(choice.prediction.exponent_field) if choice.prediction else None
        #: Whether every worker's values are finite.
        self.finite = True
        #: The largest exponent field of all workers; None if all values are zero.
        self.exponent_field: int | None = None
        #: Fixed-point format; None if no values are exchanged, because all are zero or some are not finite.
        self.fixed: FixedPoint | None = None
        #: Elements int64[k] to which `quantized` and `total` belong; None means all.
        self.positions: NDArray[np.int64] | None = None
        #: int32[limbs, k]: what this worker contributed, and the sum over workers.
        self.quantized = self.total = self._memory.integers(self._limbs, 0)
        #: Number of elements of `total` that are estimates.
        self.estimated = 0
        #: Words that this worker has sent; `Step` counts them.
        self.words_sent = 0

    def rounds(self) -> Rounds:
        """Yield every round of the exchange; send each round's sums back into the generator."""
        return staged(self._rounds(), self._memory)

    def settle(self) -> None:
        """Wait until the words that the last round wrote can be sent."""
        self._memory.settle()

    def _rounds(self) -> Rounds:
        if self._choice.index is None:
            yield from self._dense()
        else:
            self.positions = self._memory.positions(self._values[:0])
            yield from self._sparse(self._choice.index)

    def _dense(self) -> Rounds:
        guess, words = self._guess, self._limbs * self._elements

        def header(ored: Words, added: Words) -> None:
            magnitude = self._ops.magnitude(self._values) if guess is None else self._write(guess, added)
            self._memory.write_exponent(magnitude, ored)

        sums = yield Round(EXPONENT_WORDS, words if guess else 0, header)
        self._agree(sums.ored)
        if self.fixed is None:
            return
        if self.fixed is not guess:
            sums = yield Round(0, words, partial(self._write_again, self.fixed))
        self.total = self._by_limb(sums.added)

    def _write(self, fixed: FixedPoint, added: Words) -> int:
        self.quantized = self._by_limb(added)
        return self._ops.quantize(self._values, fixed, self.quantized)

    def _write_again(self, fixed: FixedPoint, ored: Words, added: Words) -> None:
        self._write(fixed, added)

    def _sparse(self, index: Index) -> Rounds:
        n, ops, seed, guess = self._elements, self._ops, self._setting.seed, self._guess
        layout = self._predicted_layout()
        own = self._memory.words(index_words(n))

        def header(ored: Words, added: Words) -> None:
            if layout and guess:
                sketch = added.reshape(self._limbs, -1)
                magnitude = ops.index_sketch(layout, self._values, guess, own, sketch)
            else:
                magnitude = ops.index(self._values, own)
            self._memory.write_exponent(magnitude, ored[:EXPONENT_WORDS])
            index.encode(ops, own, n, seed, ored[EXPONENT_WORDS:])

        cells = self._limbs * layout.cells if layout else 0
        sums = yield Round(EXPONENT_WORDS + index.words(n), cells, header)
        self._agree(sums.ored)
        if self.fixed is None:
            return
        union = index.decode(ops, sums.ored[EXPONENT_WORDS:], n, seed, self._memory)
        if index.refined:
            union = yield from self._refined(own, union)
        positions = self.positions = ops.positions(union, n)
        if layout and self.fixed is guess:
            yield from self._peeled(layout, sums.added, positions, self._quantized(self.fixed, positions))
        elif self._choice.form == "sketch":
            yield from self._sketched(self.fixed, positions)
        else:
            yield from self._compact(self.fixed, positions)

    def _refined(self, own: Words, mask: Words) -> Generator[Round, Sums, Words]:
        """Exchange the candidates' own bits, `mask` being the candidates; return the union's bitmap."""

        def write(ored: Words, added: Words) -> None:
            self._ops.gather_bits(own, mask, ored)

        words = index_words(self._ops.count(mask, self._elements))
        sums = yield Round(words, 0, write)
        union = self._memory.words(len(mask))
        self._ops.scatter_bits(sums.ored, mask, union)
        return union

    def _compact(self, fixed: FixedPoint, positions: Positions) -> Rounds:
        def write(ored: Words, added: Words) -> None:
            self.quantized = self._by_limb(added)
            self._ops.quantize_at(self._values, positions, fixed, self.quantized)

        sums = yield Round(0, self._limbs * len(positions), write)
        self.total = self._by_limb(sums.added)

    def _sketched(self, fixed: FixedPoint, positions: Positions) -> Rounds:
        layout = self._layout(len(positions))
        quantized = self._quantized(fixed, positions)

        def write(ored: Words, added: Words) -> None:
            for limb, sketch in zip(quantized, added.reshape(self._limbs, -1), strict=True):
                self._ops.sketch_encode(layout, positions, limb, sketch)

        sums = yield Round(0, self._limbs * layout.cells, write)
        yield from self._peeled(layout, sums.added, positions, quantized)

    def _peeled(self, layout: SketchLayout, words: Words, positions: Positions, quantized: Limbs) -> Rounds:
        """Peel the summed sketch; exchange or estimate the left-over."""
        self.quantized, self.total = quantized, self._memory.integers(self._limbs, len(positions))
        sketches, left = words.reshape(self._limbs, -1), positions[:0]
        for sketch, total in zip(sketches, self.total, strict=True):
            left = self._ops.sketch_decode(layout, sketch, positions, total)
        if not len(left):
            return
        if self._setting.settings.estimate:
            self.estimated = len(left)
            for sketch, total in zip(sketches, self.total, strict=True):
                estimate_left_over(self._ops, layout, sketch, positions, total, left)
            return

        def write(ored: Words, added: Words) -> None:
            self._by_limb(added)[:] = quantized[:, left]

        sums = yield Round(0, self._limbs * len(left), write)
        self.total[:, left] = self._by_limb(sums.added)

    def floats(self, divisor: int) -> NDArray[np.float32]:
        """Return float32[n]: the sum divided by `divisor`, or NaN if some worker's values are not finite."""
        if not self.finite:
            return self._memory.floats(self._elements, np.nan)
        if self.fixed is None:
            return self._memory.floats(self._elements)
        out = self._memory.floats(self._elements)
        if self.positions is None:
            self._ops.dequantize(self.total, self.fixed, divisor, out)
        else:
            self._ops.dequantize_at(self.total, self.positions, self.fixed, divisor, out)
        return out

    def occupied(self) -> tuple[int, ...]:
        """Count the blocks of 2**b elements that hold a non-zero of the union, for each b.

        If the union is not known (a dense tensor, or false positives among the candidates), the non-zeros of
        the sum are counted instead.
        """
        positions, index = self.positions, self._choice.index
        if positions is None:
            positions = self._memory.positions(self.total.any(0))
        elif isinstance(index, BloomIndex) and not index.refined:
            positions = positions[self.total.any(0)]
        return tuple(self._ops.occupied(positions).tolist())

    def _agree(self, header: Words) -> None:
        """Set `exponent_field`, `finite` and `fixed` from the OR of all workers' headers."""
        self.exponent_field = field = largest_exponent_field(self._memory.on_host(header[:EXPONENT_WORDS]))
        self.finite = field != NON_FINITE
        if field is None or not self.finite:
            self.quantized = self._memory.integers(self._limbs, 0)
        elif self._choice.prediction and self._choice.prediction.holds(field):
            self.fixed = self._guess
        else:
            self.fixed = self._fixed_point(field)

    def _fixed_point(self, exponent_field: int) -> FixedPoint:
        settings, fan_in = self._setting.settings, self._setting.fan_in
        return fixed_point(
            exponent_field, fan_in * ESTIMABLE if settings.estimate else fan_in, settings.limbs
        )

    def _layout(self, candidates: int) -> SketchLayout:
        setting = self._setting
        per_candidate = setting.settings.cells_per_candidate
        lanes = self._choice.lanes or setting.lanes
        return SketchLayout.sized(candidates, lanes, setting.seed, per_candidate)

    def _predicted_layout(self) -> SketchLayout | None:
        prediction = self._choice.prediction
        return self._layout(prediction.candidates) if prediction and self._choice.form == "sketch" else None

    def _quantized(self, fixed: FixedPoint, positions: Positions) -> Limbs:
        out = self._memory.integers(self._limbs, len(positions))
        self._ops.quantize_at(self._values, positions, fixed, out)
        return out

    def _by_limb(self, words: Words) -> Limbs:
        return self._memory.by_limb(words, self._limbs)
