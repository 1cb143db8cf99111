"""Loops over the statistics of tensors and the exponents of blocks: compiled by Numba, and cached on disk.

A step reads each tensor's row a few times, and NumPy's calls would take longer than a small tensor's sum.

The union of a step is where any worker's tensor is not zero, kept as counts of occupied blocks: of 2**b
elements for each b, so that the first count is the number of non-zeros. From the unions of the last steps,
the history estimates the next one, for each of the two protocols, by the rule that would have cost least.

An exponent is that of a block's largest value over all workers, as the exponent field of a float32; 0 stands
for a block without non-zeros. `firsts`, int64[segments + 1], holds each segment's first block, and the end.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from peelsum import codec
from peelsum.codec import BLOCK_SIZES, NON_FINITE, Implementation
from peelsum.codec.cpu.scales import decode_scales
from peelsum.codec.fixed_point import LARGEST_FINITE, ZERO
from peelsum.compiling import compiler

#: Steps whose unions are kept.
RING = 6
#: Rules for estimating the next union, by one of an earlier step: (stride, count, rank) takes the one with
#: the rank-th most non-zeros of `count` steps, `stride` steps apart. The first rule is the default.
RULES = np.array(
    [(1, 3, 1), (1, 1, 1), (2, 3, 1), (2, 1, 1), (1, 2, 2), (1, 6, 1), (1, 6, 2), (1, 6, 3)], np.int64
)
#: The next union is estimated twice, once for each protocol.
TWO_ROUNDS, ONE_ROUND, ESTIMATES = range(3)
#: The first columns of a row: the number of steps; whether a union was known at the last choice of a form;
#: overflowing elements, in blocks that exceeded their predicted exponent, in the step before the last; the
#: non-zeros of the last union with any; for each protocol, how many steps before the last one the estimate
#: is; and for each rule and protocol, the mean cost of its estimates in words.
STEPS, CHOSEN_WITH_UNION, OVERFLOW_BEFORE, LAST_NON_ZEROS, STEPS_BACK = range(5)
RULE_COSTS = STEPS_BACK + ESTIMATES
#: Then the share of steps that sent blocks again, the mean number of words that were sent again, overflowing
#: elements in the last step, and for each protocol, the mean cost of wrong estimates in words. After these,
#: the same numbers at the last choice of a form.
RESEND_RATE = RULE_COSTS + ESTIMATES * len(RULES)
RESENT_WORDS, OVERFLOW, MISESTIMATE_WORDS = range(RESEND_RATE + 1, RESEND_RATE + 4)
BASIS_FACTS = MISESTIMATE_WORDS + ESTIMATES
#: The distance from one of these columns to its value at the last choice.
_TO_BASIS = BASIS_FACTS - RESEND_RATE
FACTS = BASIS_FACTS + _TO_BASIS
#: Where unions begin: those of past steps, the last one first; and the estimates at the last choice.
UNIONS, BASIS_UNIONS = FACTS, FACTS + RING * BLOCK_SIZES
COLUMNS = BASIS_UNIONS + ESTIMATES * BLOCK_SIZES
#: Columns of a choice's basis: its estimates, then facts from BASES on.
_FIRST_FACT = ESTIMATES * BLOCK_SIZES
BASIS_COLUMNS = _FIRST_FACT + FACTS - BASIS_FACTS
#: Words for each estimated non-zero, by protocol: of its index alone, and with its cells.
_CANDIDATE_WORDS = (0.45, 1.75)
#: Multiples of the estimated non-zeros: a sketch can be peeled up to the first; a filter lets few zeros pass
#: up to the second, and too many beyond the third.
FIT, _SPARSE_ENOUGH, _FULL = 1.05, 1.5, 2.0
#: A union is larger by chance by so many standard deviations of a random union's count.
DEVIATIONS = 2.0
#: A union has not drifted if its counts differ by less than one part in so many, or by so many standard
#: deviations of a random union's count.
_ALIKE_PARTS, _ALIKE_DEVIATIONS = 16.0, 3.0
#: Weight of a step in the means `RESEND_RATE` and `MISESTIMATE_WORDS`, and the change of them that calls for
#: another choice of form.
_STEP_WEIGHT, _DRIFT = 0.125, 0.25
#: Weight of a step in the rules' mean costs; and the share of the first rule's cost below which another rule
#: is chosen, because a few steps without a larger union do not show that there will be none.
_RULE_WEIGHT, _CHEAPER = 0.25, 0.8
#: The largest change of the cost of wrong estimates, in words, that calls for no other choice.
_FEW_WORDS = 1000.0
#: The change of the overflowing elements that calls for another choice: this share of them, and so many.
_OVERFLOW_DRIFT, _FEW_OVERFLOWS = 0.6, 4096.0
#: Above this density, the positions of the non-zeros do not affect the choice of a form.
_DENSE = 1 / 4
#: Octaves by which a block may grow from one step to the next without exceeding its predicted exponent.
MARGIN = 2
#: Fewest bits of the largest integer of a block, beside its sign. A block with fewer is sent again.
FEWEST_BITS = 10
#: Octaves by which a block's predicted exponent may exceed the largest of its segment. Beyond, the block is
#: sent again: else a step after much larger ones would lose as many bits more than fixed point has to.
COARSEST = 6

_Rows = NDArray[np.int64]
_Words = NDArray[np.uint32]
_Floats = NDArray[np.float32]
_Counts = NDArray[np.float64]
_Flags = NDArray[np.bool_]
_Fields = NDArray[np.int32]

_compiled = compiler({"nogil": True})


@_compiled
def _expected_union(row: _Counts, protocol: int) -> int:
    """Return the column where a protocol's estimate of the next union begins."""
    return UNIONS + BLOCK_SIZES * int(row[STEPS_BACK + protocol])


@_compiled
def _step_back(row: _Counts, rule: int) -> int:
    """Return how many steps before the last one the union is that a rule chooses."""
    stride, count, rank = RULES[rule]
    for age in range(stride - 1, stride * count, stride):
        candidates, larger, at_least = row[UNIONS + BLOCK_SIZES * age], 0, 0
        for other_age in range(stride - 1, stride * count, stride):
            larger += row[UNIONS + BLOCK_SIZES * other_age] > candidates
            at_least += row[UNIONS + BLOCK_SIZES * other_age] >= candidates
        if larger < rank <= at_least:
            return age
    return 0


@_compiled
def _misestimate_cost(count: float, room: float, protocol: int, exchange: float) -> float:
    """Return the words that it costs to estimate `room` non-zeros of a step that has `count`.

    protocol: TWO_ROUNDS or ONE_ROUND. exchange: the words that take as long as an exchange.
    """
    if protocol == TWO_ROUNDS:
        return 0.0 if count <= _SPARSE_ENOUGH * room else exchange + count
    if count <= max(FIT * room, room + DEVIATIONS * np.sqrt(room)):
        return 0.0
    return exchange + _CANDIDATE_WORDS[ONE_ROUND] * (count - room) + (count if count > _FULL * room else 0.0)


@_compiled
def _has_drifted(row: _Counts) -> bool:
    """Return whether a tensor's statistics have changed so much that its form must be chosen anew."""
    if row[CHOSEN_WITH_UNION] == 0 and row[STEPS] > 0:
        return True
    for protocol in range(ESTIMATES):
        union, chosen = _expected_union(row, protocol), BASIS_UNIONS + BLOCK_SIZES * protocol
        for b in range(BLOCK_SIZES):
            basis = row[chosen + b]
            if abs(row[union + b] - basis) > max(basis / _ALIKE_PARTS, _ALIKE_DEVIATIONS * np.sqrt(basis)):
                return True
        column = MISESTIMATE_WORDS + protocol
        cost, before = row[column], row[column + _TO_BASIS]
        if abs(cost - before) > max(_DRIFT * max(cost, before), _FEW_WORDS):
            return True
    if abs(row[RESEND_RATE] - row[RESEND_RATE + _TO_BASIS]) > _DRIFT:
        return True
    overflow, before = row[OVERFLOW], row[OVERFLOW + _TO_BASIS]
    drifted: bool = abs(overflow - before) > max(_OVERFLOW_DRIFT * max(overflow, before), _FEW_OVERFLOWS)
    return drifted


@_compiled
def basis(state: _Counts, rows: _Rows, out: _Counts) -> None:
    """Write the statistics from which each tensor's form is chosen, out[rows, BASIS_COLUMNS]; -1 without any.

    They are those of the last choice, unless they have drifted since; then they are updated first.
    """
    for i in range(rows.size):
        row = state[rows[i]]
        if _has_drifted(row):  # keep the current statistics as those of the last choice
            for protocol in range(ESTIMATES):
                union, chosen = _expected_union(row, protocol), BASIS_UNIONS + BLOCK_SIZES * protocol
                row[chosen : chosen + BLOCK_SIZES] = row[union : union + BLOCK_SIZES]
            row[CHOSEN_WITH_UNION] = row[STEPS] > 0
            row[BASIS_FACTS:FACTS] = row[RESEND_RATE:BASIS_FACTS]
        if row[CHOSEN_WITH_UNION] == 0:
            out[i] = -1.0
        else:
            out[i, :_FIRST_FACT], out[i, _FIRST_FACT:] = row[BASIS_UNIONS:COLUMNS], row[BASIS_FACTS:FACTS]


@_compiled
def expected(state: _Counts, rows: _Rows, out: _Counts) -> float:
    """Write the estimated union of each tensor's next one-round step; return the number of elements to expect
    in blocks that exceed their predicted exponent: that of the worse of the last two steps.
    """
    now = before = 0.0
    for i in range(rows.size):
        row = state[rows[i]]
        union = _expected_union(row, ONE_ROUND)
        out[i] = row[union : union + BLOCK_SIZES]
        now, before = now + row[OVERFLOW], before + row[OVERFLOW_BEFORE]
    return max(now, before)


@_compiled
def record_step(
    state: _Counts, rows: _Rows, finite: _Flags, unions: _Counts, overflow: _Counts, resent_words: int,
    dense: int, exchange: float, cells: float,
) -> None:  # fmt: skip
    """Update the rows of the tensors that were `finite` by a step.

    overflow: elements of each tensor in blocks that exceeded their predicted exponent. resent_words: words
    that were sent again, or -1 if nothing had been predicted. dense: how many of the tensors, the first ones,
    are dense. exchange, cells: `NetworkModel.prices`.
    """
    # The non-zeros of the sparse tensors, and what wrong estimates cost each protocol. The tensors share
    # index and sketch: where one has fewer non-zeros, another has room for more.
    total, rooms = np.zeros(1 + ESTIMATES), np.zeros(ESTIMATES)
    for i in range(dense, rows.size):
        total[0] += unions[i, 0]
        for protocol in range(ESTIMATES):
            rooms[protocol] += state[rows[i], _expected_union(state[rows[i]], protocol)]
    for protocol in range(ESTIMATES):
        total[1 + protocol] = _misestimate_cost(total[0], rooms[protocol], protocol, exchange)
    for i in range(rows.size):
        if not finite[i]:
            continue
        row, union = state[rows[i]], unions[i]
        if resent_words < 0:
            row[RESEND_RATE] *= 1 - _STEP_WEIGHT / 4
            row[RESENT_WORDS] *= 1 - _STEP_WEIGHT / 4
            row[OVERFLOW] *= 1 - 2 * _STEP_WEIGHT
        else:
            row[OVERFLOW_BEFORE], row[OVERFLOW] = row[OVERFLOW], overflow[i]
            row[RESEND_RATE] += _STEP_WEIGHT * ((resent_words > 0) - row[RESEND_RATE])
            row[RESENT_WORDS] += _STEP_WEIGHT * (resent_words - row[RESENT_WORDS])
        if row[STEPS] > 0:
            share = union[0] / total[0] if total[0] > union[0] and i >= dense else 1.0
            for rule in range(len(RULES)):
                room = row[UNIONS + BLOCK_SIZES * _step_back(row, rule)]
                for protocol in range(ESTIMATES):
                    column = RULE_COSTS + ESTIMATES * rule + protocol
                    price = _CANDIDATE_WORDS[protocol] + (cells if protocol == ONE_ROUND else 0.0)
                    cost = _misestimate_cost(union[0], room, protocol, share * exchange) + price * room
                    row[column] += _RULE_WEIGHT * (cost - row[column])
            for protocol in range(ESTIMATES):
                cost = total[1 + protocol] if i >= dense else 0.0
                row[MISESTIMATE_WORDS + protocol] += _STEP_WEIGHT * (cost - row[MISESTIMATE_WORDS + protocol])
        for column in range(BASIS_UNIONS - 1, UNIONS - 1, -1):
            before = column - BLOCK_SIZES
            row[column] = (
                row[before] if before >= UNIONS and row[STEPS] > 0 else union[(column - UNIONS) % BLOCK_SIZES]
            )
        if union[0] > 0:
            row[LAST_NON_ZEROS] = union[0]
        for protocol in range(ESTIMATES):  # estimate by the rule with the least mean cost
            best, least = 0, _CHEAPER * row[RULE_COSTS + protocol]
            for rule in range(1, len(RULES)):
                cost = row[RULE_COSTS + ESTIMATES * rule + protocol]
                if cost < least:
                    best, least = rule, cost
            row[STEPS_BACK + protocol] = _step_back(row, best)
        row[STEPS] += 1


@_compiled
def unions(
    elements: _Rows, dense: int, fields: _Fields, selected: _Rows, total: _Rows, counted: _Rows, out: _Counts
) -> int:
    """Write the union of each segment, out[segments, BLOCK_SIZES]; return how many the caller must count.

    If at most a quarter of a segment's elements are not zero, its union is what was `counted` in a sparse
    segment, and -1 in a dense one: the caller must count it. Otherwise it is estimated, as if every element
    were non-zero with the same probability. It is 0 if the segment is not finite.
    selected: whether the next choice depends on where the segment's non-zeros are. total: the non-zeros of
    dense segments.
    """
    open_count = 0
    for s in range(elements.size):
        if fields[s] == NON_FINITE:  # its integers are undefined and differ between processors
            out[s] = 0.0
            continue
        sparse = s >= dense
        count = counted[s, 0] if sparse else total[s]
        density = count / elements[s] if selected[s] else 1.0
        if fields[s] == ZERO:
            density = 0.0
        if selected[s] and 0 < density <= _DENSE:
            open_count += not sparse
            for b in range(BLOCK_SIZES):
                out[s, b] = counted[s, b] if sparse else -1.0
            continue
        # By squaring: results of `**` differ between processors, and all workers must choose the same form.
        zeros, size = 1.0 - density, 1.0
        for b in range(BLOCK_SIZES):
            out[s, b] = elements[s] / size * (1.0 - zeros)
            zeros, size = zeros * zeros, 2.0 * size
    return open_count


@_compiled
def write_exponents(
    words: _Words,
    firsts: _Rows,
    segment_fields: _Fields,
    scales: _Fields,
    highest: int,
    out: _Fields,
) -> None:
    """Write the exponents of blocks; 0 also for those of segments that are not finite.

    words: the OR of all workers' words of scales. segment_fields, scales: what `decode_scales` makes of them.
    """
    for s in range(segment_fields.size):
        summed = segment_fields[s] != ZERO and segment_fields[s] != NON_FINITE
        for b in range(np.uint64(firsts[s]), np.uint64(firsts[s + 1])):
            out[b] = highest - scales[b] if summed and words[b] else 0


@_compiled
def predict_exponents(exponents: _Fields, firsts: _Rows, out: _Fields) -> None:
    """Write the exponents that blocks will probably not exceed, from those of earlier steps.

    exponents: as `History.levels` returns them. A block with 0 was always zero, and gets the largest exponent
    of its segment.
    """
    for s in range(firsts.size - 1):
        begin, end = np.uint64(firsts[s]), np.uint64(firsts[s + 1])
        largest = _largest(exponents, begin, end)
        for b in range(begin, end):
            exponent = exponents[b] + MARGIN if exponents[b] else largest
            out[b] = exponent if exponent < LARGEST_FINITE else LARGEST_FINITE


@_compiled
def flag_blocks(
    words: _Words, firsts: _Rows, segment_fields: _Fields, exponents: _Fields, expected: _Fields,
    highest: int, bits: int, scales: _Fields, bounds: _Fields, exceeding: _Flags, resent: _Flags,
) -> int:  # fmt: skip
    """Write the exponents of blocks, compare them with those `expected`; return how many blocks are `resent`.

    Flag in `exceeding` the blocks whose exponent is larger than expected: their integers need a second word
    for their high bits. Flag in `resent` the blocks whose numbers must be sent again, by scales that fit:
    their integers need more than two words, or have fewer than FEWEST_BITS of `bits`, or the expected
    exponent is above the largest of their segment by more than COARSEST octaves.
    words: the blocks' words of scales. segment_fields, scales: what `decode_scales` made of these; `scales`
    is overwritten by the scales of the step. bounds: the lesser of both.
    """
    write_exponents(words, firsts, segment_fields, scales, highest, exponents)
    count = 0
    for s in range(firsts.size - 1):
        begin, end = np.uint64(firsts[s]), np.uint64(firsts[s + 1])
        coarsest = _largest(exponents, begin, end) + COARSEST
        for b in range(begin, end):
            exponent, field, actual = exponents[b], expected[b], scales[b]
            exceeding[b] = words[b] != 0 and highest - actual > field
            coarse = exponent > 0 and (exponent < field - bits + FEWEST_BITS or field > coarsest)
            resent[b] = coarse or exponent > field + bits - 1
            scales[b] = highest - field if exponent > 0 and not resent[b] else actual
            bounds[b] = min(scales[b], actual)
            count += resent[b]
    return count


@_compiled
def exceed(words: _Words, firsts: _Rows, expected: _Fields, highest: int) -> bool:
    """Return whether a block's exponent is larger than expected. words: of scales, of this worker alone."""
    count = firsts.size - 1
    fields, scales = np.empty(count, np.int32), np.empty(words.size - count, np.int32)
    decode_scales(words[:count], words[count:], firsts, highest, fields, scales)
    for s in range(count):
        if fields[s] != ZERO and fields[s] != NON_FINITE:
            for b in range(firsts[s], firsts[s + 1]):
                if words[count + b] != 0 and highest - scales[b] > expected[b]:
                    return True
    return False


@_compiled
def _largest(exponents: _Fields, begin: np.uint64, end: np.uint64) -> np.int32:
    """Return the largest of exponents[begin:end]."""
    largest = np.int32(0)
    for b in range(begin, end):
        largest = max(largest, exponents[b])
    return largest


@_compiled
def update_exponents(kept: _Fields, exponents: _Fields, firsts: _Rows) -> None:
    """Update the exponents that the history has `kept` of blocks by those of a step; see `BlockExponents`."""
    for s in range(firsts.size - 1):
        begin, end = np.uint64(firsts[s]), np.uint64(firsts[s + 1])
        largest = _largest(exponents, begin, end)
        for b in range(begin, end):
            exponent = exponents[b]
            if exponent > 0:
                fallen = kept[b] - exponent
                kept[b] = exponent + (fallen // 2 if fallen > 0 else 0)
            if largest > 0:
                kept[b] = min(kept[b], largest + COARSEST - MARGIN)


@_compiled
def quantize_by_block(values: _Floats, blocks: _Rows, scales: _Fields, bits: int, out: _Rows) -> None:
    """Write rint(value * 2**scale), by the scale of the value's block; 0 if that has over 2 * bits bits."""
    limit = 2.0 ** (2 * bits - 1)
    for i in range(values.size):
        number = np.rint(math.ldexp(np.float64(values[i]), scales[blocks[i]]))
        out[i] = np.int64(number) if abs(number) < limit else np.int64(0)


def warm_up(implementation: Implementation = "cpu") -> None:
    """Compile everything that a sum needs: run `peelsum.codec.warm_up` and the loops over tensors once."""
    codec.warm_up(implementation)
    state, rows, flags = np.zeros((1, COLUMNS)), np.zeros(1, np.int64), np.zeros(1, np.bool_)
    choice, union, counts = np.zeros((1, BASIS_COLUMNS)), np.zeros((1, BLOCK_SIZES)), np.ones(1, np.int64)
    unions(counts, 1, np.zeros(1, np.int32), counts, counts, np.zeros((1, BLOCK_SIZES), np.int64), union)
    record_step(state, rows, flags, union, np.zeros(1), -1, 0, 0.0, 0.0)
    basis(state, rows, choice)
    expected(state, rows, union)
    words, firsts = np.ones(1, np.uint32), np.array([0, 1])
    fields = np.ones(1, np.int32)
    write_exponents(words, firsts, fields, fields, 1, fields)
    predict_exponents(fields, firsts, fields)
    flag_blocks(words, firsts, fields, fields, fields, 1, 1, fields, fields, flags, flags)
    update_exponents(fields, fields, firsts)
    exceed(np.ones(2, np.uint32), firsts, fields, 1)
    blocks, numbers = np.zeros((2, 1), np.int64)
    quantize_by_block(np.ones(1, np.float32), blocks, fields, 1, numbers)
