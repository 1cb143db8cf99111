"""System calls for compiled loops: sockets and the clock, without the interpreter.

Addresses are integers. Numba links the C library's functions by name, so that compiled code can be cached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types as numba_types
from numba.extending import intrinsic
from numpy.typing import NDArray

from peelsum.compiling import compiled

# Numba's own annotations are partial.
types: Any = numba_types
_INT, _LONG = types.int32, types.int64
send: Any = types.ExternalFunction("send", _LONG(_INT, _LONG, _LONG, _INT))
sendmsg: Any = types.ExternalFunction("sendmsg", _LONG(_INT, _LONG, _INT))
poll: Any = types.ExternalFunction("poll", _INT(_LONG, _LONG, _INT))
ppoll: Any = types.ExternalFunction("ppoll", _INT(_LONG, _LONG, _LONG, _LONG))
sendto: Any = types.ExternalFunction("sendto", _LONG(_INT, _LONG, _LONG, _INT, _LONG, _INT))
sendmmsg: Any = types.ExternalFunction("sendmmsg", _INT(_INT, _LONG, _INT, _INT))
getsockopt: Any = types.ExternalFunction("getsockopt", _INT(_INT, _INT, _INT, _LONG, _LONG))
memcpy: Any = types.ExternalFunction("memcpy", _LONG(_LONG, _LONG, _LONG))
_recvmsg: Any = types.ExternalFunction("recvmsg", _LONG(_INT, _LONG, _INT))
_clock_gettime: Any = types.ExternalFunction("clock_gettime", _INT(_INT, _LONG))
_errno_location: Any = types.ExternalFunction("__errno_location", _LONG())
# Constants of Linux.
NO_WAIT = 0x40
INTERRUPTED, AGAIN, NO_BUFFERS = 4, 11, 105
_REAL_LENGTH = 0x20
_PIPE, _ABORTED, _RESET, _REFUSED = 32, 103, 104, 111
_MONOTONIC = 1
#: Bytes of the control message with the size of segments, which is its 32-bit word 4.
CONTROL_BYTES = 24


def _load_word(_: Any, address: Any, index: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_word_pointer(builder, *arguments))

    return types.uint32(types.int64, types.int64), emit


def _save_word(_: Any, address: Any, index: Any, word: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _word_pointer(builder, *arguments[:2]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.uint32), emit


def _acquire_word(_: Any, address: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(32).as_pointer())
        return builder.load_atomic(pointer, "acquire", 4)

    return types.uint32(types.int64), emit


def _publish_word(_: Any, address: Any, word: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(32).as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", 4)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint32), emit


def _word_pointer(builder: Any, address: Any, index: Any) -> Any:
    return builder.gep(builder.inttoptr(address, ir.IntType(32).as_pointer()), [index])


#: load(address, i): return 32-bit word i of the array at an address. save(address, i, word): store that word.
load = cast(Callable[[int, int], np.uint32], intrinsic(_load_word))
save = cast(Callable[[int, int, np.uint32], None], intrinsic(_save_word))
#: acquire(address): return a 32-bit word that the kernel writes, by a load with acquire ordering.
acquire = cast(Callable[[int], np.uint32], intrinsic(_acquire_word))
#: publish(address, word): store a 32-bit word that the kernel reads, with release ordering.
publish = cast(Callable[[int, np.uint32], None], intrinsic(_publish_word))


@compiled
def errno() -> int:
    """Return the error number of this thread's last system call."""
    return np.int64(load(_errno_location(), 0))  # type: ignore[return-value] # an int to callers


@compiled
def seconds(scratch: NDArray[np.int64]) -> float:
    """Return `time.monotonic()`. scratch: int64[2], overwritten."""
    _clock_gettime(_MONOTONIC, scratch.ctypes.data)
    return float(scratch[0] + scratch[1] * 1e-9)


@compiled
def nanoseconds(scratch: NDArray[np.int64]) -> int:
    """Return `time.monotonic_ns()`. scratch: int64[2], overwritten."""
    _clock_gettime(_MONOTONIC, scratch.ctypes.data)
    return int(1_000_000_000 * scratch[0] + scratch[1])


@compiled
def is_stale_error(error_number: int) -> bool:
    """Return whether an error number is only about an earlier datagram, which was not received."""
    return error_number in (_REFUSED, _RESET, _ABORTED, _PIPE)


@compiled
def receive(descriptor: int, message: NDArray[np.int64]) -> int:
    """Receive one datagram into `message` (struct msghdr, with room for CONTROL_BYTES), without waiting.

    Return its length, which is that of the whole datagram even if it was truncated, or minus an error number.
    """
    while True:
        message[5] = CONTROL_BYTES
        size = _recvmsg(descriptor, message.ctypes.data, NO_WAIT | _REAL_LENGTH)
        if size >= 0:
            return int(size)
        error_number = errno()
        if error_number != INTERRUPTED and not is_stale_error(error_number):
            return -error_number
