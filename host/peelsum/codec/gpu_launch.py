"""Enqueue the codec's Triton kernels on the caller's stream.

No function waits, or reads device memory from the host. Return values of `peelsum.codec.kernels` become
output tensors. An output whose size only the device knows has room for a bound, `capacity`, and a count
beside it. Outputs are written completely unless stated otherwise.

Words and values are int32 (floats as bit patterns); positions, counts and seeds int64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from peelsum.codec import gpu_form_kernels as forms
from peelsum.codec import gpu_index_kernels as indexes
from peelsum.codec import gpu_peel_kernels as peeling
from peelsum.codec import gpu_segment_kernels as segments
from peelsum.codec import gpu_sketch_kernels as sketches
from peelsum.codec.gpu_tuning import Launch, tuned
from peelsum.codec.index import BLOCK_SIZES, WORD_BITS, BloomLayout
from peelsum.codec.layout import SUB_TABLES, SketchLayout

if TYPE_CHECKING:
    from peelsum.codec.gpu_segments import Rows

# Tile sizes of kernels that `gpu_tuning` does not have, for 128 threads: the largest that need at most about
# 100 registers per thread when compiled for compute capability 9.0. A word is 32 elements, 128 bytes.
_TILE_WORDS = 64
_PIECE_WORDS = 4
_BLOCK = 1024
_CANDIDATES = 512
_SCAN = 4096
_WARPS = 4
_STRIDING = Launch(_CANDIDATES, _WARPS)
#: Programs that stride over work whose size only the device knows: 8 for each of an H200's 132 SMs.
_PROGRAMS = 1056
_PROGRAMS_INTERPRETED = 2
#: Programs of a cooperative launch for each SM. All must run at once: an SM's 65,536 registers are 128 for
#: each of four times 128 threads.
_PROGRAMS_PER_SM = 4


@dataclass(frozen=True, eq=False)
class Candidates:
    """Candidates' positions on the device, with room for a bound."""

    positions: Tensor
    """int64[capacity], of which the first `count` are valid, ascending."""
    count: Tensor | None
    """int64[1]; None if all of `positions` are valid."""

    @property
    def capacity(self) -> int:
        """Room in `positions`. If `count` exceeds it, candidates are missing: repeat with more room."""
        return self.positions.numel()


@dataclass(frozen=True, eq=False)
class Peeling:
    """Working memory of peeling: 12 bytes per candidate and 12 per cell."""

    zeroed: Tensor
    """int64[cells + 5]: `state` and `progress`, which are zeroed together."""
    sums: Tensor
    """int32[cells]: the sketch, less the peeled values."""
    waiting: Tensor
    """int32[capacity]: 1 for each candidate that is not queued yet."""
    queue: Tensor
    """int64[capacity]: queued candidates, in the order of their rounds."""

    @classmethod
    def room(cls, capacity: int, cells: int, device: torch.device) -> Peeling:
        """Allocate for `capacity` candidates in `cells` cells."""

        def empty(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return cls(
            zeroed=empty(cells + 5, dtype=torch.int64),
            sums=empty(cells, dtype=torch.int32),
            waiting=empty(capacity, dtype=torch.int32),
            queue=empty(capacity, dtype=torch.int64),
        )

    @property
    def state(self) -> Tensor:
        """int64[cells]: number of candidates times 2**32, plus the sum of their numbers."""
        return self.zeroed[:-5]

    @property
    def progress(self) -> Tensor:
        """int64[5], see `gpu_peel_kernels.rounds_kernel`."""
        return self.zeroed[-5:]

    @property
    def left(self) -> Tensor:
        """int64[1]: the number of candidates left over."""
        return self.zeroed[-1:]


def tiles(words: int, device: torch.device) -> int:
    """Return the number of tiles of a bitmap of `words` words: the size of `bases` for `totals`."""
    return -(-words // _scanned(device))


def index(values: Tensor, bitmap: Tensor | None, largest: Tensor) -> None:
    """Run `Kernels.index` on values[n], into bitmap[index_words(n)], if given, and largest[1]."""
    _clear(largest)
    n, (tile, warps) = values.numel(), tuned("index_kernel", values.device)
    into = values if bitmap is None else bitmap
    _launch(
        indexes.index_kernel, _cut(-(-n // WORD_BITS), tile),
        values, into, largest, n, bitmap is not None, tile, num_warps=warps,
    )  # fmt: skip


def totals(bitmap: Tensor, elements: int, bases: Tensor, count: Tensor) -> None:
    """Run `Kernels.count` into count[1]; write the set bits before each tile into bases[tiles]."""
    tile, warps = tuned("totals_kernel", bitmap.device)
    grid = _cut(bitmap.numel(), tile)
    _launch(indexes.totals_kernel, grid, bitmap, bases, elements, tile, num_warps=warps)
    _launch(indexes.scan_kernel, 1, bases, count, grid, _SCAN)


def positions(bitmap: Tensor, elements: int, bases: Tensor, out: Candidates, first: int = 0) -> None:
    """Run `Kernels.positions` by prefix sums: as many as `out` has room for, and the true count."""
    assert out.count is not None
    totals(bitmap, elements, bases, out.count)
    listed(bitmap, elements, bases, out, first)


def listed(bitmap: Tensor, elements: int, bases: Tensor, out: Candidates, first: int = 0) -> None:
    """Run the second half of `positions`, after `totals`."""
    tile = _scanned(bitmap.device)
    _launch(
        indexes.positions_kernel, _cut(bitmap.numel(), tile),
        bitmap, bases, out.positions, elements, out.capacity, first, tile,
    )  # fmt: skip


def occupied(candidates: Candidates, out: Tensor) -> None:
    """Run `Kernels.occupied` into out[BLOCK_SIZES]."""
    _clear(out)
    _stride(
        indexes.occupied_kernel, candidates,
        candidates.positions, candidates.count, out, candidates.capacity, BLOCK_SIZES,
        launch=Launch(_BLOCK, _WARPS),
    )  # fmt: skip


def block_encode(bitmap: Tensor, elements: int, block: int, out: Tensor) -> None:
    """Run `Kernels.block_encode` for blocks of 2 to 4096 elements."""
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
    """Run `Kernels.block_decode`."""
    bits = block.bit_length() - 1
    grid = _cut(out.numel(), _TILE_WORDS)
    _launch(forms.block_decode_kernel, grid, blocks, out, elements, bits, _TILE_WORDS)


def bloom_encode(layout: BloomLayout, seed: Tensor, bitmap: Tensor, out: Tensor, first: int = 0) -> None:
    """Run `Kernels.bloom_encode`, with the seed in seed[1]."""
    _clear(out)
    words = bitmap.numel()
    _launch(
        forms.bloom_encode_kernel, -(-words // _BLOCK),
        bitmap, out, seed, words, first // WORD_BITS, layout.hashes, layout.rows, _BLOCK,
    )  # fmt: skip


def bloom_decode(
    layout: BloomLayout, seed: Tensor, words: Tensor, elements: int, out: Tensor, first: int = 0
) -> None:
    """Run `Kernels.bloom_decode`, with the seed in seed[1]."""
    _launch(
        forms.bloom_decode_kernel, -(-out.numel() // _BLOCK),
        words, out, seed, elements, first // WORD_BITS, layout.hashes, layout.rows, _BLOCK,
    )  # fmt: skip


def gather_bits(bitmap: Tensor, mask: Tensor, bases: Tensor, out: Tensor) -> None:
    """Run `Kernels.gather_bits`, given the mask's `totals` in `bases`; `out` may be larger than needed."""
    _clear(out)
    words, tile = mask.numel(), _scanned(mask.device)
    _launch(forms.gather_bits_kernel, _cut(words, tile), bitmap, mask, bases, out, words, tile)


def scatter_bits(bits: Tensor, mask: Tensor, bases: Tensor, out: Tensor) -> None:
    """Run `Kernels.scatter_bits`, given the mask's `totals` in `bases`."""
    words, tile = mask.numel(), _scanned(mask.device)
    _launch(forms.scatter_bits_kernel, _cut(words, tile), bits, mask, bases, out, words, tile)


def quantize(values: Tensor, scale: int, out: Tensor) -> None:
    """Run `Kernels.quantize` into out[n]."""
    n, (tile, warps) = values.numel(), tuned("quantize_kernel", values.device)
    _launch(sketches.quantize_kernel, _cut(n, tile), values, out, scale, n, tile, num_warps=warps)


def quantize_at(values: Tensor, candidates: Candidates, scale: int, out: Tensor) -> None:
    """Run `Kernels.quantize_at` into out[capacity], of which only `count` are written."""
    _stride(
        sketches.quantize_at_kernel, candidates,
        values, candidates.positions, candidates.count, out, scale, candidates.capacity,
        launch=tuned("quantize_at_kernel", values.device),
    )  # fmt: skip


def dequantize(quantized: Tensor, scale: int, divisor: int, out: Tensor) -> None:
    """Run `Kernels.dequantize` on quantized[n], into float32 out[n]."""
    n, (tile, warps) = out.numel(), tuned("dequantize_kernel", out.device)
    _launch(
        sketches.dequantize_kernel, _cut(n, tile), quantized, out, scale, n, divisor, tile, num_warps=warps
    )


def dequantize_at(quantized: Tensor, candidates: Candidates, scale: int, divisor: int, out: Tensor) -> None:
    """Run `Kernels.dequantize_at` on quantized[capacity], into float32 out[n]."""
    _stride(
        sketches.dequantize_at_kernel, candidates,
        quantized, candidates.positions, candidates.count, out, scale, candidates.capacity, divisor,
        launch=tuned("dequantize_at_kernel", out.device),
    )  # fmt: skip


def measure(values: Tensor, rows: Rows, count: int, out: Tensor, bitmap: Tensor) -> None:
    """Write the words of scales of `count` segments into `out`, and the bitmap of the sparse vector."""
    blocks = out.numel() - count
    magnitudes = torch.zeros(count + blocks, dtype=torch.int32, device=values.device)
    largest, of_blocks = magnitudes[:count], magnitudes[count:]
    tile, warps = tuned("measure_kernel", values.device)
    _launch(
        segments.measure_kernel, _cut(rows.count, tile),
        values, *rows[:3], largest, of_blocks, bitmap, rows.count, rows.first, tile, num_warps=warps,
    )  # fmt: skip
    _launch(segments.segments_kernel, _cut(count, _BLOCK), largest, out, count, _BLOCK)
    _launch(
        segments.blocks_kernel, _cut(blocks, _BLOCK),
        of_blocks, largest, rows.segments, out[count:], blocks, _BLOCK,
    )  # fmt: skip


def candidates_before(bitmap: Tensor) -> Tensor:
    """Return the set bits before each tile of a bitmap: int64[tiles]."""
    bases = torch.empty(tiles(bitmap.numel(), bitmap.device) + 1, dtype=torch.int64, device=bitmap.device)
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
        values, *rows[:3], scales, places, out, own, rows.first, _TILE_WORDS,
    )  # fmt: skip


def gather(
    values: Tensor, rows: Rows, scales: Tensor, bitmap: Tensor, bases: Tensor, out: Tensor, own: Tensor
) -> None:
    """Run `SegmentCodec.gather`; add non-zeros to own[segments]."""
    _over_words(segments.gather_kernel, rows, values, *rows[:3], scales, bitmap, bases, out, own)


def read_dense(
    total: Tensor, rows: Rows, scales: Tensor, places: Tensor, divisor: int, out: Tensor, counts: Tensor
) -> None:
    """Write the results of dense rows into float32 `out`; add the sums' non-zeros to counts[segments]."""
    _launch(
        segments.read_dense_kernel, _cut(rows.first, _TILE_WORDS),
        total, *rows[:3], scales, places, divisor, out, counts, rows.first, _TILE_WORDS,
    )  # fmt: skip


def read_sparse(
    total: Tensor, rows: Rows, scales: Tensor, bitmap: Tensor, bases: Tensor, divisor: int, out: Tensor
) -> None:
    """Write the results of sparse rows into float32 `out`."""
    _over_words(segments.read_sparse_kernel, rows, total, *rows[:3], scales, bitmap, bases, divisor, out)


def _over_words(kernel: Any, rows: Rows, *arguments: Any) -> None:
    """Launch a kernel over the words of the sparse vector's bitmap, in the tiles of `totals`."""
    tile = _scanned(rows.begins.device)
    _launch(kernel, _cut(rows.count - rows.first, tile), *arguments, rows.count, rows.first, tile)


def sketch_encode(
    layout: SketchLayout, seed: Tensor, candidates: Candidates, values: Tensor, out: Tensor
) -> None:
    """Run `Kernels.sketch_encode` on values[capacity], with the seed in seed[1]."""
    _clear(out)
    _stride(
        sketches.sketch_encode_kernel, candidates,
        candidates.positions, candidates.count, values, out, seed,
        candidates.capacity, layout.rows, *_segments(layout),
        launch=tuned("sketch_encode_kernel", out.device),
    )  # fmt: skip


def peel(
    layout: SketchLayout, seed: Tensor, sketch: Tensor, candidates: Candidates, room: Peeling, out: Tensor
) -> None:
    """Run `Kernels.sketch_decode` on sketch[cells]; `left_over` lists its result.

    Values go into out[capacity]; from `count` on they are zero. `room.left` is the left-over's size.
    """
    _clear(room.zeroed)
    room.sums.copy_(sketch)
    _stride(
        peeling.load_kernel, candidates,
        candidates.positions, candidates.count, room.state, room.waiting, out, seed,
        candidates.capacity, layout.rows, *_segments(layout),
    )  # fmt: skip
    if not candidates.capacity:
        return
    _launch(
        peeling.first_round_kernel, -(-layout.cells // _BLOCK),
        room.state, room.queue, room.progress, room.waiting,
        layout.cells, layout.segment_cells // SUB_TABLES, _BLOCK,
    )  # fmt: skip
    most = -(-candidates.capacity // _CANDIDATES)
    _launch(
        peeling.rounds_kernel, min(_cooperating(sketch.device), most),
        candidates.positions, candidates.count, room.state, room.sums, room.queue, room.progress,
        room.waiting, out, seed, candidates.capacity, layout.rows, *_segments(layout),
        _CANDIDATES,
        launch_cooperative_grid=True,
    )  # fmt: skip


def _segments(layout: SketchLayout) -> tuple[int, int, int]:
    """Return the kernels' arguments `share`, LANES and SEGMENTED."""
    if layout.dealt:
        return layout.segments, layout.lanes, sketches.BY_BLOCK.value
    how = sketches.BY_RANK if layout.segments > 1 else sketches.WHOLE
    return layout.share, layout.lanes, how.value


def _stride(kernel: Any, candidates: Candidates, *arguments: Any, launch: Launch = _STRIDING) -> None:
    """Launch a kernel that strides over candidates whose count only the device knows."""
    most = _PROGRAMS if candidates.positions.is_cuda else _PROGRAMS_INTERPRETED
    grid = min(_cut(candidates.capacity, launch.tile), most)
    _launch(kernel, grid, *arguments, launch.tile, num_warps=launch.warps)


def _cut(size: int, tile: int) -> int:
    """Return the number of tiles, each of one program."""
    return -(-size // tile)


def _scanned(device: torch.device) -> int:
    """Return the words in a tile of `totals`, which all kernels that read its `bases` have, too."""
    return tuned("totals_kernel", device).tile


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
        with torch.cuda.device_of(like):  # type: ignore[no-untyped-call]
            kernel[(programs,)](*arguments, **options)
