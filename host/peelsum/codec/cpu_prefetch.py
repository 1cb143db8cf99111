"""Prefetch instructions for loops that Numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

_Prefetch = Callable[[NDArray[Any], np.uint64], None]


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
