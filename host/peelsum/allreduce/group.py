"""Sum the small sparse tensors of a step as one, with one index for all, so that they share its words.

Strategy: the tensors are laid end to end, each from a multiple of 32 elements on, and exchanged like one
tensor. Each keeps its own exponent, and its own scales of blocks. For this, a worker sets the bits of all its
tensors' exponent fields in eight words that the group shares. In one word for each tensor, it sets the bit of
the field modulo 32. Such a bit means the field of the eight words that has this remainder, and the largest
field that a word means is its tensor's. If two fields of the eight words have the same remainder, another
exchange sends eight words for each tensor.

The members of a group have few elements, so that even workers with a GPU sum them on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.bundle import LARGEST, ends
from peelsum.allreduce.exchange import Numbers, Positions, Setting, TensorExchange
from peelsum.allreduce.indexes import Index
from peelsum.allreduce.plan import Choice, Form, TensorPlan, labeled
from peelsum.allreduce.staging import Round, Rounds, by_host
from peelsum.codec import (
    EXPONENT_WORDS,
    NON_FINITE,
    FixedPoint,
    HostMemory,
    Memory,
    Selection,
    fixed_point,
    index_words,
)
from peelsum.codec.block_scales import exponents_of, octaves_of
from peelsum.codec.cpu import occupied
from peelsum.summation import Words

_WORD_BITS = 32
_MANTISSA_BITS = 23
_MAGNITUDE = np.uint32(0x7FFFFFFF)
#: Stands for the field of a tensor that is zero on every worker.
_ZERO = -1

_Numbers = NDArray[np.int64]


def groupable(tensor: TensorPlan) -> bool:
    """Return whether a tensor is small and sent compact, so that it can be part of a group."""
    choice = tensor.choice
    small = 0 < tensor.elements <= LARGEST
    return small and choice.form == "compact"


class Group(TensorExchange):
    """The exchange of several tensors as one.

    choice: that of every tensor of the group.
    tensors: float32[n], n > 0, by name, in the plan's order, in `memory`.
    out: float32[n] to which a tensor's result is written, by name.
    setting: that of the exchange, with kernels on the host.
    """

    def __init__(
        self,
        choice: Choice,
        tensors: Mapping[str, NDArray[np.float32]],
        out: Mapping[str, NDArray[np.float32]],
        setting: Setting,
        memory: Memory,
    ) -> None:
        self._names, self._results, self._device = list(tensors), out, memory
        self._near = [memory.beside(tensor) for tensor in tensors.values()]
        self._lengths = np.array([len(tensor) for tensor in tensors.values()])
        room = -(-self._lengths // _WORD_BITS) * _WORD_BITS
        self._begins = ends(room)
        joined, taken = memory.joined(list(tensors.values())), ends(self._lengths)
        values = np.zeros(self._begins[-1], np.float32)
        for begin, first, last in zip(self._begins, taken, taken[1:], strict=False):
            values[begin : begin + last - first] = joined[first:last]
        super().__init__(choice, values, setting)
        self.label = labeled(self._names)
        self._lay_out(room, choice.scale_block or LARGEST)
        self._fields = np.full(len(tensors), _ZERO)
        self._floats: NDArray[np.float32] | None = None

    def rounds(self) -> Rounds:
        """See `TensorExchange.rounds`. Words that travel on a device are still written on the host."""
        on_device = self._device.direct and not isinstance(self._device, HostMemory)
        return by_host(self._rounds(), self._device) if on_device else self._rounds()

    def _lay_out(self, room: _Numbers, block: int) -> None:
        """Cut tensors into blocks of scales; a tensor of one block sends no words for it."""
        counts = -(-self._lengths // block)
        #: Number of each tensor's blocks; the tensor, first element and 32-element words of each block.
        self._counts, self._of = counts, np.repeat(np.arange(len(counts)), counts)
        self._blocks_of = ends(counts)
        ranks = np.arange(self._of.size) - np.repeat(self._blocks_of[:-1], counts)
        self._firsts = self._begins[self._of] + ranks * block
        last = np.minimum(self._firsts + block, self._begins[self._of] + room[self._of])
        self._widths = (last - self._firsts) // _WORD_BITS
        self._many = counts[self._of] > 1
        self._scale_block = block

    def _rounds(self) -> Rounds:
        assert self.index is not None
        n, count, index = self._elements, len(self._names), self.index
        scales = EXPONENT_WORDS + count
        begin = scales + int(self._many.sum())
        own = self._memory.words(index_words(n))

        def header(ored: Words, added: Words) -> None:
            self._ops.index(self._values, own)
            self._write_exponents(ored[:scales], ored[scales:begin])
            index.encode(self._ops, own, n, self._setting.seed, ored[begin:])

        self.selection = Selection(0, partial(self._memory.positions, self._values[:0]))
        sums = yield Round(begin + index.words(n), 0, header)
        fields = _fields_of(sums.ored[:EXPONENT_WORDS], sums.ored[EXPONENT_WORDS:scales])
        if fields is None:
            exact = yield Round(EXPONENT_WORDS * count, 0, self._write_fields)
            fields = _largest_bits(exact.ored.reshape(count, -1))
        self._set_scales(fields, sums.ored[scales:begin])
        if self.fixed is None:
            return
        selection = yield from self._union(own, index, sums, begin, None)
        yield from self._compact(self.fixed, selection)

    def _magnitudes(self, begins: _Numbers) -> NDArray[np.uint32]:
        """Return the largest magnitude from each of these elements up to the next."""
        magnitudes: NDArray[np.uint32] = np.maximum.reduceat(
            self._values.view(np.uint32) & _MAGNITUDE, begins
        )
        return magnitudes

    def _write_exponents(self, ored: Words, scales: Words) -> None:
        largest = self._magnitudes(self._begins[:-1])
        fields = largest[largest != 0] >> _MANTISSA_BITS
        ored[:] = 0
        np.bitwise_or.at(ored, fields // _WORD_BITS, np.uint32(1) << fields % _WORD_BITS)
        ored[EXPONENT_WORDS:][largest != 0] = np.uint32(1) << fields % _WORD_BITS
        scales[:] = exponents_of(self._magnitudes(self._firsts), largest[self._of])[self._many]

    def _write_fields(self, ored: Words, added: Words) -> None:
        largest = self._magnitudes(self._begins[:-1])
        words, fields = ored.reshape(len(largest), -1), largest >> _MANTISSA_BITS
        words[:] = 0
        used = np.flatnonzero(largest)
        words[used, fields[used] // _WORD_BITS] = np.uint32(1) << fields[used] % _WORD_BITS

    def _set_scales(self, fields: _Numbers, words: Words) -> None:
        """Set `fixed`, with a scale for each 32 elements, from all workers' exponents."""
        self._fields = fields
        summed = (fields != _ZERO) & (fields != NON_FINITE)
        self.exponent_field = int(fields.max())
        if not summed.any():
            return
        self._block_octaves = np.zeros(self._of.size, np.int32)
        self._block_octaves[self._many] = octaves_of(words, fields[self._of[self._many]])
        highest = fixed_point(0, self._setting.fan_in).scale
        self._scales = highest - np.where(summed, fields, fields[summed].max())
        octaves = self._scales[self._of] - self._scales.min() + self._block_octaves
        octaves = np.repeat(octaves, self._widths).astype(np.int32)
        self.fixed = FixedPoint(int(self._scales.min()), octaves, _WORD_BITS)

    def floats(self, divisor: int) -> NDArray[np.float32]:
        """Return the sums of all tensors, divided by `divisor`, in the tensors' memory."""
        if self._floats is None:
            host = np.zeros(self._elements, np.float32)
            if self.fixed is not None and self.selection is not None:
                self._ops.scatter(self.total, self.selection, self.fixed, divisor, host, clear=False)
            self._floats = self._device.placed(host)
        return self._floats

    def members(self) -> dict[str, Member]:
        """Return each tensor's outcome, after the last round."""
        assert self.selection is not None
        positions = self.selection.positions
        bounds = np.searchsorted(positions, self._begins)
        # False positives can lie behind a tensor, where the next one does not begin yet.
        lasts = np.searchsorted(positions, self._begins[:-1] + self._lengths)
        own = 1 + np.where(self._counts > 1, self._counts, 0) + np.diff(bounds)
        shared = (self.words_sent - int(own.sum())) * self._begins // self._elements
        words = own + np.diff(shared)
        return {
            name: self._member(m, name, positions, slice(bounds[m], lasts[m]), int(words[m]))
            for m, name in enumerate(self._names)
        }

    def _member(self, m: int, name: str, positions: Positions, part: slice, words: int) -> Member:
        field, begin, fixed = int(self._fields[m]), int(self._begins[m]), None
        if field not in (_ZERO, NON_FINITE):
            scale = int(self._scales[m])
            octaves = self._block_octaves[self._blocks_of[m] : self._blocks_of[m + 1]]
            fixed = FixedPoint(scale, octaves, self._scale_block) if len(octaves) > 1 else FixedPoint(scale)
        elif self.fixed is not None:
            part = slice(0, 0)
        return Member(
            exponent_field=None if field == _ZERO else field,
            fixed=fixed,
            selection=Selection(part.stop - part.start, lambda: positions[part] - begin),
            quantized=self.quantized[part],
            total=self.total[part],
            words_sent=words,
            index=self.index,
            group=self,
            elements=slice(begin, begin + int(self._lengths[m])),
            out=self._results.get(name),
            memory=self._near[m],
        )


@dataclass(frozen=True, eq=False)
class Member:
    """One tensor of a group, with the attributes of a `TensorExchange` that has ended."""

    exponent_field: int | None
    """The largest exponent field of all workers; None if all values are zero."""
    fixed: FixedPoint | None
    """Fixed-point format; None if all values are zero or some are not finite."""
    selection: Selection
    """The elements to which `quantized` and `total` belong."""
    quantized: Numbers
    """int32[k]: what this worker contributed."""
    total: Numbers
    """int32[k]: the sum over workers."""
    words_sent: int
    """Words that this worker has sent: for the tensor alone, and its share of the group's, by elements."""
    index: Index | None
    """The group's first index."""
    group: Group
    """The group that the tensor is part of."""
    elements: slice
    """The tensor's elements of all those in the group."""
    out: NDArray[np.float32] | None
    """The array to which the result is written; None for a new one."""
    memory: Memory
    """The memory of the tensor and its result."""

    near_quantized: ClassVar[Numbers | None] = None
    near_total: ClassVar[Numbers | None] = None
    form: ClassVar[Form] = "compact"
    sampled_share: ClassVar[float] = 0.0

    @property
    def finite(self) -> bool:
        """See `TensorExchange.finite`."""
        return self.exponent_field != NON_FINITE

    def floats(self, divisor: int) -> NDArray[np.float32]:
        """See `TensorExchange.floats`."""
        out = self.memory.floats(self.elements.stop - self.elements.start) if self.out is None else self.out
        out[:] = self.group.floats(divisor)[self.elements] if self.finite else np.nan
        return out

    def occupied(self) -> tuple[int, ...]:
        """See `TensorExchange.occupied`."""
        positions = self.selection.positions
        summed = positions[self.total != 0]  # false positives are zero
        return tuple(occupied(summed if 2 * len(summed) > len(positions) else positions).tolist())


def _fields_of(present: Words, words: Words) -> _Numbers | None:
    """Return each tensor's largest exponent field, or _ZERO; None if a bit of `words` can mean two fields.

    present: a bit for each field of any tensor, uint32[EXPONENT_WORDS].
    words: uint32[tensors], a bit for each field modulo 32.
    """
    fields = np.flatnonzero(_bits(present))
    if np.unique(fields % _WORD_BITS).size < fields.size:
        return None
    meant = np.full(_WORD_BITS, _ZERO)
    meant[fields % _WORD_BITS] = fields
    found: _Numbers = np.where(_bits(words).reshape(-1, _WORD_BITS), meant, _ZERO).max(axis=1)
    return found


def _largest_bits(words: NDArray[np.uint32]) -> _Numbers:
    """Return the number of the highest set bit in each row of words, or _ZERO."""
    bits = _bits(words).reshape(len(words), -1)
    highest: _Numbers = np.where(bits, np.arange(bits.shape[1]), _ZERO).max(axis=1)
    return highest


def _bits(words: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Return the bits of all words, the least significant first."""
    return np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little").astype(np.bool_)
