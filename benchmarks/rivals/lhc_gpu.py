"""`LhcLayout`'s encoding and decoding in Triton, for torch tensors: the same bits.

As in LHC's program, each kernel passes over all elements, and the host waits after each peel round to learn
whether another is needed. Each Triton program handles one block. Counts are bytes, four to an int32, added
atomically; as in LHC's program, a count that wraps carries into its neighbour.

A peel round is one launch, in which cells become pure that were not at its start. A value is subtracted from
a cell's sum before its count is released, and the count is acquired before the sum is read. So a pure cell's
sum is that of its one candidate, which no other reads. Barriers stand between, as one thread may have a
lane's sum and another its count.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from benchmarks.rivals.lhc import LhcLayout
from peelsum.codec import FixedPoint
from peelsum.codec.gpu.words import mixed

_WORDS = 128
_SIGN = 2**63
#: Adding and then subtracting this rounds a float64 below 2**51 to an integer, half to even.
_ROUNDING = tl.constexpr(1.5 * 2.0**52)


@triton.jit
def lhc_index_kernel(values, index, n, words, WORDS: tl.constexpr, BITS: tl.constexpr):
    """Write BITS bits for each of values[n], given as bit patterns, into index[words]."""
    word = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    element = word[:, None] * (32 // BITS) + tl.arange(0, 32 // BITS)[None, :]
    used = (tl.load(values + element, mask=element < n, other=0) & 0x7FFFFFFF) != 0
    shifted = used.to(tl.int32) << (tl.arange(0, 32 // BITS) * BITS)[None, :]
    tl.store(index + word, tl.sum(shifted, axis=1), mask=word < words)


@triton.jit
def _elements(LANES: tl.constexpr):
    """Return this program's block, its lanes, and its elements' numbers."""
    block = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    return block, lane, block * LANES + lane


@triton.jit
def _used(index, element, BITS: tl.constexpr):
    """Return whether the elements' bits in the index are not 0."""
    word = tl.load(index + element // (32 // BITS))
    return ((word >> (element % (32 // BITS) * BITS).to(tl.int32)) & ((1 << BITS) - 1)) != 0


@triton.jit
def _cells(block, lane, j, seed, rows, LANES: tl.constexpr):
    """Return the lanes' cells in the block's j-th row, the sign (1 or -1), and word and shift of a count."""
    value = mixed(block * 3 + j, seed)
    cell = (((value >> 32) * rows) >> 32).to(tl.int64) * LANES + lane
    sign = 1 - 2 * ((value >> 31) & 1).to(tl.int32)
    return cell, sign, cell // 4, (cell % 4 * 8).to(tl.int32)


@triton.jit
def lhc_add_kernel(
    values, index, sketch, counts, seed, factor, n, rows, LANES: tl.constexpr, BITS: tl.constexpr
):
    """Add values[n], given as bit patterns, times `factor` to the sketch, and candidates to the counts."""
    block, lane, element = _elements(LANES)
    value = tl.load(values + element, mask=element < n, other=0).to(tl.float32, bitcast=True)
    scaled = value.to(tl.float64) * tl.load(factor)
    number = ((scaled + _ROUNDING) - _ROUNDING).to(tl.int64).to(tl.int32)
    used = _used(index, element, BITS).to(tl.int32)
    for j in tl.static_range(3):
        cell, sign, at, shift = _cells(block, lane, j, tl.load(seed), rows, LANES)
        tl.atomic_add(sketch + cell, sign * number, mask=number != 0, sem="relaxed")
        tl.atomic_add(counts + at, used << shift, mask=used != 0, sem="relaxed")


@triton.jit
def lhc_round_kernel(
    index, counts, sketch, out, progress, seed, factor, n, rows, LANES: tl.constexpr, BITS: tl.constexpr
):
    """Peel once: remove candidates in pure cells from sketch, counts and index; write their values to out[n].

    Values are multiplied by `factor`. Add the number of candidates that were peeled, and of all candidates,
    to progress[2].
    """
    block, lane, element = _elements(LANES)
    used = _used(index, element, BITS)
    peeled = tl.zeros((LANES,), tl.int1)
    number = tl.zeros((LANES,), tl.int32)
    for j in tl.static_range(3):
        cell, sign, at, shift = _cells(block, lane, j, tl.load(seed), rows, LANES)
        waiting = used & (peeled == 0)
        word = tl.atomic_add(counts + at, tl.zeros((LANES,), tl.int32), mask=waiting, sem="acquire")
        pure = waiting & (((word >> shift) & 255) == 1)
        tl.debug_barrier()
        number += sign * tl.load(sketch + cell, mask=pure, other=0, volatile=True)
        peeled |= pure
    tl.atomic_add(progress, tl.sum(peeled.to(tl.int64), axis=0), sem="relaxed")
    tl.atomic_add(progress + 1, tl.sum(used.to(tl.int64), axis=0), sem="relaxed")
    value = (number.to(tl.float64) * tl.load(factor)).to(tl.float32)
    tl.store(out + element, value, mask=peeled & (element < n))
    for j in tl.static_range(3):
        cell, sign, at, shift = _cells(block, lane, j, tl.load(seed), rows, LANES)
        tl.atomic_add(sketch + cell, 0 - sign * number, mask=peeled, sem="relaxed")
    tl.debug_barrier()
    for j in tl.static_range(3):
        _, _, at, shift = _cells(block, lane, j, tl.load(seed), rows, LANES)
        tl.atomic_add(counts + at, 0 - (tl.full((LANES,), 1, tl.int32) << shift), mask=peeled, sem="release")
    ones = tl.full((LANES,), (1 << BITS) - 1, tl.int32)
    cleared = (ones << (element % (32 // BITS) * BITS).to(tl.int32)) ^ -1
    tl.atomic_and(index + element // (32 // BITS), cleared, mask=peeled, sem="relaxed")


@dataclass(frozen=True)
class DeviceLhc:
    """`LhcLayout` on a device: words are int32, and counts are packed, four to an int32."""

    layout: LhcLayout

    def index(self, values: Tensor) -> Tensor:
        """See `LhcLayout.index`."""
        words, n = self.layout.index_words(values.numel()), values.numel()
        out = torch.empty(words, dtype=torch.int32, device=values.device)
        lhc_index_kernel[(-(-words // _WORDS),)](
            values.view(torch.int32), out, n, words, _WORDS, self.layout.index_bits
        )
        return out

    def encode(self, values: Tensor, fixed: FixedPoint, index: Tensor) -> tuple[Tensor, Tensor]:
        """See `LhcLayout.encode`; return the sketch, and each cell's number of candidates, four to a word.

        index: the sum (4 bits for each element) or the OR (1 bit) of all workers' indices.
        """
        layout, n, device = self.layout, values.numel(), values.device
        sketch = torch.zeros(layout.cells, dtype=torch.int32, device=device)
        counts = torch.zeros(layout.cells // 4, dtype=torch.int32, device=device)
        lhc_add_kernel[(self._blocks(n),)](
            values.view(torch.int32), index, sketch, counts, self._seed(device), _factor(fixed.scale, device),
            n, layout.rows, layout.lanes, layout.index_bits,
        )  # fmt: skip
        return sketch, counts

    def decode(
        self, sketch: Tensor, counts: Tensor, index: Tensor, fixed: FixedPoint, elements: int
    ) -> tuple[Tensor, int]:
        """See `LhcLayout.decode`."""
        layout, device, blocks = self.layout, sketch.device, self._blocks(elements)
        out = torch.zeros(elements, dtype=torch.float32, device=device)
        progress = torch.empty(2, dtype=torch.int64, device=device)
        seed, factor = self._seed(device), _factor(-fixed.scale, device)
        while True:
            progress.zero_()
            lhc_round_kernel[(blocks,)](
                index, counts, sketch, out, progress, seed, factor, elements, layout.rows, layout.lanes,
                layout.index_bits,
            )  # fmt: skip
            peeled, waiting = progress.tolist()
            if peeled in (0, waiting):
                return out, waiting - peeled

    def left_over(self, values: Tensor, fixed: FixedPoint, index: Tensor) -> tuple[Tensor, Tensor]:
        """See `LhcLayout.left_over`."""
        bits = self.layout.index_bits
        words = index.nonzero().flatten()
        shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=index.device)
        word, inside = ((index[words, None] >> shifts) & (2**bits - 1)).nonzero().unbind(1)
        positions = words[word] * len(shifts) + inside
        return positions, torch.round(values[positions].double() * 2.0**fixed.scale).to(torch.int32)

    def complete(self, out: Tensor, positions: Tensor, total: Tensor, fixed: FixedPoint) -> None:
        """See `LhcLayout.complete`."""
        out[positions] = (total.double() * 2.0**-fixed.scale).float()

    def _blocks(self, elements: int) -> int:
        return -(-elements // self.layout.lanes)

    def _seed(self, device: torch.device) -> Tensor:
        """Return the 64-bit seed as int64[1]."""
        return torch.full((1,), (self.layout.seed + _SIGN) % (2 * _SIGN) - _SIGN, device=device)


def _factor(scale: int, device: torch.device) -> Tensor:
    return torch.full((1,), 2.0**scale, dtype=torch.float64, device=device)
