"""`Bundle` for tensors on a device: one launch for each stage, whatever the number of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peelsum.allreduce.bundle import BLOCK, Bundle, ends
from peelsum.codec import EXPONENT_WORDS, NON_FINITE, gpu_launch
from peelsum.codec.cpu_bundle_loops import ZERO
from peelsum.codec.gpu_bundle_kernels import NON_FINITE_SCALE, ZERO_SCALE
from peelsum.codec.gpu_launch import Segments
from peelsum.codec.gpu_memory import DeviceMemory, stream_of
from peelsum.summation import Words


class DeviceBundle(Bundle):
    """A `Bundle` of torch tensors. The host reads only the agreed headers."""

    def __init__(
        self, tensors: Mapping[str, Any], out: Mapping[str, Any], workers: int, memory: DeviceMemory
    ) -> None:
        like = next(iter(tensors.values()))
        self._memory = memory.beside(like)
        super().__init__(tensors, out, workers)
        self._total = self._quantized = self._integers(0)
        lengths = tuple(self._lengths.tolist())
        self._segments = _segments(lengths, stream_of(like.device))
        #: int32[2, blocks]: what `_placed` returns.
        self._sent_as: Tensor | None = None

    def _joined(self) -> Any:
        values: list[Any] = list(self._tensors.values())
        return torch.cat(values)

    def _integers(self, count: int) -> Any:
        return self._memory.integers(1, count)

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
        self._quantized, self._sent_words = self._integers(len(added)), added
        quantized: Any = self._quantized[0]
        gpu_launch.bundle_quantize(self._bits(), self._segments, *self._placed(), quantized)
        self._memory.send(quantized, added)

    def _placed(self) -> tuple[Tensor, Tensor]:
        """Return the place and the scale of each block, int32[blocks], from the agreed headers."""
        if self._sent_as is None:
            tensors, begins, _ = _tables(tuple(self._lengths.tolist()))
            field = self._fields[tensors]
            scales = np.where(field == ZERO, ZERO_SCALE, self._highest - field + self._octaves)
            scales[field == NON_FINITE] = NON_FINITE_SCALE
            places = self._sent[tensors] + begins[:-1] - self._begins[tensors]
            both = np.concatenate([places, scales]).astype(np.int32)
            self._sent_as = self._memory.receive(both.view(np.uint32)).view(2, -1)
        return self._sent_as[0], self._sent_as[1]

    def _on_host(self, words: Words | Tensor) -> Words:
        return self._memory.on_host(words)

    def _receive(self, words: Any) -> None:
        if isinstance(words, np.ndarray):
            sent, total = (one.view(np.int32).reshape(1, -1) for one in (self._sent_words, words))
            self._near = sent, total
        there: Any = self._memory.receive(words).view(1, -1)
        self._total = there

    def floats(self, divisor: int) -> Any:
        """See `Bundle.floats`. Also writes them to the tensors of `out`, all at once."""
        if self._floats is None:
            floats, total = self._memory.floats(len(self._values)), self._total[0]
            gpu_launch.bundle_dequantize(
                cast(Tensor, total), self._segments, *self._placed(), divisor, floats
            )
            parts = dict(zip(self._tensors, torch.split(floats, self._lengths.tolist()), strict=True))
            into: list[Any] = list(self._out.values())
            if into:
                torch._foreach_copy_(into, [parts[name] for name in self._out])
            self._floats = cast(Any, floats)
        return self._floats

    def written(self, part: slice, out: Any, divisor: int) -> Any:
        """See `Bundle.written`. A result that is not written to `out` shares memory with those beside it."""
        floats = self.floats(divisor)
        return floats[part] if out is None else out


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
