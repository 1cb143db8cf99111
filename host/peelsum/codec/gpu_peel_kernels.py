"""Triton kernels for peeling, with a queue of candidates in pure cells.

A cell's state is int64: 2**32 times the number of candidates in it, plus the sum of their numbers. The state
of a pure cell is 2**32 plus its candidate's number. The thread whose atomic subtraction makes a cell pure
sees this in the atomic's result. It clears the candidate in `waiting` and, if it is the first to do so,
queues the candidate. Each candidate is thus queued at most once, so all rounds together do work proportional
to the number of candidates. A round reads only sums that earlier rounds completed, so values do not depend on
the order of threads. Segments share no cell and no candidate: some programs peel each by itself, with a
barrier of these between two rounds. One launch peels all.
"""

from __future__ import annotations

import triton
import triton.language as tl

from peelsum.codec import layout
from peelsum.codec.gpu_index_kernels import singly, wide
from peelsum.codec.gpu_sketch_kernels import cells_of, mixed, segment_of

_SUB_TABLES = tl.constexpr(layout.SUB_TABLES)
_ONE = tl.constexpr(2**32)
#: A queued item is 4 * candidate + the sub-table of its pure cell.
_ITEM = tl.constexpr(4)
#: Reads what other SMs write in the same launch: from the cache that they share, not from the SM's own, which
#: may hold it as it was rounds ago.
_SHARED = tl.constexpr(".cg")


@triton.jit
def load_kernel(
    positions, state, held, waiting, out, seed, candidates, width, segments,
    COUNTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add candidates to their cells' state, which must be zero; set them as waiting; zero `out`.

    COUNTED: whether to count them in held[segments], which must be zero.
    """
    t = singly(tl.program_id(0).to(tl.int64) * BLOCK, BLOCK)
    inside = t < candidates
    position = tl.load(positions + t, mask=inside, other=0)
    tl.store(waiting + t, tl.full((BLOCK,), 1, tl.int32), mask=inside)
    tl.store(out + t, tl.zeros((BLOCK,), tl.int32), mask=inside)
    drawn = mixed(position, tl.load(seed))
    segment = segment_of(drawn, segments)
    if COUNTED:
        tl.atomic_add(held + segment, tl.full((BLOCK,), 1, tl.int64), mask=inside, sem="relaxed")
    first = segment * (_SUB_TABLES * wide(width))
    for j in tl.static_range(_SUB_TABLES):
        cell, _ = cells_of(drawn, j, width)
        tl.atomic_add(state + first + cell, t + _ONE, mask=inside, sem="relaxed")


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
def _first_round(member, members, table_cells, queue, grown, waiting, state, BLOCK: tl.constexpr):
    """Queue the candidates of a segment's initially pure cells, and count them in grown[0]."""
    cells = _SUB_TABLES * table_cells
    for start in range(member * BLOCK, cells, members * BLOCK):
        cell = singly(start, BLOCK)
        held = tl.load(state + cell, mask=cell < cells, other=0)
        _queue(queue, wide(0), grown, waiting, held, cell // table_cells, cell < cells)


@triton.jit
def _peel_round(
    member, members, begin, end, following, positions, state, sums, queue, waiting, out, seed, width,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Peel queue[begin:end]; queue, behind them, candidates whose cells become pure, and count them."""
    for start in range(begin + member * BLOCK, end, members * BLOCK):
        at = singly(start, BLOCK)
        inside = at < end
        item = tl.load(queue + at, mask=inside, other=0, cache_modifier=_SHARED)
        candidate, alone_in = item // _ITEM, item % _ITEM
        drawn = mixed(tl.load(positions + candidate, mask=inside, other=0), tl.load(seed))
        value = tl.zeros((BLOCK,), tl.int32)
        for j in tl.static_range(_SUB_TABLES):
            cell, negative = cells_of(drawn, j, width)
            own = tl.load(sums + cell, mask=inside & (alone_in == j), other=0, cache_modifier=_SHARED)
            value += tl.where(negative, 0 - own, own)
        tl.store(out + candidate, value, mask=inside)
        for j in tl.static_range(_SUB_TABLES):
            cell, negative = cells_of(drawn, j, width)
            change = tl.where(negative, value, 0 - value)
            tl.atomic_add(sums + cell, change, mask=inside & (alone_in != j), sem="relaxed")
        for j in tl.static_range(_SUB_TABLES):
            cell, _ = cells_of(drawn, j, width)
            shared = inside & (alone_in != j)
            gone = candidate + _ONE
            before = tl.atomic_add(state + cell, 0 - gone, mask=shared, sem="relaxed")
            _queue(queue, end, following, waiting, before - gone, j, shared)


@triton.jit
def _meet(arrived, times, members):
    """Wait until all members have arrived `times` times; then each sees what all wrote before they arrived.

    They must run at the same time, as those of a cooperative launch do.
    """
    tl.debug_barrier()
    if members > 1:
        tl.atomic_add(arrived, 1, sem="release")
        while tl.load(arrived, volatile=True) < times * wide(members):
            pass
        tl.atomic_add(arrived, 0, sem="acquire")
        tl.debug_barrier()


@triton.jit
def rounds_kernel(
    positions, state, sums, queue, progress, held, peeled, waiting, out, seed, segments, width, members, most,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Peel every segment, round after round, until no candidate is queued: the rest is the 2-core.

    A segment that held more than `most` candidates is not peeled.

    `members` programs peel a segment together, and then another. sums[cells] is peeled into out[candidates].
    A segment's queue has as much room as the segment has cells. Of the segment's four numbers in `progress`,
    the first holds the candidates queued for the first round; round r counts those of the next in number
    (r + 1) % 3; the last counts arrivals at the barriers between rounds. All are added to peeled[0].
    """
    group, member = tl.program_id(0) // members, tl.program_id(0) % members
    table_cells = wide(width)
    for segment in range(group, segments, tl.num_programs(0) // members):
        first = wide(segment) * _SUB_TABLES * table_cells
        ours, state_, sums_, queue_ = progress + 4 * segment, state + first, sums + first, queue + first
        if tl.load(held + segment) <= most:
            _first_round(member, members, table_cells, queue_, ours, waiting, state_, BLOCK)
        _meet(ours + 3, 1, members)
        begin, round_ = wide(0), wide(0)
        end = tl.load(ours, volatile=True)
        while begin < end:
            # Every member has read this count before the last barrier; the next round adds to it.
            tl.store(ours + (round_ + 2) % 3, wide(0))
            following = ours + (round_ + 1) % 3
            _peel_round(
                member, members, begin, end, following, positions, state_, sums_, queue_, waiting, out, seed,
                width, BLOCK,
            )  # fmt: skip
            round_ += 1
            _meet(ours + 3, round_ + 1, members)
            begin = end
            end += tl.load(following, volatile=True)
        if member == 0:
            tl.atomic_add(peeled, end, sem="relaxed")
