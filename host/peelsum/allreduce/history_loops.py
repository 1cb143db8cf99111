"""Loops over what is known of tensors, a row for each: compiled by Numba, and cached on disk.

A step looks at each row a few times, and NumPy's calls would take longer than a small tensor's sum.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum import codec
from peelsum.allreduce import level_loops
from peelsum.codec import BLOCK_SIZES, NON_FINITE, Implementation
from peelsum.codec.scales import ZERO
from peelsum.compiling import compiler

#: Steps whose unions are kept.
RING = 6
#: Rules that expect the union of an earlier step again: (stride, count, rank) takes the one with the rank-th
#: most candidates of `count` steps, `stride` steps apart. The first rule is the usual one.
RULES = np.array(
    [(1, 3, 1), (1, 1, 1), (2, 3, 1), (2, 1, 1), (1, 2, 2), (1, 6, 1), (1, 6, 2), (1, 6, 3)], np.int64
)
#: Two estimates of the next union: for steps whose numbers follow the index, and for those that go ahead.
AFTER, AHEAD, ESTIMATES = range(3)
#: Columns of facts: steps; whether the last choice knew a union; elements of blocks that exceeded what was
#: expected in the step before the last; the non-zeros of the last union with any; for both estimates, how
#: many steps before the last one the expected union is; and the words that each rule would have cost a step,
#: with its wrong estimates.
STEPS, INFORMED, WIDE_BEFORE, FILLED, BACK = range(5)
RULE_COSTS = BACK + ESTIMATES
#: Then how often blocks were sent again, and how many words, on average, elements that exceeded in the last
#: step, and the words that wrong estimates of both kinds cost a step; and these at the last choice.
MISSED = RULE_COSTS + ESTIMATES * len(RULES)
AGAIN, WIDE, MISESTIMATES = range(MISSED + 1, MISSED + 4)
BASES = MISESTIMATES + ESTIMATES
FACTS = 2 * BASES - MISSED
#: Where unions begin: those of past steps, the last one first, and the estimates at the last choice.
UNIONS, BASIS = FACTS, FACTS + RING * BLOCK_SIZES
COLUMNS = BASIS + ESTIMATES * BLOCK_SIZES
#: Columns of a choice's basis: its estimates, then facts from BASES on.
_FIRST_FACT = ESTIMATES * BLOCK_SIZES
BASIS_COLUMNS = _FIRST_FACT + FACTS - BASES
#: Words for each expected candidate, by estimate: of its index alone, and with its cells.
_CANDIDATE_WORDS = (0.45, 1.75)
#: Times the expected candidates: a sketch can be peeled up to the first; a filter lets few zeros pass up to
#: the second, and too many beyond the third.
FIT, _SPARSE_ENOUGH, _FULL = 1.05, 1.5, 2.0
#: A union is larger by chance by so many standard deviations of a random union's count.
DEVIATIONS = 2.0
#: Unions are alike if their counts differ by less than one part in so many, or by chance: by so many standard
#: deviations of a random union's.
_RESEMBLING, _BY_CHANCE = 16.0, 3.0
#: Part of `MISSED` and `MISESTIMATES` that a step contributes, and a change of them that calls for another
#: choice.
_RECENT, _MOVED = 0.125, 0.25
#: Part of the rules' mean costs that a step contributes; and the share of the first rule's cost below which
#: another is chosen, because a few steps without a larger union do not show that there will be none.
_RULE_WEIGHT, _CHEAPER = 0.25, 0.8
#: The largest change of the cost of wrong estimates, in words, that calls for no other choice.
_FEW_WORDS = 1000.0
#: A change of the elements that exceed that calls for another choice: this part of them, and so many.
_WIDENED, _MANY_WIDE = 0.6, 4096.0
#: Above this density, the positions of the non-zeros do not affect the choice of a form.
_DENSE = 1 / 4

_Rows = NDArray[np.int64]
_Counts = NDArray[np.float64]
_Flags = NDArray[np.bool_]

_compiled = compiler({"nogil": True})


@_compiled
def _expected(row: _Counts, kind: int) -> int:
    """Return where the union begins that is expected again."""
    return UNIONS + BLOCK_SIZES * int(row[BACK + kind])


@_compiled
def _step_back(row: _Counts, rule: int) -> int:
    """Return how many steps before the last one the union is that a rule expects."""
    stride, count, rank = RULES[rule]
    for step in range(stride - 1, stride * count, stride):
        candidates, larger, at_least = row[UNIONS + BLOCK_SIZES * step], 0, 0
        for other in range(stride - 1, stride * count, stride):
            larger += row[UNIONS + BLOCK_SIZES * other] > candidates
            at_least += row[UNIONS + BLOCK_SIZES * other] >= candidates
        if larger < rank <= at_least:
            return step
    return 0


@_compiled
def _misestimate_cost(count: float, room: float, kind: int, exchange: float) -> float:
    """Return the words that it costs to expect `room` candidates of a step that has `count`.

    kind: AFTER or AHEAD. exchange: the words that take as long as an exchange.
    """
    if kind == AFTER:
        return 0.0 if count <= _SPARSE_ENOUGH * room else exchange + count
    if count <= max(FIT * room, room + DEVIATIONS * np.sqrt(room)):
        return 0.0
    return exchange + _CANDIDATE_WORDS[AHEAD] * (count - room) + (count if count > _FULL * room else 0.0)


@_compiled
def _update_rule_costs(row: _Counts, count: float, exchange: float, cells: float) -> None:
    """Update the mean cost of each rule by a step with `count` candidates.

    exchange, cells: as for `learn`.
    """
    for rule in range(len(RULES)):
        room = row[UNIONS + BLOCK_SIZES * _step_back(row, rule)]
        for kind in range(ESTIMATES):
            column = RULE_COSTS + ESTIMATES * rule + kind
            price = _CANDIDATE_WORDS[kind] + (cells if kind == AHEAD else 0.0)
            cost = _misestimate_cost(count, room, kind, exchange) + price * room
            row[column] += _RULE_WEIGHT * (cost - row[column])


@_compiled
def _misestimates(state: _Counts, rows: _Rows, unions: _Counts, dense: int, exchange: float) -> _Counts:
    """Return the candidates of the sparse rows, and the words that wrong estimates cost: float64[3].

    The rows share index and sketch: one has room for more where another has fewer.
    """
    total, rooms = np.zeros(1 + ESTIMATES), np.zeros(ESTIMATES)
    for i in range(dense, rows.size):
        total[0] += unions[i, 0]
        for kind in range(ESTIMATES):
            rooms[kind] += state[rows[i], _expected(state[rows[i]], kind)]
    for kind in range(ESTIMATES):
        total[1 + kind] = _misestimate_cost(total[0], rooms[kind], kind, exchange)
    return total


@_compiled
def _choose_rules(row: _Counts) -> None:
    """Set the expected unions to those of the cheapest rules."""
    for kind in range(ESTIMATES):
        best, least = 0, _CHEAPER * row[RULE_COSTS + kind]
        for rule in range(1, len(RULES)):
            cost = row[RULE_COSTS + ESTIMATES * rule + kind]
            if cost < least:
                best, least = rule, cost
        row[BACK + kind] = _step_back(row, best)


@_compiled
def _differs(row: _Counts) -> bool:
    if row[INFORMED] == 0 and row[STEPS] > 0:
        return True
    for kind in range(ESTIMATES):
        union, chosen = _expected(row, kind), BASIS + BLOCK_SIZES * kind
        for b in range(BLOCK_SIZES):
            basis = row[chosen + b]
            if abs(row[union + b] - basis) > max(basis / _RESEMBLING, _BY_CHANCE * np.sqrt(basis)):
                return True
        cost, before = row[MISESTIMATES + kind], row[BASES + MISESTIMATES - MISSED + kind]
        if abs(cost - before) > max(_MOVED * max(cost, before), _FEW_WORDS):
            return True
    if abs(row[MISSED] - row[BASES]) > _MOVED:
        return True
    wide, then = row[WIDE], row[BASES + WIDE - MISSED]
    more: bool = abs(wide - then) > max(_WIDENED * max(wide, then), _MANY_WIDE)
    return more


@_compiled
def _renew(row: _Counts) -> None:
    for kind in range(ESTIMATES):
        union, chosen = _expected(row, kind), BASIS + BLOCK_SIZES * kind
        row[chosen : chosen + BLOCK_SIZES] = row[union : union + BLOCK_SIZES]
    row[INFORMED] = row[STEPS] > 0
    row[BASES:FACTS] = row[MISSED:BASES]


@_compiled
def basis(state: _Counts, rows: _Rows, out: _Counts) -> None:
    """Write the basis of each row's choice, out[rows, BASIS_COLUMNS]; -1 without a union.

    A row that differs from its last choice's basis is taken as it is: a new choice is to be made for it.
    """
    for i in range(rows.size):
        row = state[rows[i]]
        if _differs(row):
            _renew(row)
        if row[INFORMED] == 0:
            out[i] = -1.0
        else:
            out[i, :_FIRST_FACT], out[i, _FIRST_FACT:] = row[BASIS:COLUMNS], row[BASES:FACTS]


@_compiled
def expected(state: _Counts, rows: _Rows, out: _Counts) -> float:
    """Write the union that is expected of each row in a step ahead; return their elements that exceed.

    These are elements of blocks that exceeded what was expected, in the worse of the last two steps.
    """
    now = before = 0.0
    for i in range(rows.size):
        row = state[rows[i]]
        union = _expected(row, AHEAD)
        out[i] = row[union : union + BLOCK_SIZES]
        now, before = now + row[WIDE], before + row[WIDE_BEFORE]
    return max(now, before)


@_compiled
def learn(
    state: _Counts, rows: _Rows, finite: _Flags, unions: _Counts, wide: _Counts, again: int,
    dense: int, exchange: float, cells: float,
) -> None:  # fmt: skip
    """Record a step of the rows that were `finite`; again: as `Learned.again`, -1 for None.

    dense: how many rows are not sparse, the first ones. exchange, cells: `NetworkModel.prices`.
    """
    total = _misestimates(state, rows, unions, dense, exchange)
    for i in range(rows.size):
        if not finite[i]:
            continue
        row, seen = state[rows[i]], unions[i]
        if again < 0:
            row[MISSED] *= 1 - _RECENT / 4
            row[AGAIN] *= 1 - _RECENT / 4
            row[WIDE] *= 1 - 2 * _RECENT
        else:
            row[WIDE_BEFORE], row[WIDE] = row[WIDE], wide[i]
            row[MISSED] += _RECENT * ((again > 0) - row[MISSED])
            row[AGAIN] += _RECENT * (again - row[AGAIN])
        if row[STEPS] > 0:
            share = seen[0] / total[0] if total[0] > seen[0] and i >= dense else 1.0
            _update_rule_costs(row, seen[0], share * exchange, cells)
            for kind in range(ESTIMATES):
                cost = total[1 + kind] if i >= dense else 0.0
                row[MISESTIMATES + kind] += _RECENT * (cost - row[MISESTIMATES + kind])
        for column in range(BASIS - 1, UNIONS - 1, -1):
            before = column - BLOCK_SIZES
            row[column] = (
                row[before] if before >= UNIONS and row[STEPS] > 0 else seen[(column - UNIONS) % BLOCK_SIZES]
            )
        if seen[0] > 0:
            row[FILLED] = seen[0]
        _choose_rules(row)
        row[STEPS] += 1


@_compiled
def unions(
    elements: _Rows,
    dense: int,
    fields: NDArray[np.int32],
    wanted: _Rows,
    total: _Rows,
    counted: NDArray[np.int64],
    out: _Counts,
) -> int:
    """Write the union of each segment; return how many are open, which the caller must count.

    A union of at most a quarter of the elements is what was `counted`, in a sparse segment. In a dense one it
    is open, and -1. Others are what is expected of elements that are non-zero with the same probability, and
    0 if the segment is not finite. wanted: whether the next choice depends on where the non-zeros are.
    total: the non-zeros of dense segments.
    """
    open_count = 0
    for s in range(elements.size):
        if fields[s] == NON_FINITE:  # its integers are undefined, and differ between processors
            out[s] = 0.0
            continue
        sparse = s >= dense
        count = counted[s, 0] if sparse else total[s]
        density = count / elements[s] if wanted[s] else 1.0
        if fields[s] == ZERO:
            density = 0.0
        if wanted[s] and 0 < density <= _DENSE:
            open_count += not sparse
            for b in range(BLOCK_SIZES):
                out[s, b] = counted[s, b] if sparse else -1.0
            continue
        # Squared again and again: powers differ between processors, whose workers must choose alike.
        zeros, size = 1.0 - density, 1.0
        for b in range(BLOCK_SIZES):
            out[s, b] = elements[s] / size * (1.0 - zeros)
            zeros, size = zeros * zeros, 2.0 * size
    return open_count


def warm_up(implementation: Implementation = "cpu") -> None:
    """Run `peelsum.codec.warm_up`, and the loops over tensors and blocks once."""
    codec.warm_up(implementation)
    level_loops.warm_up()
    state, rows, flags = np.zeros((1, COLUMNS)), np.zeros(1, np.int64), np.zeros(1, np.bool_)
    choice, seen, counts = np.zeros((1, BASIS_COLUMNS)), np.zeros((1, BLOCK_SIZES)), np.ones(1, np.int64)
    unions(counts, 1, np.zeros(1, np.int32), counts, counts, np.zeros((1, BLOCK_SIZES), np.int64), seen)
    learn(state, rows, flags, seen, np.zeros(1), -1, 0, 0.0, 0.0)
    basis(state, rows, choice)
    expected(state, rows, seen)
