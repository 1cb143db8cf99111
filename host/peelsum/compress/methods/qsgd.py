"""Stochastic quantization to levels of a norm."""

from __future__ import annotations

from typing import Literal

import numpy as np

from peelsum.compress.arguments import Count, Seed
from peelsum.compress.arithmetic import (
    arrays_of,
    block_count,
    blocked,
    by_element,
    bytes_of,
    halves_of,
    levels,
    pack,
    rounded_up,
    scales_of,
    unpack,
)
from peelsum.compress.compressor import Compressor, Floats, Payload, TensorState, Values


class QSGD(Compressor):
    """Stochastic quantization to levels |x| sign(x_i) l / s (Alistarh et al., NeurIPS'17, section 3.1).

    Blocks of `block` elements have a norm each; None makes the tensor one block. The paper calls them
    buckets. The norm is the 2-norm or the largest magnitude. s = 2**(bits - 1) - 1 levels and the sign take
    `bits` bits; the paper's Elias code is not used. The unit, norm / s, is rounded up to 16 significant bits,
    which leaves the mean unbiased. For the 2-norm, E |error|^2 <= min(n / s^2, sqrt(n) / s) |x|^2 (lemma
    3.1), up to 2**-14.
    """

    name = "qsgd"
    kind = "gather"
    unbiased = True
    needs_feedback = False
    bits: Literal[2, 4, 8, 16] = 4
    norm: Literal["two", "largest"] = "two"
    block: Count | None = 512
    seed: Seed = 0

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        most, blocks = 2 ** (self.bits - 1) - 1, blocked(tensor, self.block)
        norms = np.abs(blocks).max(1, initial=0.0)
        if self.norm == "two":
            norms = np.maximum(np.sqrt((blocks**2).sum(1)), norms)
        units = rounded_up(norms / most)
        by_one = by_element(np.where(units > 0, units, 1.0), tensor.size, self.block)
        rounded = levels(tensor.astype(np.float64), by_one, state.random(tensor.size, self.seed))
        return bytes_of(*halves_of(units), pack(rounded + most, self.bits))

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        n, blocks = state.elements, block_count(state.elements, self.block)
        layout = (np.uint16, blocks), (np.int16, blocks), (np.uint32, -1)
        mantissas, exponents, words = arrays_of(payload, *layout)
        rounded = unpack(words, n, self.bits) - (2 ** (self.bits - 1) - 1)
        return np.asarray(rounded * by_element(scales_of(mantissas, exponents), n, self.block))
