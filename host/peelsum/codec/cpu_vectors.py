"""Operations for compiled loops that Numba has no words for: on vectors, and on arrays by their addresses.

LLVM translates them to the processor's instructions, whatever the width of its vectors. Indices are not
checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

_WORDS, _PLACES = 32, 8
_BYTE, _WORD, _LONG = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def _at(context: Any, builder: Any, kind: Any, array: Any, index: Any, vector: Any) -> Any:
    """Return the address of array[index] as that of a vector."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), vector.as_pointer())


def _splat(builder: Any, value: Any, lanes: int) -> Any:
    """Return a vector whose lanes are all `value`."""
    vector = ir.VectorType(value.type, lanes)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(_WORD, lanes), [0] * lanes))


def _typed_used(_: Any, array: Any, at: Any, mask: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_WORD, _WORDS)
        loaded = builder.load(_at(context, builder, array, arguments[0], arguments[1], vector))
        loaded.align = 4
        masked = builder.and_(loaded, _splat(builder, arguments[2], _WORDS))
        return builder.bitcast(builder.icmp_unsigned("!=", masked, ir.Constant(vector, None)), _WORD)

    return types.uint32(array, types.uint64, types.uint32), emit


def _typed_places(_: Any, table: Any, row: Any, first: Any, out: Any, at: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        narrow, wide = ir.VectorType(_BYTE, _PLACES), ir.VectorType(_LONG, _PLACES)
        index = builder.mul(arguments[1], ir.Constant(_LONG, _PLACES))
        inside = builder.load(_at(context, builder, table, arguments[0], index, narrow))
        inside.align = 1
        places = builder.add(builder.zext(inside, wide), _splat(builder, arguments[2], _PLACES))
        stored = builder.store(places, _at(context, builder, out, arguments[3], arguments[4], wide))
        stored.align = 8
        return context.get_dummy_value()

    return types.void(table, types.uint64, types.int64, out, types.uint64), emit


def _typed_pointer(_: Any, address: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], _BYTE.as_pointer())

    return types.voidptr(types.int64), emit


#: Return an address as a pointer.
pointer = cast(Callable[[int], Any], intrinsic(_typed_pointer))
#: Return 32 bits, one for each word of array[at : at + 32]: 1 if the word shares a bit with `mask`.
used_bits = cast(
    Callable[[NDArray[np.uint32], np.uint64 | int, np.uint32], np.uint32], intrinsic(_typed_used)
)
#: Add `first` to the bytes table[8 * row : 8 * row + 8], and write the sums to out[at : at + 8].
write_places = cast(
    Callable[[NDArray[np.uint8], np.uint64, np.int64, NDArray[np.int64], np.uint64], None],
    intrinsic(_typed_places),
)
