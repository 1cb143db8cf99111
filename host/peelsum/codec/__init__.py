"""Encode float tensors as integer words whose sums (or ORs) over workers decode to the exact sum.

The codec has three parts: fixed point, the index of non-zeros, and the lossless sketch. `device` returns what
runs them: in NumPy, Numba or Triton.
"""

from peelsum.codec.arrays import BFloat16, CodecError, to_float32
from peelsum.codec.cpu.index import occupied
from peelsum.codec.cpu.scales import quantize
from peelsum.codec.device import HOST, CodecDevice, Implementation, device, warm_up
from peelsum.codec.fixed_point import NON_FINITE, FixedPoint, fixed_point, rounding_bounds, scale_for
from peelsum.codec.layout import (
    BLOCK_SIZES,
    MANY_CANDIDATES,
    MIN_CELLS_PER_CANDIDATE,
    SUB_TABLES,
    BloomLayout,
    SketchLayout,
    block_words,
    enough_cells,
    index_words,
)
from peelsum.codec.segments import ROW

__all__ = [
    "BLOCK_SIZES",
    "HOST",
    "MANY_CANDIDATES",
    "MIN_CELLS_PER_CANDIDATE",
    "NON_FINITE",
    "ROW",
    "SUB_TABLES",
    "BFloat16",
    "BloomLayout",
    "CodecDevice",
    "CodecError",
    "FixedPoint",
    "Implementation",
    "SketchLayout",
    "block_words",
    "device",
    "enough_cells",
    "fixed_point",
    "index_words",
    "occupied",
    "quantize",
    "rounding_bounds",
    "scale_for",
    "to_float32",
    "warm_up",
]
