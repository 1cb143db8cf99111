"""Run the exchanges of many small dense tensors at once, in a fraction of the time that each takes alone.

A bundle sends the same words as single exchanges, in the same order, so that workers with and without bundles
can sum together. All workers put these tensors before the others of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.exchange import Limbs
from peelsum.allreduce.indexes import Index
from peelsum.allreduce.plan import Choice, Form, Plan, TensorPlan
from peelsum.allreduce.staging import Round, Rounds, Sums
from peelsum.codec import EXPONENT_WORDS, NON_FINITE, FixedPoint, Selection, fixed_point
from peelsum.codec import cpu_bundle_loops as loops
from peelsum.codec.cpu import frozen, occupied
from peelsum.summation import Words

#: Elements of the largest tensor in a bundle. Larger ones gain little: their time goes into their elements.
LARGEST = 2**13
#: Elements in a block of scales, of a dense tensor.
BLOCK = 32
_WITH_BLOCKS, _WITHOUT_BLOCKS = Choice("dense", scale_block=BLOCK), Choice("dense")


def bundled(plan: Plan) -> list[str]:
    """Return the names of the plan's tensors that go first in every round, on all workers.

    They are small and dense, sent after the agreement, in one limb, and not estimated.
    """
    if plan.settings.limbs != 1 or plan.settings.estimate:
        return []
    return [tensor.name for tensor in plan.tensors if _is_small_and_dense(tensor)]


def _is_small_and_dense(tensor: TensorPlan) -> bool:
    choice = _WITH_BLOCKS if tensor.elements > BLOCK else _WITHOUT_BLOCKS
    return 0 < tensor.elements <= LARGEST and tensor.choice == choice


class Bundle:
    """The exchanges of several tensors.

    tensors: float32[n], n > 0, by name, in the plan's order.
    out: float32[n] to which a tensor's result is written, by name.
    """

    def __init__(
        self, tensors: Mapping[str, NDArray[np.float32]], out: Mapping[str, NDArray[np.float32]], workers: int
    ) -> None:
        self._tensors, self._out = tensors, out
        self._lengths, self._blocks, self._begins, self._firsts = _places(tuple(map(len, tensors.values())))
        self._header_words = EXPONENT_WORDS * len(tensors) + int(self._blocks.sum())
        # A scale is this number less the exponent field.
        self._highest = fixed_point(0, workers).scale
        self._fields = np.full(len(tensors), loops.ZERO, np.int32)
        self._octaves = np.empty(self._firsts[-1], np.int32)
        self._sent = np.zeros(0, np.int64)
        self._quantized: Limbs = np.zeros((1, 0), np.int32)
        self._total = self._quantized
        #: The host's copies of `_quantized` and `_total`, if these are on a device.
        self._near: tuple[Limbs, Limbs] | None = None
        self._floats: NDArray[np.float32] | None = None
        self.words_sent = 0
        self._values = self._joined()

    def _joined(self) -> NDArray[np.float32]:
        return np.concatenate(list(self._tensors.values()))

    def rounds(self) -> Rounds:
        """Yield every round of the exchanges; send each round's sums back into the generator."""
        sums: Sums = yield Round(self._header_words, 0, self._write_headers)
        loops.read_headers(frozen(self._on_host(sums.ored)), self._firsts, self._fields, self._octaves)
        sent = (self._fields != loops.ZERO) & (self._fields != NON_FINITE)
        self._sent = ends(np.where(sent, self._lengths, 0))
        if sent.any():
            sums = yield Round(0, int(self._sent[-1]), self._write_values)
            self._receive(sums.added)

    def members(self) -> dict[str, Member]:
        """Return each tensor's outcome, after the last round."""
        return {name: self._member(m, name) for m, name in enumerate(self._tensors)}

    def floats(self, divisor: int) -> NDArray[np.float32]:
        """Return float32[n]: the sums of all tensors, divided by `divisor`, the same in every call."""
        if self._floats is None:
            self._floats = np.empty_like(self._values)
            loops.dequantize(frozen(self._total[0]), *self._format(), float(divisor), self._floats)
        return self._floats

    def written(self, part: slice, out: NDArray[np.float32] | None, divisor: int) -> NDArray[np.float32]:
        """Return a part of `floats`, in `out` if it is not None."""
        floats = self.floats(divisor)[part]
        if out is None:
            return floats.copy()  # else it would keep the sums of all tensors in memory
        out[:] = floats
        return out

    def _member(self, m: int, name: str) -> Member:
        field, blocks = int(self._fields[m]), int(self._blocks[m])
        first, sent = self._firsts[m], slice(self._sent[m], self._sent[m + 1])
        fixed = None
        if field not in (loops.ZERO, NON_FINITE):
            scale, octaves = self._highest - field, self._octaves[first : first + blocks]
            fixed = FixedPoint(scale, 0, octaves, BLOCK) if blocks else FixedPoint(scale)
        total = self._total[:, sent]
        return Member(
            exponent_field=None if field == loops.ZERO else field,
            fixed=fixed,
            quantized=self._quantized[:, sent],
            total=total,
            near_quantized=None if self._near is None else self._near[0][:, sent],
            near_total=None if self._near is None else self._near[1][:, sent],
            words_sent=EXPONENT_WORDS + blocks + total.shape[1],
            bundle=self,
            part=slice(self._begins[m], self._begins[m + 1]),
            out=self._out.get(name),
        )

    def _on_host(self, words: Words) -> Words:
        return words

    def _receive(self, words: Words) -> None:
        self._total = frozen(words.view(np.int32).reshape(1, -1))

    def _write_headers(self, ored: Words, added: Words) -> None:
        loops.write_headers(self._values.view(np.uint32), self._begins, self._firsts, BLOCK, ored)

    def _write_values(self, ored: Words, added: Words) -> None:
        self._quantized = added.view(np.int32).reshape(1, -1)
        loops.quantize(self._values, *self._format(), self._quantized[0])

    def _format(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], int, NDArray[np.int32], int, NDArray[np.int32]]:
        return self._begins, self._firsts, BLOCK, self._fields, self._highest, self._octaves


@dataclass(frozen=True, eq=False)
class Member:
    """One tensor of a bundle, with the attributes of a `TensorExchange` that has ended."""

    exponent_field: int | None
    """The largest exponent field of all workers; None if all values are zero."""
    fixed: FixedPoint | None
    """Fixed-point format; None if all values are zero or some are not finite."""
    quantized: Limbs
    """int32[limbs, k]: what this worker contributed."""
    total: Limbs
    """int32[limbs, k]: the sum over workers."""
    near_quantized: Limbs | None
    """The host's copy of `quantized`, if that is on a device and was sent through the host."""
    near_total: Limbs | None
    """The host's copy of `total`, if that is on a device and came through the host."""
    words_sent: int
    """Words that this worker has sent for the tensor."""
    bundle: Bundle
    """The bundle that the tensor is part of."""
    part: slice
    """The tensor's elements of all those in the bundle."""
    out: NDArray[np.float32] | None
    """The array to which the result is written; None for a new one."""

    form: ClassVar[Form] = "dense"
    index: ClassVar[Index | None] = None
    selection: ClassVar[Selection | None] = None
    sampled_share: ClassVar[float] = 0.0
    estimated: ClassVar[int] = 0

    @property
    def finite(self) -> bool:
        """See `TensorExchange.finite`."""
        return self.exponent_field != NON_FINITE

    def floats(self, divisor: int) -> NDArray[np.float32]:
        """See `TensorExchange.floats`."""
        return self.bundle.written(self.part, self.out, divisor)

    def occupied(self) -> tuple[int, ...]:
        """See `TensorExchange.occupied`."""
        total = self.total if self.near_total is None else self.near_total
        return tuple(occupied(np.flatnonzero(total[0])).tolist())


@lru_cache(256)  # a model's bundles are the same in every step
def _places(
    lengths: tuple[int, ...],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return lengths, blocks (0 for one block), and where each tensor's elements and blocks begin.

    Bundles of the same lengths share these arrays, and only read them.
    """
    sizes = np.array(lengths, np.int64)
    blocks = -(-sizes // BLOCK)
    return sizes, np.where(blocks > 1, blocks, 0), ends(sizes), ends(blocks)


def ends(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each of several pieces begins that lie back to back, and where the last ends."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends
