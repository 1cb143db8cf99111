"""Quantizers whose integers are packed in 32-bit words, so that a switch or an all_reduce adds them up.

Each worker writes integers from -h to h, plus h, into fields of a word. The fields are wide enough for the
sum over all workers, so there is no carry from one field to the next.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from peelsum.compress.arguments import CompressConfigError, Seed
from peelsum.compress.arithmetic import (
    field_width,
    fixed_values,
    fixed_words,
    pack,
    round_stochastically,
    round_up,
    unpack,
)
from peelsum.compress.compressor import Compressor, Floats, Payload, TensorState, Values
from peelsum.summation import Words

_MAX_WORKERS = 2**16
#: Significant bits of a unit. Its multiples need up to 16 bits more after a rotation.
_UNIT_BITS = 12
#: The largest number of elements that a rotation mixes.
_MAX_BLOCK = 4096


class Dense(Compressor):
    """Every element, rounded to fixed point with one scale for the tensor.

    With error feedback, it also sends the residuals of an earlier compressor, and keeps its rounding errors.
    """

    name = "fixed-point"
    kind = "additive"
    needs_feedback = False

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        return fixed_words(tensor, state.bound, state.workers)

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        return fixed_values(payload, state.bound, state.workers)


class Packed(Compressor, abstract=True):
    """The base class of compressors to integers from -h to h, in packed fields. By default, h is 1.

    The unit of the integers is the same on all workers.
    """

    kind = "additive"
    needs_feedback = False

    def field(self, workers: int) -> tuple[int, int]:
        """Return the width of a field in bits, and h."""
        return field_width(2 * workers), 1

    def check(self, workers: int) -> None:
        if workers > _MAX_WORKERS:
            raise CompressConfigError(
                f"workers: {workers} are too many for packed integers; use up to {_MAX_WORKERS}"
            )

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        bits, half = self.field(state.workers)
        return pack(self.integers(tensor, state) + half, bits)

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        bits, half = self.field(state.workers)
        sums = unpack(payload, self.fields(state.elements), bits) - half * added
        return self.values(sums, added, state)

    def fields(self, elements: int) -> int:
        """Return the number of integers for a tensor of `elements` elements."""
        return elements

    @abstractmethod
    def integers(self, tensor: Floats, state: TensorState) -> NDArray[np.int64]:
        """Return the tensor's integers, -h to h."""

    @abstractmethod
    def values(self, sums: NDArray[np.int64], added: int, state: TensorState) -> Values:
        """Return the values of the sums of `added` workers' integers."""


class PackedIntegers(Packed):
    """Integers in fields of 4, 8 or 16 bits, rounded stochastically: the homomorphic idea of THC.

    THC (Li et al., NSDI'24) quantizes with a range that the workers share, so that a switch adds up indices
    of levels. Here h = (2**bits - 1) // (2 * workers) makes sums fit. The unit is the largest magnitude over
    workers, divided by h, rounded up to 12 significant bits. With `rotate`, blocks of up to 4,096 elements
    are first multiplied by random signs and a Hadamard matrix, as in THC. A few large elements then do not
    make the unit coarse. Both leave the mean unbiased: E = x, with E |error|^2 <= n unit^2 / 4.
    """

    name = "packed"
    unbiased = True
    bits: Literal[4, 8, 16] = 8
    rotate: bool = False
    seed: Seed = 0

    @property
    def within_bound(self) -> bool:
        """A rotation makes some numbers larger."""
        return not self.rotate

    def field(self, workers: int) -> tuple[int, int]:
        return self.bits, (2**self.bits - 1) // (2 * workers)

    def check(self, workers: int) -> None:
        """Raise CompressConfigError if a worker would have fewer than three levels, -1, 0 and 1."""
        if self.field(workers)[1] == 0:
            max_workers = (2**self.bits - 1) // 2
            raise CompressConfigError(
                f"bits: {self.bits} holds the sum of {max_workers} workers, not of {workers}; use more bits"
            )

    def announced(self, tensor: Floats, state: TensorState) -> float:
        """See `Compressor.announced`: the largest magnitude after the rotation."""
        return float(np.abs(self._rotated(tensor, state)).max(initial=0.0))

    def unit(self, state: TensorState) -> float:
        """Return the unit of the integers."""
        return float(round_up(np.array(state.bound / self.field(state.workers)[1]), _UNIT_BITS))

    def fields(self, elements: int) -> int:
        return padded_size(elements) if self.rotate else elements

    def integers(self, tensor: Floats, state: TensorState) -> NDArray[np.int64]:
        values = self._rotated(tensor, state)
        return round_stochastically(values, self.unit(state), state.random(values.size, self.seed))

    def values(self, sums: NDArray[np.int64], added: int, state: TensorState) -> Values:
        if not self.rotate:
            return np.asarray(sums * self.unit(state))
        return rotate_back(sums, self.unit(state), self._signs(state), state.elements)

    def _signs(self, state: TensorState) -> NDArray[np.uint32]:
        return state.random(padded_size(state.elements), self.seed, per_worker=False)

    def _rotated(self, tensor: Floats, state: TensorState) -> Values:
        """Return the tensor after the rotation, if there is one; it is computed once in a step."""
        if not self.rotate:
            return tensor.astype(np.float64)
        if "rotated" not in state.scratch:
            state.scratch["rotated"] = rotate(tensor, self._signs(state))
        values: Values = state.scratch["rotated"]
        return values


class TernGrad(Packed):
    """Ternary gradients s * sign(x) * b, with b = 1 at probability |x| / s (Wen et al., NeurIPS'17).

    The scaler s is the largest magnitude over workers: the paper's scaler sharing, by which integers add up.
    Unbiased; E |error|^2 <= s |x|_1 - |x|^2. The paper's clipping is left to the caller.
    """

    name = "terngrad"
    unbiased = True
    seed: Seed = 0

    def integers(self, tensor: Floats, state: TensorState) -> NDArray[np.int64]:
        return round_stochastically(
            tensor.astype(np.float64), state.bound, state.random(tensor.size, self.seed)
        )

    def values(self, sums: NDArray[np.int64], added: int, state: TensorState) -> Values:
        return np.asarray(sums * state.bound)


class SignSGD(Packed):
    """signSGD with majority vote (Bernstein et al., ICML'18, algorithm 3): the sign of the sum of signs.

    A worker's element votes -1 or 1, or 0 if it is zero. The average is the sign of the sum: -1, 0 or 1.
    It is biased, and not a multiple of the gradient: give the optimizer the learning rate of a sign method.
    """

    name = "signsgd"

    def integers(self, tensor: Floats, state: TensorState) -> NDArray[np.int64]:
        return np.sign(tensor).astype(np.int64)

    def values(self, sums: NDArray[np.int64], added: int, state: TensorState) -> Values:
        return np.sign(sums).astype(np.float64) * added


# The randomized Hadamard transform spreads a block's energy evenly over its elements: y = H D x, where D has
# random signs and H has entries 1 and -1; H H = n, so x = D H y / n. Blocks have a power of two of elements,
# up to 4,096; the last one is padded with zeros.


def block_size(elements: int) -> int:
    """Return the number of elements in a block: the power of two from `elements` on, at most 4,096."""
    return min(_MAX_BLOCK, 1 << max(elements - 1, 0).bit_length())


def padded_size(elements: int) -> int:
    """Return the number of elements of whole blocks."""
    block = block_size(elements)
    return -(-elements // block) * block


def rotate(tensor: Floats, random: Words) -> Values:
    """Return float64[padded(n)]: H D x of every block; the signs are the top bits of random[padded(n)]."""
    values = np.zeros(len(random))
    values[: tensor.size] = tensor
    return _hadamard(values * _signs(random), block_size(tensor.size))


def rotate_back(levels: NDArray[np.int64], unit: float, random: Words, elements: int) -> Values:
    """Return float64[elements]: D H (levels * unit) / n, exact for units of few bits."""
    block = block_size(elements)
    values = _hadamard(levels.astype(np.float64), block) * _signs(random) * (unit / block)
    return np.asarray(values[:elements])


def _signs(random: Words) -> Values:
    return 1.0 - 2.0 * (random >> np.uint32(31)).astype(np.float64)


def _hadamard(values: Values, block: int) -> Values:
    """Return H x of every block, by butterflies; H_2n = [[H_n, H_n], [H_n, -H_n]]."""
    values, half = values.copy(), 1
    while half < block:
        pairs = values.reshape(-1, 2, half)
        sums, differences = pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]
        pairs[:, 0], pairs[:, 1] = sums, differences
        half *= 2
    return values
