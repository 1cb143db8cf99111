"""The codec's launches on a device: each enqueues kernels on the caller's stream, and does nothing else.

None allocates, waits, or reads a device's memory from the host, so all may be captured in a CUDA graph. What
a kernel of `peelsum.codec.kernels` returns comes out in a tensor here, and what has a size that only the
device knows has room for a bound, `capacity`, and its count beside it. Seeds and scales, which change with
every step, are tensors: a graph is replayed with new ones. Outputs are written whole unless said otherwise.

Words and values are int32 (of floats, the bit patterns); positions, counts and seeds int64; scales int32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from peelsum.codec import gpu_form_kernels as forms
from peelsum.codec import gpu_index_kernels as indexes
from peelsum.codec import gpu_peel_kernels as peeling
from peelsum.codec import gpu_sketch_kernels as sketches
from peelsum.codec.index import BLOCK_SIZES, WORD_BITS, BloomLayout
from peelsum.codec.layout import SUB_TABLES, SketchLayout

# Sizes of tiles, which do not change bits, for 128 threads: the largest that need no more than about 100
# registers a thread, as compiled for compute capability 9.0. A word is 32 elements, 128 bytes of gradient.
_TILE_WORDS = 64
_SKETCH_WORDS = 32
_BLOCK = 1024
_CANDIDATES = 512
_SCAN = 4096
#: Programs for work whose size only the device knows: they stride over it. 8 for each of an H200's 132 SMs.
_PROGRAMS = 1056
_PROGRAMS_INTERPRETED = 2
#: Rounds enough for 1.4 cells per candidate: 14 were needed for 400,000 candidates, 20 at 1.3 cells.
ROUNDS = 16


@dataclass(frozen=True, eq=False)
class Candidates:
    """Positions int64[capacity], of which the first `count`, int64[1], are there, ascending."""

    positions: Tensor
    count: Tensor

    @property
    def capacity(self) -> int:
        """Room for so many. If `count` is more, the rest is missing: work on them is to be repeated."""
        return self.positions.numel()


@dataclass(frozen=True, eq=False)
class Peeling:
    """Room for peeling: 12 bytes for each candidate, and 12 for a cell."""

    state: Tensor
    sums: Tensor
    waiting: Tensor
    queue: Tensor
    #: Candidates peeled in each round of a launch, int64[rounds + 1]; the last is yet to be peeled.
    grown: Tensor

    @classmethod
    def room(cls, capacity: int, cells: int, device: torch.device, rounds: int = ROUNDS) -> Peeling:
        """Allocates, for `capacity` candidates in `cells` cells, and `rounds`, a power of 2, to a launch."""

        def empty(size: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(size, dtype=dtype, device=device)

        return cls(
            state=empty(cells, torch.int64),
            sums=empty(cells, torch.int32),
            waiting=empty(capacity, torch.int32),
            queue=empty(capacity, torch.int64),
            grown=empty(rounds + 1, torch.int64),
        )

    @property
    def rounds(self) -> int:
        """Rounds that one launch runs."""
        return self.grown.numel() - 1


def tiles(words: int) -> int:
    """Room that `totals` of a bitmap of so many words needs, int64[tiles]."""
    return -(-words // _TILE_WORDS)


def magnitude(values: Tensor, largest: Tensor) -> None:
    """The magnitude of values[n] into largest[1]."""
    index(values, None, largest)


def index(values: Tensor, bitmap: Tensor | None, largest: Tensor) -> None:
    """`Kernels.index` of values[n] into bitmap[index_words(n)], if there is one, and largest[1]."""
    largest.zero_()
    grid = tiles(-(-values.numel() // WORD_BITS))
    into = values if bitmap is None else bitmap
    _run(indexes.index_kernel, grid, values, into, largest, values.numel(), bitmap is not None, _TILE_WORDS)


def totals(bitmap: Tensor, elements: int, bases: Tensor, count: Tensor) -> None:
    """`Kernels.count` into count[1], and the bits before each tile into bases[tiles]."""
    grid = tiles(bitmap.numel())
    _run(indexes.totals_kernel, grid, bitmap, bases, elements, _TILE_WORDS)
    _run(indexes.scan_kernel, 1, bases, count, grid, _SCAN)


def positions(bitmap: Tensor, elements: int, bases: Tensor, out: Candidates, first: int = 0) -> None:
    """`Kernels.positions` by prefix sums: as many as there is room for, and their true count."""
    totals(bitmap, elements, bases, out.count)
    listed(bitmap, elements, bases, out, first)


def listed(bitmap: Tensor, elements: int, bases: Tensor, out: Candidates, first: int = 0) -> None:
    """The second half of `positions`, where `totals` ran before."""
    _run(
        indexes.positions_kernel,
        tiles(bitmap.numel()), bitmap, bases, out.positions, elements, out.capacity, first, _TILE_WORDS,
    )  # fmt: skip


def occupied(candidates: Candidates, out: Tensor) -> None:
    """`Kernels.occupied` into out[BLOCK_SIZES]."""
    out.zero_()
    _stride(
        indexes.occupied_kernel, candidates,
        candidates.positions, candidates.count, out, candidates.capacity, BLOCK_SIZES, _BLOCK,
    )  # fmt: skip


def block_encode(bitmap: Tensor, elements: int, block: int, out: Tensor) -> None:
    """`Kernels.block_encode` for blocks of 2 to 4096 elements."""
    if block < WORD_BITS:
        grid, bits = tiles(out.numel()), block.bit_length() - 1
        _run(forms.small_block_encode_kernel, grid, bitmap, out, elements, bits, _TILE_WORDS)
        return
    block_words = block // WORD_BITS
    words = max(1, _TILE_WORDS // block_words)
    _run(forms.large_block_encode_kernel, -(-out.numel() // words), bitmap, out, elements, block_words, words)


def block_decode(blocks: Tensor, elements: int, block: int, out: Tensor) -> None:
    """`Kernels.block_decode`."""
    bits = block.bit_length() - 1
    _run(forms.block_decode_kernel, tiles(out.numel()), blocks, out, elements, bits, _TILE_WORDS)


def bloom_encode(layout: BloomLayout, seed: Tensor, bitmap: Tensor, out: Tensor, first: int = 0) -> None:
    """`Kernels.bloom_encode`, with the seed of seed[1]."""
    out.zero_()
    words = bitmap.numel()
    _run(
        forms.bloom_encode_kernel, -(-words // _BLOCK),
        bitmap, out, seed, words, first // WORD_BITS, layout.hashes, layout.rows, _BLOCK,
    )  # fmt: skip


def bloom_decode(
    layout: BloomLayout, seed: Tensor, words: Tensor, elements: int, out: Tensor, first: int = 0
) -> None:
    """`Kernels.bloom_decode`, with the seed of seed[1]."""
    _run(
        forms.bloom_decode_kernel, -(-out.numel() // _BLOCK),
        words, out, seed, elements, first // WORD_BITS, layout.hashes, layout.rows, _BLOCK,
    )  # fmt: skip


def gather_bits(bitmap: Tensor, mask: Tensor, bases: Tensor, out: Tensor) -> None:
    """`Kernels.gather_bits`, with the bases of `totals` of the mask; `out` may have more words than bits."""
    out.zero_()
    words = mask.numel()
    _run(forms.gather_bits_kernel, tiles(words), bitmap, mask, bases, out, words, _TILE_WORDS)


def scatter_bits(bits: Tensor, mask: Tensor, bases: Tensor, out: Tensor) -> None:
    """`Kernels.scatter_bits`, with the bases of `totals` of the mask."""
    words = mask.numel()
    _run(forms.scatter_bits_kernel, tiles(words), bits, mask, bases, out, words, _TILE_WORDS)


def quantize(values: Tensor, scale: Tensor, low_bits: int, out: Tensor, largest: Tensor) -> None:
    """`Kernels.quantize` into out[limbs, n] and largest[1], with the scale of scale[1]."""
    largest.zero_()
    n = values.numel()
    _run(
        sketches.quantize_kernel, -(-n // _BLOCK),
        values, out, largest, scale, n, low_bits, out.shape[0], _BLOCK,
    )  # fmt: skip


def quantize_at(values: Tensor, candidates: Candidates, scale: Tensor, low_bits: int, out: Tensor) -> None:
    """`Kernels.quantize_at` into out[limbs, capacity], as far as there are candidates."""
    _stride(
        sketches.quantize_at_kernel, candidates,
        values, candidates.positions, candidates.count, out, scale,
        candidates.capacity, low_bits, out.shape[0], _CANDIDATES,
    )  # fmt: skip


def dequantize(quantized: Tensor, scale: Tensor, low_bits: int, divisor: int, out: Tensor) -> None:
    """`Kernels.dequantize` of quantized[limbs, n] into float32 out[n]."""
    n = out.numel()
    _run(
        sketches.dequantize_kernel, -(-n // _BLOCK),
        quantized, out, scale, n, divisor, low_bits, quantized.shape[0], _BLOCK,
    )  # fmt: skip


def dequantize_at(
    quantized: Tensor, candidates: Candidates, scale: Tensor, low_bits: int, divisor: int, out: Tensor
) -> None:
    """`Kernels.dequantize_at` of quantized[limbs, capacity] into float32 out[n]."""
    _stride(
        sketches.dequantize_at_kernel, candidates,
        quantized, candidates.positions, candidates.count, out, scale,
        candidates.capacity, divisor, low_bits, quantized.shape[0], _CANDIDATES,
    )  # fmt: skip


def sketch_encode(
    layout: SketchLayout, seed: Tensor, candidates: Candidates, values: Tensor, out: Tensor
) -> None:
    """`Kernels.sketch_encode` of values[capacity], with the seed of seed[1]."""
    out.zero_()
    _stride(
        sketches.sketch_encode_kernel, candidates,
        candidates.positions, candidates.count, values, out, seed,
        candidates.capacity, layout.rows, layout.lanes, _CANDIDATES,
    )  # fmt: skip


def index_sketch(
    layout: SketchLayout,
    seed: Tensor,
    values: Tensor,
    scale: Tensor,
    low_bits: int,
    bitmap: Tensor,
    sketch: Tensor,
    largest: Tensor,
    first: int = 0,
) -> None:
    """`Kernels.index_sketch` into bitmap, sketch[limbs, cells] and largest[1]."""
    sketch.zero_()
    largest.zero_()
    n, limbs = values.numel(), sketch.shape[0]
    _run(
        sketches.index_sketch_kernel, -(-n // (_SKETCH_WORDS * WORD_BITS)),
        values, bitmap, sketch, largest, seed, scale, n, first, layout.rows, layout.cells, low_bits,
        layout.lanes, layout.lanes % WORD_BITS == 0, limbs, _SKETCH_WORDS,
    )  # fmt: skip


def peel(
    layout: SketchLayout, seed: Tensor, sketch: Tensor, candidates: Candidates, room: Peeling, out: Tensor
) -> None:
    """The first room.rounds rounds of `Kernels.sketch_decode` into out[capacity].

    If room.grown[rounds] is then 0, `left_over` lists what lies in the 2-core; else `peel_on` goes on. Rounds
    that nothing is left for cost their launch.
    """
    for tensor in (room.state, room.waiting, room.grown):
        tensor.zero_()
    room.sums.copy_(sketch)
    _stride(
        peeling.load_kernel, candidates,
        candidates.positions, candidates.count, room.state, room.waiting, out, seed,
        candidates.capacity, layout.rows, layout.lanes, _CANDIDATES,
    )  # fmt: skip
    if not candidates.capacity:
        return
    _run(
        peeling.first_round_kernel, -(-layout.cells // _BLOCK),
        room.state, room.queue, room.grown, room.waiting, layout.cells, layout.cells // SUB_TABLES, _BLOCK,
    )  # fmt: skip
    peel_on(layout, seed, candidates, room, out, 0)


def peel_on(
    layout: SketchLayout, seed: Tensor, candidates: Candidates, room: Peeling, out: Tensor, done: int
) -> None:
    """More rounds: the first of them takes grown[0] candidates from `done` on in the queue."""
    for round_ in range(room.rounds):
        _stride(
            peeling.round_kernel, candidates,
            candidates.positions, room.state, room.sums, room.queue, room.grown, room.waiting, out, seed,
            done, round_, layout.rows, layout.lanes, room.rounds, _CANDIDATES,
        )  # fmt: skip


def left_over(room: Peeling, bitmap: Tensor, largest: Tensor, bases: Tensor, out: Candidates) -> None:
    """The left-over of `Kernels.sketch_decode`: who still waits, ascending.

    bitmap[index_words(capacity)], largest[1] and bases[tiles] are for what it takes on the way.
    """
    index(room.waiting, bitmap, largest)
    positions(bitmap, room.waiting.numel(), bases, out)


def _stride(kernel: Any, candidates: Candidates, *arguments: Any) -> None:
    """Launch a kernel that strides over as many candidates as there turn out to be."""
    most = _PROGRAMS if candidates.positions.is_cuda else _PROGRAMS_INTERPRETED
    _run(kernel, min(-(-candidates.capacity // _CANDIDATES), most), *arguments)


def _run(kernel: Any, programs: int, *arguments: Any) -> None:
    """Launch on the device of the first argument, a tensor, and the stream that is current there."""
    if programs:
        with torch.cuda.device_of(arguments[0]):  # type: ignore[no-untyped-call]
            kernel[(programs,)](*arguments)
