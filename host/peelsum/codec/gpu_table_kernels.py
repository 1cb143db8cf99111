"""Parts of Triton kernels that work for several launches at once, each a row of a table.

A kernel whose first parameters are `table` and `launches` is launched in one of two ways. Without a table (None),
it takes its arguments as they are. With one, its programs are those of several launches, one after the other;
each program finds its launch's row and reads the arguments there, int64 each: numbers, and addresses.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: The columns of a row. The last two are the launch's first program and the number of its programs.
COLUMNS, FIRST, PROGRAMS = 16, 14, 15
_COLUMNS, _FIRST, _PROGRAMS = tl.constexpr(COLUMNS), tl.constexpr(FIRST), tl.constexpr(PROGRAMS)
_AT_ONCE = tl.constexpr(32)


@triton.jit
def placed(table, launches):
    """Return the row of this program's launch (None without a table), its number there, and how many are."""
    program = tl.program_id(0)
    if table is None:
        return table, program, tl.num_programs(0)
    # Rows are in the order of their first programs: this one's is the last that does not begin behind it.
    begun = tl.zeros((), tl.int32)
    for start in range(0, launches, _AT_ONCE):
        one = start + tl.arange(0, _AT_ONCE)
        first = tl.load(table + one * _COLUMNS + _FIRST, mask=one < launches, other=0x7FFFFFFF)
        begun += tl.sum((first <= program).to(tl.int32), axis=0)
    row = table + (begun - 1) * _COLUMNS
    return row, program - tl.load(row + _FIRST).to(tl.int32), tl.load(row + _PROGRAMS).to(tl.int32)


@triton.jit
def size(row, column: tl.constexpr, given):
    """Return a number of the launch; `given` is the kernel's own argument."""
    if row is None:
        return given
    return tl.load(row + column)


@triton.jit
def ints(row, column: tl.constexpr, given):
    """Return the address of an array of int32, like `size`; None if there is none."""
    if row is None:
        return given
    if given is None:
        return given
    return tl.load(row + column).to(tl.pointer_type(tl.int32))


@triton.jit
def longs(row, column: tl.constexpr, given):
    """Return the address of an array of int64, like `ints`."""
    if row is None:
        return given
    if given is None:
        return given
    return tl.load(row + column).to(tl.pointer_type(tl.int64))


@triton.jit
def floats(row, column: tl.constexpr, given):
    """Return the address of an array of float32, like `ints`."""
    if row is None:
        return given
    if given is None:
        return given
    return tl.load(row + column).to(tl.pointer_type(tl.float32))
