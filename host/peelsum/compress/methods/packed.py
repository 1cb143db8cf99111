"""Compressors whose payloads are 32-bit words that a switch or an all_reduce adds up.

Packed integers: each worker writes integers from -h to h, plus h, into fields of a word. The fields are wide
enough for the sum over all workers, so there is no carry from one field to the next.

PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS'19): a gradient as a product of two thin matrices. Both
factors are dense sums over workers. Matrices are rounded to integers of few bits before they are multiplied,
so that all products are exact in float64, and error feedback is exact.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from peelsum.compress.arguments import CompressConfigError, Rank, Seed
from peelsum.compress.arithmetic import (
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
Matrix = NDArray[np.float64]
#: Bits of a matrix's elements, relative to the power of two above the largest.
_TENSOR_BITS = 24
#: Bits of the elements of the other factor.
_FACTOR_BITS = 12
#: A column is dropped if less than this share of its norm remains after projection.
_MIN_REMAINDER = 2.0**-20


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
        """Return the width of a field in bits, a power of two for numbers 0 to 2 * workers, and h."""
        return 1 << ((2 * workers).bit_length() - 1).bit_length(), 1

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


class PowerSGD(Compressor):
    """Rank-`rank` approximation by one step of power iteration (algorithm 1), with a warm start.

    M is the tensor as a matrix, its first dimension by all others; for a bucket it is as square as possible.
    Round 1 sums P = M Q over workers, and makes P's columns orthonormal; round 2 sums Q = M^T P. The result
    is P Q^T, and Q is kept for the next step. Worker w has sent P Q_w^T, where Q_w is its summand of Q. A
    tensor is sent whole if it has no more elements than both factors. P is rounded to 12 bits; error feedback
    keeps these rounding errors, and those of the approximation. Warm start and error feedback are those of
    the paper.
    """

    name = "power"
    kind = "additive"
    rounds = 2
    rank: Rank = 2
    seed: Seed = 0

    def matrix_shape(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """Return rows and columns of the matrix, or None for a tensor that is sent whole."""
        elements = math.prod(shape)
        if self.per == "bucket":
            rows = math.isqrt(max(elements - 1, 0)) + 1
            columns = -(-elements // rows)
        else:
            rows = shape[0] if shape else 1
            columns = elements // max(rows, 1)
        return (rows, columns) if self.rank * (rows + columns) < elements else None

    def announced(self, tensor: Floats, state: TensorState) -> float:
        """See `Compressor.announced`: the largest magnitude of this round's factor."""
        if self.matrix_shape(state.shape) is None:
            return super().announced(tensor, state)
        return super().announced(self._factor(tensor, state), state)

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """Return the payload of P in round 0, of Q in round 1; whole tensors are sent in round 1."""
        if self.matrix_shape(state.shape) is None:
            values = tensor if state.round else tensor[:0]
        else:
            values = self._factor(tensor, state)
            state.scratch[f"bound {state.round}"] = state.bound
        return fixed_words(values, state.bound, state.workers)

    def decompress(self, payload: Payload, state: TensorState, added: int = 1) -> Values:
        """Return the values of round 1's payload; the sum's Q is kept for the next step."""
        values = fixed_values(payload, state.bound, state.workers)
        shape = self.matrix_shape(state.shape)
        if shape is None:
            return values
        q = values.reshape(shape[1], self.rank)
        if added == state.workers:
            kept, unit = _quantized(q, _FACTOR_BITS)
            state.kept["q"] = np.ldexp(kept / unit, -_FACTOR_BITS).astype(np.float32)
        p: Matrix = state.scratch["p"]
        return np.asarray(p @ q.T).reshape(-1)[: state.elements]

    def _factor(self, tensor: Floats, state: TensorState) -> Floats:
        """Return this round's factor, flat."""
        name = f"factor {state.round}"
        if name not in state.scratch:
            rows, columns = self.matrix_shape(state.shape) or (0, 0)
            matrix = np.zeros(rows * columns)
            matrix[: tensor.size] = tensor
            matrix, step = _quantized(matrix.reshape(rows, columns), _TENSOR_BITS)
            if state.round == 0:
                factor = matrix @ self._start(columns, state)
            else:
                assert state.summed is not None
                sums = fixed_values(state.summed, state.scratch["bound 0"], state.workers)
                state.scratch["p"] = p = orthonormal(sums.reshape(rows, self.rank))
                factor = np.rint((matrix.T @ p).astype(np.float32) / step) * step
            with np.errstate(over="ignore"):  # the step is then not finite on any worker
                state.scratch[name] = factor.astype(np.float32).ravel()
        values: Floats = state.scratch[name]
        return values

    def _start(self, columns: int, state: TensorState) -> Matrix:
        """Return the last step's Q, with random columns of 12-bit fractions instead of columns of zeros."""
        random = state.random(columns * self.rank, self.seed, per_worker=False).view(np.int32)
        start: Matrix = np.floor(np.ldexp(random.astype(np.float64), _FACTOR_BITS - 31))
        start = np.ldexp(start, -_FACTOR_BITS).reshape(columns, self.rank)
        kept = state.kept.get("q")
        if kept is not None and kept.shape == start.shape:
            start = np.where(kept.any(0), kept.astype(np.float64), start)
        return start


def orthonormal(matrix: Matrix) -> Matrix:
    """Return the matrix with orthonormal columns, by Gram and Schmidt's method, rounded to 12 bits.

    Sums are rounded once, so the result is the same on every machine. A column that depends on the columns
    before it becomes zero.
    """
    columns: list[Matrix] = []
    for column in matrix.T:
        norm_before = _norm(column)
        for other in columns:
            column = column - math.fsum(column * other) * other
        norm = _norm(column)
        columns.append(column / norm if norm > _MIN_REMAINDER * norm_before else np.zeros_like(column))
    return np.ldexp(np.rint(np.ldexp(np.array(columns).T, _FACTOR_BITS)), -_FACTOR_BITS)


def _norm(column: Matrix) -> float:
    """Return the 2-norm of a column, whose sum of squares is rounded once."""
    exponent = int(np.frexp(np.abs(column).max(initial=0.0))[1])
    return math.ldexp(math.sqrt(math.fsum(np.ldexp(column, -exponent) ** 2)), exponent)


def _quantized(matrix: Matrix, bits: int) -> tuple[Matrix, float]:
    """Return the matrix in multiples of 2**-bits of the power of two above its largest, and that unit."""
    unit = math.ldexp(1.0, int(np.frexp(np.abs(matrix).max(initial=0.0))[1]) - bits)
    return np.rint(matrix / unit) * unit, unit
