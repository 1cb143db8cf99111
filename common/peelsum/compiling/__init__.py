"""The decorator of loops that Numba compiles at their first call: importing them compiles nothing.

Machine code is cached in a folder of the user's. Without such a folder, or on a full disk, every process
compiles again. Of processes that need a loop at the same time, one compiles it and the others load it.
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

#: Numba's options for loops over packets. `_nrt` switches its counting of references to arrays, which would
#: take most of the time of a packet: so these loops cannot allocate arrays. Their callers do, and keep them
#: until the loop returns. A call that is not inlined copies a hundred words, because Numba passes each array
#: of a state as seven.
PACKET_LOOP: Mapping[str, Any] = {"nogil": True, "_nrt": False, "forceinline": True}

Function = TypeVar("Function", bound=Callable[..., Any])


def compiler(
    options: Mapping[str, Any] = PACKET_LOOP, signature: Any = None
) -> Callable[[Function], Function]:
    """Return a decorator that compiles a function with Numba's `options`, at its first call.

    signature: if given, compile for these types at once, and convert the arguments of every call to them.
    """

    def decorate(function: Function) -> Function:
        loop: Any = njit(**options)(function)
        if isinstance(loop, Dispatcher):  # with NUMBA_DISABLE_JIT it is the function
            _use_cache(loop)
            if signature is not None:
                loop.compile(signature)
                loop.disable_compile()
        return cast(Function, loop)

    return decorate


compiled = compiler()


def _use_cache(loop: Any) -> None:
    """Cache a loop's machine code, and let one process at a time compile it."""
    cache, compile_loop = CodeCache(loop), loop.compile

    def compile_once(signature: Any) -> Any:
        # Numba's lock first, so that no two threads take the locks in different orders.
        with global_compiler_lock, cache.locked(signature):
            return compile_loop(signature)

    loop._cache, loop.compile = cache, compile_once
