"""Quantizers whose payloads every worker needs from all: each has a scale of its own, or is a float.

Signs and levels are packed into fields of 32-bit words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from peelsum.compress.arithmetic import UNIT_BITS, pack, rounded_up, stochastic, unpack
from peelsum.compress.compressor import (
    Compressor,
    Floats,
    Kind,
    Payload,
    Scope,
    TensorState,
    Values,
    require_choice,
    require_integer,
    require_scope,
)

_LARGEST_HALF = 15
_LARGEST_EXPONENT = 127
_SMALLEST_EXPONENT = -126


class _Gathered(Compressor):
    """A compressor of kind "gather"; subclasses are frozen dataclasses with a field `per`."""

    @property
    def kind(self) -> Kind:
        """Gather."""
        return "gather"

    def __post_init__(self) -> None:
        require_scope(self.per)


@dataclass(frozen=True)
class QSGD(_Gathered):
    """Stochastic quantization to levels |x| sign(x_i) l / s (Alistarh et al., NeurIPS'17, section 3.1).

    Blocks of `block` elements have a norm each; None makes the tensor one block. The paper calls them
    buckets. The norm is the 2-norm or the largest magnitude. s = 2**(bits - 1) - 1 levels and the sign take
    `bits` bits; the paper's Elias code is not used. The unit, norm / s, is rounded up to 16 significant bits,
    which leaves the mean unbiased. For the 2-norm, E |error|^2 <= min(n / s^2, sqrt(n) / s) |x|^2 (lemma
    3.1), up to 2**-14.
    """

    bits: int = 4
    norm: Literal["two", "largest"] = "two"
    block: int | None = 512
    per: Scope = "tensor"
    unbiased: ClassVar[bool] = True
    needs_feedback: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("bits", self.bits, (2, 4, 8, 16))
        require_choice("norm", self.norm, ("two", "largest"))
        if self.block is not None:
            require_block(self.block)

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """See `Compressor.compress`."""
        levels, blocks = 2 ** (self.bits - 1) - 1, blocked(tensor.astype(np.float64), self.block)
        norms = np.sqrt((blocks**2).sum(1)) if self.norm == "two" else np.abs(blocks).max(1, initial=0.0)
        units = rounded_up(np.maximum(norms, np.abs(blocks).max(1, initial=0.0)) / levels)
        ratios = np.abs(blocks) / np.where(units > 0, units, 1.0)[:, None]
        rounded = stochastic(ratios.ravel()[: tensor.size], state.random(tensor.size))
        fields = np.where(tensor < 0, -rounded, rounded) + levels
        return Payload("gather", joined(scale_bytes(units), pack(fields, self.bits)))

    def decompress(self, payload: Payload, state: TensorState) -> Values:
        """See `Compressor.decompress`."""
        n, blocks = state.elements, block_count(state.elements, self.block)
        levels = unpack(payload.data[4 * blocks :].view(np.uint32), n, self.bits) - (2 ** (self.bits - 1) - 1)
        return np.asarray(levels * by_element(scales_of(payload.data[: 4 * blocks]), n, self.block))


@dataclass(frozen=True)
class EFSignSGD(_Gathered):
    """EF-signSGD: |x|_1 / n * sign(x), with error feedback (Karimireddy et al., ICML'19, algorithm 1).

    One bit for each element, a zero counting as positive, and the scale, rounded to 16 significant bits.
    Contraction: |x - C(x)|^2 = (1 - |x|_1^2 / (n |x|^2)) |x|^2 (lemma 8), up to 2**-30.
    """

    per: Scope = "tensor"

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """See `Compressor.compress`."""
        mean = np.abs(tensor.astype(np.float64)).sum() / max(tensor.size, 1)
        scale = scale_bytes(rounded_to(np.array([mean]), UNIT_BITS))
        return Payload("gather", joined(scale, pack((tensor < 0).astype(np.uint32), 1)))

    def decompress(self, payload: Payload, state: TensorState) -> Values:
        """See `Compressor.decompress`."""
        return scales_of(payload.data[:4]) * (
            1.0 - 2.0 * unpack(payload.data[4:].view(np.uint32), state.elements, 1)
        )


@dataclass(frozen=True)
class Single(_Gathered):
    """Values as they are, float32: for a sparsifier whose values every worker gathers from all."""

    per: Scope = "tensor"
    needs_feedback: ClassVar[bool] = False

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """See `Compressor.compress`."""
        return Payload("gather", joined(tensor))

    def decompress(self, payload: Payload, state: TensorState) -> Values:
        """See `Compressor.decompress`."""
        return payload.data.copy().view(np.float32).astype(np.float64)


@dataclass(frozen=True)
class Half(_Gathered):
    """Values as float16: IEEE 754 binary16, rounded to nearest, ties to even.

    If the largest is 2**15 or more, all are divided by a power of two, which takes a byte of the payload. The
    error is at most 2**-11 |x_i|, or 2**-25 for subnormal results, before that division.
    """

    per: Scope = "tensor"
    needs_feedback: ClassVar[bool] = False

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """See `Compressor.compress`."""
        exponent = int(np.frexp(np.abs(tensor).max(initial=0.0))[1])
        shift = max(exponent - _LARGEST_HALF, 0)
        halves = np.ldexp(tensor.astype(np.float64), -shift).astype(np.float16)
        return Payload("gather", joined(np.array([shift], np.uint8), halves))

    def decompress(self, payload: Payload, state: TensorState) -> Values:
        """See `Compressor.decompress`."""
        halves = payload.data[1:].copy().view(np.float16)
        return np.ldexp(halves.astype(np.float64), int(payload.data[0]))


@dataclass(frozen=True)
class Brain(_Gathered):
    """Values as bfloat16: the upper half of a float32, rounded to nearest, ties to even.

    |error_i| <= 2**-8 |x_i|. Values that would round to infinity become the largest bfloat16.
    """

    per: Scope = "tensor"
    needs_feedback: ClassVar[bool] = False

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """See `Compressor.compress`."""
        bits = tensor.view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        infinite = (rounded & 0x7FFF) == 0x7F80
        return Payload("gather", joined((rounded - infinite).astype(np.uint16)))

    def decompress(self, payload: Payload, state: TensorState) -> Values:
        """See `Compressor.decompress`."""
        bits = payload.data.view(np.uint16).astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).astype(np.float64)


@dataclass(frozen=True)
class Int8Blocks(_Gathered):
    """Blocks of 8-bit integers with a power of two each, rounded to nearest.

    The block format MXINT8 of the OCP Microscaling specification 1.0, with blocks of `block` elements
    and a wider exponent; Dettmers (ICLR'16) uses 8 bits for gradients. The unit is 2**-6 of the power of two
    from the block's largest down. Contraction: |error|^2 <= block / 2**14 |x|^2.
    """

    block: int = 256
    per: Scope = "tensor"
    needs_feedback: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_block(self.block)

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """See `Compressor.compress`."""
        blocks = blocked(tensor.astype(np.float64), self.block)
        exponents = np.frexp(np.abs(blocks).max(1, initial=0.0))[1] - 7
        levels = np.clip(np.rint(np.ldexp(blocks, -exponents[:, None])), -127, 127).astype(np.int8)
        return Payload("gather", joined(exponents.astype(np.int16), levels.ravel()[: tensor.size]))

    def decompress(self, payload: Payload, state: TensorState) -> Values:
        """See `Compressor.decompress`."""
        cut = 2 * block_count(state.elements, self.block)
        exponents = payload.data[:cut].view(np.int16).astype(np.int64)
        units = np.ldexp(np.ones(len(exponents)), exponents)
        return np.asarray(payload.data[cut:].view(np.int8) * by_element(units, state.elements, self.block))


@dataclass(frozen=True)
class NaturalCompression(_Gathered):
    """Powers of two: |x| in [2**a, 2**(a+1)] becomes one of both, at random and unbiased.

    C_nat of Horvath et al. (arXiv 1905.10988): E |error|^2 <= |x|^2 / 8. Sign and exponent
    take nine bits. Below 2**-126 it is 0 or 2**-126; from 2**127 on, the power of two below.
    """

    per: Scope = "tensor"
    unbiased: ClassVar[bool] = True
    needs_feedback: ClassVar[bool] = False

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """See `Compressor.compress`."""
        magnitudes = np.abs(tensor).astype(np.float64)
        below = np.clip(np.frexp(magnitudes)[1] - 1, _SMALLEST_EXPONENT, _LARGEST_EXPONENT)
        ratios = np.ldexp(magnitudes, -below)
        down = np.minimum(np.floor(ratios), 1.0)
        up = (state.random(tensor.size) < np.ldexp(ratios - down, 32)) & (below < _LARGEST_EXPONENT)
        # Field 0 is zero, field f is 2**(f - 127): float32's own exponent field.
        fields = np.where(down > 0, below - _SMALLEST_EXPONENT + 1 + up, up)
        negative = pack(((tensor < 0) & (fields > 0)).astype(np.uint32), 1)
        return Payload("gather", joined(fields.astype(np.uint8), negative))

    def decompress(self, payload: Payload, state: TensorState) -> Values:
        """See `Compressor.decompress`."""
        n = state.elements
        fields, words = payload.data[:n].astype(np.int64), payload.data[n:].copy().view(np.uint32)
        powers = np.ldexp(np.where(fields > 0, 1.0, 0.0), fields - 1 + _SMALLEST_EXPONENT)
        return np.where(unpack(words, n, 1) > 0, -powers, powers)


def joined(*arrays: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the arrays' bytes, one after the other."""
    return np.concatenate([np.ascontiguousarray(one).view(np.uint8) for one in arrays])


def scale_bytes(scales: Values) -> NDArray[np.uint8]:
    """Return scales >= 0 of at most 16 significant bits as uint8[4 n]: mantissas, then exponents."""
    mantissas, exponents = np.frexp(scales)
    return joined(np.ldexp(mantissas, UNIT_BITS).astype(np.uint16), exponents.astype(np.int16))


def scales_of(data: NDArray[np.uint8]) -> Values:
    """Return float64[n]: the scales of `scale_bytes`."""
    mantissas, exponents = data[: data.size // 2].view(np.uint16), data[data.size // 2 :].view(np.int16)
    return np.asarray(np.ldexp(mantissas.astype(np.float64), exponents.astype(np.int64) - UNIT_BITS))


def block_count(elements: int, block: int | None) -> int:
    """Return the number of blocks, of which the last may be shorter; None is one block of all."""
    return -(-elements // block) if block else min(elements, 1)


def blocked(values: Values, block: int | None) -> Values:
    """Return float64[blocks, block], padded with zeros."""
    size = block or max(values.size, 1)
    out = np.zeros((block_count(values.size, block), size))
    out.reshape(-1)[: values.size] = values
    return out


def by_element(numbers: Values, elements: int, block: int | None) -> Values:
    """Return float64[elements]: each block's number, for all its elements."""
    return np.repeat(numbers, block or max(elements, 1))[:elements]


def rounded_to(values: Values, bits: int) -> Values:
    """Return values rounded to `bits` significant bits."""
    mantissas, exponents = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(np.ldexp(mantissas, bits)), exponents - bits))


def require_block(block: object) -> None:
    """Raise CompressConfigError unless `block` is a number of elements."""
    require_integer("block", block, 1, "a number of elements")
