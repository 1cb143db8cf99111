"""The sketch on a GPU: encoding by atomic additions, and peeling with a queue of candidates in pure cells.

Sums are modulo 2**32. Integer addition is independent of order, so every run gives the same bits.

A cell's state is int64: 2**32 times the number of candidates in it, plus the sum of the candidates' numbers.
The state of a pure cell is 2**32 plus its candidate's number. The thread whose atomic subtraction makes a
cell pure sees this in the atomic's result. It clears the candidate in `waiting` and, if it is the first to do
so, queues the candidate. Each candidate is thus queued at most once, so all rounds together do work
proportional to the number of candidates. A round reads only sums that earlier rounds completed, so values do
not depend on the order of threads. Segments share no cell and no candidate: each is peeled by some programs,
with a barrier of these between two rounds. One launch peels all segments.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from peelsum.codec import layout
from peelsum.codec.gpu import launch
from peelsum.codec.gpu.launch import kernel, tiles_of
from peelsum.codec.gpu.words import as_int64, mixed, one_per_thread
from peelsum.codec.layout import MOST_CANDIDATES, SketchLayout

_CANDIDATES = 512  # of a tile, see `launch.TILE_WORDS`
#: Programs of a cooperative launch for each SM, of 128 threads. All must run at once.
_PROGRAMS_PER_SM = 2
#: Segments that are peeled at the same time, at most: an H100's cache, 50 MB, holds their state. Of 2**27
#: elements, 5 to 20 % of which are candidates, peeling took 1.15 times as long with twice as many, and
#: 1.5 times with half. Segments were twice as large then; with those of today nothing was measured.
_SEGMENTS_AT_ONCE = 32
_SUB_TABLES = tl.constexpr(layout.SUB_TABLES)
_DRAWN_BITS = tl.constexpr(layout.DRAWN_BITS)
_DRAWN = tl.constexpr(2**layout.DRAWN_BITS - 1)
_CELL_BITS = tl.constexpr(layout.CELL_BITS)
_SEGMENT_BIT = tl.constexpr(layout.SEGMENT_BIT)
_ONE = tl.constexpr(2**32)
#: A queued item is 4 * candidate + the sub-table of its pure cell.
_ITEM = tl.constexpr(4)
#: Reads what other SMs write in the same launch: from the cache that they share, not from the SM's own, which
#: may hold it as it was rounds ago.
_SHARED = tl.constexpr(".cg")


class GpuSketch:
    """The operations of `CodecDevice` on sketches."""

    def sketch_encode(self, layout: SketchLayout, positions: Tensor, values: Tensor, out: Tensor) -> None:
        """Write the sketch of values[k] at positions[k]."""
        out.zero_()
        k, seed = positions.numel(), launch.seed_on_device(layout.seed, out)
        launch.run(
            sketch_encode_kernel, tiles_of(k, _CANDIDATES),
            positions, values, out, seed, k, layout.width, layout.segments, _CANDIDATES,
        )  # fmt: skip

    def sketch_decode(self, layout: SketchLayout, sketch: Tensor, positions: Tensor, out: Tensor) -> Tensor:
        """Peel a sketch: write the candidates' values into `out`; return the indices of the unpeeled ones.

        Waits for the device once, for their number.
        """
        k = positions.numel()
        if not k:
            return positions
        zeroed = torch.zeros(PeelMemory.zeros(layout), dtype=torch.int64, device=sketch.device)
        memory, seed = PeelMemory.of(layout, zeroed, k, out), launch.seed_on_device(layout.seed, sketch)
        launch.run(
            load_kernel, tiles_of(k, _CANDIDATES),
            positions, *memory[:4], seed, k, layout.width, layout.segments, k > MOST_CANDIDATES, _CANDIDATES,
        )  # fmt: skip
        peel(layout, seed, sketch, positions, memory, zeroed[-1:])
        return memory.waiting.nonzero().view(-1)


class PeelMemory(NamedTuple):
    """The working memory of peeling: 4 bytes for each candidate, and 20 for each cell; and its result."""

    state: Tensor
    """int64[cells], zero at first: 2**32 times the number of candidates, plus the sum of their numbers."""
    held: Tensor
    """int64[segments], zero at first: how many candidates a segment has, if they are counted."""
    waiting: Tensor
    """int32[candidates]: 1 until a candidate is queued."""
    numbers: Tensor
    """int32[candidates]: the candidates' values; 0 until they are peeled."""
    progress: Tensor
    """int64[4 * segments], zero at first: of each segment, see `rounds_kernel`."""
    changes: Tensor
    """int32[cells], zero at first: what peeling has added to each cell."""
    queue: Tensor
    """int64[cells]."""

    @staticmethod
    def zeros(layout: SketchLayout) -> int:
        """Return how many int64 of zeros a sketch takes, with one more behind those of `of`."""
        return layout.cells + 5 * layout.segments + (layout.cells + 1) // 2 + 1

    @classmethod
    def of(cls, layout: SketchLayout, zeroed: Tensor, candidates: int, numbers: Tensor) -> PeelMemory:
        """Return the memory of a sketch. zeroed: its zeros, which it takes from the begin."""
        cells, segments = layout.cells, layout.segments
        rest = zeroed.numel() - cells - 5 * segments
        state, held, progress, changes = zeroed.split_with_sizes([cells, segments, 4 * segments, rest])
        waiting = torch.empty(candidates, dtype=torch.int32, device=zeroed.device)
        queue = torch.empty(cells, dtype=torch.int64, device=zeroed.device)
        return cls(state, held, waiting, numbers, progress, changes.view(torch.int32), queue)


def peel(
    layout: SketchLayout, seed: Tensor, sketch: Tensor, positions: Tensor, memory: PeelMemory, count: Tensor
) -> None:
    """Launch the peeling of a sketch whose candidates are loaded; add how many are peeled to count[1]."""
    programs = _cooperative_programs(sketch.device)
    groups = min(layout.segments, _SEGMENTS_AT_ONCE, programs)
    members = min(programs // groups, -(-layout.cells // (layout.segments * _CANDIDATES)))
    state, held, waiting, numbers, progress, changes, queue = memory
    launch.run(
        rounds_kernel, groups * members,
        positions, state, sketch, changes, queue, progress, held, count, waiting, numbers, seed,
        layout.segments, layout.width, members, MOST_CANDIDATES, _CANDIDATES, launch_cooperative_grid=True,
    )  # fmt: skip


@cache
def _cooperative_programs(device: torch.device) -> int:
    """Return how many programs a cooperative launch can have, which all run at the same time."""
    if device.type != "cuda":
        return 1  # the interpreter runs them one after the other
    return _PROGRAMS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit
def cells_of(drawn, j, width):
    """Return the elements' cells in sub-table j of their segment, int64, and which signs are negative.

    drawn: the hashes of the elements, by `mixed`.
    """
    part = (drawn >> (_DRAWN_BITS * j)) & _DRAWN
    cell = ((part >> 1) * width) >> _CELL_BITS
    return cell.to(tl.int64) + j * as_int64(width), (part & 1) != 0


@triton.jit
def segment_of(drawn, segments):
    """Return the elements' segments, int64. drawn: their hashes, by `mixed`."""
    return ((drawn >> _SEGMENT_BIT) & (segments - 1)).to(tl.int64)


@triton.jit
def add_to_sketch(out, seed, position, value, width, segments):
    """Add values that are not 0, of any shape, at their positions to the sketch `out`."""
    drawn = mixed(position, seed)
    first = segment_of(drawn, segments) * (_SUB_TABLES * as_int64(width))
    for j in tl.static_range(_SUB_TABLES):
        cell, negative = cells_of(drawn, j, width)
        change = tl.where(negative, 0 - value, value)
        tl.atomic_add(out + first + cell, change, mask=value != 0, sem="relaxed")


@kernel
def sketch_encode_kernel(positions, values, out, seed, candidates, width, segments, BLOCK: tl.constexpr):
    """Add values[candidates] at their positions to the sketch `out`, which must be zero."""
    t = one_per_thread(tl.program_id(0).to(tl.int64) * BLOCK, BLOCK)
    position = tl.load(positions + t, mask=t < candidates, other=0)
    value = tl.load(values + t, mask=t < candidates, other=0)
    add_to_sketch(out, tl.load(seed), position, value, width, segments)


@triton.jit
def load_candidates(
    t, inside, position, state, held, waiting, out, seed, width, segments,
    COUNTED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Do what `load_kernel` does for the candidates t[BLOCK] that are `inside`."""
    tl.store(waiting + t, tl.full((BLOCK,), 1, tl.int32), mask=inside)
    tl.store(out + t, tl.zeros((BLOCK,), tl.int32), mask=inside)
    drawn = mixed(position, seed)
    segment = segment_of(drawn, segments)
    if COUNTED:
        tl.atomic_add(held + segment, tl.full((BLOCK,), 1, tl.int64), mask=inside, sem="relaxed")
    first = segment * (_SUB_TABLES * as_int64(width))
    for j in tl.static_range(_SUB_TABLES):
        cell, _ = cells_of(drawn, j, width)
        tl.atomic_add(state + first + cell, t + _ONE, mask=inside, sem="relaxed")


@kernel
def load_kernel(
    positions, state, held, waiting, out, seed, candidates, width, segments,
    COUNTED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Add candidates to the `state` of their cells, which must be zero; set `waiting` to 1 and `out` to 0.

    COUNTED: whether to count each segment's candidates in held[segments], which must be zero.
    """
    t = one_per_thread(tl.program_id(0).to(tl.int64) * BLOCK, BLOCK)
    inside = t < candidates
    position = tl.load(positions + t, mask=inside, other=0)
    load_candidates(
        t, inside, position, state, held, waiting, out, tl.load(seed), width, segments, COUNTED, BLOCK
    )


@triton.jit
def _queue(queue, end, grown, waiting, state, sub_table, inside):
    """Append the waiting candidates of pure cells to queue[end:], and add their number to grown[0].

    state: of cells in `sub_table`.
    """
    pure = inside & ((state >> 32) == 1)
    candidate = tl.where(pure, state - _ONE, 0)
    was_waiting = tl.atomic_xchg(waiting + candidate, 0, mask=pure, sem="relaxed")
    queued = tl.where(pure, was_waiting, 0)
    first = end + tl.atomic_add(grown, tl.sum(queued, axis=0).to(tl.int64), sem="relaxed")
    slots = first + tl.cumsum(queued, axis=0) - queued
    tl.store(queue + slots, candidate * _ITEM + sub_table, mask=queued != 0)


@triton.jit
def _first_round(member, members, table_cells, queue, grown, waiting, state, BLOCK: tl.constexpr):
    """Queue the candidates of a segment's initially pure cells, and count them in grown[0]."""
    cells = _SUB_TABLES * table_cells
    for start in range(member * BLOCK, cells, members * BLOCK):
        cell = one_per_thread(start, BLOCK)
        held = tl.load(state + cell, mask=cell < cells, other=0)
        _queue(queue, as_int64(0), grown, waiting, held, cell // table_cells, cell < cells)


@triton.jit
def _peel_round(
    member, members, begin, end, following, positions, state, sketch, sums, queue, waiting, out, seed, width,
    BLOCK: tl.constexpr
):  # fmt: skip
    """Peel queue[begin:end]; append the candidates whose cells become pure; count them in following[0]."""
    for start in range(begin + member * BLOCK, end, members * BLOCK):
        at = one_per_thread(start, BLOCK)
        inside = at < end
        item = tl.load(queue + at, mask=inside, other=0, cache_modifier=_SHARED)
        candidate, pure_table = item // _ITEM, item % _ITEM
        drawn = mixed(tl.load(positions + candidate, mask=inside, other=0), tl.load(seed))
        value = tl.zeros((BLOCK,), tl.int32)
        for j in tl.static_range(_SUB_TABLES):
            cell, negative = cells_of(drawn, j, width)
            pure = inside & (pure_table == j)
            total = tl.load(sums + cell, mask=pure, other=0, cache_modifier=_SHARED)
            total += tl.load(sketch + cell, mask=pure, other=0)
            value += tl.where(negative, 0 - total, total)
        tl.store(out + candidate, value, mask=inside)
        for j in tl.static_range(_SUB_TABLES):
            cell, negative = cells_of(drawn, j, width)
            change = tl.where(negative, value, 0 - value)
            tl.atomic_add(sums + cell, change, mask=inside & (pure_table != j), sem="relaxed")
        for j in tl.static_range(_SUB_TABLES):
            cell, _ = cells_of(drawn, j, width)
            shared = inside & (pure_table != j)
            peeled = candidate + _ONE
            before = tl.atomic_add(state + cell, 0 - peeled, mask=shared, sem="relaxed")
            _queue(queue, end, following, waiting, before - peeled, j, shared)


@triton.jit
def _barrier(arrived, times, members):
    """Wait until all members have arrived `times` times; then each sees what all wrote before they arrived.

    arrived[0] counts arrivals. Members must run at the same time, as programs of a cooperative launch do.
    """
    tl.debug_barrier()
    if members > 1:
        tl.atomic_add(arrived, 1, sem="release")
        expected = times * as_int64(members)
        while tl.load(arrived, volatile=True) < expected:
            pass
        # It acquires once. Triton up to 3.7 leaves out an acquire whose result is not used.
        while tl.atomic_add(arrived, 0, sem="acquire") < expected:
            pass
        tl.debug_barrier()


@kernel
def rounds_kernel(
    positions, state, sketch, sums, queue, progress, held, peeled, waiting, out, seed, segments, width,
    members, most, BLOCK: tl.constexpr
):  # fmt: skip
    """Peel every segment, round after round, until no candidate is queued: the rest is the 2-core.

    A segment that held more than `most` candidates is not peeled.

    `members` programs peel a segment together, and then another. sketch[cells], to which `sums` is added, is
    peeled into out[candidates]; sums[cells] must be zero.
    A segment's queue has as much room as the segment has cells. Of the segment's four numbers in `progress`,
    the first holds the candidates queued for the first round; round r counts those of the next in number
    (r + 1) % 3; the last counts arrivals at the barriers between rounds. All are added to peeled[0].
    """
    group, member = tl.program_id(0) // members, tl.program_id(0) % members
    table_cells = as_int64(width)
    for segment in range(group, segments, tl.num_programs(0) // members):
        first = as_int64(segment) * _SUB_TABLES * table_cells
        counters, state_, sketch_ = progress + 4 * segment, state + first, sketch + first
        sums_, queue_ = sums + first, queue + first
        if tl.load(held + segment) <= most:
            _first_round(member, members, table_cells, queue_, counters, waiting, state_, BLOCK)
        _barrier(counters + 3, 1, members)
        begin, round_ = as_int64(0), as_int64(0)
        end = tl.load(counters, volatile=True)
        while begin < end:
            # Every member has read this count before the last barrier; the next round adds to it.
            tl.store(counters + (round_ + 2) % 3, as_int64(0))
            following = counters + (round_ + 1) % 3
            _peel_round(
                member, members, begin, end, following, positions, state_, sketch_, sums_, queue_, waiting,
                out, seed, width, BLOCK,
            )  # fmt: skip
            round_ += 1
            _barrier(counters + 3, round_ + 1, members)
            begin = end
            end += tl.load(following, volatile=True)
        if member == 0:
            tl.atomic_add(peeled, end, sem="relaxed")
