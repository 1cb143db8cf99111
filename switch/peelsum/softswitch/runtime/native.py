"""Compiles generated code by Numba, with the functions that it calls; all numbers are unsigned, of 64 bits.

`peelsum.softswitch.runtime.plain` has functions of the same names in plain Python.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba import types as numba_types
from numba.core import cgutils as numba_cgutils
from numba.extending import intrinsic

from peelsum.compiling import compiler
from peelsum.softswitch.compiler.loading import RUNTIME, Generated
from peelsum.softswitch.runtime import hashes, meters, plain, queues

# Numba's own annotations are partial and do not describe what it returns here.
types: Any = numba_types
cgutils: Any = numba_cgutils
#: Numba's options for generated code and these functions.
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False}
_jit: Callable[[Any], Any] = njit(**OPTIONS)


def K(value: int) -> np.uint64:  # noqa: N802 - short, since generated code defines every constant with it
    """Return a constant as an unsigned number, a negative one in two's complement."""
    return np.uint64(value & (1 << 64) - 1)


def _kernel(function: Callable[..., Any]) -> Any:
    """Compile a copy of a function, in which its module's integer constants are unsigned 64-bit numbers.

    With signed constants, Numba would convert unsigned numbers to floats.
    """
    names: dict[str, Any] = vars(sys.modules[function.__module__])
    typed = {name: K(value) if type(value) is int else value for name, value in names.items()}
    return _jit(FunctionType(function.__code__, typed, function.__name__))


find_exact1, find_exact = _kernel(plain.find_exact1), _kernel(plain.find_exact)
find_first1, find_first = _kernel(plain.find_first1), _kernel(plain.find_first)
globals().update({function.__name__: _kernel(function) for function in hashes.COMPILED})
meter_colour = _kernel(meters.meter_colour)
random_number, next_number = _kernel(plain.random_number), _kernel(plain.next_number)
enqueue, schedule_departure = _kernel(queues.enqueue), _kernel(queues.schedule_departure)
waiting_time, burst_depth = _kernel(queues.waiting_time), _kernel(queues.burst_depth)

#: Most seconds that compiling a program may take, as `seconds_to_compile` estimates. Numba then needs less
#: than 1 GB of memory.
MOST_SECONDS = 10.0
_logger = logging.getLogger("peelsum.switch")
#: Converts an array's element to an unsigned 64-bit number.
number = np.uint64

_U8 = types.Array(types.uint8, 1, "C")
_I32 = types.Array(types.int32, 1, "C")
_U32 = types.Array(types.uint32, 1, "C")
_U64 = types.Array(types.uint64, 1, "C")
_N = types.uint64
#: data, stride, length, port, first, end, now, out, out_stride, out_length, out_port, out_leave, room,
#: copies, table memory, 32-bit and 64-bit registers, counters, groups, queues -> (next frame, frames out)
SIGNATURE = types.UniTuple(types.uint64, 2)(
    *(_U8, _N, _I32, _I32, _N, _N, _N, _U8, _N, _I32, _I32, _U64, _N, _N),
    *(_U64, _U32, _U64, _U64, _U64, _U64),
)
#: For programs that clone, resubmit or recirculate, also: clone sessions, waiting items, their bytes.
SIGNATURE_AGAIN = SIGNATURE.return_type(*SIGNATURE.args, _U64, _U64, _U8)


class CompiledProgram(types.WrapperAddressProtocol):  # type: ignore[misc]
    """A compiled program as a function pointer, so that one compiled loop can call any program."""

    def __init__(self, run: Any) -> None:
        """run: the machine code of a program that neither clones, resubmits nor recirculates."""
        self._run = run  # so that the code stays in memory
        compilation = run.get_compile_result(SIGNATURE)
        self._address = compilation.library.get_pointer_to_function(
            compilation.fndesc.llvm_cfunc_wrapper_name
        )

    def __wrapper_address__(self) -> int:
        return int(self._address)

    def signature(self) -> Any:
        """Return the type of the function, for Numba."""
        return SIGNATURE


def _load_intrinsic(bits: int) -> Any:
    """Return a function that loads `bits` bits from an array of bytes, in network byte order."""

    @intrinsic
    def load(context: Any, data: Any, offset: Any) -> Any:
        def emit_code(ctx: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _pointer_at(ctx, builder, signature.args[0], args[0], args[1], bits)
            value = builder.load(pointer, align=1)
            if bits > 8:
                value = builder.bswap(value)
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return types.uint64(data, offset), emit_code

    return load


def _store_intrinsic(bits: int) -> Any:
    """Return a function that stores `bits` bits to an array of bytes, in network byte order."""

    @intrinsic
    def store(context: Any, out: Any, offset: Any, value: Any) -> Any:
        def emit_code(ctx: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _pointer_at(ctx, builder, signature.args[0], args[0], args[1], bits)
            number = ctx.cast(builder, args[2], signature.args[2], types.uint64)
            truncated = number if bits == 64 else builder.trunc(number, ir.IntType(bits))
            builder.store(truncated if bits == 8 else builder.bswap(truncated), pointer, align=1)
            return ctx.get_dummy_value()

        return types.void(out, offset, value), emit_code

    return store


def _pointer_at(ctx: Any, builder: Any, kind: Any, array: Any, offset: Any, bits: int) -> Any:
    """Return a pointer to a number of `bits` bits, `offset` bytes into an array of bytes."""
    data = cgutils.create_struct_proxy(kind)(ctx, builder, value=array).data
    return builder.bitcast(builder.gep(data, [offset]), ir.IntType(bits).as_pointer())


load8, load16, load32, load64 = map(_load_intrinsic, (8, 16, 32, 64))
store8, store16, store32, store64 = map(_store_intrinsic, (8, 16, 32, 64))


@intrinsic
def copy(context: Any, out: Any, out_offset: Any, data: Any, data_offset: Any, count: Any) -> Any:
    """Copy `count` bytes."""

    def emit_code(ctx: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = _pointer_at(ctx, builder, signature.args[0], args[0], args[1], 8)
        source = _pointer_at(ctx, builder, signature.args[2], args[2], args[3], 8)
        cgutils.raw_memcpy(builder, target, source, args[4], 1)
        return ctx.get_dummy_value()

    return types.void(out, out_offset, data, data_offset, count), emit_code


def _zeros_function(dtype: Any) -> Any:
    def array(count: Any) -> Any:
        """Return `count` zeros."""
        return np.zeros(count, dtype)

    return _jit(array)


array8, array16, array32, array64 = map(_zeros_function, (np.uint8, np.uint16, np.uint32, np.uint64))
_ZERO, _WIDTH = K(0), K(64)


@_jit
def shl(value: Any, count: Any) -> Any:
    """Return `value` shifted left, modulo 2**64; 0 for shifts of 64 bits and more."""
    return value << count if count < _WIDTH else _ZERO


@_jit
def shr(value: Any, count: Any) -> Any:
    """Return `value` shifted right; 0 for shifts of 64 bits and more."""
    return value >> count if count < _WIDTH else _ZERO


@_jit
def clamp(value: Any, low: Any, high: Any) -> Any:
    """Return the number in low..high nearest to `value`, all signed 64-bit."""
    if np.int64(value) < np.int64(low):
        return low
    if np.int64(value) > np.int64(high):
        return high
    return value


def seconds_to_compile(source: str) -> float:
    """Return an estimate of the processor time that Numba needs for generated code; it ignores the machine.

    Numba analyses variables in every block, so its time grows with the product of both numbers. The factors
    were fitted to programs that take 1 to 45 s.
    """
    word_count = sum(1 for _ in re.finditer(r"\w+", source))
    block_count = source.count(":\n")
    return 0.5 + 1.4e-3 * word_count + 2.8e-6 * word_count * block_count


def machine_code(generated: Generated, name: str) -> Callable[..., tuple[int, int]] | None:
    """Return the generated function of program `name` as machine code.

    Return None, and log the reason, if Numba would take too long or fails.
    """
    if generated.not_compilable:
        _logger.warning(
            "switch: interprets program %s, slowly: machine code cannot do this: %s",
            *(name, generated.not_compilable),
        )
        return None
    seconds = seconds_to_compile(generated.source)
    if seconds > MOST_SECONDS:
        _logger.warning(
            "switch: interprets program %s, slowly: compiling it would take about %.1f s, more than %g s; "
            "make lanes fields of one header with a register each, which become loops",
            *(name, seconds, MOST_SECONDS),
        )
        return None
    try:
        return compiled_by_numba(generated.source, bool(generated.queue_words))
    except RecursionError:
        _logger.warning(
            "switch: interprets program %s, slowly: has too many branches in a row to compile; "
            "make tables of them",
            name,
        )
        return None


@cache
def compiled_by_numba(source: str, is_multi_pass: bool) -> Callable[..., tuple[int, int]]:
    """Return the function `run` of generated source text as machine code.

    is_multi_pass: whether `MultiPassWriter` wrote it, so that it has more arguments.
    """
    names: dict[str, Any] = {name: globals()[name] for name in RUNTIME} | {"__name__": __name__}
    exec(compile(source, "<generated>", "exec"), names)
    signature = SIGNATURE_AGAIN if is_multi_pass else SIGNATURE
    return compiler(OPTIONS, signature)(names["run"])  # type: ignore[no-any-return]
