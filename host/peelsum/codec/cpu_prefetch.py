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


def _prefetch(*, written: bool) -> _Prefetch:
    def typed(_: Any, array: Any, at: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = context.make_array(array)(context, builder, arguments[0]).data
            byte_pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
            address = builder.bitcast(builder.gep(data, [arguments[1]]), byte_pointer)
            kind = ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag])
            fetch = builder.module.globals.get("llvm.prefetch.p0") or ir.Function(
                builder.module, kind, "llvm.prefetch.p0"
            )
            # 3: keep in every cache level; 1: data, not instructions.
            builder.call(fetch, [address, flag(int(written)), flag(3), flag(1)])
            return context.get_dummy_value()

        return types.void(array, types.uint64), emit

    return cast(_Prefetch, intrinsic(typed))


#: Fetch array[at] into the cache, for writing.
prefetch = _prefetch(written=True)
#: Fetch array[at] into the cache, for reading only.
prefetch_to_read = _prefetch(written=False)
