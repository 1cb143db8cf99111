"""Triton kernels for many small dense tensors that lie back to back: one launch a stage for all of them.

They write the words that `peelsum.codec.cpu_bundle_loops` writes. A block is up to 32 elements of one tensor;
block b of all tensors holds the elements begins[b] to begins[b + 1].
"""

from __future__ import annotations

import triton
import triton.language as tl

from peelsum.codec.fixed_point import EXPONENT_WORDS
from peelsum.codec.gpu_index_kernels import WORD_BITS, wide
from peelsum.codec.gpu_scale_kernels import block_words, exponent_words
from peelsum.codec.gpu_sketch_kernels import fixed_number, power_of_two

_EXPONENT_WORDS = tl.constexpr(EXPONENT_WORDS)
#: Stand for the scale of blocks that are not sent: all values are zero, or some are not finite.
ZERO_SCALE, NON_FINITE_SCALE = 2**20, 2**20 + 1
_ZERO_SCALE, _NON_FINITE_SCALE = tl.constexpr(ZERO_SCALE), tl.constexpr(NON_FINITE_SCALE)


@triton.jit
def _elements(begins, block, blocks):
    """Return the elements of blocks int32[b], int32[b, 32], and which of them there are."""
    begin = tl.load(begins + block, mask=block < blocks, other=0)
    end = tl.load(begins + block + 1, mask=block < blocks, other=0)
    element = begin[:, None] + tl.arange(0, WORD_BITS)[None, :]
    return element, element < end[:, None]


@triton.jit
def bundle_magnitudes_kernel(values, begins, tensors, largest, magnitudes, blocks, BLOCKS: tl.constexpr):
    """Write magnitudes[blocks]; raise largest[t], which must be zero, for each block's tensor t."""
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    element, inside = _elements(begins, block, blocks)
    most = tl.max(tl.load(values + element, mask=inside, other=0) & 0x7FFFFFFF, axis=1)
    tl.store(magnitudes + block, most, mask=block < blocks)
    tensor = tl.load(tensors + block, mask=block < blocks, other=0)
    tl.atomic_max(largest + tensor, most, mask=most != 0, sem="relaxed")


@triton.jit
def bundle_headers_kernel(magnitudes, largest, firsts, headers, out, BLOCKS: tl.constexpr):
    """Write the header of tensor t, the number of the program, from out[headers[t]] on.

    It has the exponent and, if there is more than one, a word for each of the blocks from firsts[t] on.
    """
    tensor = tl.program_id(0)
    most, first, into = tl.load(largest + tensor), tl.load(firsts + tensor), out + tl.load(headers + tensor)
    word = tl.arange(0, _EXPONENT_WORDS)
    tl.store(into + word, exponent_words(most, word))
    blocks = tl.load(firsts + tensor + 1) - first
    if blocks > 1:
        for start in range(0, blocks, BLOCKS):
            block = start + tl.arange(0, BLOCKS)
            magnitude = tl.load(magnitudes + first + block, mask=block < blocks, other=0)
            words = block_words(magnitude, most)
            tl.store(into + _EXPONENT_WORDS + block, words, mask=block < blocks)


@triton.jit
def _scales(scales, block, blocks):
    """Return the scales of blocks and whether they are sent; 0 for those that are not."""
    scale = tl.load(scales + block, mask=block < blocks, other=_ZERO_SCALE)
    return tl.where(scale < _ZERO_SCALE, scale, 0), scale < _ZERO_SCALE, scale == _NON_FINITE_SCALE


@triton.jit
def _places(places, block, blocks):
    """Return where the integers of blocks lie among those that are sent: int32[b, 32]."""
    place = tl.load(places + block, mask=block < blocks, other=0)
    return place[:, None] + tl.arange(0, WORD_BITS)[None, :]


@triton.jit
def bundle_quantize_kernel(values, begins, places, scales, out, blocks, BLOCKS: tl.constexpr):
    """Quantize the blocks that are sent, block b by scales[b], from out[places[b]] on."""
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    element, inside = _elements(begins, block, blocks)
    scale, sent, _ = _scales(scales, block, blocks)
    inside &= sent[:, None]
    value = tl.load(values + element, mask=inside, other=0).to(tl.float32, bitcast=True)
    number = fixed_number(value, scale[:, None]).to(tl.int32)
    tl.store(out + _places(places, block, blocks), number, mask=inside)


@triton.jit
def bundle_dequantize_kernel(total, begins, places, scales, divisor, out, blocks, BLOCKS: tl.constexpr):
    """Write the sums of all tensors, divided: 0 or NaN for blocks that were not sent."""
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    element, inside = _elements(begins, block, blocks)
    scale, sent, not_finite = _scales(scales, block, blocks)
    number = tl.load(total + _places(places, block, blocks), mask=inside & sent[:, None], other=0)
    factor = power_of_two(0 - scale)[:, None]
    value = (number.to(tl.float64) * factor / wide(divisor).to(tl.float64)).to(tl.float32)
    tl.store(out + element, tl.where(not_finite[:, None], float("nan"), value), mask=inside)
