"""`LhcLayout`'s encoding and decoding in Triton, for torch tensors: the same bits.

As in LHC's program, the host waits after each peel round to learn whether another is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.rivals import lhc_gpu_kernels as kernels
from benchmarks.rivals.lhc import LhcLayout
from peelsum.codec import FixedPoint

_WORDS = 128
_SIGN = 2**63


@dataclass(frozen=True)
class DeviceLhc:
    """`LhcLayout` on a device: words are int32, and counts are packed, four to an int32."""

    layout: LhcLayout

    def index(self, values: Tensor) -> Tensor:
        """See `LhcLayout.index`."""
        words, n = self.layout.index_words(values.numel()), values.numel()
        out = torch.empty(words, dtype=torch.int32, device=values.device)
        kernels.lhc_index_kernel[(-(-words // _WORDS),)](
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
        kernels.lhc_add_kernel[(self._blocks(n),)](
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
            kernels.lhc_round_kernel[(blocks,)](
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
