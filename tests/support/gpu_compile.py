"""Compile all GPU kernels for compute capability 9.0, without a GPU, and print the resources of each."""

from __future__ import annotations

import re
import subprocess
from tempfile import NamedTemporaryFile
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from peelsum.codec import BLOCK_SIZES, BloomLayout, SketchLayout, gpu_launch, gpu_peel_kernels, gpu_together

_TYPES = {torch.int32: "*i32", torch.int64: "*i64", torch.float32: "*fp32"}
_TARGET = GPUTarget("cuda", 90, 32)
N, K = 4096, 512
LAYOUT, BLOOM = SketchLayout(256, 3, 0), BloomLayout(3, 5, 0)
#: What has been compiled, and the kernels among it with a table.
DONE: set[Any] = set()
BY_TABLE: list[Any] = []
DEALT = SketchLayout(256, 3, 0, 4, dealt=True)


def words(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def longs(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int64)


def compiled(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
    """Compile a kernel for the arguments of a launch, instead of launching it, and print its resources.

    Pointers are taken to be aligned to 16 bytes, as torch aligns memory. A kernel that can have a table is
    compiled with one, too: once, or, if it must not take too many registers, each time.
    """
    if gpu_together.has_table(kernel) and arguments[0] is None and kernel not in BY_TABLE:
        if kernel is not gpu_peel_kernels.rounds_kernel:
            BY_TABLE.append(kernel)
        rows = [0 if isinstance(one, torch.Tensor) else one for one in arguments[2:]]
        compiled(kernel, programs, longs(2), 2, *rows, **options)
    signature, constants, aligned = {}, {}, {}
    for i, (parameter, argument) in enumerate(zip(kernel.params, arguments, strict=True)):
        if parameter.is_constexpr:
            signature[parameter.name], constants[parameter.name] = "constexpr", argument
        elif argument is None:
            signature[parameter.name], constants[parameter.name] = "constexpr", None
        elif isinstance(argument, torch.Tensor):
            signature[parameter.name] = _TYPES[argument.dtype]
            aligned[(i,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "i32" if abs(argument) < 2**31 else "i64"
    same = kernel, *signature.items(), *constants.items()
    if same in DONE:
        return
    DONE.add(same)
    binary = compile(ASTSource(kernel, signature, constants, aligned), target=_TARGET, options=options)
    vectors, shared = binary.asm["ptx"].count("ld.global.v4"), binary.metadata.shared
    registers, stack = resources(binary.asm["cubin"])
    by_table = ", table" if signature.get("table") == "*i64" else ""
    print(
        f"{kernel.fn.__name__}{by_table}: {registers} registers, {stack} bytes of stack, "
        f"{shared} bytes shared, {vectors} loads of 16 bytes"
    )


def resources(binary: bytes) -> tuple[int, int]:
    """Return the registers of a thread, and the bytes of stack for what did not fit them."""
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        tool = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        report = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", report)
    assert found, report
    return int(found.group(1)), int(found.group(2))


def index() -> None:
    found = gpu_launch.Candidates(longs(K), longs(1))
    gpu_launch.index(words(N), words(N // 32), words(1))
    gpu_launch.magnitude(words(N), words(1))
    gpu_launch.positions(words(N // 32), N, longs(1), found, 2**40)
    gpu_launch.occupied(found, longs(BLOCK_SIZES))


def forms() -> None:
    for block in (8, 32, 4096):
        gpu_launch.block_encode(words(N // 32), N, block, words(N // 32))
        gpu_launch.block_decode(words(N // 32), N, block, words(N // 32))
    gpu_launch.bloom_encode(BLOOM, longs(1), words(N // 32), words(BLOOM.words), 2**40)
    gpu_launch.bloom_decode(BLOOM, longs(1), words(BLOOM.words), N, words(N // 32), 2**40)
    gpu_launch.gather_bits(words(N // 32), words(N // 32), longs(1), words(N // 32))
    gpu_launch.scatter_bits(words(N // 32), words(N // 32), longs(1), words(N // 32))


def numbers() -> None:
    found = gpu_launch.Candidates(longs(K), longs(1))
    gpu_launch.block_exponents(words(N), 32, words(N // 32), words(1))
    gpu_launch.block_octaves(words(N // 32), 127, words(N // 32))
    gpu_launch.exponent(words(1), words(8))
    floats = torch.zeros(N)
    for blocks in (gpu_launch.Blocks(words(N // 32), 5), None):
        gpu_launch.quantize(words(N), words(1), words(N), words(1), blocks)
        for some in (found, gpu_launch.Candidates(longs(K), None)):
            gpu_launch.quantize_at(words(N), some, words(1), words(K), blocks)
        gpu_launch.dequantize(words(N), words(1), 1, floats, blocks)
        gpu_launch.dequantize_at(words(K), found, words(1), 3, floats, blocks)


def bundles() -> None:
    """Two tensors, of 3 blocks and of 1."""
    segments = gpu_launch.Segments(words(5), words(4), words(3), words(2))
    gpu_launch.bundle_headers(words(N), segments, words(6), words(20))
    gpu_launch.bundle_quantize(words(N), segments, words(4), words(4), words(N))
    gpu_launch.bundle_dequantize(words(N), segments, words(4), words(4), 2, torch.zeros(N))


def sketch() -> None:
    found, out = gpu_launch.Candidates(longs(K), longs(1)), words(K)
    for layout in (LAYOUT, DEALT, SketchLayout(7, 100, 0), SketchLayout(7, 100, 0, 2, dealt=True)):
        cells = words(layout.cells)
        gpu_launch.index_sketch(layout, longs(1), words(N), words(1), words(N // 32), cells, words(1))
    for layout in (LAYOUT, DEALT):
        gpu_launch.sketch_encode(layout, longs(1), found, out, words(layout.cells))
        room = gpu_launch.Peeling.room(K, layout.cells, torch.device("cpu"))
        gpu_launch.peel(layout, longs(1), words(layout.cells), found, room, words(K))
    gpu_launch.left_over(room, words(K // 32), words(1), longs(1), found)


if __name__ == "__main__":
    gpu_launch._run = compiled
    for part in (index, forms, numbers, bundles, sketch):
        part()
