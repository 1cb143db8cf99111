"""`Bundle` for tensors on a device: one launch for each stage, whatever the number of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

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
    """A `Bundle` of torch tensors. Headers and sums are read on the host, where they come from."""

    def __init__(
        self, tensors: Mapping[str, Tensor], out: Mapping[str, Tensor], workers: int, memory: DeviceMemory
    ) -> None:
        like = next(iter(tensors.values()))
        self._memory: DeviceMemory = memory.beside(like)
        super().__init__(tensors, out, workers)  # type: ignore[arg-type]  # what it does not override fits both
        self._total = self._quantized = self._memory.integers(1, 0)
        lengths = tuple(self._lengths.tolist())
        self._segments = _segments(lengths, stream_of(like.device))
        #: int32[2, blocks]: where the integers of each block lie among those that are sent; its scale.
        self._sent_as = self._memory.integers(2, 0)

    def _joined(self) -> Tensor:
        return torch.cat(list(self._tensors.values()))  # type: ignore[arg-type]

    def _write_headers(self, ored: Words, added: Words) -> None:
        words = self._memory.words(self._header_words)
        scratch = self._memory.words(len(self._lengths) + self._segments.blocks)
        gpu_launch.bundle_headers(self._values.view(torch.int32), self._segments, scratch, words)
        self._memory.send(words, ored)

    def _write_values(self, ored: Words, added: Words) -> None:
        self._quantized, self._sent_words = self._memory.integers(1, len(added)), added
        self._place()
        gpu_launch.bundle_quantize(
            self._values.view(torch.int32), self._segments, *self._sent_as, self._quantized
        )
        self._memory.send(self._quantized[0], added)

    def _place(self) -> None:
        """Tell the device the scale and the place of each block, from the agreed headers."""
        tensors, begins, _ = _tables(tuple(self._lengths.tolist()))
        field = self._fields[tensors]
        scales = np.where(field == ZERO, ZERO_SCALE, self._highest - field + self._octaves)
        scales[field == NON_FINITE] = NON_FINITE_SCALE
        places = self._sent[tensors] + begins[:-1] - self._begins[tensors]
        both = np.concatenate([places, scales]).astype(np.int32)
        self._sent_as = self._memory.receive(both.view(np.uint32)).view(2, -1)

    def _on_host(self, words: Words | Tensor) -> Words:
        return self._memory.on_host(words)

    def _receive(self, words: Words | Tensor) -> None:
        if isinstance(words, np.ndarray):
            sent, total = (one.view(np.int32).reshape(1, -1) for one in (self._sent_words, words))
            self._near = sent, total
        self._total = self._memory.receive(words).view(1, -1)

    def floats(self, divisor: int) -> Tensor:
        """See `Bundle.floats`. Also writes them to the tensors of `out`, all at once."""
        if self._floats is None:
            if not self._sent_as.numel():
                self._place()
            self._floats = self._memory.floats(len(self._values))
            gpu_launch.bundle_dequantize(
                self._total[0], self._segments, *self._sent_as, divisor, self._floats
            )
            into = list(self._out.values())
            if into:
                parts = torch.split(self._floats, self._lengths.tolist())
                named = dict(zip(self._tensors, parts, strict=True))
                torch._foreach_copy_(into, [named[name] for name in self._out])
        return self._floats

    def written(self, part: slice, out: Tensor | None, divisor: int) -> Tensor:
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
    """Return the tables on a device, kept for the stream: a bucket's tensors have the same lengths again."""
    tensors, begins, firsts = _tables(lengths)
    blocks = np.diff(firsts)
    headers = ends(EXPONENT_WORDS + np.where(blocks > 1, blocks, 0))[:-1]
    memory, tables = DeviceMemory(stream[0]), (begins, tensors, firsts, headers)
    together = memory.receive(np.concatenate(tables).astype(np.int32).view(np.uint32))
    return Segments(*together.split([len(one) for one in tables]))
