"""Compiles LHC's kernels for compute capability 9.0, without a GPU; prints the name of each."""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from benchmarks.rivals import lhc_gpu_kernels as lhc

_TARGET = GPUTarget("cuda", 90, 32)
_INTEGERS = {"n", "rows", "words"}
_POINTERS = {"factor": "*fp64", "out": "*fp32", "seed": "*i64", "progress": "*i64"}


def compiled(kernel: Any, constant: int) -> None:
    """Compile for the arguments that `benchmarks.rivals.lhc_gpu` passes."""
    signature, constants, aligned = {}, {}, {}
    for i, parameter in enumerate(kernel.params):
        name = parameter.name
        if parameter.is_constexpr:
            signature[name], constants[name] = "constexpr", 4 if name == "BITS" else constant
        elif name in _INTEGERS:
            signature[name] = "i32"
        else:
            signature[name] = _POINTERS.get(name, "*i32")
            aligned[(i,)] = [["tt.divisibility", 16]]
    compile(ASTSource(kernel, signature, constants, aligned), target=_TARGET)
    print(kernel.fn.__name__)


if __name__ == "__main__":
    compiled(lhc.lhc_index_kernel, 128)
    for one in (lhc.lhc_add_kernel, lhc.lhc_round_kernel):
        compiled(one, 1024)
