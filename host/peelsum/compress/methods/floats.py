"""Values as floats of 32 or 16 bits."""

from __future__ import annotations

import numpy as np

from peelsum.compress.arithmetic import arrays_of, bytes_of
from peelsum.compress.compressor import Compressor, Floats, Payload, TensorState, Values

_LARGEST_EXPONENT = 15


class Single(Compressor):
    """Values as they are, float32: for a sparsifier whose values every worker gathers from all."""

    name = "fp32"
    kind = "gather"
    needs_feedback = False

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        return bytes_of(tensor)

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        return arrays_of(payload, (np.float32, -1))[0].astype(np.float64)


class Half(Compressor):
    """Values as float16: IEEE 754 binary16, rounded to nearest, ties to even.

    If the largest is 2**15 or more, all are divided by a power of two, which takes a byte of the payload. The
    error is at most 2**-11 |x_i|, or 2**-25 for subnormal results, before that division.
    """

    name = "fp16"
    kind = "gather"
    needs_feedback = False

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        exponent = int(np.frexp(np.abs(tensor).max(initial=0.0))[1])
        shift = max(exponent - _LARGEST_EXPONENT, 0)
        halves = np.ldexp(tensor.astype(np.float64), -shift).astype(np.float16)
        return bytes_of(np.array([shift], np.uint8), halves)

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        shift, halves = arrays_of(payload, (np.uint8, 1), (np.float16, -1))
        return np.ldexp(halves.astype(np.float64), int(shift[0]))


class Brain(Compressor):
    """Values as bfloat16: the upper half of a float32, rounded to nearest, ties to even.

    |error_i| <= 2**-8 |x_i|. Values that would round to infinity become the largest bfloat16.
    """

    name = "bf16"
    kind = "gather"
    needs_feedback = False

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        bits = tensor.view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        infinite = (rounded & 0x7FFF) == 0x7F80
        return bytes_of((rounded - infinite).astype(np.uint16))

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        (halves,) = arrays_of(payload, (np.uint16, -1))
        return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
