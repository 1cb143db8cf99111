"""Operations for compiled loops that Numba has no words for: on vectors, on the caches, and on addresses.

LLVM translates them to the processor's instructions, whatever the width of its vectors; only those that pack
and spread floats need AVX-512. Indices are not checked.
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
_WORDS, _PLACES = 32, 8
#: How many floats ahead `indexed` prefetches.
_AHEAD = 2048
_BIT, _BYTE, _WORD, _LONG = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
#: Floats that `pack_floats` and `spread_floats` handle at once.
_FLOATS = 16


def _features() -> list[str]:
    """Return the features of the processor that Numba compiles for, such as "+avx2"."""
    asked: str | None = config.CPU_FEATURES  # type: ignore[attr-defined]  # made at run time
    found: str = get_host_cpu_features() if asked is None else asked  # type: ignore[no-untyped-call]
    return found.split(",")


#: Whether `pack_floats` and `spread_floats` can be compiled: they are instructions of AVX-512.
PACKS_FLOATS = "+avx512f" in _features()


def fetch(context: Any, builder: Any, array: Any, value: Any, at: Any, *, written: bool) -> None:
    """Emit the instruction that fetches value[at], of an array type, to be read or `written`."""
    data = context.make_array(array)(context, builder, value).data
    byte_pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    address = builder.bitcast(builder.gep(data, [at]), byte_pointer)
    kind, name = ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag]), "llvm.prefetch.p0"
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    # 3: keep in every cache level; 1: data, not instructions.
    builder.call(function, [address, flag(int(written)), flag(3), flag(1)])


def _prefetch(*, written: bool) -> _Prefetch:
    def typed(_: Any, array: Any, at: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            fetch(context, builder, array, *arguments, written=written)
            return context.get_dummy_value()

        return types.void(array, types.uint64), emit

    return cast(_Prefetch, intrinsic(typed))


#: Fetch array[at] into the cache, for writing.
prefetch = _prefetch(written=True)
#: Fetch array[at] into the cache, for reading only.
prefetch_to_read = _prefetch(written=False)


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


def _chosen(builder: Any, mask: Any) -> Any:
    return builder.bitcast(builder.trunc(mask, ir.IntType(_FLOATS)), ir.VectorType(_BIT, _FLOATS))


def _called(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """Call an intrinsic function of LLVM that returns such a value."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, arguments)


def _typed_indexed(_: Any, array: Any, begin: Any, words: Any, out: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, begin, words, target = arguments
        vector = ir.VectorType(_WORD, _WORDS)
        zero, magnitude = ir.Constant(vector, None), ir.Constant(vector, [0x7FFFFFFF] * _WORDS)
        before, count = builder.block, partial(ir.Constant, _LONG)
        place = builder.udiv(begin, count(_WORDS))
        test, body, after = (builder.append_basic_block() for _ in range(3))
        builder.branch(test)

        builder.position_at_end(test)
        done, largest, signs = (builder.phi(kind) for kind in (_LONG, vector, vector))
        builder.cbranch(builder.icmp_unsigned("<", done, words), body, after)

        builder.position_at_end(body)
        at = builder.add(begin, builder.mul(done, count(_WORDS)))
        for line in (_AHEAD, _AHEAD + _FLOATS):
            fetch(context, builder, array, source, builder.add(at, count(line)), written=False)
        loaded = builder.load(_at(context, builder, array, source, at, vector))
        loaded.align = 4
        own = builder.and_(loaded, magnitude)
        used = builder.icmp_unsigned("!=", own, zero)
        written = _at(context, builder, out, target, builder.add(place, done), _WORD)
        builder.store(builder.bitcast(used, _WORD), written)
        # Where the magnitude is 0, the word is 0.0 or -0.0.
        following = (
            builder.add(done, count(1)),
            builder.select(builder.icmp_unsigned(">", own, largest), own, largest),
            builder.or_(signs, builder.select(used, zero, loaded)),
        )
        for phi, first, value in zip((done, largest, signs), (count(0), zero, zero), following, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(value, body)
        builder.branch(test)

        builder.position_at_end(after)
        return builder.or_(_reduced(builder, "umax", largest), _reduced(builder, "or", signs))

    return types.uint32(array, types.uint64, types.uint64, out), emit


def _reduced(builder: Any, name: str, vector: Any) -> Any:
    """Reduce a vector's words to one."""
    return _called(builder, f"llvm.vector.reduce.{name}.v{_WORDS}i32", _WORD, [vector])


def _typed_pack(_: Any, floats: Any, at: Any, mask: Any, out: Any, to: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.FloatType(), _FLOATS)
        loaded = builder.load(_at(context, builder, floats, arguments[0], arguments[1], vector))
        loaded.align = 4
        given = [loaded, ir.Constant(vector, None), _chosen(builder, arguments[2])]
        packed = _called(builder, "llvm.x86.avx512.mask.compress.v16f32", vector, given)
        stored = builder.store(packed, _at(context, builder, out, arguments[3], arguments[4], vector))
        stored.align = 4
        return context.get_dummy_value()

    return types.void(floats, types.uint64, types.uint32, out, types.uint64), emit


def _spread(context: Any, builder: Any, kind: Any, floats: Any, at: Any, mask: Any) -> Any:
    """Return a vector with floats[at:], one after the other, where a mask has a bit, and 0 elsewhere."""
    vector = ir.VectorType(ir.FloatType(), _FLOATS)
    loaded = builder.load(_at(context, builder, kind, floats, at, vector))
    loaded.align = 4
    # With an operand in memory, the instruction took seven times as long on an AMD EPYC. The empty assembler
    # text keeps the compiler from joining it and the load.
    kept = builder.call(ir.InlineAsm(ir.FunctionType(vector, [vector]), "", "=v,0"), [loaded])
    given = [kept, ir.Constant(vector, None), _chosen(builder, mask)]
    return _called(builder, "llvm.x86.avx512.mask.expand.v16f32", vector, given)


def _typed_spread(_: Any, floats: Any, at: Any, mask: Any, out: Any, to: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.FloatType(), _FLOATS)
        spread = _spread(context, builder, floats, *arguments[:3])
        stored = builder.store(spread, _at(context, builder, out, arguments[3], arguments[4], vector))
        stored.align = 4
        return context.get_dummy_value()

    return types.void(floats, types.uint64, types.uint32, out, types.uint64), emit


def _typed_scale(_: Any, numbers: Any, at: Any, factor: Any, out: Any) -> Any:
    converted = {types.float32: "fpext", types.int32: "sitofp"}[numbers.dtype]

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.VectorType(ir.DoubleType(), _FLOATS)
        narrow = ir.VectorType(context.get_value_type(numbers.dtype), _FLOATS)
        loaded = builder.load(_at(context, builder, numbers, arguments[0], arguments[1], narrow))
        loaded.align = 4
        doubles = getattr(builder, converted)(loaded, wide)
        scaled = builder.fmul(doubles, _splat(builder, arguments[2], _FLOATS))
        stored = builder.store(scaled, _at(context, builder, out, arguments[3], arguments[1], wide))
        stored.align = 8
        return context.get_dummy_value()

    return types.void(numbers, types.uint64, types.float64, out), emit


#: Write numbers[at : at + 16] * factor to out[at : at + 16], from float32 or int32. In a loop, the compiler
#: would first test whether the arrays overlap.
scale_numbers = cast(
    Callable[[NDArray[Any], np.uint64, float, NDArray[np.float64]], None], intrinsic(_typed_scale)
)
_Pack = Callable[[NDArray[np.float32], np.uint64, np.uint32, NDArray[np.float32], np.uint64], None]
#: Write those of floats[at : at + 16] whose bit is set in a mask to out[to:], and then zeros: 16 floats.
pack_floats = cast(_Pack, intrinsic(_typed_pack))
#: Write floats[at:], one after the other, to those of out[to : to + 16] whose bit is set, and 0 to the
#: others. 16 floats are read.
spread_floats = cast(_Pack, intrinsic(_typed_spread))


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
#: Write the bitmap's words for `words` times 32 floats, given as bits, from `begin` on, a multiple of 32.
#: Return their magnitude, with bit 31 set if one of them is -0.0.
indexed = cast(
    Callable[[NDArray[np.uint32], np.uint64, np.uint64, NDArray[np.uint32]], np.uint32],
    intrinsic(_typed_indexed),
)
#: Add `first` to the bytes table[8 * row : 8 * row + 8], and write the sums to out[at : at + 8].
write_places = cast(
    Callable[[NDArray[np.uint8], np.uint64, np.int64, NDArray[np.int64], np.uint64], None],
    intrinsic(_typed_places),
)
