"""The segments of a step on the GPU: `SegmentCodec` in Triton, one launch a stage.

The host reads the words of scales, and one count a segment. Tensors that lie end to end are not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peelsum.codec import block_scales
from peelsum.codec import gpu_launch as launch
from peelsum.codec.block_scales import ZERO
from peelsum.codec.cpu_segments import occupied
from peelsum.codec.fixed_point import NON_FINITE, fixed_point
from peelsum.codec.gpu_memory import sent, stream_of
from peelsum.codec.gpu_segment_kernels import NON_FINITE_SCALE, ZERO_SCALE
from peelsum.codec.segments import Counts, Table


class Rows(NamedTuple):
    """A table's rows, on a device."""

    begins: Tensor
    """int64[rows + 1]: each row's first element, and the end."""
    blocks: Tensor
    """int32[rows]: each row's block."""
    segments: Tensor
    """int32[blocks]: each block's segment."""
    count: int
    """Number of rows."""
    first: int
    """The first row of the sparse vector."""


class GpuSegments:
    """See `SegmentCodec`."""

    def __init__(
        self, table: Table, values: Sequence[Tensor], out: Sequence[Tensor | None], workers: int
    ) -> None:
        self._table, self._out = table, out
        self._device = values[0].device
        self._values, self._lie_together = _joined(values)
        self._over = self._lie_together and all(a is b for a, b in zip(values, out, strict=True))
        self._rows = _rows(table, stream_of(self._device))
        self._highest = fixed_point(0, workers).scale
        self.fields = np.empty(len(table), np.int32)
        self.scales = np.empty(int(table.blocks[-1]), np.int32)
        #: int64[3, segments]: own non-zeros, non-zeros of dense sums, and numbers that are sent.
        self._counts = torch.zeros(3, len(table), dtype=torch.int64, device=self._device)
        self._sent = np.zeros(len(table), np.int64)

    def write_scales(self, out: Tensor) -> Tensor:
        """See `SegmentCodec.write_scales`."""
        bitmap = self._empty(self._table.words)
        launch.measure(self._bits, self._rows, len(self._table), out, bitmap)
        return bitmap

    def read_scales(self, words: NDArray[np.uint32]) -> None:
        """See `SegmentCodec.read_scales`."""
        table, count = self._table, len(self._table)
        self.fields[:], fields = block_scales.decoded(words[:count], words[count:], table.blocks)
        self.scales[:] = self._highest - fields
        of_segment = np.where(self.fields == NON_FINITE, NON_FINITE_SCALE, ZERO_SCALE)
        absent = (self.fields == ZERO) | (self.fields == NON_FINITE)
        per = np.diff(table.blocks)
        placed = np.where(np.repeat(absent, per), np.repeat(of_segment, per), self.scales)
        self._scales = sent(placed.astype(np.int32), self._device)
        self._places = self._rows.begins
        if absent[: table.dense].any():
            skipped = np.cumsum(np.where(absent, table.elements, 0)) - np.where(absent, table.elements, 0)
            places = table.begin_of_row[:-1] - skipped[table.segment_of_row]
            self._places = sent(places, self._device)
        self._sent = np.where(absent, 0, table.elements)

    def place(self, union: Tensor) -> tuple[int, int]:
        """See `SegmentCodec.place`. Waits for the device."""
        dense = self._table.dense
        self._union = union
        self._bases = launch.candidates_before(union)
        launch.count(union, self._rows, self._counts[2])
        if len(self._table) > dense:
            self._sent[dense:] = self._counts[2, dense:].cpu().numpy()
        return int(self._sent[:dense].sum()), int(self._sent[dense:].sum())

    def write_dense(self, out: Tensor) -> None:
        """See `SegmentCodec.write_dense`."""
        launch.write_dense(self._bits, self._rows, self._scales, self._places, out, self._counts[0])

    def gather(self, out: Tensor) -> None:
        """See `SegmentCodec.gather`."""
        place = self._union, self._bases
        launch.gather(self._bits, self._rows, self._scales, *place, out, self._counts[0])

    def read(self, dense: Tensor, sparse: Tensor, divisor: int) -> Sequence[Tensor]:
        """See `SegmentCodec.read`."""
        flat = self._values if self._over else torch.empty_like(self._values)
        launch.read_dense(dense, self._rows, self._scales, self._places, divisor, flat, self._counts[1])
        launch.read_sparse(sparse, self._rows, self._scales, self._union, self._bases, divisor, flat)
        parts = torch.split(flat, self._table.elements.tolist())
        if self._over:
            return [one for one in self._out if one is not None]
        pairs = [(into, part) for into, part in zip(self._out, parts, strict=True) if into is not None]
        if pairs:
            torch._foreach_copy_([into for into, _ in pairs], [part for _, part in pairs])
        return [part if into is None else into for into, part in zip(self._out, parts, strict=True)]

    def counts(self, dense: Tensor, sparse: Tensor, quantized: Tensor) -> Counts:
        """See `SegmentCodec.counts`. Waits for the device."""
        own, total = self._counts[:2].cpu().numpy()
        return Counts(own, total, self._sent)

    def occupied(self, sparse: Tensor, wanted: NDArray[np.int64], *, known: bool) -> NDArray[np.int64]:
        """See `SegmentCodec.occupied`. The host counts, from copies of the bitmap and the sums."""
        union = self._union.cpu().numpy().view(np.uint32)
        numbers = np.zeros(len(sparse), np.int32) if known else sparse.cpu().numpy()
        return occupied(self._table, union, numbers, wanted, known=known)

    @property
    def _bits(self) -> Tensor:
        return self._values.view(torch.int32)

    def _empty(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.int32, device=self._device)


def _joined(values: Sequence[Tensor]) -> tuple[Tensor, bool]:
    """Return tensors end to end, and whether they lie so already: then memory is shared."""
    first, place = values[0], values[0].storage_offset()
    for one in values:
        if one.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            break
        if one.storage_offset() != place:
            break
        place += one.numel()
    else:
        return first.as_strided((place - first.storage_offset(),), (1,)), True
    return torch.cat([one.to(first.device) for one in values]), False


@lru_cache(64)  # a plan's table is the same object in every step
def _rows(table: Table, stream: tuple[torch.device, int]) -> Rows:
    """Return a table's rows on a device, kept for the stream."""
    segments = np.repeat(np.arange(len(table)), np.diff(table.blocks))
    device, blocks = stream[0], table.block_of_row.astype(np.int32)
    there = (sent(one, device) for one in (table.begin_of_row, blocks, segments.astype(np.int32)))
    begins, of_row, of_block = there
    return Rows(begins, of_row, of_block, int(table.rows[-1]), int(table.rows[table.dense]))
