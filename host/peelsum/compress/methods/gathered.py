"""Quantizers whose payloads are bytes, which every worker gathers from all others."""

from __future__ import annotations

from typing import Literal

import numpy as np

from peelsum.compress.arguments import Count, Seed
from peelsum.compress.arithmetic import (
    UNIT_BITS,
    block_count,
    from_bytes,
    join_scales,
    pack,
    repeat_blocks,
    round_stochastically,
    round_up,
    split_blocks,
    split_scales,
    to_bytes,
    unpack,
)
from peelsum.compress.compressor import Compressor, Floats, Payload, TensorState, Values

#: Values from 2 to this exponent on are divided before they are converted to float16.
_LARGEST_HALF = 15
#: The exponents of normal float32 numbers.
_LARGEST_POWER, _SMALLEST_POWER = 127, -126


class Single(Compressor):
    """Values as float32, without loss: for a sparsifier whose values are gathered."""

    name = "fp32"
    kind = "gather"
    needs_feedback = False

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        return to_bytes(tensor)

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        return from_bytes(payload, (np.float32, -1))[0].astype(np.float64)


class Half(Compressor):
    """Values as float16: IEEE 754 binary16, rounded to nearest, ties to even.

    If the largest is 2**15 or more, all are divided by a power of two, which takes a byte of the payload. The
    error is at most 2**-11 |x_i|, or 2**-25 for subnormal results, before that division.
    """

    name = "fp16"
    kind = "gather"
    needs_feedback = False

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """Return a byte with the exponent of the divisor, and the values as float16."""
        exponent = int(np.frexp(np.abs(tensor).max(initial=0.0))[1])
        shift = max(exponent - _LARGEST_HALF, 0)
        halves = np.ldexp(tensor.astype(np.float64), -shift).astype(np.float16)
        return to_bytes(np.array([shift], np.uint8), halves)

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        shift, halves = from_bytes(payload, (np.uint8, 1), (np.float16, -1))
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
        return to_bytes((rounded - infinite).astype(np.uint16))

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        (halves,) = from_bytes(payload, (np.uint16, -1))
        return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


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
        """Return each block's exponent, and each element as an 8-bit multiple of its block's power of two."""
        blocks = split_blocks(tensor, self.block)
        exponents = np.frexp(np.abs(blocks).max(1, initial=0.0))[1] - 7
        levels = np.clip(np.rint(np.ldexp(blocks, -exponents[:, None])), -127, 127).astype(np.int8)
        return to_bytes(exponents.astype(np.int16), levels.ravel()[: tensor.size])

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        n = state.elements
        exponents, levels = from_bytes(payload, (np.int16, block_count(n, self.block)), (np.int8, n))
        units = np.ldexp(np.ones(exponents.size), exponents.astype(np.int64))
        return np.asarray(levels * repeat_blocks(units, n, self.block))


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
        """Return each block's unit, and a level of `bits` bits for each element."""
        max_level, blocks = 2 ** (self.bits - 1) - 1, split_blocks(tensor, self.block)
        norms = np.abs(blocks).max(1, initial=0.0)
        if self.norm == "two":
            norms = np.maximum(np.sqrt((blocks**2).sum(1)), norms)
        units = round_up(norms / max_level)
        element_units = repeat_blocks(np.where(units > 0, units, 1.0), tensor.size, self.block)
        random = state.random(tensor.size, self.seed)
        levels = round_stochastically(tensor.astype(np.float64), element_units, random)
        return to_bytes(*split_scales(units), pack(levels + max_level, self.bits))

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        n, blocks = state.elements, block_count(state.elements, self.block)
        layout = (np.uint16, blocks), (np.int16, blocks), (np.uint32, -1)
        mantissas, exponents, words = from_bytes(payload, *layout)
        levels = unpack(words, n, self.bits) - (2 ** (self.bits - 1) - 1)
        return np.asarray(levels * repeat_blocks(join_scales(mantissas, exponents), n, self.block))


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
        """Return each element's exponent in 8 bits, then each element's sign in a bit."""
        magnitudes = np.abs(tensor).astype(np.float64)
        below = np.clip(np.frexp(magnitudes)[1] - 1, _SMALLEST_POWER, _LARGEST_POWER)
        ratios = np.ldexp(magnitudes, -below)
        down = np.minimum(np.floor(ratios), 1.0)
        up = (state.random(tensor.size, self.seed) < np.ldexp(ratios - down, 32)) & (below < _LARGEST_POWER)
        # Field 0 is zero, field f is 2**(f - 127): float32's own exponent field.
        fields = np.where(down > 0, below - _SMALLEST_POWER + 1 + up, up)
        negative = pack(((tensor < 0) & (fields > 0)).astype(np.uint32), 1)
        return to_bytes(fields.astype(np.uint8), negative)

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        fields, words = from_bytes(payload, (np.uint8, state.elements), (np.uint32, -1))
        exponents = fields.astype(np.int64) - 1 + _SMALLEST_POWER
        powers = np.ldexp(np.where(fields > 0, 1.0, 0.0), exponents)
        return np.where(unpack(words, state.elements, 1) > 0, -powers, powers)


class EFSignSGD(Compressor):
    """EF-signSGD: |x|_1 / n * sign(x), with error feedback (Karimireddy et al., ICML'19, algorithm 1).

    One bit for each element, a zero counting as positive, and the scale, rounded to 16 significant bits.
    Contraction: |x - C(x)|^2 = (1 - |x|_1^2 / (n |x|^2)) |x|^2 (lemma 8), up to 2**-30.
    """

    name = "ef-sign"
    kind = "gather"

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """Return the mean magnitude, and each element's sign in a bit."""
        mean = np.abs(tensor.astype(np.float64)).sum() / max(tensor.size, 1)
        mantissa, exponent = np.frexp(np.array([mean]))
        mantissa = np.ldexp(np.rint(np.ldexp(mantissa, UNIT_BITS)), -UNIT_BITS)
        scale = split_scales(np.ldexp(mantissa, exponent))
        return to_bytes(*scale, pack((tensor < 0).astype(np.uint32), 1))

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        *scale, words = from_bytes(payload, (np.uint16, 1), (np.int16, 1), (np.uint32, -1))
        return join_scales(*scale) * (1.0 - 2.0 * unpack(words, state.elements, 1))
