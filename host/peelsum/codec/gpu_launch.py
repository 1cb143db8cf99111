"""Enqueue the codec's Triton kernels on the caller's stream.

No function waits, or reads device memory from the host. Return values of `peelsum.codec.kernels` become
output tensors. Outputs are written completely unless stated otherwise.

Words and values are int32 (floats as bit patterns); positions, counts and seeds int64.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from peelsum.codec import gpu_form_kernels as forms
from peelsum.codec import gpu_index_kernels as indexes
from peelsum.codec import gpu_peel_kernels as peeling
from peelsum.codec import gpu_segment_kernels as segments
from peelsum.codec import gpu_sketch_kernels as sketches
from peelsum.codec.index import WORD_BITS, BloomLayout
from peelsum.codec.layout import MOST_CANDIDATES, SketchLayout

if TYPE_CHECKING:
    from peelsum.codec.gpu_segments import Rows

# Tile sizes for 128 threads: the largest that need at most about 100 registers per thread when compiled for
# compute capability 9.0. A word is 32 elements, 128 bytes.
_TILE_WORDS = 64
_BLOCK = 1024
_CANDIDATES = 512
#: Warps of the pass over all rows, and words and warps of the kernels that count a bitmap's bits: the fastest
#: of sixteen launches on an H100.
_MEASURE_WARPS, _SCANNED_WORDS, _TOTALS_WARPS = 2, 128, 1
_SCAN = 4096
#: Warps of programs that compute numbers of 64 rows, and of 128: 8 elements a thread, for which registers
#: suffice.
_MANY_WARPS, _MOST_WARPS = 8, 16
#: Programs of a cooperative launch for each SM, of 128 threads. All must run at once.
_PROGRAMS_PER_SM = 2
#: Segments that are peeled at the same time, at most: an H100's cache, 50 MB, holds their state. Of 2**27
#: elements, 5 to 20 % of which are candidates, peeling took 1.15 times as long with twice as many, and
#: 1.5 times with half. Segments were twice as large then; with those of today nothing was measured.
_SEGMENTS_AT_ONCE = 32
#: A launch that takes longer, in seconds, compiles; between two messages that say so.
_COMPILING_S, _BEAT_S = 0.1, 2.0
_log = logging.getLogger("peelsum")


@dataclass(frozen=True, eq=False)
class Peeling:
    """Working memory of peeling: 4 bytes for each candidate, and 20 for each cell."""

    zeroed: Tensor
    """int64[cells + 5 * segments + 1]: `state`, `progress`, `held`, `peeled`, which are zeroed together."""
    sums: Tensor
    """int32[cells]: the sketch, less the peeled values."""
    waiting: Tensor
    """int32[k]: 1 for each candidate that is not queued yet."""
    queue: Tensor
    """int64[cells]: each segment's queued candidates, in the order of their rounds."""

    @classmethod
    def room(cls, k: int, layout: SketchLayout, device: torch.device) -> Peeling:
        """Allocate for k candidates in a sketch of this layout."""

        def empty(size: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(size, dtype=dtype, device=device)

        return cls(
            zeroed=empty(layout.cells + 5 * layout.segments + 1, torch.int64),
            sums=empty(layout.cells, torch.int32),
            waiting=empty(k, torch.int32),
            queue=empty(layout.cells, torch.int64),
        )

    @property
    def state(self) -> Tensor:
        """int64[cells]: number of candidates times 2**32, plus the sum of their numbers."""
        return self.zeroed[: len(self.sums)]

    @property
    def progress(self) -> Tensor:
        """int64[4 * segments], see `gpu_peel_kernels.rounds_kernel`."""
        return self._of_segments[: len(self._of_segments) // 5 * 4]

    @property
    def held(self) -> Tensor:
        """int64[segments]: the candidates of each segment, if they are counted."""
        return self._of_segments[len(self._of_segments) // 5 * 4 :]

    @property
    def _of_segments(self) -> Tensor:
        return self.zeroed[len(self.sums) : -1]

    @property
    def peeled(self) -> Tensor:
        """int64[1]: the number of candidates that were peeled."""
        return self.zeroed[-1:]


def tiles(words: int) -> int:
    """Return the number of tiles of a bitmap of `words` words: the size of `bases` for `totals`."""
    return -(-words // _SCANNED_WORDS)


def index(numbers: Tensor, bitmap: Tensor) -> None:
    """Write the bitmap of int32 numbers[n] that are not 0 into bitmap[index_words(n)]."""
    n = numbers.numel()
    _launch(indexes.index_kernel, _cut(-(-n // WORD_BITS), _TILE_WORDS), numbers, bitmap, n, _TILE_WORDS)


def totals(bitmap: Tensor, elements: int, bases: Tensor, count: Tensor) -> None:
    """Run `Device.count` into count[1]; write the set bits before each tile into bases[tiles]."""
    grid = _cut(bitmap.numel(), _SCANNED_WORDS)
    _launch(indexes.totals_kernel, grid, bitmap, bases, elements, _SCANNED_WORDS, num_warps=_TOTALS_WARPS)
    _launch(indexes.scan_kernel, 1, bases, count, grid, _SCAN)


def positions(bitmap: Tensor, elements: int, bases: Tensor, out: Tensor, first: int = 0) -> None:
    """Run `Device.positions`, given the `totals` in `bases`; `out` has room for all set bits."""
    grid = _cut(bitmap.numel(), _SCANNED_WORDS)
    _launch(indexes.positions_kernel, grid, bitmap, bases, out, elements, first, _SCANNED_WORDS)


def block_encode(bitmap: Tensor, elements: int, block: int, out: Tensor) -> None:
    """Run `Device.block_encode` for blocks of 2 to 4096 elements."""
    if block < WORD_BITS:
        grid, bits = _cut(out.numel(), _TILE_WORDS), block.bit_length() - 1
        _launch(forms.small_block_encode_kernel, grid, bitmap, out, elements, bits, _TILE_WORDS)
        return
    block_words = block // WORD_BITS
    words = max(1, _TILE_WORDS // block_words)
    _launch(
        forms.large_block_encode_kernel, -(-out.numel() // words), bitmap, out, elements, block_words, words
    )


def block_decode(blocks: Tensor, elements: int, block: int, out: Tensor) -> None:
    """Run `Device.block_decode`."""
    bits = block.bit_length() - 1
    grid = _cut(out.numel(), _TILE_WORDS)
    _launch(forms.block_decode_kernel, grid, blocks, out, elements, bits, _TILE_WORDS)


def bloom_encode(layout: BloomLayout, seed: Tensor, bitmap: Tensor, out: Tensor, first: int = 0) -> None:
    """Run `Device.bloom_encode`, with the seed in seed[1]."""
    _clear(out)
    words = bitmap.numel()
    _launch(
        forms.bloom_encode_kernel, -(-words // _BLOCK),
        bitmap, out, seed, words, first // WORD_BITS, layout.hashes, layout.rows, _BLOCK,
    )  # fmt: skip


def bloom_decode(
    layout: BloomLayout, seed: Tensor, words: Tensor, elements: int, out: Tensor, first: int = 0
) -> None:
    """Run `Device.bloom_decode`, with the seed in seed[1]."""
    _launch(
        forms.bloom_decode_kernel, -(-out.numel() // _BLOCK),
        words, out, seed, elements, first // WORD_BITS, layout.hashes, layout.rows, _BLOCK,
    )  # fmt: skip


def gather_bits(bitmap: Tensor, mask: Tensor, bases: Tensor, out: Tensor) -> None:
    """Run `Device.gather_bits`, given the mask's `totals` in `bases`; `out` may be larger than needed."""
    _clear(out)
    words, tile = mask.numel(), _SCANNED_WORDS
    _launch(forms.gather_bits_kernel, _cut(words, tile), bitmap, mask, bases, out, words, tile)


def scatter_bits(bits: Tensor, mask: Tensor, bases: Tensor, out: Tensor) -> None:
    """Run `Device.scatter_bits`, given the mask's `totals` in `bases`."""
    words, tile = mask.numel(), _SCANNED_WORDS
    _launch(forms.scatter_bits_kernel, _cut(words, tile), bits, mask, bases, out, words, tile)


def measure(values: Tensor, rows: Rows, count: int, out: Tensor, bitmap: Tensor) -> None:
    """Write the words of scales of `count` segments into `out`, and the bitmap of the sparse vector."""
    blocks = out.numel() - count
    magnitudes = torch.zeros(count + blocks, dtype=torch.int32, device=values.device)
    largest, of_blocks = magnitudes[:count], magnitudes[count:]
    _launch(
        segments.measure_kernel, _cut(rows.number, _TILE_WORDS),
        values, *rows[:3], largest, of_blocks, bitmap, rows.number, rows.first, _TILE_WORDS,
        num_warps=_MEASURE_WARPS,
    )  # fmt: skip
    _launch(segments.segments_kernel, _cut(count, _BLOCK), largest, out, count, _BLOCK)
    _launch(
        segments.blocks_kernel, _cut(blocks, _BLOCK),
        of_blocks, largest, rows.segments, out[count:], blocks, _BLOCK,
    )  # fmt: skip


def candidates_before(bitmap: Tensor) -> Tensor:
    """Return the set bits before each tile of a bitmap: int64[tiles]."""
    bases = torch.empty(tiles(bitmap.numel()) + 1, dtype=torch.int64, device=bitmap.device)
    if bitmap.numel():
        totals(bitmap, WORD_BITS * bitmap.numel(), bases[:-1], bases[-1:])
    return bases


def count(bitmap: Tensor, rows: Rows, counts: Tensor) -> None:
    """Add the set bits of each sparse segment to counts[segments]."""
    _over_words(segments.count_kernel, rows, bitmap, rows.blocks, rows.segments, counts)


def write_dense(values: Tensor, rows: Rows, scales: Tensor, places: Tensor, out: Tensor, own: Tensor) -> None:
    """Run `SegmentCodec.write_dense`; add non-zeros to own[segments]."""
    _launch(
        segments.write_dense_kernel, _cut(rows.first, _TILE_WORDS),
        values, *rows[:3], scales, places, out, own, rows.first, _TILE_WORDS, num_warps=_MANY_WARPS,
    )  # fmt: skip


def gather(values: Tensor, rows: Rows, scales: Tensor, positions: Tensor, out: Tensor, own: Tensor) -> None:
    """Run `SegmentCodec.gather`, given the bitmap's positions; add non-zeros to own[segments]."""
    k = positions.numel()
    _launch(
        segments.gather_kernel, _cut(k, _BLOCK),
        values, *rows[:3], scales, positions, out, own, k, rows.number, rows.first, _BLOCK,
    )  # fmt: skip


def read(
    dense: Tensor, sparse: Tensor, rows: Rows, scales: Tensor, places: Tensor, bitmap: Tensor, bases: Tensor,
    divisor: int, out: Tensor, counts: Tensor,
) -> None:  # fmt: skip
    """Write all results into float32 `out`; add the dense sums' non-zeros to counts[segments]."""
    tile = _SCANNED_WORDS
    dense_tiles = _cut(rows.first, tile)
    _launch(
        segments.read_kernel, dense_tiles + _cut(rows.number - rows.first, tile),
        dense, sparse, *rows[:3], scales, places, bitmap, bases, divisor, out, counts,
        rows.number, rows.first, dense_tiles, tile, num_warps=_MOST_WARPS,
    )  # fmt: skip


def _over_words(kernel: Any, rows: Rows, *arguments: Any) -> None:
    """Launch a kernel over the words of the sparse vector's bitmap, in the tiles of `totals`."""
    grid = _cut(rows.number - rows.first, _SCANNED_WORDS)
    _launch(kernel, grid, *arguments, rows.number, rows.first, _SCANNED_WORDS, num_warps=_MOST_WARPS)


def sketch_encode(layout: SketchLayout, seed: Tensor, positions: Tensor, values: Tensor, out: Tensor) -> None:
    """Run `Device.sketch_encode`, with the seed in seed[1]."""
    _clear(out)
    k = positions.numel()
    _launch(
        sketches.sketch_encode_kernel, _cut(k, _CANDIDATES),
        positions, values, out, seed, k, layout.width, layout.segments, _CANDIDATES,
    )  # fmt: skip


def peel(
    layout: SketchLayout, seed: Tensor, sketch: Tensor, positions: Tensor, room: Peeling, out: Tensor
) -> None:
    """Run `Device.sketch_decode` on sketch[cells], for one candidate or more; write their values into `out`.

    `room.peeled` becomes their number, and `room.waiting` 1 for each candidate that is left over, else 0.
    """
    _clear(room.zeroed)
    room.sums.copy_(sketch)
    k = positions.numel()
    counted = k > MOST_CANDIDATES  # else no segment has too many
    _launch(
        peeling.load_kernel, _cut(k, _CANDIDATES),
        positions, room.state, room.held, room.waiting, out, seed, k, layout.width, layout.segments, counted,
        _CANDIDATES,
    )  # fmt: skip
    at_once = _cooperating(sketch.device)
    groups = min(layout.segments, _SEGMENTS_AT_ONCE, at_once)
    members = min(at_once // groups, _cut(layout.segment_cells, _CANDIDATES))
    _launch(
        peeling.rounds_kernel, groups * members,
        positions, room.state, room.sums, room.queue, room.progress, room.held, room.peeled, room.waiting,
        out, seed, layout.segments, layout.width, members, MOST_CANDIDATES, _CANDIDATES,
        launch_cooperative_grid=True,
    )  # fmt: skip


def _cut(size: int, tile: int) -> int:
    """Return the number of tiles, each of one program."""
    return -(-size // tile)


def _clear(tensor: Tensor) -> None:
    tensor.zero_()


def _cooperating(device: torch.device) -> int:
    """Return how many programs of a cooperative launch all run at the same time."""
    if device.type != "cuda":
        return 1  # the interpreter runs them one after the other
    return _PROGRAMS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count


def _launch(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
    """Launch on the device of the first argument that is a tensor, and on the current stream there."""
    if programs:
        like = next(one for one in arguments if isinstance(one, Tensor))
        started = time.monotonic()
        with torch.cuda.device_of(like):  # type: ignore[no-untyped-call]
            kernel[(programs,)](*arguments, **options)
        took_s = time.monotonic() - started
        if took_s > _COMPILING_S and like.is_cuda:  # the interpreter takes as long
            _compiling.tell(took_s)


class _Compiling:
    """The seconds that Triton has compiled for in this process."""

    def __init__(self) -> None:
        self._all_s = self._told_s = 0.0

    def tell(self, took_s: float) -> None:
        """Count a kernel, and say so if the last message was some seconds ago."""
        self._all_s += took_s
        if self._all_s - self._told_s > _BEAT_S:
            self._told_s = self._all_s
            _log.warning("compiling the codec for the GPU, once for this machine: %.0f s", self._all_s)


_compiling = _Compiling()
