"""Compile loops with Numba, cached on disk as long as all sources of their constants are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit

#: Numba's options for every loop. `_nrt` switches its counting of references. A call that is not inlined
#: copies a hundred words, because Numba passes each array of a state as seven.
OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False, "forceinline": True}

Function = TypeVar("Function", bound=Callable[..., Any])


def compiler(
    sources: Iterable[str | Path], options: Mapping[str, Any] = OPTIONS
) -> Callable[[Function], Function]:
    """Return a decorator that compiles on the first call, for functions that depend on `sources`.

    Compiled code contains other modules' constants, e.g. the place of a header field, and Numba notices only
    changes of the function's own file. So a hash of options and sources becomes part of the function's
    name in the cache. By default the code runs without the GIL and counts no references to arrays, which
    would take most of the time of a packet. So it cannot allocate any: its callers do, and keep them until it
    returns.
    """
    whole = b"\0".join([repr(options).encode(), *(Path(source).read_bytes() for source in sources)])
    fingerprint = hashlib.sha256(whole).hexdigest()[:16]

    def compiled(function: Function) -> Function:
        function.__qualname__ += f"_{fingerprint}"
        return cast(Function, njit(**options)(function))

    return compiled
