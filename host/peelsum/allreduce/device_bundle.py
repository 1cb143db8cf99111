"""Run the exchanges of many small dense tensors on a device: one launch for each stage, not for each tensor.

A bundle sends the same words as single exchanges, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peelsum.allreduce.bundle import BLOCK, ends
from peelsum.allreduce.exchange import Numbers
from peelsum.allreduce.indexes import Index
from peelsum.allreduce.plan import Form, labeled
from peelsum.allreduce.staging import PAUSE, Round, Rounds, Sums
from peelsum.codec import EXPONENT_WORDS, NON_FINITE, FixedPoint, Selection, fixed_point, gpu_launch
from peelsum.codec.cpu import frozen, occupied
from peelsum.codec.cpu_bundle_loops import ZERO, read_dense_headers
from peelsum.codec.gpu_bundle_kernels import NON_FINITE_SCALE, ZERO_SCALE
from peelsum.codec.gpu_launch import Segments
from peelsum.codec.gpu_memory import DeviceMemory, stream_of
from peelsum.summation import Words


class DeviceBundle:
    """The exchanges of several torch tensors. The host reads only the agreed headers.

    tensors: float32[n], n > 0, by name, in the plan's order.
    out: float32[n] to which a tensor's result is written, by name.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any],
        out: Mapping[str, Any],
        workers: int,
        memory: DeviceMemory,
    ) -> None:
        like = next(iter(tensors.values()))
        self._memory = memory.beside(like)
        self._tensors, self._out = tensors, out
        lengths = tuple(map(len, tensors.values()))
        self._lengths, self._blocks, self._begins, self._firsts = _places(lengths)
        self._header_words = EXPONENT_WORDS * len(tensors) + int(self._blocks.sum())
        # A scale is this number less the exponent field.
        self._highest = fixed_point(0, workers).scale
        self._fields = np.full(len(tensors), ZERO, np.int32)
        self._octaves = np.empty(self._firsts[-1], np.int32)
        self._sent = np.zeros(0, np.int64)
        self._total = self._quantized = self._integers(0)
        #: The host's copies of `_quantized` and `_total`, if the words go through the host.
        self._near: tuple[Numbers, Numbers] | None = None
        self._floats: Any = None
        self.words_sent = 0
        self.label = labeled(list(tensors))
        values: list[Any] = list(tensors.values())
        self._values = torch.cat(values)
        self._segments = _segments(lengths, stream_of(like.device))
        #: int32[2, blocks]: what `_placed` returns.
        self._sent_as: Tensor | None = None

    def rounds(self) -> Rounds:
        """Yield every round of the exchanges; send each round's sums back into the generator."""
        sums: Sums = yield Round(self._header_words, 0, self._write_headers)
        words = sums.ored
        if not isinstance(words, np.ndarray):
            copied = self._memory.later(words)
            yield PAUSE
            words = copied().view(np.uint32)
        words = frozen(words)
        read_dense_headers(words, self._firsts, self._fields, self._octaves)
        sent = (self._fields != ZERO) & (self._fields != NON_FINITE)
        self._sent = ends(np.where(sent, self._lengths, 0))
        if sent.any():
            sums = yield Round(0, int(self._sent[-1]), self._write_values)
            self._receive(sums.added)

    def members(self) -> dict[str, Member]:
        """Return each tensor's outcome, after the last round."""
        return {name: self._member(m, name) for m, name in enumerate(self._tensors)}

    def floats(self, divisor: int) -> Any:
        """Return all sums float32[n], divided by `divisor`; write them to the tensors of `out`, at once."""
        if self._floats is None:
            floats = self._dequantized(divisor)
            parts = dict(zip(self._tensors, torch.split(floats, self._lengths.tolist()), strict=True))
            into: list[Any] = list(self._out.values())
            if into:
                torch._foreach_copy_(into, [parts[name] for name in self._out])
            self._floats = floats
        return self._floats

    def written(self, part: slice, out: Any, divisor: int) -> Any:
        """Return a part of `floats`, in `out` if it is not None; else it shares memory with those beside."""
        floats = self.floats(divisor)
        return floats[part] if out is None else out

    def _dequantized(self, divisor: int) -> Tensor:
        fresh, total = self._memory.floats(len(self._values)), self._total
        gpu_launch.bundle_dequantize(cast(Tensor, total), self._segments, *self._placed(), divisor, fresh)
        return fresh

    def _member(self, m: int, name: str) -> Member:
        field, blocks = int(self._fields[m]), int(self._blocks[m])
        first, sent = self._firsts[m], slice(self._sent[m], self._sent[m + 1])
        fixed = None
        if field not in (ZERO, NON_FINITE):
            scale, octaves = self._highest - field, self._octaves[first : first + blocks]
            fixed = FixedPoint(scale, octaves, BLOCK) if blocks else FixedPoint(scale)
        total = self._total[sent]
        return Member(
            exponent_field=None if field == ZERO else field,
            fixed=fixed,
            quantized=self._quantized[sent],
            total=total,
            near_quantized=None if self._near is None else self._near[0][sent],
            near_total=None if self._near is None else self._near[1][sent],
            words_sent=EXPONENT_WORDS + blocks + len(total),
            bundle=self,
            part=slice(self._begins[m], self._begins[m + 1]),
            out=self._out.get(name),
        )

    def _integers(self, count: int) -> Any:
        return self._memory.integers(count)

    def _bits(self) -> Tensor:
        values: Any = self._values
        bits: Tensor = values.view(torch.int32)
        return bits

    def _write_headers(self, ored: Words, added: Words) -> None:
        words = self._memory.words(self._header_words)
        scratch = self._memory.words(len(self._lengths) + self._segments.blocks)
        gpu_launch.bundle_headers(self._bits(), self._segments, scratch, words)
        self._memory.send(words, ored)

    def _write_values(self, ored: Words, added: Words) -> None:
        self._sent_words = added
        self._quantized = self._integers(len(added))
        quantized: Any = self._quantized
        gpu_launch.bundle_quantize(self._bits(), self._segments, *self._placed(), quantized)
        self._memory.send(quantized, added)

    def _placed(self) -> tuple[Tensor, Tensor]:
        """Return the place and the scale of each block, int32[blocks], from the agreed headers."""
        if self._sent_as is None:
            self._sent_as = self._memory.receive(self._places_and_scales().view(np.uint32)).view(2, -1)
        return self._sent_as[0], self._sent_as[1]

    def _places_and_scales(self) -> NDArray[np.int32]:
        """Return the place of each block and its scale, one after the other: int32[2 * blocks]."""
        tensors, begins, _ = _tables(tuple(self._lengths.tolist()))
        field = self._fields[tensors]
        scales = np.where(field == ZERO, ZERO_SCALE, self._highest - field + self._octaves)
        scales[field == NON_FINITE] = NON_FINITE_SCALE
        places = self._sent[tensors] + begins[:-1] - self._begins[tensors]
        return np.concatenate([places, scales]).astype(np.int32)

    def _receive(self, words: Any) -> None:
        if isinstance(words, np.ndarray):
            sent, total = (one.view(np.int32) for one in (self._sent_words, words))
            self._near = sent, total
        there: Any = self._memory.receive(words)
        self._total = there


@dataclass(frozen=True, eq=False)
class Member:
    """One tensor of a bundle, with the attributes of a `TensorExchange` that has ended."""

    exponent_field: int | None
    """The largest exponent field of all workers; None if all values are zero."""
    fixed: FixedPoint | None
    """Fixed-point format; None if all values are zero or some are not finite."""
    quantized: Numbers
    """int32[k]: what this worker contributed."""
    total: Numbers
    """int32[k]: the sum over workers."""
    near_quantized: Numbers | None
    """The host's copy of `quantized`, if that is on a device and was sent through the host."""
    near_total: Numbers | None
    """The host's copy of `total`, if that is on a device and came through the host."""
    words_sent: int
    """Words that this worker has sent for the tensor."""
    bundle: DeviceBundle
    """The bundle that the tensor is part of."""
    part: slice
    """The tensor's elements of all those in the bundle."""
    out: NDArray[np.float32] | None
    """The array to which the result is written; None for a new one."""

    form: ClassVar[Form] = "dense"
    index: ClassVar[Index | None] = None
    selection: ClassVar[Selection | None] = None
    sampled_share: ClassVar[float] = 0.0

    @property
    def finite(self) -> bool:
        """See `TensorExchange.finite`."""
        return self.exponent_field != NON_FINITE

    def floats(self, divisor: int) -> NDArray[np.float32]:
        """See `TensorExchange.floats`."""
        floats: NDArray[np.float32] = self.bundle.written(self.part, self.out, divisor)
        return floats

    def occupied(self) -> tuple[int, ...]:
        """See `TensorExchange.occupied`."""
        total = self.total if self.near_total is None else self.near_total
        return tuple(occupied(np.flatnonzero(total)).tolist())


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


@lru_cache(64)
def _tables(lengths: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return each block's tensor, each block's first element with the end, and each tensor's first block."""
    sizes = np.array(lengths)
    firsts, begins = ends(-(-sizes // BLOCK)), ends(sizes)
    tensors = np.repeat(np.arange(len(sizes)), np.diff(firsts))
    first_elements = begins[tensors] + BLOCK * (np.arange(firsts[-1]) - firsts[tensors])
    return tensors, np.append(first_elements, begins[-1]), firsts


@lru_cache(64)
def _segments(lengths: tuple[int, ...], stream: tuple[torch.device, int]) -> Segments:
    """Return the tables on a device, kept for the stream: a bucket's tensors keep their lengths."""
    tensors, begins, firsts = _tables(lengths)
    blocks = np.diff(firsts)
    headers = ends(EXPONENT_WORDS + np.where(blocks > 1, blocks, 0))[:-1]
    memory, tables = DeviceMemory(stream[0]), (begins, tensors, firsts, headers)
    together = memory.receive(np.concatenate(tables).astype(np.int32).view(np.uint32))
    return Segments(*torch.split(together, [len(one) for one in tables]))
