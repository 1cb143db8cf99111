"""The codec in Triton, on torch tensors: the same bits as `peelsum.codec.reference`, on the caller's stream.

The functions have the names and parameters of `peelsum.codec.kernels`, with two differences. Arrays are
tensors, int32 where NumPy's are uint32, because torch has almost no arithmetic on uint32. Magnitudes are
tensors int32[1], because reading one as an int would wait for the device.

Functions whose result has a size that only the device knows (`count`, `positions`, `sketch_decode`) wait for
it; `peelsum.codec.gpu_launch` never waits. Tensors are contiguous and on one device.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from peelsum.codec import gpu_launch as launch
from peelsum.codec.errors import CodecError
from peelsum.codec.fixed_point import FixedPoint
from peelsum.codec.gpu_launch import Candidates, Peeling
from peelsum.codec.index import BLOCK_SIZES, WORD_BITS, BloomLayout, block_words, index_words
from peelsum.codec.layout import SketchLayout

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
    values += 0.0
    return index(values, out)


def count(index: Tensor, elements: int) -> int:
    """See `Kernels.count`. Waits for the device."""
    _, total = _totals(index, elements)
    return int(total)


def positions(index: Tensor, elements: int, first: int = 0) -> Tensor:
    """See `Kernels.positions`: returns int64[k]. Waits for the device once, for k."""
    return _listed(index, elements, first)


def occupied(positions: Tensor) -> Tensor:
    """See `Kernels.occupied`: returns int64[BLOCK_SIZES]."""
    out = _empty(BLOCK_SIZES, positions, torch.int64)
    launch.occupied(_all(positions), out)
    return out


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


def gather_bits(index: Tensor, mask: Tensor, out: Tensor) -> None:
    """See `Kernels.gather_bits`."""
    bases, _ = _totals(mask, WORD_BITS * mask.numel())
    launch.gather_bits(index, mask, bases, out)


def scatter_bits(bits: Tensor, mask: Tensor, out: Tensor) -> None:
    """See `Kernels.scatter_bits`."""
    bases, _ = _totals(mask, WORD_BITS * mask.numel())
    launch.scatter_bits(bits, mask, bases, out)


def block_exponents(values: Tensor, block: int, out: Tensor) -> Tensor:
    """See `Kernels.block_exponents`: returns int32[1]."""
    largest = _empty(1, values)
    launch.block_exponents(values.view(torch.int32), block, out, largest)
    return largest


def index_exponents(
    values: Tensor, block: int, index: Tensor, exponents: Tensor, *, over: bool = False
) -> Tensor:
    """See `Kernels.index_exponents`: returns int32[1]."""
    if over:
        values += 0.0
    launch.index(values.view(torch.int32), index, _empty(1, values))
    return block_exponents(values, block, exponents)


def block_octaves(words: Tensor, exponent_field: int, out: Tensor) -> None:
    """See `Kernels.block_octaves`."""
    launch.block_octaves(words, exponent_field, out)


def quantize(values: Tensor, fixed: FixedPoint, out: Tensor) -> Tensor:
    """See `Kernels.quantize`: returns int32[1]."""
    largest = _empty(1, values)
    bits, scale = values.view(torch.int32), _scale(fixed, values)
    launch.quantize(bits, scale, fixed.low_bits, out, largest, fixed.block_bits)
    return largest


def quantize_at(values: Tensor, positions: Tensor, fixed: FixedPoint, out: Tensor) -> None:
    """See `Kernels.quantize_at`."""
    bits, scale = values.view(torch.int32), _scale(fixed, values)
    launch.quantize_at(bits, _all(positions), scale, fixed.low_bits, out, fixed.block_bits)


def dequantize(quantized: Tensor, fixed: FixedPoint, divisor: int, out: Tensor) -> None:
    """See `Kernels.dequantize`."""
    launch.dequantize(quantized, _scale(fixed, out), fixed.low_bits, divisor, out, fixed.block_bits)


def dequantize_at(quantized: Tensor, positions: Tensor, fixed: FixedPoint, divisor: int, out: Tensor) -> None:
    """See `Kernels.dequantize_at`."""
    scale, where = _scale(fixed, out), _all(positions)
    launch.dequantize_at(quantized, where, scale, fixed.low_bits, divisor, out, fixed.block_bits)


def sketch_encode(layout: SketchLayout, positions: Tensor, values: Tensor, out: Tensor) -> None:
    """See `Kernels.sketch_encode`."""
    launch.sketch_encode(layout, _seed(layout, out), _all(positions), values, out)


def index_sketch(
    layout: SketchLayout, values: Tensor, fixed: FixedPoint, index: Tensor, sketch: Tensor, first: int = 0
) -> Tensor:
    """See `Kernels.index_sketch`: returns int32[1]."""
    largest, seed, scale = _empty(1, values), _seed(layout, values), _scale(fixed, values)
    bits = values.view(torch.int32)
    launch.index_sketch(layout, seed, bits, scale, fixed.low_bits, index, sketch, largest, first)
    return largest


def sketch_decode(layout: SketchLayout, sketch: Tensor, positions: Tensor, out: Tensor) -> Tensor:
    """See `Kernels.sketch_decode`. Waits for the device after each launch of rounds, usually once."""
    seed, candidates = _seed(layout, sketch), _all(positions)
    room = Peeling.room(candidates.capacity, layout.cells, sketch.device, limbs=len(sketch))
    launch.peel(layout, seed, sketch, candidates, room, out)
    done, grown = 0, room.grown.tolist()
    while grown[-1]:
        done += sum(grown[:-1])
        room.grown.zero_()
        room.grown[:1].fill_(grown[-1])
        launch.peel_on(layout, seed, candidates, room, out, done)
        grown = room.grown.tolist()
    if done + sum(grown) == candidates.capacity:
        return positions[:0]
    bitmap = _empty(index_words(candidates.capacity), sketch)
    launch.index(room.waiting, bitmap, _empty(1, sketch))
    return _listed(bitmap, candidates.capacity, 0)


def _listed(bitmap: Tensor, elements: int, first: int) -> Tensor:
    bases, total = _totals(bitmap, elements)
    listed = Candidates(_empty(int(total), bitmap, torch.int64), total)
    launch.listed(bitmap, elements, bases, listed, first)
    return listed.positions


def _totals(bitmap: Tensor, elements: int) -> tuple[Tensor, Tensor]:
    """Count the set bits before each tile of a bitmap, int64[tiles], and in all of it, int64[1]."""
    bases = _empty(launch.tiles(bitmap.numel()), bitmap, torch.int64)
    total = _empty(1, bitmap, torch.int64)
    launch.totals(bitmap, elements, bases, total)
    return bases, total


def _all(positions: Tensor) -> Candidates:
    """Return positions[k] as Candidates, all of which are present."""
    return Candidates(positions, torch.full((1,), positions.numel(), device=positions.device))


def _seed(layout: SketchLayout | BloomLayout, like: Tensor) -> Tensor:
    """Return the layout's 64-bit seed as int64[1]. Filling the tensor is a launch; a copy would wait."""
    seed = (layout.seed + _SIGN) % (2 * _SIGN) - _SIGN
    return torch.full((1,), seed, dtype=torch.int64, device=like.device)


def _scale(fixed: FixedPoint, like: Tensor) -> Tensor:
    """Return the scales of a format's blocks: int32[blocks]."""
    if isinstance(fixed.octaves, Tensor):
        return fixed.octaves + fixed.scale
    return torch.full((1,), fixed.scale, dtype=torch.int32, device=like.device)


def _empty(size: int, like: Tensor, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.empty(size, dtype=dtype, device=like.device)
