"""Blocks of 8-bit integers."""

from __future__ import annotations

import numpy as np

from peelsum.compress.arguments import Count
from peelsum.compress.arithmetic import arrays_of, block_count, blocked, by_element, bytes_of
from peelsum.compress.compressor import Compressor, Floats, Payload, TensorState, Values


class Int8Blocks(Compressor):
    """Blocks of 8-bit integers with a power of two each, rounded to nearest.

    The block format MXINT8 of the OCP Microscaling specification 1.0, with blocks of `block` elements
    and a wider exponent; Dettmers (ICLR'16) uses 8 bits for gradients. The unit is 2**-6 of the power of two
    from the block's largest down. Contraction: |error|^2 <= block / 2**14 |x|^2.
    """

    name = "int8"
    kind = "gather"
    needs_feedback = False
    block: Count = 256

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        blocks = blocked(tensor, self.block)
        exponents = np.frexp(np.abs(blocks).max(1, initial=0.0))[1] - 7
        levels = np.clip(np.rint(np.ldexp(blocks, -exponents[:, None])), -127, 127).astype(np.int8)
        return bytes_of(exponents.astype(np.int16), levels.ravel()[: tensor.size])

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        n = state.elements
        exponents, levels = arrays_of(payload, (np.int16, block_count(n, self.block)), (np.int8, n))
        units = np.ldexp(np.ones(exponents.size), exponents.astype(np.int64))
        return np.asarray(levels * by_element(units, n, self.block))
