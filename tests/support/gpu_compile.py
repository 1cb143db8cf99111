"""Compile all GPU kernels for a compute capability, such as 90; print each one's name and memory accesses."""

import sys
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from peelsum.codec import BloomLayout, SketchLayout
from peelsum.codec.gpu import GpuDevice, launch
from peelsum.codec.layout import MOST_CANDIDATES
from peelsum.codec.segments import Segment, SegmentTable

_TYPES = {torch.int32: "*i32", torch.int64: "*i64", torch.float32: "*fp32"}
N, K = 4096, 512
#: What has been compiled.
DONE = set()


gpu = GpuDevice(torch.device("cpu"))


def words(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int32)


def compiled(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
    """Compile a kernel for the arguments of a launch, instead of launching it.

    Print its name; loads past L1; volatile loads; and accesses that release and that acquire.
    """
    signature, constants = {}, {}
    for parameter, argument in zip(kernel.params, arguments, strict=True):
        assert parameter.is_constexpr or parameter.do_not_specialize
        if parameter.is_constexpr:
            signature[parameter.name], constants[parameter.name] = "constexpr", argument
        elif isinstance(argument, torch.Tensor):
            signature[parameter.name] = _TYPES[argument.dtype]
        else:
            signature[parameter.name] = "i32" if abs(argument) < 2**31 else "i64"
    same = kernel, *signature.items(), *constants.items()
    if same in DONE:
        return
    DONE.add(same)
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    binary = compile(ASTSource(kernel, signature, constants), target=target, options=options)
    counts = [
        binary.asm["ptx"].count(what) for what in ("ld.global.cg", "ld.volatile", ".release.", ".acquire.")
    ]
    print(kernel.fn.__name__, *counts)


def step() -> None:
    """Go through a step of a dense and a sparse segment."""
    table = SegmentTable([Segment(N, sparse=False), Segment(N, sparse=True)])
    codec = gpu.segments(table, [torch.zeros(N), torch.zeros(N)], [None, None], 3)
    bitmap, scale_words = codec.write_scales(words(table.scale_words)), words(table.scale_words)
    codec.read_scales(np.ones(table.scale_words, np.uint32))
    codec.set_candidates(bitmap)
    codec.write_dense(words(N))
    codec.gather(words(K))
    codec.decode(words(N), words(K), 3)
    for decoded in (True, False):
        codec = gpu.segments(table, [torch.zeros(N), torch.zeros(N)], [None, None], 3)
        codec.read_scales(np.ones(table.scale_words, np.uint32))
        if not decoded:
            codec.use_words(scale_words)
        codec.write_numbers(bitmap)
        codec.decode(words(N), words(K), 3)
    for layout in (SketchLayout(768, 0), SketchLayout(99, 0, 4)):
        for room in (K, MOST_CANDIDATES + 1):
            codec = gpu.segments(table, [torch.zeros(N), torch.zeros(N)], [None, None], 3)
            scales, sketch = np.zeros(int(table.blocks[-1]), np.int32), words(layout.cells)
            codec.write_ahead(scale_words, bitmap, scales, layout, words(N), sketch)
            codec.decode_ahead(words(N), sketch, bitmap, room, 3)


def index() -> None:
    bitmap = words(N // 32)
    gpu.positions(bitmap, N, 2**40, K)
    for block in (8, 32, 4096):
        gpu.block_encode(bitmap, N, block, words(N // 32))
        gpu.block_decode(bitmap, N, block, words(N // 32))
    bloom = BloomLayout(3, 5, 0)
    gpu.bloom_encode(bloom, bitmap, words(bloom.words), 2**40)
    gpu.bloom_decode(bloom, words(bloom.words), N, bitmap, 2**40)
    gpu.scatter_bits(words(K), bitmap, words(N // 32), gpu.gather_bits(bitmap, bitmap, words(N // 32)))


def sketch() -> None:
    where = torch.zeros(K, dtype=torch.int64)
    for layout in (SketchLayout(768, 0), SketchLayout(99, 0, 4)):
        gpu.sketch_encode(layout, where, words(K), words(layout.cells))
        gpu.sketch_decode(layout, words(layout.cells), where, words(K))


if __name__ == "__main__":
    launch.run = compiled
    for part in (step, index, sketch):
        part()
