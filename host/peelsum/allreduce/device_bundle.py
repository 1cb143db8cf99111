"""Run the exchanges of many small dense tensors on a device: one launch for each stage, not for each tensor.

A bundle sends the same words as single exchanges, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peelsum.allreduce.bundle import BLOCK, ends
from peelsum.allreduce.exchange import Limbs
from peelsum.allreduce.indexes import Index
from peelsum.allreduce.plan import Form, labeled
from peelsum.allreduce.staging import PAUSE, Round, Rounds, Sums
from peelsum.codec import EXPONENT_WORDS, NON_FINITE, FixedPoint, Selection, fixed_point, gpu_launch
from peelsum.codec.cpu import frozen, occupied
from peelsum.codec.cpu_bundle_loops import ZERO, read_dense_headers
from peelsum.codec.gpu_bundle_kernels import NON_FINITE_SCALE, ZERO_SCALE
from peelsum.codec.gpu_graphs import Phase
from peelsum.codec.gpu_launch import Segments
from peelsum.codec.gpu_memory import DeviceMemory, stream_of
from peelsum.summation import Words

#: Bundles whose buffers an all-reduce keeps: DDP has one for each bucket.
_BUNDLES_KEPT = 32


class DeviceBundle:
    """The exchanges of several torch tensors. The host reads only the agreed headers.

    tensors: float32[n], n > 0, by name, in the plan's order.
    out: float32[n] to which a tensor's result is written, by name.
    kept: buffers of earlier steps, in which captured launches work; None to launch one by one.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any],
        out: Mapping[str, Any],
        workers: int,
        memory: DeviceMemory,
        kept: KeptBuffers | None = None,
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
        self._near: tuple[Limbs, Limbs] | None = None
        self._floats: Any = None
        self.words_sent = 0
        self.label = labeled(list(tensors))
        values: list[Any] = list(tensors.values())
        stream = stream_of(like.device)
        self._buffers = None if kept is None else kept.of(lengths, self._header_words, stream, memory.direct)
        self._values = torch.cat(values, out=None if self._buffers is None else self._buffers.values)
        self._segments = _segments(lengths, stream)
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
        if self._buffers is not None and self._sent[-1]:
            floats = self._buffers.dequantized(divisor)
            # The buffer is overwritten in the next step.
            return floats if len(self._out) == len(self._tensors) else floats.clone()
        fresh, total = self._memory.floats(len(self._values)), self._total[0]
        gpu_launch.bundle_dequantize(cast(Tensor, total), self._segments, *self._placed(), divisor, fresh)
        return fresh

    def _member(self, m: int, name: str) -> Member:
        field, blocks = int(self._fields[m]), int(self._blocks[m])
        first, sent = self._firsts[m], slice(self._sent[m], self._sent[m + 1])
        fixed = None
        if field not in (ZERO, NON_FINITE):
            scale, octaves = self._highest - field, self._octaves[first : first + blocks]
            fixed = FixedPoint(scale, 0, octaves, BLOCK) if blocks else FixedPoint(scale)
        total = self._total[:, sent]
        return Member(
            exponent_field=None if field == ZERO else field,
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

    def _integers(self, count: int) -> Any:
        return self._memory.integers(1, count)

    def _bits(self) -> Tensor:
        values: Any = self._values
        bits: Tensor = values.view(torch.int32)
        return bits

    def _write_headers(self, ored: Words, added: Words) -> None:
        if self._buffers is not None:
            self._memory.send(self._buffers.headers(), ored)
            return
        words = self._memory.words(self._header_words)
        scratch = self._memory.words(len(self._lengths) + self._segments.blocks)
        gpu_launch.bundle_headers(self._bits(), self._segments, scratch, words)
        self._memory.send(words, ored)

    def _write_values(self, ored: Words, added: Words) -> None:
        self._sent_words = added
        if self._buffers is not None:
            self._memory.send(self._buffers.quantized(self._places_and_scales())[: len(added)], added)
            return
        self._quantized = self._integers(len(added))
        quantized: Any = self._quantized[0]
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
            sent, total = (one.view(np.int32).reshape(1, -1) for one in (self._sent_words, words))
            self._near = sent, total
            if self._buffers is not None:
                # Results keep the host's copies, as the buffers are overwritten in the next step.
                self._quantized, self._total = sent, total
                self._buffers.take(total[0])
                return
        there: Any = self._memory.receive(words).view(1, -1)
        self._total = there
        if self._buffers is not None:
            self._quantized = self._memory.by_limb(cast(Any, self._sent_words), 1)
            self._buffers.take(words)


class KeptBuffers:
    """The buffers of bundles, by the tensors' lengths and the stream: a plan's bundle is the same each step.

    They take 17 bytes per element on the device and, unless words stay there, 4 of pinned memory. One thread
    uses them.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], _Buffers] = {}

    def of(
        self, lengths: tuple[int, ...], header_words: int, stream: tuple[torch.device, int], direct: bool
    ) -> _Buffers:
        """Return a bundle's buffers; those of the last few bundles are kept.

        direct: whether words stay on the device.
        """
        key = lengths, stream
        buffers = self._kept.pop(key, None) or _Buffers(
            _segments(lengths, stream), sum(lengths), header_words, direct
        )
        self._kept[key] = buffers
        if len(self._kept) > _BUNDLES_KEPT:
            del self._kept[next(iter(self._kept))]
        return buffers


class _Buffers:
    """Memory of a bundle of n elements that stays where it is, and the phases that work in it."""

    def __init__(self, segments: Segments, n: int, header_words: int, direct: bool) -> None:
        device, blocks, tensors = segments.tensors.device, segments.blocks, segments.headers.numel()

        def words(count: int, *, on_host: bool = False) -> Tensor:
            pinned = on_host and device.type == "cuda"
            place = torch.device("cpu") if on_host else device
            return torch.empty(count, dtype=torch.int32, device=place, pin_memory=pinned)

        self._device, self._segments = device, segments
        self.values, self._floats = (torch.empty(n, device=device) for _ in range(2))
        self._bits = self.values.view(torch.int32)
        self._headers, self._scratch = words(header_words), words(tensors + blocks)
        self._placed, self._quantized, self._total = words(2 * blocks), words(n), words(n)
        # The host writes to these only after it has waited for the step's first round, on the same stream.
        self._near_placed = words(2 * blocks, on_host=True)
        self._near_total = None if direct else words(n, on_host=True)
        self._header_phase = Phase(self._write_headers, device)
        self._quantize_phase = Phase(self._quantize, device)
        #: By divisor, which is a number of the captured launch.
        self._dequantize_phases: dict[int, Phase] = {}

    def headers(self) -> Tensor:
        """Return the words of all headers, of `values`."""
        self._header_phase.run()
        return self._headers

    def quantized(self, places_and_scales: NDArray[np.int32]) -> Tensor:
        """Return the integers of `values`, from the blocks' places on."""
        self._near_placed.numpy()[:] = places_and_scales
        self._quantize_phase.run()
        return self._quantized

    def take(self, total: NDArray[np.int32] | Tensor) -> None:
        """Set the first of the summed integers, as many as were sent: an array, or a tensor if `direct`."""
        if isinstance(total, Tensor):
            self._total[: len(total)].copy_(total)
        elif self._near_total is not None:
            self._near_total.numpy()[: len(total)] = total

    def dequantized(self, divisor: int) -> Tensor:
        """Return the sums as floats, for the places and scales of the last call of `quantized`."""
        if divisor not in self._dequantize_phases:
            self._dequantize_phases[divisor] = Phase(partial(self._dequantize, divisor), self._device)
        self._dequantize_phases[divisor].run()
        return self._floats

    def _write_headers(self) -> None:
        gpu_launch.bundle_headers(self._bits, self._segments, self._scratch, self._headers)

    def _quantize(self) -> None:
        self._placed.copy_(self._near_placed, non_blocking=True)
        places, scales = self._placed.view(2, -1)
        gpu_launch.bundle_quantize(self._bits, self._segments, places, scales, self._quantized)

    def _dequantize(self, divisor: int) -> None:
        if self._near_total is not None:
            self._total.copy_(self._near_total, non_blocking=True)
        places, scales = self._placed.view(2, -1)
        gpu_launch.bundle_dequantize(self._total, self._segments, places, scales, divisor, self._floats)


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
    estimated: ClassVar[int] = 0

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
