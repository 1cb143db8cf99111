"""Triton kernels for peeling, with a queue of candidates in pure cells.

A cell's state is int64: 2**32 times the number of candidates in it, plus the sum of their numbers. The state
of a pure cell is 2**32 plus its candidate's number. The thread whose atomic subtraction makes a cell pure
sees this in the atomic's result. It clears the candidate in `waiting` and, if it is the first to do so,
queues the candidate. Each candidate is thus queued at most once, so all rounds together do work proportional
to the number of candidates. A round reads only sums that earlier rounds completed, so values do not depend on
the order of threads. One launch runs all rounds, with a barrier of all programs between two.
"""

from __future__ import annotations

import triton
import triton.language as tl

from peelsum.codec import layout
from peelsum.codec.gpu_index_kernels import singly, wide
from peelsum.codec.gpu_sketch_kernels import cells_of, segment_of

_SUB_TABLES = tl.constexpr(layout.SUB_TABLES)
_ONE = tl.constexpr(2**32)
#: A queued item is 4 * candidate + the sub-table of its pure cell.
_ITEM = tl.constexpr(4)
#: Reads what other SMs write in the same launch: from the cache that they share, not from the SM's own, which
#: may hold it as it was rounds ago.
_SHARED = tl.constexpr(".cg")


@triton.jit
def load_kernel(
    positions, state, waiting, out, seed, candidates, rows, share,
    LANES: tl.constexpr, SEGMENTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add candidates to their cells' state, which must be zero; set them as waiting; zero `out`."""
    t = singly(tl.program_id(0).to(tl.int64) * BLOCK, BLOCK)
    inside = t < candidates
    position = tl.load(positions + t, mask=inside, other=0)
    tl.store(waiting + t, tl.full((BLOCK,), 1, tl.int32), mask=inside)
    tl.store(out + t, tl.zeros((BLOCK,), tl.int32), mask=inside)
    segment = segment_of(t, position, share, tl.load(seed), rows, LANES, SEGMENTED)
    for j in tl.static_range(_SUB_TABLES):
        cell, _ = cells_of(position, tl.load(seed), j, rows, LANES)
        tl.atomic_add(state + segment + cell, t + _ONE, mask=inside, sem="relaxed")


@triton.jit
def _queue(queue, end, grown, waiting, state, sub_table, inside):
    """Queue, from `end` on, the waiting candidates whose cell's `state` is pure; count them in grown[0]."""
    alone = inside & ((state >> 32) == 1)
    candidate = tl.where(alone, state - _ONE, 0)
    taken = tl.atomic_xchg(waiting + candidate, 0, mask=alone, sem="relaxed")
    chosen = tl.where(alone, taken, 0)
    slot = end + tl.atomic_add(grown, tl.sum(chosen, axis=0).to(tl.int64), sem="relaxed")
    slots = slot + tl.cumsum(chosen, axis=0) - chosen
    tl.store(queue + slots, candidate * _ITEM + sub_table, mask=chosen != 0)


@triton.jit
def first_round_kernel(state, queue, progress, waiting, cells, table_cells, BLOCK: tl.constexpr):
    """Queue the candidates of all initially pure cells; a sub-table of a segment has `table_cells`."""
    program = tl.program_id(0)
    cell = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    held = tl.load(state + cell, mask=cell < cells, other=0)
    _queue(queue, wide(0), progress, waiting, held, cell // table_cells % _SUB_TABLES, cell < cells)


@triton.jit
def _peel_round(
    program, programs, begin, end, following, positions, state, sums, queue, waiting, out, seed,
    rows, share,
    LANES: tl.constexpr, SEGMENTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Peel queue[begin:end]; queue, behind them, candidates whose cells become pure, and count them."""
    for start in range(begin + program * BLOCK, end, programs * BLOCK):
        at = singly(start, BLOCK)
        inside = at < end
        item = tl.load(queue + at, mask=inside, other=0, cache_modifier=_SHARED)
        candidate, alone_in = item // _ITEM, item % _ITEM
        position = tl.load(positions + candidate, mask=inside, other=0)
        segment = segment_of(candidate, position, share, tl.load(seed), rows, LANES, SEGMENTED)
        value = tl.zeros((BLOCK,), tl.int32)
        for j in tl.static_range(_SUB_TABLES):
            cell, negative = cells_of(position, tl.load(seed), j, rows, LANES)
            held = inside & (alone_in == j)
            own = tl.load(sums + segment + cell, mask=held, other=0, cache_modifier=_SHARED)
            value += tl.where(negative, 0 - own, own)
        tl.store(out + candidate, value, mask=inside)
        for j in tl.static_range(_SUB_TABLES):
            cell, negative = cells_of(position, tl.load(seed), j, rows, LANES)
            change = tl.where(negative, value, 0 - value)
            tl.atomic_add(sums + segment + cell, change, mask=inside & (alone_in != j), sem="relaxed")
        for j in tl.static_range(_SUB_TABLES):
            cell, _ = cells_of(position, tl.load(seed), j, rows, LANES)
            shared = inside & (alone_in != j)
            gone = candidate + _ONE
            before = tl.atomic_add(state + segment + cell, 0 - gone, mask=shared, sem="relaxed")
            _queue(queue, end, following, waiting, before - gone, j, shared)


@triton.jit
def _meet(arrived, times, programs):
    """Wait until all programs have arrived `times` times; then each sees what all wrote before they arrived.

    They must run at the same time, as those of a cooperative launch do.
    """
    tl.debug_barrier()
    tl.atomic_add(arrived, 1, sem="release")
    while tl.load(arrived, volatile=True) < times * programs.to(tl.int64):
        pass
    tl.atomic_add(arrived, 0, sem="acquire")
    tl.debug_barrier()


@triton.jit
def rounds_kernel(
    positions, state, sums, queue, progress, waiting, out, seed, candidates,
    rows, share, LANES: tl.constexpr, SEGMENTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Peel the queue, round after round, until no candidate is queued: the rest is the 2-core.

    sums[cells] is peeled into out[candidates]. progress[0] holds the candidates queued for the first round;
    round r counts those of the next in progress[(r + 1) % 3]. progress[3] counts arrivals at the barriers
    between rounds. progress[4] becomes the number of candidates left over.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    begin, round_ = wide(0), wide(0)
    end = tl.load(progress)
    while begin < end:
        # Every program has read this count before the last barrier; the next round adds to it.
        tl.store(progress + (round_ + 2) % 3, wide(0))
        following = progress + (round_ + 1) % 3
        _peel_round(
            program, programs, begin, end, following, positions, state, sums, queue, waiting, out, seed,
            rows, share, LANES, SEGMENTED, BLOCK,
        )  # fmt: skip
        round_ += 1
        _meet(progress + 3, round_, programs)
        begin = end
        end += tl.load(following, volatile=True)
    tl.store(progress + 4, wide(candidates) - end)
