"""Quantizers whose integers are packed in 32-bit words, so that a switch or an all_reduce adds them up.

Each worker writes integers -h to h, plus h, into fields of a word. The fields are wide enough for the sum of
all workers, so nothing is carried from one field to the next.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from peelsum.compress.arithmetic import field_bits, pack, rounded_up, stochastic, unpack
from peelsum.compress.compressor import (
    Compressor,
    Floats,
    Kind,
    Payload,
    Scope,
    TensorState,
    Values,
    require_choice,
    require_scope,
)
from peelsum.compress.errors import CompressConfigError
from peelsum.compress.rotation import padded, rotated, rotated_back

_WIDTHS = (4, 8, 16)
_MOST_WORKERS = 2**16
#: Significant bits of a unit; a rotation adds up to 16 bits to what its multiples need.
_UNIT_BITS = 12


class _Packed(Compressor):
    """Integers -h to h of a unit that all workers share, in packed fields."""

    @property
    def kind(self) -> Kind:
        """Additive."""
        return "additive"

    @abstractmethod
    def field(self, workers: int) -> tuple[int, int]:
        """Return the width of a field in bits, and h."""

    def check(self, workers: int) -> None:
        """See `Compressor.check`."""
        if workers > _MOST_WORKERS:
            raise CompressConfigError(
                f"workers: {workers} are too many for packed integers; use up to {_MOST_WORKERS}"
            )

    def unit(self, state: TensorState) -> float:
        """Return the unit of the integers."""
        return state.bound

    def compress(self, tensor: Floats, state: TensorState) -> Payload:
        """See `Compressor.compress`."""
        bits, half = self.field(state.workers)
        return Payload("additive", pack(self._integers(tensor, state) + half, bits))

    def decompress(self, payload: Payload, state: TensorState) -> Values:
        """See `Compressor.decompress`."""
        bits, half = self.field(state.workers)
        sums = unpack(payload.data, self._fields(state.elements), bits) - half * payload.added
        return self._values(sums, payload.added, state)

    @abstractmethod
    def _integers(self, tensor: Floats, state: TensorState) -> NDArray[np.int64]:
        """Return the tensor's integers, -h to h."""

    def _fields(self, elements: int) -> int:
        return elements

    def _values(self, sums: NDArray[np.int64], added: int, state: TensorState) -> Values:
        return np.asarray(sums * self.unit(state))


@dataclass(frozen=True)
class PackedIntegers(_Packed):
    """Integers in fields of 4, 8 or 16 bits, rounded stochastically: the homomorphic idea of THC.

    THC (Li et al., NSDI'24) quantizes with a range that the workers share, so that a switch adds up indices
    of levels. Here h = (2**bits - 1) // (2 * workers) makes sums fit. The unit is the largest magnitude over
    workers, divided by h, rounded up to 12 significant bits. With `rotate`, blocks of up to 4,096 elements
    are first multiplied by random signs and a Hadamard matrix, as in THC. A few large elements then do not
    make the unit coarse. Both leave the mean unbiased: E = x, with E |error|^2 <= n unit^2 / 4.
    """

    bits: int = 8
    rotate: bool = False
    per: Scope = "tensor"
    unbiased: ClassVar[bool] = True
    needs_feedback: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_choice("bits", self.bits, _WIDTHS)
        require_choice("rotate", self.rotate, (True, False))
        require_scope(self.per)

    def field(self, workers: int) -> tuple[int, int]:
        """Return the width of a field in bits, and h."""
        return self.bits, (2**self.bits - 1) // (2 * workers)

    def check(self, workers: int) -> None:
        """Raise CompressConfigError if fewer than three levels would be left."""
        if self.field(workers)[1] == 0:
            most = (2**self.bits - 1) // 2
            raise CompressConfigError(
                f"bits: {self.bits} holds the sum of {most} workers, not of {workers}; use more bits"
            )

    def announced(self, tensor: Floats, state: TensorState) -> float:
        """See `Compressor.announced`: the largest magnitude after the rotation."""
        return float(np.abs(self._rotated(tensor, state)).max(initial=0.0))

    def unit(self, state: TensorState) -> float:
        """See `_Packed.unit`."""
        half = self.field(state.workers)[1]
        return float(rounded_up(np.array(state.bound / half), _UNIT_BITS))

    def _rotated(self, tensor: Floats, state: TensorState) -> Values:
        if not self.rotate:
            return tensor.astype(np.float64)
        if "rotated" not in state.scratch:
            signs = state.shared_random(padded(state.elements))
            state.scratch["signs"], state.scratch["rotated"] = signs, rotated(tensor, signs)
        values: Values = state.scratch["rotated"]
        return values

    def _integers(self, tensor: Floats, state: TensorState) -> NDArray[np.int64]:
        values = self._rotated(tensor, state)
        return signed_levels(values, self.unit(state), state)

    def _fields(self, elements: int) -> int:
        return padded(elements) if self.rotate else elements

    def _values(self, sums: NDArray[np.int64], added: int, state: TensorState) -> Values:
        if self.rotate:
            signs = state.shared_random(padded(state.elements))
            return rotated_back(sums, self.unit(state), signs, state.elements)
        return super()._values(sums, added, state)


@dataclass(frozen=True)
class TernGrad(_Packed):
    """Ternary gradients s * sign(x) * b, with b = 1 at probability |x| / s (Wen et al., NeurIPS'17).

    The scaler s is the largest magnitude over workers: the paper's scaler sharing, by which integers add up.
    Unbiased; E |error|^2 <= s |x|_1 - |x|^2. The paper's clipping is left to the caller.
    """

    per: Scope = "tensor"
    unbiased: ClassVar[bool] = True
    needs_feedback: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_scope(self.per)

    def field(self, workers: int) -> tuple[int, int]:
        """Return the width of a field in bits, and h = 1."""
        return field_bits(2 * workers), 1

    def _integers(self, tensor: Floats, state: TensorState) -> NDArray[np.int64]:
        return signed_levels(tensor.astype(np.float64), self.unit(state), state)


@dataclass(frozen=True)
class SignSGD(_Packed):
    """signSGD with majority vote (Bernstein et al., ICML'18, algorithm 3): the sign of the sum of signs.

    A worker's element votes -1 or 1, and a zero abstains. The outcome, -1, 0 or 1, is every worker's average.
    It is biased, and not a multiple of the gradient: give the optimizer the learning rate of a sign method.
    """

    per: Scope = "tensor"
    needs_feedback: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_scope(self.per)

    def field(self, workers: int) -> tuple[int, int]:
        """Return the width of a field in bits, and h = 1."""
        return field_bits(2 * workers), 1

    def _integers(self, tensor: Floats, state: TensorState) -> NDArray[np.int64]:
        return np.sign(tensor).astype(np.int64)

    def _values(self, sums: NDArray[np.int64], added: int, state: TensorState) -> Values:
        return np.sign(sums).astype(np.float64) * added


def signed_levels(values: Values, unit: float, state: TensorState) -> NDArray[np.int64]:
    """Return values / unit, rounded stochastically by this worker's random words."""
    levels = stochastic(np.abs(values) / unit, state.random(values.size))
    return np.where(values < 0, -levels, levels)
