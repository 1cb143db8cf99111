"""Powers of two."""

from __future__ import annotations

import numpy as np

from peelsum.compress.arguments import Seed
from peelsum.compress.arithmetic import arrays_of, bytes_of, pack, unpack
from peelsum.compress.compressor import Compressor, Floats, Payload, TensorState, Values

_LARGEST_EXPONENT = 127
_SMALLEST_EXPONENT = -126


class NaturalCompression(Compressor):
    """Powers of two: |x| in [2**a, 2**(a+1)] becomes one of both, at random and unbiased.

    C_nat of Horvath et al. (arXiv 1905.10988): E |error|^2 <= |x|^2 / 8. Sign and exponent
    take nine bits. Below 2**-126 it is 0 or 2**-126; from 2**127 on, the power of two below.
    """

    name = "natural"
    kind = "gather"
    unbiased = True
    needs_feedback = False
    seed: Seed = 0

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        magnitudes = np.abs(tensor).astype(np.float64)
        below = np.clip(np.frexp(magnitudes)[1] - 1, _SMALLEST_EXPONENT, _LARGEST_EXPONENT)
        ratios = np.ldexp(magnitudes, -below)
        down = np.minimum(np.floor(ratios), 1.0)
        up = (state.random(tensor.size, self.seed) < np.ldexp(ratios - down, 32)) & (
            below < _LARGEST_EXPONENT
        )
        # Field 0 is zero, field f is 2**(f - 127): float32's own exponent field.
        fields = np.where(down > 0, below - _SMALLEST_EXPONENT + 1 + up, up)
        negative = pack(((tensor < 0) & (fields > 0)).astype(np.uint32), 1)
        return bytes_of(fields.astype(np.uint8), negative)

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        fields, words = arrays_of(payload, (np.uint8, state.elements), (np.uint32, -1))
        exponents = fields.astype(np.int64) - 1 + _SMALLEST_EXPONENT
        powers = np.ldexp(np.where(fields > 0, 1.0, 0.0), exponents)
        return np.where(unpack(words, state.elements, 1) > 0, -powers, powers)
