"""Parts of Triton kernels that work for several launches at once, each a row of a table.

A kernel whose first parameters are `table` and `launches` is launched in one of two ways. Without a table
(None), it takes its arguments as they are. With one, its programs are those of several launches, one after
the other. Each program finds its launch's row, and there the arguments, int64 each: numbers, and addresses.
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
    """Return this program's row (None without a table), and its number of how many programs of its launch."""
    if table is None:
        row, program, programs = table, tl.program_id(0), tl.num_programs(0)
    else:
        # Rows are in the order of their first programs: this one's is the last that does not begin later.
        begun = tl.zeros((), tl.int32)
        for start in range(0, launches, _AT_ONCE):
            one = start + tl.arange(0, _AT_ONCE)
            first = tl.load(table + one * _COLUMNS + _FIRST, mask=one < launches, other=0x7FFFFFFF)
            begun += tl.sum((first <= tl.program_id(0)).to(tl.int32), axis=0)
        row = table + (begun - 1) * _COLUMNS
        program = tl.program_id(0) - tl.load(row + _FIRST).to(tl.int32)
        programs = tl.load(row + _PROGRAMS).to(tl.int32)
    return row, program, programs


@triton.jit
def size(row, column: tl.constexpr, given):
    """Return a number of the launch; `given` is the kernel's own argument."""
    return given if row is None else tl.load(row + column)


@triton.jit
def _address(row, column: tl.constexpr, given, kind: tl.constexpr):
    if row is None:
        found = given
    else:
        found = None if given is None else tl.load(row + column).to(tl.pointer_type(kind))
    return found


@triton.jit
def ints(row, column: tl.constexpr, given):
    """Return the address of an array of int32, like `size`; None if there is none."""
    return _address(row, column, given, tl.int32)


@triton.jit
def longs(row, column: tl.constexpr, given):
    """Return the address of an array of int64, like `ints`."""
    return _address(row, column, given, tl.int64)


@triton.jit
def floats(row, column: tl.constexpr, given):
    """Return the address of an array of float32, like `ints`."""
    return _address(row, column, given, tl.float32)
