"""System calls for compiled loops: sockets and the clock, without the interpreter.

Addresses are integers. Numba links the C library's functions by name, so that compiled code can be cached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
from llvmlite import ir
from numba import njit
from numba import types as numba_types
from numba.extending import intrinsic
from numpy.typing import NDArray

# Numba's own annotations are partial.
types: Any = numba_types
carray: Any = vars(numba)["carray"]
_INT, _LONG = types.int32, types.int64
recvmsg: Any = types.ExternalFunction("recvmsg", _LONG(_INT, _LONG, _INT))
send: Any = types.ExternalFunction("send", _LONG(_INT, _LONG, _LONG, _INT))
poll: Any = types.ExternalFunction("poll", _INT(_LONG, _LONG, _INT))
_clock_gettime: Any = types.ExternalFunction("clock_gettime", _INT(_INT, _LONG))
_errno_location: Any = types.ExternalFunction("__errno_location", _LONG())
_MONOTONIC = 1


def _pointer(_: Any, address: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(32).as_pointer())

    return types.CPointer(types.uint32)(types.int64), emit


_as_pointer: Any = intrinsic(_pointer)
_compiled: Callable[[Any], Any] = njit(cache=True, nogil=True, inline="never")


def _words_at(address: int, count: int) -> NDArray[np.uint32]:
    """Return the `count` words at an address as an array that shares their memory."""
    return carray(_as_pointer(address), (count,))  # type: ignore[no-any-return]


def _errno() -> int:
    """Return the error number of this thread's last system call."""
    return int(carray(_as_pointer(_errno_location()), (1,))[0])


def _seconds(scratch: NDArray[np.int64]) -> float:
    """Return `time.monotonic()`. scratch: int64[2], overwritten."""
    _clock_gettime(_MONOTONIC, scratch.ctypes.data)
    return float(scratch[0] + scratch[1] * 1e-9)


words_at = cast(Callable[[int, int], NDArray[np.uint32]], njit(cache=True, nogil=True)(_words_at))
errno = cast(Callable[[], int], _compiled(_errno))
seconds = cast(Callable[[NDArray[np.int64]], float], njit(cache=True, nogil=True)(_seconds))
