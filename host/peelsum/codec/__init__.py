"""Encode float tensors as integer words whose sums (or ORs) over workers decode to the exact sum.

The codec has three parts: fixed point, the index of non-zeros, and the lossless sketch. Each has three
implementations: NumPy, Numba and Triton.
"""

from peelsum.codec.errors import CodecError
from peelsum.codec.fixed_point import NON_FINITE, FixedPoint, fixed_point, rounding_bounds, scale_for
from peelsum.codec.floats import BFloat16, widened
from peelsum.codec.index import BLOCK_SIZES, BloomLayout, block_words, index_words
from peelsum.codec.kernels import Implementation, Kernels, kernels, memory, segment_codec, warm_up
from peelsum.codec.layout import FEWEST_CELLS, MANY_CANDIDATES, SPARE_CELLS, SUB_TABLES, SketchLayout
from peelsum.codec.memory import HostMemory, Memory
from peelsum.codec.segments import ROW
from peelsum.codec.selection import Selection

__all__ = [
    "BLOCK_SIZES",
    "FEWEST_CELLS",
    "MANY_CANDIDATES",
    "NON_FINITE",
    "ROW",
    "SPARE_CELLS",
    "SUB_TABLES",
    "BFloat16",
    "BloomLayout",
    "CodecError",
    "FixedPoint",
    "HostMemory",
    "Implementation",
    "Kernels",
    "Memory",
    "Selection",
    "SketchLayout",
    "block_words",
    "fixed_point",
    "index_words",
    "kernels",
    "memory",
    "rounding_bounds",
    "scale_for",
    "segment_codec",
    "warm_up",
    "widened",
]
