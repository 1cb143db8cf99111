"""The codec in Triton, on torch tensors: the same bits as `peelsum.codec.reference`, on the caller's stream.

The functions have the names and parameters of `peelsum.codec.kernels`, with two differences. Arrays are
tensors, int32 where NumPy's are uint32, because torch has almost no arithmetic on uint32. Magnitudes are
tensors int32[1], because reading one as an int would wait for the device.

Functions whose result has a size that only the device knows (`count`, `positions`, `sketch_decode`) wait for
it, unless the caller gives it; `peelsum.codec.gpu_launch` never waits. Tensors are contiguous and on one
device.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peelsum.codec import cpu, gpu_together
from peelsum.codec import gpu_launch as launch
from peelsum.codec.errors import CodecError
from peelsum.codec.fixed_point import FixedPoint
from peelsum.codec.gpu_launch import Blocks, Candidates, Peeling, Segments
from peelsum.codec.gpu_memory import later
from peelsum.codec.index import BLOCK_SIZES, WORD_BITS, BloomLayout, block_words, index_words
from peelsum.codec.layout import SketchLayout
from peelsum.codec.packed import Packed
from peelsum.codec.selection import Selection

_SIGN = 2**63
#: The largest block that one kernel handles; larger ones take several passes.
_LARGEST_BLOCK = 4096


def require_device() -> None:
    """Raise CodecError unless torch finds a GPU or Triton runs in its interpreter."""
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        raise CodecError(
            "implementation: 'gpu' needs a GPU that torch can use; set TRITON_INTERPRET=1 to run it, slowly, "
            "on a CPU"
        )


def magnitude(values: Tensor) -> Tensor:
    """See `Kernels.magnitude`: returns int32[1] for float32 values[n]."""
    largest = _empty(1, values)
    launch.magnitude(values.view(torch.int32), largest)
    return largest


def index(values: Tensor, out: Tensor) -> Tensor:
    """See `Kernels.index`: returns int32[1]."""
    largest = _empty(1, values)
    launch.index(values.view(torch.int32), out, largest)
    return largest


def index_over(values: Tensor, out: Tensor) -> Tensor:
    """See `Kernels.index_over`: returns int32[1]."""
    gpu_together.drop_signs_of_zeros(values)
    return index(values, out)


def count(index: Tensor | NDArray[np.uint32], elements: int) -> int:
    """See `Kernels.count`. Waits for the device, unless the bitmap is an array, in the host's memory."""
    return counted(index, elements)()


def counted(index: Tensor | NDArray[np.uint32], elements: int) -> Callable[[], int]:
    """See `Kernels.counted`."""
    if isinstance(index, np.ndarray):
        return partial(cpu.count, index, elements)
    _, total = _totals(index, elements)
    copied = later(total)
    return lambda: int(copied()[0])


def positions(index: Tensor, elements: int, first: int = 0, count: int | None = None) -> Tensor:
    """See `Kernels.positions`: returns int64[k]. Waits for the device once, unless k is given."""
    return _listed(index, elements, first, count)


def occupied(positions: Tensor, total: Tensor | None = None) -> Tensor:
    """See `Kernels.occupied`: returns int64[BLOCK_SIZES]."""
    out = _empty(BLOCK_SIZES, positions, torch.int64)
    launch.occupied(_all(positions) if total is None else _not_zero(positions, total), out)
    return out


def _not_zero(positions: Tensor, total: Tensor) -> Candidates:
    """Return the positions whose total[k] is not zero, with room for all of them."""
    gpu_together.flush()  # torch reads the sums
    k = positions.numel()
    chosen = (total != 0).to(torch.int32)
    bitmap = _empty(index_words(k), positions)
    launch.index(chosen, bitmap, _empty(1, positions))
    bases, count = _totals(bitmap, k)
    ranks = torch.zeros(k, dtype=torch.int64, device=positions.device)
    launch.listed(bitmap, k, bases, Candidates(ranks, count))
    return Candidates(positions[ranks], count)


def occupied_by(selection: Selection) -> Tensor:
    """See `Kernels.occupied_by`: returns int64[BLOCK_SIZES]."""
    return occupied(cast(Tensor, selection.positions))


def block_encode(index: Tensor, elements: int, block: int, out: Tensor) -> None:
    """See `Kernels.block_encode`."""
    if block <= _LARGEST_BLOCK:
        launch.block_encode(index, elements, block, out)
        return
    used = _empty(block_words(elements, _LARGEST_BLOCK), index)
    launch.block_encode(index, elements, _LARGEST_BLOCK, used)
    block_encode(used, -(-elements // _LARGEST_BLOCK), block // _LARGEST_BLOCK, out)


def block_decode(blocks: Tensor, elements: int, block: int, out: Tensor) -> None:
    """See `Kernels.block_decode`."""
    launch.block_decode(blocks, elements, block, out)


def bloom_encode(layout: BloomLayout, index: Tensor, out: Tensor, first: int = 0) -> None:
    """See `Kernels.bloom_encode`."""
    launch.bloom_encode(layout, _seed(layout, index), index, out, first)


def bloom_decode(layout: BloomLayout, words: Tensor, elements: int, out: Tensor, first: int = 0) -> None:
    """See `Kernels.bloom_decode`."""
    launch.bloom_decode(layout, _seed(layout, words), words, elements, out, first)


def gather_bits(index: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    """See `Kernels.gather_bits`: returns int64[tiles], the number of set bits of `mask` before each tile."""
    bases, _ = _totals(mask, WORD_BITS * mask.numel())
    launch.gather_bits(index, mask, bases, out)
    return bases


def scatter_bits(bits: Tensor, mask: Tensor, out: Tensor, scan: Tensor | None = None) -> None:
    """See `Kernels.scatter_bits`."""
    bases = _totals(mask, WORD_BITS * mask.numel())[0] if scan is None else scan
    launch.scatter_bits(bits, mask, bases, out)


def block_exponents(values: Tensor, block: int, out: Tensor) -> Tensor:
    """See `Kernels.block_exponents`: returns int32[1]."""
    largest = _empty(1, values)
    launch.block_exponents(values.view(torch.int32), block, out, largest)
    return largest


def index_exponents(
    values: Tensor,
    block: int,
    index: Tensor,
    exponents: Tensor,
    *,
    over: bool = False,
    packed: Packed | None = None,
) -> Tensor:
    """See `Kernels.index_exponents`: returns int32[1]. Keeps nothing in `packed`."""
    if over:
        gpu_together.drop_signs_of_zeros(values)
    launch.index(values.view(torch.int32), index, _empty(1, values))
    return block_exponents(values, block, exponents)


def block_octaves(words: Tensor, exponent_field: int, out: Tensor) -> None:
    """See `Kernels.block_octaves`."""
    launch.block_octaves(words, exponent_field, out)


def quantize(values: Tensor, fixed: FixedPoint, out: Tensor) -> Tensor:
    """See `Kernels.quantize`: returns int32[1]."""
    largest, bits = _empty(1, values), values.view(torch.int32)
    launch.quantize(bits, _scale(fixed, values), out, largest, _blocks(fixed))
    return largest


def quantize_at(values: Tensor, positions: Tensor, fixed: FixedPoint, out: Tensor) -> None:
    """See `Kernels.quantize_at`."""
    bits, where, scale = values.view(torch.int32), _all(positions), _scale(fixed, values)
    launch.quantize_at(bits, where, scale, out, _blocks(fixed))


def dequantize(quantized: Tensor, fixed: FixedPoint, divisor: int, out: Tensor) -> None:
    """See `Kernels.dequantize`."""
    launch.dequantize(quantized, _scale(fixed, out), divisor, out, _blocks(fixed))


def dequantize_at(quantized: Tensor, positions: Tensor, fixed: FixedPoint, divisor: int, out: Tensor) -> None:
    """See `Kernels.dequantize_at`."""
    where, scale = _all(positions), _scale(fixed, out)
    launch.dequantize_at(quantized, where, scale, divisor, out, _blocks(fixed))


def gather(
    values: Tensor, selection: Selection, fixed: FixedPoint, out: Tensor, packed: Packed | None = None
) -> None:
    """See `Kernels.gather`."""
    quantize_at(values, cast(Tensor, selection.positions), fixed, out)


def scatter(
    quantized: Tensor, selection: Selection, fixed: FixedPoint, divisor: int, out: Tensor, *, clear: bool
) -> None:
    """See `Kernels.scatter`."""
    if clear:
        gpu_together.clear(out)
    dequantize_at(quantized, cast(Tensor, selection.positions), fixed, divisor, out)


def sketch_encode(layout: SketchLayout, positions: Tensor, values: Tensor, out: Tensor) -> None:
    """See `Kernels.sketch_encode`."""
    launch.sketch_encode(layout, _seed(layout, out), _all(positions), values, out)


def index_sketch(
    layout: SketchLayout, values: Tensor, fixed: FixedPoint, index: Tensor, sketch: Tensor, first: int = 0
) -> Tensor:
    """See `Kernels.index_sketch`: returns int32[1]."""
    largest, seed, scale = _empty(1, values), _seed(layout, values), _scale(fixed, values)
    bits = values.view(torch.int32)
    launch.index_sketch(layout, seed, bits, scale, index, sketch, largest, first)
    return largest


def sketch_decode(layout: SketchLayout, sketch: Tensor, positions: Tensor, out: Tensor) -> Tensor:
    """See `Kernels.sketch_decode`. Waits for the device once, for the size of the left-over."""
    return peeled(layout, sketch, positions, out)()


def peeled(layout: SketchLayout, sketch: Tensor, positions: Tensor, out: Tensor) -> Callable[[], Tensor]:
    """See `Kernels.peeled`."""
    candidates = _all(positions)
    room = Peeling.room(candidates.capacity, layout.cells, sketch.device)
    launch.peel(layout, _seed(layout, sketch), sketch, candidates, room, out)
    if not candidates.capacity:
        return lambda: positions[:0]
    copied = later(room.left)

    def left_over() -> Tensor:
        left = int(copied()[0])
        if not left:
            return positions[:0]
        bitmap = _empty(index_words(candidates.capacity), sketch)
        launch.index(room.waiting, bitmap, _empty(1, sketch))
        return _listed(bitmap, candidates.capacity, 0, left)

    return left_over


def warm_up_bundles(values: Tensor) -> None:
    """Run the kernels for tensors that lie back to back once, on values[1]; see `warm_up`."""
    table, words = torch.tensor([[0, 1], [0, 0]], dtype=torch.int32, device=values.device), _empty(8, values)
    segments = Segments(table[0], table[1, :1], table[0], table[1, :1])
    bits, places = values.view(torch.int32), table[1, :1]
    launch.bundle_headers(bits, segments, _empty(2, values), words)
    launch.bundle_quantize(bits, segments, places, places, words)
    launch.bundle_dequantize(words, segments, places, places, 1, values)


def _listed(bitmap: Tensor, elements: int, first: int, count: int | None) -> Tensor:
    if count == 0:
        return _empty(0, bitmap, torch.int64)
    bases, total = _totals(bitmap, elements)
    size = int(later(total)()[0]) if count is None else count
    listed = Candidates(_empty(size, bitmap, torch.int64), total)
    launch.listed(bitmap, elements, bases, listed, first)
    return listed.positions


def _totals(bitmap: Tensor, elements: int) -> tuple[Tensor, Tensor]:
    """Count the set bits before each tile of a bitmap, int64[tiles], and in all of it, int64[1]."""
    bases = _empty(launch.tiles(bitmap.numel(), bitmap.device), bitmap, torch.int64)
    total = _empty(1, bitmap, torch.int64)
    launch.totals(bitmap, elements, bases, total)
    return bases, total


def _all(positions: Tensor) -> Candidates:
    """Return positions[k] as Candidates, all of which are present."""
    return Candidates(positions, None)


def _seed(layout: SketchLayout | BloomLayout, like: Tensor) -> Tensor:
    """Return the layout's 64-bit seed as int64[1]."""
    return gpu_together.number((layout.seed + _SIGN) % (2 * _SIGN) - _SIGN, torch.int64, like.device)


def _scale(fixed: FixedPoint, like: Tensor) -> Tensor:
    return gpu_together.number(fixed.scale, torch.int32, like.device)


def _blocks(fixed: FixedPoint) -> Blocks | None:
    return Blocks(fixed.octaves, fixed.block_bits) if isinstance(fixed.octaves, Tensor) else None


def _empty(size: int, like: Tensor, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.empty(size, dtype=dtype, device=like.device)
