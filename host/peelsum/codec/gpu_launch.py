"""Enqueue the codec's Triton kernels on the caller's stream.

No function allocates, waits, or reads device memory from the host, so all can be captured in a CUDA graph.
Return values of `peelsum.codec.kernels` become output tensors. An output whose size only the device knows has
room for a bound, `capacity`, and a count beside it. Seeds and scales change with every step, so they are
tensors: a graph can be replayed with new ones. Outputs are written completely unless stated otherwise.

Words and values are int32 (floats as bit patterns); positions, counts and seeds int64; scales int32[1]. With
`blocks`, the octaves of an element's block are added to the scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from peelsum.codec import gpu_bundle_kernels as bundles
from peelsum.codec import gpu_form_kernels as forms
from peelsum.codec import gpu_index_kernels as indexes
from peelsum.codec import gpu_peel_kernels as peeling
from peelsum.codec import gpu_scale_kernels as scales
from peelsum.codec import gpu_sketch_kernels as sketches
from peelsum.codec import gpu_together
from peelsum.codec.block_scales import turn_of
from peelsum.codec.fixed_point import EXPONENT_WORDS
from peelsum.codec.gpu_together import Together, clear, cooperating
from peelsum.codec.gpu_tuning import Launch, tuned
from peelsum.codec.index import BLOCK_SIZES, WORD_BITS, BloomLayout
from peelsum.codec.layout import SUB_TABLES, SketchLayout

# Tile sizes of kernels that `gpu_tuning` does not have, for 128 threads: the largest that need at most about
# 100 registers per thread when compiled for compute capability 9.0. A word is 32 elements, 128 bytes.
_TILE_WORDS = 64
_PIECE_WORDS = 4
_BLOCK = 1024
_CANDIDATES = 512
_SCAN = 4096
_BUNDLE_WORDS = 256
_WARPS = 4
_STRIDING = Launch(_CANDIDATES, _WARPS)
#: Programs that stride over work whose size only the device knows: 8 for each of an H200's 132 SMs.
_PROGRAMS = 1056
_PROGRAMS_INTERPRETED = 2


@dataclass(frozen=True, eq=False)
class Blocks:
    """Scales of blocks of elements."""

    octaves: Tensor
    """int32[blocks]: what is added to the scale."""
    bits: int
    """log2 of the elements in a block."""


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


@contextmanager
def together() -> Iterator[Together]:
    """Make the launches of several tensors, each in a lane of the `Together`, at the end of the context.

    Those of the same kernel are one launch. Tables and joined copies for the host are allocated then. If the
    context is left by an error, nothing is launched.
    """
    lanes = Together(lambda *launch, **options: _run(*launch, **options))
    yield lanes
    lanes.flush()


def tiles(words: int, device: torch.device) -> int:
    """Return the number of tiles of a bitmap of `words` words: the size of `bases` for `totals`."""
    return -(-words // _scanned(device))


def magnitude(values: Tensor, largest: Tensor) -> None:
    """Write the magnitude of values[n] into largest[1]."""
    index(values, None, largest)


def index(values: Tensor, bitmap: Tensor | None, largest: Tensor) -> None:
    """Run `Kernels.index` on values[n], into bitmap[index_words(n)], if given, and largest[1]."""
    clear(largest)
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
    clear(out)
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
    clear(out)
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
    clear(out)
    words, tile = mask.numel(), _scanned(mask.device)
    _launch(forms.gather_bits_kernel, _cut(words, tile), bitmap, mask, bases, out, words, tile)


def scatter_bits(bits: Tensor, mask: Tensor, bases: Tensor, out: Tensor) -> None:
    """Run `Kernels.scatter_bits`, given the mask's `totals` in `bases`."""
    words, tile = mask.numel(), _scanned(mask.device)
    _launch(forms.scatter_bits_kernel, _cut(words, tile), bits, mask, bases, out, words, tile)


def block_exponents(values: Tensor, block: int, out: Tensor, largest: Tensor) -> None:
    """Run `Kernels.block_exponents` into out[blocks] and largest[1]."""
    clear(out)
    clear(largest)
    n, blocks, words = values.numel(), out.numel(), block // WORD_BITS
    tile, warps = tuned("block_magnitudes_kernel", values.device)
    grid = _cut(-(-n // WORD_BITS), tile)
    _launch(scales.block_magnitudes_kernel, grid, values, out, largest, n, words, tile, num_warps=warps)
    _launch(scales.encode_exponents_kernel, -(-blocks // _BLOCK), out, largest, blocks, _BLOCK)


def exponent(largest: Tensor, out: Tensor) -> None:
    """Write `exponent_words` of largest[1] into out[EXPONENT_WORDS]."""
    _launch(scales.exponent_kernel, 1, largest, out, EXPONENT_WORDS)


def block_octaves(words: Tensor, exponent_field: int, out: Tensor) -> None:
    """Run `Kernels.block_octaves` into out[blocks]."""
    blocks, turn = words.numel(), turn_of(exponent_field)
    _launch(scales.decode_octaves_kernel, -(-blocks // _BLOCK), words, out, *turn, blocks, _BLOCK)


def quantize(
    values: Tensor,
    scale: Tensor,
    out: Tensor,
    largest: Tensor,
    blocks: Blocks | None = None,
) -> None:
    """Run `Kernels.quantize` into out[n] and largest[1], with the scale in scale[1]."""
    clear(largest)
    n, (octaves, block_bits) = values.numel(), _octaves(scale, blocks)
    tile, warps = tuned("quantize_kernel", values.device)
    _launch(
        sketches.quantize_kernel, _cut(n, tile),
        values, out, largest, scale, octaves, n, block_bits,
        blocks is not None, tile, num_warps=warps,
    )  # fmt: skip


def quantize_at(
    values: Tensor,
    candidates: Candidates,
    scale: Tensor,
    out: Tensor,
    blocks: Blocks | None = None,
) -> None:
    """Run `Kernels.quantize_at` into out[capacity], of which only `count` are written."""
    octaves, block_bits = _octaves(scale, blocks)
    _stride(
        sketches.quantize_at_kernel, candidates,
        values, candidates.positions, candidates.count, out, scale, octaves,
        candidates.capacity, block_bits, blocks is not None,
        launch=tuned("quantize_at_kernel", values.device),
    )  # fmt: skip


def dequantize(
    quantized: Tensor,
    scale: Tensor,
    divisor: int,
    out: Tensor,
    blocks: Blocks | None = None,
) -> None:
    """Run `Kernels.dequantize` on quantized[n], into float32 out[n]."""
    n, (octaves, block_bits) = out.numel(), _octaves(scale, blocks)
    tile, warps = tuned("dequantize_kernel", out.device)
    _launch(
        sketches.dequantize_kernel, _cut(n, tile),
        quantized, out, scale, octaves, n, divisor, block_bits,
        blocks is not None, tile, num_warps=warps,
    )  # fmt: skip


def dequantize_at(
    quantized: Tensor,
    candidates: Candidates,
    scale: Tensor,
    divisor: int,
    out: Tensor,
    blocks: Blocks | None = None,
) -> None:
    """Run `Kernels.dequantize_at` on quantized[capacity], into float32 out[n]."""
    octaves, block_bits = _octaves(scale, blocks)
    _stride(
        sketches.dequantize_at_kernel, candidates,
        quantized, candidates.positions, candidates.count, out, scale, octaves, candidates.capacity,
        divisor, block_bits, blocks is not None,
        launch=tuned("dequantize_at_kernel", out.device),
    )  # fmt: skip


def sketch_encode(
    layout: SketchLayout, seed: Tensor, candidates: Candidates, values: Tensor, out: Tensor
) -> None:
    """Run `Kernels.sketch_encode` on values[capacity], with the seed in seed[1]."""
    clear(out)
    _stride(
        sketches.sketch_encode_kernel, candidates,
        candidates.positions, candidates.count, values, out, seed,
        candidates.capacity, layout.rows, *_segments(layout),
        launch=tuned("sketch_encode_kernel", out.device),
    )  # fmt: skip


def index_sketch(
    layout: SketchLayout,
    seed: Tensor,
    values: Tensor,
    scale: Tensor,
    bitmap: Tensor,
    sketch: Tensor,
    largest: Tensor,
    first: int = 0,
) -> None:
    """Run `Kernels.index_sketch` into bitmap, sketch[cells] and largest[1]."""
    clear(sketch)
    clear(largest)
    n = values.numel()
    share, lanes, segmented = _segments(layout)
    tile, warps = tuned("index_sketch_kernel", values.device)
    _launch(
        sketches.index_sketch_kernel, _cut(-(-n // WORD_BITS), tile),
        values, bitmap, sketch, largest, seed, scale, n, first, layout.rows, share,
        lanes, lanes % WORD_BITS == 0, segmented, _PIECE_WORDS, tile,
        num_warps=warps,
    )  # fmt: skip


def peel(
    layout: SketchLayout, seed: Tensor, sketch: Tensor, candidates: Candidates, room: Peeling, out: Tensor
) -> None:
    """Run `Kernels.sketch_decode` on sketch[cells]; `left_over` lists its result.

    Values go into out[capacity]; from `count` on they are zero. `room.left` is the left-over's size.
    """
    clear(room.zeroed)
    gpu_together.copy(sketch, room.sums)
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
        peeling.rounds_kernel, min(cooperating(sketch.device), most),
        candidates.positions, candidates.count, room.state, room.sums, room.queue, room.progress,
        room.waiting, out, seed, candidates.capacity, layout.rows, *_segments(layout),
        _CANDIDATES,
        launch_cooperative_grid=True,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Segments:
    """Tensors that lie back to back, in blocks of up to 32 elements: int32 each."""

    begins: Tensor
    """[blocks + 1]: each block's first element, and the end."""
    tensors: Tensor
    """[blocks]: the number of the block's tensor."""
    firsts: Tensor
    """[tensors + 1]: each tensor's first block, and the end."""
    headers: Tensor
    """[tensors]: where each tensor's header begins."""

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.tensors.numel()


def bundle_headers(values: Tensor, segments: Segments, scratch: Tensor, out: Tensor) -> None:
    """Write the headers of all tensors into `out`; scratch[tensors + blocks] is working memory."""
    tensors, blocks = segments.headers.numel(), segments.blocks
    largest, magnitudes = scratch[:tensors], scratch[tensors:]
    clear(largest)
    _launch(
        bundles.bundle_magnitudes_kernel, _cut(blocks, _TILE_WORDS),
        values, segments.begins, segments.tensors, largest, magnitudes, blocks, _TILE_WORDS,
    )  # fmt: skip
    _launch(
        bundles.bundle_headers_kernel, tensors,
        magnitudes, largest, segments.firsts, segments.headers, out, _BUNDLE_WORDS,
    )  # fmt: skip


def bundle_quantize(values: Tensor, segments: Segments, places: Tensor, scale: Tensor, out: Tensor) -> None:
    """Quantize block b by scale[b], from out[places[b]] on, unless scale[b] says that it is not sent."""
    blocks = segments.blocks
    _launch(
        bundles.bundle_quantize_kernel, _cut(blocks, _TILE_WORDS),
        values, segments.begins, places, scale, out, blocks, _TILE_WORDS,
    )  # fmt: skip


def bundle_dequantize(
    total: Tensor, segments: Segments, places: Tensor, scale: Tensor, divisor: int, out: Tensor
) -> None:
    """Do the inverse of `bundle_quantize` on sums: float32 out[n]."""
    blocks = segments.blocks
    _launch(
        bundles.bundle_dequantize_kernel, _cut(blocks, _TILE_WORDS),
        total, segments.begins, places, scale, divisor, out, blocks, _TILE_WORDS,
    )  # fmt: skip


def left_over(room: Peeling, bitmap: Tensor, largest: Tensor, bases: Tensor, out: Candidates) -> None:
    """List the left-over of `Kernels.sketch_decode`: the candidates that still wait, ascending.

    bitmap[index_words(capacity)], largest[1] and bases[tiles] are scratch memory.
    """
    index(room.waiting, bitmap, largest)
    positions(bitmap, room.waiting.numel(), bases, out)


def _octaves(scale: Tensor, blocks: Blocks | None) -> tuple[Tensor, int]:
    """Return the octaves of blocks and their `bits`; without blocks, arguments that no kernel reads."""
    return (blocks.octaves, blocks.bits) if blocks else (scale, 0)


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


def _launch(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
    """Launch a kernel, or keep its launch for `together`."""
    if not gpu_together.keep(kernel, programs, arguments, options):
        tabled = (None, 0) if gpu_together.has_table(kernel) else ()
        _run(kernel, programs, *tabled, *arguments, **options)


def _run(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
    """Launch on the device of the first argument that is a tensor, and on the current stream there."""
    if programs:
        like = next(one for one in arguments if isinstance(one, Tensor))
        with torch.cuda.device_of(like):  # type: ignore[no-untyped-call]
            kernel[(programs,)](*arguments, **options)
