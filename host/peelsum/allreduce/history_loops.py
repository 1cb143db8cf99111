"""Loops over what is known of tensors, a row for each: compiled by Numba, and cached on disk.

A step looks at each row a few times, and NumPy's calls would take longer than a small tensor's sum.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peelsum import codec
from peelsum.codec import BLOCK_SIZES, NON_FINITE, Implementation
from peelsum.codec.block_scales import ZERO
from peelsum.compiling import compiler

#: Columns of facts: steps; whether the last choice knew a union; elements of blocks that exceeded what was
#: expected in the step before the last. Then how often something is sent again, and how many words, on
#: average, and elements that exceeded in the last step; and these three at the last choice.
FACTS = 9
STEPS, INFORMED, WIDE_BEFORE, MISSED, AGAIN, WIDE, BASES = range(7)
#: Where unions begin: the last three, the last with a non-zero, and the one of the last choice.
UNIONS = 5
LAST, BEFORE, EARLIEST, FILLED, BASIS = range(FACTS, FACTS + UNIONS * BLOCK_SIZES, BLOCK_SIZES)
COLUMNS = FACTS + UNIONS * BLOCK_SIZES
#: Columns of a choice's basis: a union, then facts from BASES on.
BASIS_COLUMNS = BLOCK_SIZES + FACTS - BASES
#: Unions are alike if their counts differ by less than one part in so many, or by chance: by so many standard
#: deviations of a random union's.
_RESEMBLING, _BY_CHANCE = 16.0, 3.0
#: Part of `MISSED` that a step contributes, and a change of it that calls for another choice.
_RECENT, _MOVED = 0.125, 0.25
#: A change of the elements that exceed that calls for another choice: this part of them, and so many.
_WIDENED, _MANY_WIDE = 0.6, 4096.0
#: Above this density, the positions of the non-zeros do not affect the choice of a form.
_DENSE = 1 / 4

_Rows = NDArray[np.int64]
_Counts = NDArray[np.float64]
_Flags = NDArray[np.bool_]

_compiled = compiler({"nogil": True})


@_compiled
def _fewest(row: _Counts) -> int:
    """Return where a row's union begins of the last two with fewer candidates."""
    return LAST if row[LAST] <= row[BEFORE] else BEFORE


@_compiled
def _differs(row: _Counts) -> bool:
    union = _fewest(row)
    if row[INFORMED] == 0 and row[STEPS] > 0:
        return True
    for b in range(BLOCK_SIZES):
        basis = row[BASIS + b]
        if abs(row[union + b] - basis) > max(basis / _RESEMBLING, _BY_CHANCE * np.sqrt(basis)):
            return True
    if abs(row[MISSED] - row[BASES]) > _MOVED:
        return True
    wide, then = row[WIDE], row[BASES + WIDE - MISSED]
    more: bool = abs(wide - then) > max(_WIDENED * max(wide, then), _MANY_WIDE)
    return more


@_compiled
def differ(state: _Counts, rows: _Rows, out: _Flags) -> None:
    """Write whether what each row's choice depends on differs from what it was at that choice."""
    for i in range(rows.size):
        out[i] = _differs(state[rows[i]])


@_compiled
def _basis(row: _Counts, column: int) -> float:
    if row[INFORMED] == 0:
        return -1.0
    value: float = row[BASIS + column] if column < BLOCK_SIZES else row[BASES + column - BLOCK_SIZES]
    return value


@_compiled
def basis(state: _Counts, rows: _Rows, out: _Counts) -> None:
    """Write the basis of each row's last choice, out[rows, BASIS_COLUMNS]; -1 without a union."""
    for i in range(rows.size):
        for column in range(BASIS_COLUMNS):
            out[i, column] = _basis(state[rows[i]], column)


@_compiled
def changed(state: _Counts, rows: _Rows, before: _Counts) -> bool:
    """Return whether a row's choice is to be made again, or has another `basis` than before."""
    for i in range(rows.size):
        row = state[rows[i]]
        if _differs(row):
            return True
        for column in range(BASIS_COLUMNS):
            if _basis(row, column) != before[i, column]:
                return True
    return False


@_compiled
def choose(state: _Counts, rows: _Rows) -> None:
    """Note that choices are made for the rows as they are."""
    for i in range(rows.size):
        row = state[rows[i]]
        union = _fewest(row)
        row[BASIS:] = row[union : union + BLOCK_SIZES]
        row[INFORMED] = row[STEPS] > 0
        row[BASES:FACTS] = row[MISSED:BASES]


@_compiled
def most(state: _Counts, rows: _Rows, out: _Counts) -> float:
    """Write each row's union with most candidates of its last three; return their elements that exceed.

    These are elements of blocks that exceeded what was expected, in the worse of the last two steps.
    """
    now = before = 0.0
    for i in range(rows.size):
        row = state[rows[i]]
        union = LAST
        for other in (BEFORE, EARLIEST):
            union = other if row[other] > row[union] else union
        out[i] = row[union : union + BLOCK_SIZES]
        now, before = now + row[WIDE], before + row[WIDE_BEFORE]
    return max(now, before)


@_compiled
def learn(state: _Counts, rows: _Rows, finite: _Flags, unions: _Counts, wide: _Counts, again: int) -> None:
    """Record a step of the rows that were `finite`; again: as `Learned.again`, -1 for None."""
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
        first = row[STEPS] == 0
        for b in range(BLOCK_SIZES):
            row[EARLIEST + b] = seen[b] if first else row[BEFORE + b]
            row[BEFORE + b] = seen[b] if first else row[LAST + b]
            row[LAST + b] = seen[b]
            if seen[0] > 0:
                row[FILLED + b] = seen[b]
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
) -> tuple[int, int]:
    """Write the union of each segment; return the non-zeros of the sparse ones, and how many are open.

    A union of at most a quarter of the elements is what was `counted`, in a sparse segment. In a dense one it
    is open, and -1. Others are what is expected of elements that are non-zero with the same probability, and
    0 if the segment is not finite. wanted: whether the next choice depends on where the non-zeros are.
    total: the non-zeros of dense segments.
    """
    found = few = 0
    for s in range(elements.size):
        if fields[s] == NON_FINITE:  # its integers are undefined, and differ between processors
            out[s] = 0.0
            continue
        sparse = s >= dense
        count = counted[s, 0] if sparse else total[s]
        found += count if sparse else 0
        density = count / elements[s] if wanted[s] else 1.0
        if fields[s] == ZERO:
            density = 0.0
        if wanted[s] and 0 < density <= _DENSE:
            few += not sparse
            for b in range(BLOCK_SIZES):
                out[s, b] = counted[s, b] if sparse else -1.0
            continue
        # Squared again and again: powers differ between processors, whose workers must choose alike.
        zeros, size = 1.0 - density, 1.0
        for b in range(BLOCK_SIZES):
            out[s, b] = elements[s] / size * (1.0 - zeros)
            zeros, size = zeros * zeros, 2.0 * size
    return found, few


def warm_up(implementation: Implementation = "cpu") -> None:
    """Run `peelsum.codec.warm_up`, and these loops once."""
    codec.warm_up(implementation)
    state, rows, flags = np.zeros((1, COLUMNS)), np.zeros(1, np.int64), np.zeros(1, np.bool_)
    choice, seen, counts = np.zeros((1, BASIS_COLUMNS)), np.zeros((1, BLOCK_SIZES)), np.ones(1, np.int64)
    unions(counts, 1, np.zeros(1, np.int32), counts, counts, np.zeros((1, BLOCK_SIZES), np.int64), seen)
    learn(state, rows, flags, seen, np.zeros(1), -1)
    choose(state, rows)
    differ(state, rows, flags)
    basis(state, rows, choice)
    changed(state, rows, choice)
    most(state, rows, seen)
