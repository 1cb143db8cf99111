"""The decorator for loops that Numba compiles at their first call, not when they are imported.

Machine code is cached in a folder of the user. Without such a folder, or on a full disk, every process
compiles again. If several processes need a loop at the same time, one of them compiles it, and the others
wait and load the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

from peelsum.compiling.cache import CodeCache
from peelsum.compiling.progress import announce

__all__ = ["PACKET_LOOP", "announce", "compiled", "compiler"]

#: Numba's options for loops over packets. `_nrt=False` turns off reference counting of arrays, which would
#: take most of the time of a packet. So these loops cannot allocate arrays: their callers do, and keep them
#: until the loop returns. Functions are inlined because Numba passes each array of a state as seven words.
PACKET_LOOP: Mapping[str, Any] = {"nogil": True, "_nrt": False, "forceinline": True}

Function = TypeVar("Function", bound=Callable[..., Any])


def compiler(
    options: Mapping[str, Any] = PACKET_LOOP, signature: Any = None
) -> Callable[[Function], Function]:
    """Return a decorator that compiles a function at its first call, with these options of Numba.

    signature: the types of the arguments; if given, the function is compiled for these types immediately, and
    every call converts its arguments to them.
    """

    def decorate(function: Function) -> Function:
        loop: Any = njit(**options)(function)
        is_compiled = isinstance(loop, Dispatcher)  # with NUMBA_DISABLE_JIT it is the function
        if is_compiled:
            cache, compile_loop = CodeCache(loop), loop.compile

            def compile_once(signature: Any) -> Any:
                # Numba's lock comes first, so that all threads take the locks in the same order.
                with global_compiler_lock, cache.locked(signature):
                    return compile_loop(signature)

            loop._cache, loop.compile = cache, compile_once
            if signature is not None:
                loop.compile(signature)
                loop.disable_compile()
        return cast(Function, loop)

    return decorate


compiled = compiler()
