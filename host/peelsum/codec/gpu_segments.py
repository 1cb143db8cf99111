"""The segments of a step on the GPU: `SegmentCodec` in Triton, one launch a stage.

The host reads the words of scales, and three counts a segment. Tensors that lie end to end are not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peelsum import buffers
from peelsum.buffers import frozen
from peelsum.codec import cpu_block_loops
from peelsum.codec import gpu_launch as launch
from peelsum.codec.block_scales import ZERO
from peelsum.codec.cpu_segments import occupied
from peelsum.codec.fixed_point import NON_FINITE, fixed_point
from peelsum.codec.gpu_memory import sent, stream_of
from peelsum.codec.gpu_segment_kernels import NON_FINITE_SCALE, ZERO_SCALE
from peelsum.codec.index import WORD_BITS
from peelsum.codec.segments import Counts, Table


class Rows(NamedTuple):
    """A table's rows, on a device."""

    begins: Tensor
    """int64[rows + 1]: each row's first element, and the end."""
    blocks: Tensor
    """int32[rows]: each row's block."""
    segments: Tensor
    """int32[blocks]: each block's segment."""
    number: int
    """Number of rows."""
    first: int
    """The first row of the sparse vector."""


#: A plan's table is the same object in every step. Its rows take a tenth of the memory of its elements.
_ROWS: WeakKeyDictionary[Table, dict[tuple[torch.device, int], Rows]] = WeakKeyDictionary()


class GpuSegments:
    """See `SegmentCodec`."""

    def __init__(
        self, table: Table, values: Sequence[Tensor], out: Sequence[Tensor | None], workers: int
    ) -> None:
        self._table, self._out = table, out
        self._device = values[0].device
        self._devices = [one.device for one in values]
        self._values, self._lie_together = _joined(values)
        self._over = self._lie_together and all(a is b for a, b in zip(values, out, strict=True))
        self._rows = _rows(table, stream_of(self._device))
        self._highest = fixed_point(0, workers).scale
        self.fields = self.scales = np.empty(0, np.int32)
        #: The scales, and where each row's numbers begin, on the device; None until they are needed there.
        self._placed: tuple[Tensor, Tensor] | None = None
        #: int64[2, segments]: own non-zeros, and non-zeros of dense sums.
        self._counts = torch.zeros(2, len(table), dtype=torch.int64, device=self._device)
        #: Whether this worker's dense and sparse numbers have been written, and counted.
        self._wrote = [False, False]
        self.sent = np.zeros(len(table), np.int64)

    def write_scales(self, out: Tensor) -> Tensor:
        """See `SegmentCodec.write_scales`."""
        bitmap = self._empty(self._table.words)
        launch.measure(self._bits, self._rows, len(self._table), out, bitmap)
        return bitmap

    def read_scales(self, words: NDArray[np.uint32]) -> None:
        """See `SegmentCodec.read_scales`."""
        words, count = frozen(words), len(self._table)
        given = words[:count], words[count:], self._table.blocks, self._highest
        fields, scales = np.empty(count, np.int32), buffers.empty(len(words) - count, np.int32)
        cpu_block_loops.decode_scales(*given, fields, scales)
        self.use(fields, scales)

    def use(self, fields: NDArray[np.int32], scales: NDArray[np.int32]) -> None:
        """See `SegmentCodec.use`."""
        self.fields, self.scales, self._placed = fields, scales, None
        self._absent = (self.fields == ZERO) | (self.fields == NON_FINITE)
        self.sent = np.where(self._absent, 0, self._table.elements)

    def _there(self) -> tuple[Tensor, Tensor]:
        """Return the scales, and where each row's numbers begin, on the device."""
        if self._placed is None:
            table, absent, scales, places = self._table, self._absent, self.scales, self._rows.begins
            if absent.any():
                scales = scales.copy()
                for s in np.flatnonzero(absent):
                    scale = NON_FINITE_SCALE if self.fields[s] == NON_FINITE else ZERO_SCALE
                    scales[table.blocks[s] : table.blocks[s + 1]] = scale
            if absent[: table.dense].any():
                missing = np.where(absent, table.elements, 0)
                skipped = np.cumsum(missing) - missing
                begins = table.begin_of_row[:-1] - skipped[table.segment_of_row]
                places = sent(begins, self._device)
            self._placed = sent(scales, self._device), places
        return self._placed

    def values_at(self, elements: NDArray[np.int64]) -> NDArray[np.float32]:
        """See `SegmentCodec.values_at`. Waits for the device."""
        found: NDArray[np.float32] = self._values[sent(elements, self._device)].cpu().numpy()
        return found

    def place(self, union: Tensor) -> tuple[int, int]:
        """See `SegmentCodec.place`. Waits for the device."""
        dense = self._table.dense
        self._union = union
        self._bases = launch.candidates_before(union)
        if len(self._table) > dense:
            counts = torch.zeros(len(self._table), dtype=torch.int64, device=self._device)
            launch.count(union, self._rows, counts)
            self.sent[dense:] = counts.cpu().numpy()[dense:]
        return int(self.sent[:dense].sum()), int(self.sent[dense:].sum())

    def write_dense(self, out: Tensor) -> None:
        """See `SegmentCodec.write_dense`."""
        if self._wrote[0]:
            self._counts[0, : self._table.dense] = 0
        self._wrote[0] = True
        launch.write_dense(self._bits, self._rows, *self._there(), out, self._counts[0])

    def gather(self, out: Tensor) -> None:
        """See `SegmentCodec.gather`."""
        if self._wrote[1]:
            self._counts[0, self._table.dense :] = 0
        self._wrote[1] = True
        positions = torch.empty(len(out), dtype=torch.int64, device=self._device)
        launch.positions(self._union, WORD_BITS * self._union.numel(), self._bases, positions)
        launch.gather(self._bits, self._rows, self._there()[0], positions, out, self._counts[0])

    def read(
        self,
        dense: Tensor,
        sparse: Tensor,
        divisor: int,
        wide: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None,
    ) -> Sequence[Tensor]:
        """See `SegmentCodec.read`."""
        ours = self._over or not self._lie_together
        flat = self._values if ours else torch.empty_like(self._values)
        parts = torch.split(flat, self._table.elements.tolist())
        # What needs memory comes before results are written over tensors: the step may start again from them.
        results = [
            out if out is not None else part if part.device == there else torch.empty_like(part, device=there)
            for part, out, there in zip(parts, self._out, self._devices, strict=True)
        ]
        place = *self._there(), self._union, self._bases
        placed = None if wide is None else [sent(one, self._device) for one in wide]
        self._values = self._empty(0)  # a caller may keep results for long, and them alone
        launch.read(dense, sparse, self._rows, *place, divisor, flat, self._counts[1])
        pairs = [(a, b) for a, b in zip(results, parts, strict=True) if a is not b and not self._over]
        with torch.inference_mode():  # tensors may have been made in it, and are then read-only elsewhere
            if placed is not None:
                flat.index_copy_(0, *placed)
            if pairs:
                torch._foreach_copy_([result for result, _ in pairs], [part for _, part in pairs])
        return results

    def counts(self, dense: Tensor, sparse: Tensor, own: tuple[Tensor, Tensor]) -> Counts:
        """See `SegmentCodec.counts`. Waits for the device."""
        mine, total = self._counts.cpu().numpy()
        return Counts(mine, total, self.sent)

    def occupied(self, sparse: Tensor, wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `SegmentCodec.occupied`. The host counts, from copies of the bitmap and the sums."""
        union = self._union.cpu().numpy().view(np.uint32)
        return occupied(self._table, union, sparse.cpu().numpy(), wanted)

    @property
    def _bits(self) -> Tensor:
        return self._values.view(torch.int32)

    def _empty(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.int32, device=self._device)


def _joined(values: Sequence[Tensor]) -> tuple[Tensor, bool]:
    """Return tensors end to end, and whether they lie so already: then memory is shared."""
    first, place = values[0], values[0].storage_offset()
    # Its identity, because another storage, of another size, may begin at the same address.
    storage = first.untyped_storage()._cdata
    for tensor in values:
        if tensor.untyped_storage()._cdata != storage or tensor.storage_offset() != place:
            break
        place += tensor.numel()
    else:
        return first.as_strided((place - first.storage_offset(),), (1,)), True
    return torch.cat([tensor.to(first.device) for tensor in values]), False


def _rows(table: Table, stream: tuple[torch.device, int]) -> Rows:
    """Return a table's rows on a device, kept for the stream as long as there is the table."""
    kept = _ROWS.setdefault(table, {})
    if stream not in kept:
        kept[stream] = _made(table, stream[0])
    return kept[stream]


def _made(table: Table, device: torch.device) -> Rows:
    segments = np.repeat(np.arange(len(table)), np.diff(table.blocks))
    arrays = table.begin_of_row, table.block_of_row.astype(np.int32), segments.astype(np.int32)
    begins, blocks, of_blocks = (sent(one, device) for one in arrays)
    return Rows(begins, blocks, of_blocks, int(table.rows[-1]), int(table.rows[table.dense]))
