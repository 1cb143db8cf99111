"""LLVM intrinsics that Numba lacks: operations on vectors, and pointers from addresses.

LLVM translates them to instructions of any processor, whatever the width of its vectors. Indices are not
checked.

A function `_type_...` is what Numba calls to compile an intrinsic: it gets the arguments' types, and returns
the signature and the function that emits the code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

#: Vector lengths: words of `used_bits`, positions of `write_set_bits`.
_WORD_LANES, _POSITION_LANES = 32, 8
#: How many floats ahead `write_bitmap_words` prefetches, and the floats of a cache line.
_PREFETCH_DISTANCE, _LINE_FLOATS = 2048, 16
_BYTE, _WORD, _LONG = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def _address_of(context: Any, builder: Any, kind: Any, array: Any, index: Any, vector: Any) -> Any:
    """Return the address of array[index] as a pointer to a vector. kind: the array's type."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), vector.as_pointer())


def _broadcast(builder: Any, value: Any, lanes: int) -> Any:
    """Return a vector whose lanes are all `value`."""
    vector = ir.VectorType(value.type, lanes)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(_WORD, lanes), [0] * lanes))


def _type_used_bits(_: Any, array: Any, at: Any, mask: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_WORD, _WORD_LANES)
        loaded = builder.load(_address_of(context, builder, array, arguments[0], arguments[1], vector))
        loaded.align = 4
        masked = builder.and_(loaded, _broadcast(builder, arguments[2], _WORD_LANES))
        return builder.bitcast(builder.icmp_unsigned("!=", masked, ir.Constant(vector, None)), _WORD)

    return types.uint32(array, types.uint64, types.uint32), emit


def _type_write_set_bits(_: Any, table: Any, row: Any, first: Any, out: Any, at: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        narrow, wide = ir.VectorType(_BYTE, _POSITION_LANES), ir.VectorType(_LONG, _POSITION_LANES)
        index = builder.mul(arguments[1], ir.Constant(_LONG, _POSITION_LANES))
        inside = builder.load(_address_of(context, builder, table, arguments[0], index, narrow))
        inside.align = 1
        places = builder.add(builder.zext(inside, wide), _broadcast(builder, arguments[2], _POSITION_LANES))
        stored = builder.store(places, _address_of(context, builder, out, arguments[3], arguments[4], wide))
        stored.align = 8
        return context.get_dummy_value()

    return types.void(table, types.uint64, types.int64, out, types.uint64), emit


def _call_llvm(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """Call LLVM's intrinsic function `name`, which returns a value of type `result`."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, arguments)


def _type_write_bitmap_words(_: Any, array: Any, begin: Any, words: Any, out: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, begin, words, target = arguments
        vector = ir.VectorType(_WORD, _WORD_LANES)
        zero, magnitude_mask = ir.Constant(vector, None), ir.Constant(vector, [0x7FFFFFFF] * _WORD_LANES)
        before, count = builder.block, partial(ir.Constant, _LONG)
        place = builder.udiv(begin, count(_WORD_LANES))
        test, body, after = (builder.append_basic_block() for _ in range(3))
        builder.branch(test)

        builder.position_at_end(test)
        done, largest, signs = (builder.phi(kind) for kind in (_LONG, vector, vector))
        builder.cbranch(builder.icmp_unsigned("<", done, words), body, after)

        builder.position_at_end(body)
        at = builder.add(begin, builder.mul(done, count(_WORD_LANES)))
        for distance in (_PREFETCH_DISTANCE, _PREFETCH_DISTANCE + _LINE_FLOATS):
            ahead = _address_of(context, builder, array, source, builder.add(at, count(distance)), _BYTE)
            # To be read, not written (0); kept in every cache level (3); data, not instructions (1).
            flags = [ir.Constant(_WORD, flag) for flag in (0, 3, 1)]
            _call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), [ahead, *flags])
        loaded = builder.load(_address_of(context, builder, array, source, at, vector))
        loaded.align = 4
        magnitudes = builder.and_(loaded, magnitude_mask)
        used = builder.icmp_unsigned("!=", magnitudes, zero)
        written = _address_of(context, builder, out, target, builder.add(place, done), _WORD)
        builder.store(builder.bitcast(used, _WORD), written)
        # Where the magnitude is 0, the word is 0.0 or -0.0.
        following = (
            builder.add(done, count(1)),
            builder.select(builder.icmp_unsigned(">", magnitudes, largest), magnitudes, largest),
            builder.or_(signs, builder.select(used, zero, loaded)),
        )
        for phi, first, value in zip((done, largest, signs), (count(0), zero, zero), following, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(value, body)
        builder.branch(test)

        builder.position_at_end(after)
        reduced = (
            _call_llvm(builder, f"llvm.vector.reduce.{name}.v{_WORD_LANES}i32", _WORD, [lanes])
            for name, lanes in (("umax", largest), ("or", signs))
        )
        return builder.or_(*reduced)

    return types.uint32(array, types.uint64, types.uint64, out), emit


def _type_pointer(_: Any, address: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], _BYTE.as_pointer())

    return types.voidptr(types.int64), emit


#: Return an address as a pointer.
pointer = cast(Callable[[int], Any], intrinsic(_type_pointer))
#: used_bits(array, at, mask): return 32 bits, one for each word of array[at : at + 32]: 1 if the word has a
#: bit of `mask`.
used_bits = cast(
    Callable[[NDArray[np.uint32], np.uint64 | int, np.uint32], np.uint32], intrinsic(_type_used_bits)
)
#: write_bitmap_words(bits, begin, words, out): write the words of a bitmap of non-zeros for 32 * `words`
#: floats, given as bit patterns, from `begin` on, a multiple of 32. Return the largest magnitude, with bit 31
#: set if some float is -0.0.
write_bitmap_words = cast(
    Callable[[NDArray[np.uint32], np.uint64, np.uint64, NDArray[np.uint32]], np.uint32],
    intrinsic(_type_write_bitmap_words),
)
#: write_set_bits(table, row, first, out, at): add `first` to the bytes table[8 * row : 8 * row + 8], and
#: write the sums to out[at : at + 8].
write_set_bits = cast(
    Callable[[NDArray[np.uint8], np.uint64, np.int64, NDArray[np.int64], np.uint64], None],
    intrinsic(_type_write_set_bits),
)
