"""The codec's kernels in Triton, on torch tensors, with the bits of `peelsum.codec.reference`.

They run on the current stream. Arrays are tensors, int32 where NumPy's are uint32, because torch has almost
no arithmetic on uint32. Methods whose result has a size that only the device knows (`positions`,
`sketch_decode`) wait for it, unless the caller gives it. `peelsum.codec.gpu_launch` never waits. Tensors are
contiguous and on one device.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peelsum.codec import gpu_launch as launch
from peelsum.codec.gpu_launch import Peeling
from peelsum.codec.gpu_memory import DeviceMemory
from peelsum.codec.gpu_segments import GpuSegments
from peelsum.codec.index import WORD_BITS, BloomLayout, block_words, index_words
from peelsum.codec.layout import SketchLayout

_SIGN = 2**63
#: The largest block that one kernel handles; larger ones take several passes.
_LARGEST_BLOCK = 4096


class GpuDevice(DeviceMemory):
    """The codec in Triton, on torch tensors."""

    segments = GpuSegments

    def count(self, index: Tensor | NDArray[np.uint32]) -> int:
        """See `Device.count`. Waits for the device once, unless the words are on the host."""
        if isinstance(index, np.ndarray):
            return int(np.bitwise_count(index).sum())
        return int(_totals(index, WORD_BITS * index.numel())[1])

    def positions(self, index: Tensor, elements: int, first: int = 0, count: int | None = None) -> Tensor:
        """See `Device.positions`: returns int64[k]. Waits for the device once, unless k is given."""
        return _listed(index, elements, first, count)

    def block_encode(self, index: Tensor, elements: int, block: int, out: Tensor) -> None:
        """See `Device.block_encode`."""
        if block <= _LARGEST_BLOCK:
            launch.block_encode(index, elements, block, out)
            return
        used = _empty(block_words(elements, _LARGEST_BLOCK), index)
        launch.block_encode(index, elements, _LARGEST_BLOCK, used)
        self.block_encode(used, -(-elements // _LARGEST_BLOCK), block // _LARGEST_BLOCK, out)

    def block_decode(self, blocks: Tensor, elements: int, block: int, out: Tensor) -> None:
        """See `Device.block_decode`."""
        launch.block_decode(blocks, elements, block, out)

    def bloom_encode(self, layout: BloomLayout, index: Tensor, out: Tensor, first: int = 0) -> None:
        """See `Device.bloom_encode`."""
        launch.bloom_encode(layout, _seed(layout, index), index, out, first)

    def bloom_decode(
        self, layout: BloomLayout, words: Tensor, elements: int, out: Tensor, first: int = 0
    ) -> None:
        """See `Device.bloom_decode`."""
        launch.bloom_decode(layout, _seed(layout, words), words, elements, out, first)

    def gather_bits(self, index: Tensor, mask: Tensor, out: Tensor) -> Tensor:
        """See `Device.gather_bits`: returns set bits of `mask` before each tile, int64[tiles]."""
        bases, _ = _totals(mask, WORD_BITS * mask.numel())
        launch.gather_bits(index, mask, bases, out)
        return bases

    def scatter_bits(self, bits: Tensor, mask: Tensor, out: Tensor, scan: Tensor | None = None) -> None:
        """See `Device.scatter_bits`."""
        bases = _totals(mask, WORD_BITS * mask.numel())[0] if scan is None else scan
        launch.scatter_bits(bits, mask, bases, out)

    def sketch_encode(self, layout: SketchLayout, positions: Tensor, values: Tensor, out: Tensor) -> None:
        """See `Device.sketch_encode`."""
        launch.sketch_encode(layout, _seed(layout, out), positions, values, out)

    def sketch_decode(self, layout: SketchLayout, sketch: Tensor, positions: Tensor, out: Tensor) -> Tensor:
        """See `Device.sketch_decode`. Waits for the device once, for the size of the left-over."""
        k = positions.numel()
        if not k:
            return positions
        room = Peeling.room(k, layout, sketch.device)
        launch.peel(layout, _seed(layout, sketch), sketch, positions, room, out)
        left = k - int(room.peeled)
        bitmap = _empty(index_words(k), sketch)
        if left:
            launch.index(room.waiting, bitmap)
        return _listed(bitmap, k, 0, left)


def _listed(bitmap: Tensor, elements: int, first: int, count: int | None) -> Tensor:
    if count == 0:
        return _empty(0, bitmap, torch.int64)
    bases, total = _totals(bitmap, elements)
    out = _empty(int(total) if count is None else count, bitmap, torch.int64)
    launch.positions(bitmap, elements, bases, out, first)
    return out


def _totals(bitmap: Tensor, elements: int) -> tuple[Tensor, Tensor]:
    """Count the set bits before each tile of a bitmap, int64[tiles], and in all of it, int64[1]."""
    bases = _empty(launch.tiles(bitmap.numel()), bitmap, torch.int64)
    total = _empty(1, bitmap, torch.int64)
    launch.totals(bitmap, elements, bases, total)
    return bases, total


def _seed(layout: SketchLayout | BloomLayout, like: Tensor) -> Tensor:
    """Return the layout's 64-bit seed as int64[1]."""
    seed = (layout.seed + _SIGN) % (2 * _SIGN) - _SIGN
    return torch.full((1,), seed, dtype=torch.int64, device=like.device)


def _empty(size: int, like: Tensor, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.empty(size, dtype=dtype, device=like.device)
