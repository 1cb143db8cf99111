"""LLVM intrinsics that Numba lacks: operations on vectors, prefetching, and pointers from addresses.

LLVM translates them to instructions of any processor, whatever the width of its vectors. Only those that
compress and expand floats need AVX-512. Indices are not checked.

A function `_type_...` is what Numba calls to compile an intrinsic: it gets the arguments' types, and returns
the signature and the function that emits the code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic
from numpy.typing import NDArray

_Prefetch = Callable[[NDArray[Any], np.uint64], None]
#: Vector lengths: words of `used_bits`, positions of `write_set_bits`.
_WORD_LANES, _POSITION_LANES = 32, 8
#: How many floats ahead `write_bitmap_words` prefetches.
_PREFETCH_DISTANCE = 2048
_BIT, _BYTE, _WORD, _LONG = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
#: Vector length of `compress_floats`, `expand_floats` and `multiply_numbers`.
_FLOAT_LANES = 16


def _cpu_features() -> list[str]:
    """Return the features of the processor that Numba compiles for, such as "+avx2"."""
    configured: str | None = config.CPU_FEATURES  # type: ignore[attr-defined]  # made at run time
    features: str = get_host_cpu_features() if configured is None else configured  # type: ignore[no-untyped-call]
    return features.split(",")


#: Whether `compress_floats` and `expand_floats`, instructions of AVX-512, can be compiled.
HAS_AVX512 = "+avx512f" in _cpu_features()


def emit_prefetch(context: Any, builder: Any, array: Any, value: Any, at: Any, *, written: bool) -> None:
    """Emit a prefetch of value[at] for reading, or for writing if `written`. array: the value's type."""
    data = context.make_array(array)(context, builder, value).data
    byte_pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    address = builder.bitcast(builder.gep(data, [at]), byte_pointer)
    kind, name = ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag]), "llvm.prefetch.p0"
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    # 3: keep in every cache level; 1: data, not instructions.
    builder.call(function, [address, flag(int(written)), flag(3), flag(1)])


def _prefetch(*, written: bool) -> _Prefetch:
    """Return an intrinsic function (array, index) that prefetches an element."""

    def typed(_: Any, array: Any, at: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            emit_prefetch(context, builder, array, *arguments, written=written)
            return context.get_dummy_value()

        return types.void(array, types.uint64), emit

    return cast(_Prefetch, intrinsic(typed))


#: Prefetch array[at] into the cache, for writing.
prefetch_to_write = _prefetch(written=True)
#: Prefetch array[at] into the cache, for reading only.
prefetch_to_read = _prefetch(written=False)


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


def _mask_vector(builder: Any, mask: Any) -> Any:
    """Return the lowest 16 bits of an integer as a vector of booleans."""
    return builder.bitcast(builder.trunc(mask, ir.IntType(_FLOAT_LANES)), ir.VectorType(_BIT, _FLOAT_LANES))


def _call_intrinsic(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
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
        for distance in (_PREFETCH_DISTANCE, _PREFETCH_DISTANCE + _FLOAT_LANES):
            emit_prefetch(context, builder, array, source, builder.add(at, count(distance)), written=False)
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
        return builder.or_(_reduce(builder, "umax", largest), _reduce(builder, "or", signs))

    return types.uint32(array, types.uint64, types.uint64, out), emit


def _reduce(builder: Any, name: str, vector: Any) -> Any:
    """Reduce a vector to one word, by LLVM's reduction `name`, e.g. "or"."""
    return _call_intrinsic(builder, f"llvm.vector.reduce.{name}.v{_WORD_LANES}i32", _WORD, [vector])


def _type_compress(_: Any, floats: Any, at: Any, mask: Any, out: Any, to: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.FloatType(), _FLOAT_LANES)
        loaded = builder.load(_address_of(context, builder, floats, arguments[0], arguments[1], vector))
        loaded.align = 4
        operands = [loaded, ir.Constant(vector, None), _mask_vector(builder, arguments[2])]
        packed = _call_intrinsic(builder, "llvm.x86.avx512.mask.compress.v16f32", vector, operands)
        stored = builder.store(packed, _address_of(context, builder, out, arguments[3], arguments[4], vector))
        stored.align = 4
        return context.get_dummy_value()

    return types.void(floats, types.uint64, types.uint32, out, types.uint64), emit


def _spread(context: Any, builder: Any, kind: Any, floats: Any, at: Any, mask: Any) -> Any:
    """Return a vector: floats[at:] in order in the lanes whose bit is set in `mask`, and 0 in the others."""
    vector = ir.VectorType(ir.FloatType(), _FLOAT_LANES)
    loaded = builder.load(_address_of(context, builder, kind, floats, at, vector))
    loaded.align = 4
    # With an operand in memory, the instruction took seven times as long on an AMD EPYC. The empty assembler
    # text keeps the compiler from joining it and the load.
    register = builder.call(ir.InlineAsm(ir.FunctionType(vector, [vector]), "", "=v,0"), [loaded])
    operands = [register, ir.Constant(vector, None), _mask_vector(builder, mask)]
    return _call_intrinsic(builder, "llvm.x86.avx512.mask.expand.v16f32", vector, operands)


def _type_expand(_: Any, floats: Any, at: Any, mask: Any, out: Any, to: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.FloatType(), _FLOAT_LANES)
        spread = _spread(context, builder, floats, *arguments[:3])
        stored = builder.store(spread, _address_of(context, builder, out, arguments[3], arguments[4], vector))
        stored.align = 4
        return context.get_dummy_value()

    return types.void(floats, types.uint64, types.uint32, out, types.uint64), emit


def _type_multiply(_: Any, numbers: Any, at: Any, factor: Any, out: Any) -> Any:
    converted = {types.float32: "fpext", types.int32: "sitofp"}[numbers.dtype]

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.VectorType(ir.DoubleType(), _FLOAT_LANES)
        narrow = ir.VectorType(context.get_value_type(numbers.dtype), _FLOAT_LANES)
        loaded = builder.load(_address_of(context, builder, numbers, arguments[0], arguments[1], narrow))
        loaded.align = 4
        doubles = getattr(builder, converted)(loaded, wide)
        scaled = builder.fmul(doubles, _broadcast(builder, arguments[2], _FLOAT_LANES))
        stored = builder.store(scaled, _address_of(context, builder, out, arguments[3], arguments[1], wide))
        stored.align = 8
        return context.get_dummy_value()

    return types.void(numbers, types.uint64, types.float64, out), emit


#: Write numbers[at : at + 16] * factor to out[at : at + 16], from float32 or int32. In a loop, the compiler
#: would first test whether the arrays overlap.
multiply_numbers = cast(
    Callable[[NDArray[Any], np.uint64, float, NDArray[np.float64]], None], intrinsic(_type_multiply)
)
_Pack = Callable[[NDArray[np.float32], np.uint64, np.uint32, NDArray[np.float32], np.uint64], None]
#: compress_floats(floats, at, mask, out, to): write those of floats[at : at + 16] whose bit is set in `mask`
#: to out[to:], and zeros after them, 16 floats in all.
compress_floats = cast(_Pack, intrinsic(_type_compress))
#: expand_floats(floats, at, mask, out, to): write floats[at:] in order to those of out[to : to + 16] whose
#: bit is set in `mask`, and 0 to the others. 16 floats are read.
expand_floats = cast(_Pack, intrinsic(_type_expand))


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
