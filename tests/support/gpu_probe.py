"""A kernel that shows memory limits which no test can reach. Import gpu_device before it."""

import triton
import triton.language as tl

from peelsum.codec.gpu.index import _bloom_hashes, _bloom_place


@triton.jit
def bloom_row_kernel(out, word, seed, j, rows):
    """The row of word[1] in sub-table j, over all sub-tables, into int64 out[1]."""
    start, stride = _bloom_hashes(tl.load(seed), tl.load(word), 0)
    row, _ = _bloom_place(start, stride, j, rows)
    tl.store(out, row)
