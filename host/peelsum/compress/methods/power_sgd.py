"""PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS'19): a gradient as a product of two thin matrices.

Both factors are dense sums over workers. Matrices are rounded to integers of few bits before they are
multiplied, so that all products are exact in float64, and error feedback is exact.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from peelsum.compress.arguments import Rank, Seed
from peelsum.compress.arithmetic import fixed_values, fixed_words
from peelsum.compress.compressor import Compressor, Floats, Payload, TensorState, Values

Matrix = NDArray[np.float64]
#: Bits of a matrix's elements, relative to the power of two above the largest.
_TENSOR_BITS = 24
#: Bits of the elements of the other factor.
_FACTOR_BITS = 12
#: A column is dropped if less than this share of its norm remains after projection.
_MIN_REMAINDER = 2.0**-20


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
