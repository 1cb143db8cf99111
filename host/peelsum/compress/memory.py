"""Exact error feedback: residuals are the values that a compressor has not sent, or has rounded off.

Theory of operation. A parameter's gradients accumulate in 64-bit integers, in units of 2**-scale; every
element has its own scale. Each step passes them to a compressor as floats, rounded to 24 bits. The values
that the compressor sent are multiples of some power of two, and are subtracted. Hence

    sum of all sent values + residual  ==  sum of all gradients

holds bit for bit after every step. A sum has the finer scale of its summands, so it is exact. It has a
coarser scale only if its integer would need more than 61 bits: then at most 2**-58 of the larger summand is
rounded off, for this element alone. Once the large value has been sent, the next gradient sets the scale.
A step in which a gradient was not finite on some worker is skipped: its sent values are added back. With
momentum, `gradients` are the velocities u = momentum * u + gradient of Deep Gradient Compression (Lin et al.,
ICLR'18), rounded to the element's unit. They are set to zero where they were sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum import buffers
from peelsum.codec.cpu.words import largest_magnitude
from peelsum.compress import loops
from peelsum.compress.arguments import CompressConfigError
from peelsum.compress.compressor import Floats, Positions, Values

Numbers = NDArray[np.int64]
Scales = NDArray[np.int16]
#: Bits of a float64's mantissa.
_MANTISSA_BITS = 53
#: Scales of doubles are at most this, and those of sums not less than its negative.
_MAX_SCALE = 1100


@dataclass(frozen=True, eq=False)
class ExactValues:
    """Exact numbers at some elements of a tensor; the others are zero."""

    positions: Positions
    """int64[k]: the elements."""
    numbers: Numbers
    """int64[k] in units of 2**-scales."""
    scales: Scales
    """int16[k]: exponents of the units' reciprocals."""

    @property
    def energy(self) -> float:
        """Sum of squares, rounded as floats are."""
        values = np.ldexp(self.numbers.astype(np.float64), -self.scales.astype(np.int32))
        return float(np.dot(values, values))

    @classmethod
    def concatenate(cls, parts: Sequence[ExactValues], begins: Sequence[int]) -> ExactValues:
        """Return the values of tensors that are parts of an array, part i from element begins[i] on."""
        if not parts:
            return cls.of(np.zeros(0))
        return cls(
            np.concatenate([part.positions + begin for part, begin in zip(parts, begins, strict=True)]),
            np.concatenate([part.numbers for part in parts]),
            np.concatenate([part.scales for part in parts]),
        )

    @classmethod
    def of(cls, values: Values) -> ExactValues:
        """Return the non-zeros of float64[n], each in the coarsest unit of which it is a multiple."""
        positions = np.flatnonzero(values)
        mantissas, exponents = np.frexp(values[positions])
        whole = np.ldexp(mantissas, _MANTISSA_BITS).astype(np.int64)
        zeros = np.frexp((whole & -whole).astype(np.float64))[1] - 1
        return cls(positions, whole >> zeros, (_MANTISSA_BITS - exponents - zeros).astype(np.int16))


@dataclass
class Residual:
    """The values of a parameter that have not been sent yet."""

    numbers: Numbers
    """int64[n] in units of 2**-scales: the values not sent yet."""
    scales: Scales
    """int16[n]: exponents of the units' reciprocals."""
    velocity: Numbers | None = None
    """int64[n] in units of 2**-scales; None without momentum."""

    @property
    def is_valid(self) -> bool:
        """Whether its arrays have the types, the equal sizes and the ranges that the compiled loops need."""
        integers = [array for array in (self.numbers, self.velocity) if array is not None]
        if self.scales.dtype != np.int16 or self.scales.shape != (self.numbers.size,):
            return False
        if any(array.dtype != np.int64 or array.shape != (self.numbers.size,) for array in integers):
            return False
        largest = max(max(int(array.max(initial=0)), -int(array.min(initial=0))) for array in integers)
        max_scale = int(np.abs(self.scales.astype(int)).max(initial=0))
        return largest <= 1 << loops.MAX_BITS and max_scale <= _MAX_SCALE

    @classmethod
    def empty(cls, elements: int, *, velocity: bool) -> Residual:
        """Return a residual with uninitialized arrays."""
        numbers, scales = buffers.empty(elements, np.int64), buffers.empty(elements, np.int16)
        return cls(numbers, scales, buffers.empty(elements, np.int64) if velocity else None)

    def set_sum(self, before: Residual, gradient: Floats, momentum: float) -> None:
        """Set this to the residual `before` plus a finite gradient.

        With momentum, velocities are zero at first.
        """
        bits = gradient.view(np.uint32)
        if self.velocity is None:
            loops.add_gradient(bits, before.numbers, before.scales, self.numbers, self.scales)
            return
        velocity = np.zeros(gradient.size, np.int64) if before.velocity is None else before.velocity
        loops.add_gradient_with_momentum(
            bits, momentum, before.numbers, velocity, before.scales, self.numbers, self.velocity, self.scales
        )

    def to_floats(self) -> Floats:
        """Return float32[n]: the values, rounded; very large values are limited."""
        floats = buffers.empty(self.numbers.size, np.float32)
        loops.to_floats(self.numbers, self.scales, floats)
        return floats

    def add(self, other: Residual) -> Residual:
        """Return the sum of two residuals of the same size, as exact as the sum with a gradient."""
        numbers, scales = self.numbers.copy(), self.scales.copy()
        velocity, other_velocity = (
            np.zeros_like(numbers) if residual.velocity is None else residual.velocity.copy()
            for residual in (self, other)
        )
        loops.add(numbers, velocity, scales, other.numbers, other_velocity, other.scales)
        has_velocity = self.velocity is not None or other.velocity is not None
        return Residual(numbers, scales, velocity if has_velocity else None)

    def subtract_sent(self, sent: ExactValues) -> None:
        """Subtract, in place, the values that this worker contributed to a finite sum."""
        if self.velocity is not None:
            # Zero has any scale, so the velocities need no conversion to the elements' new scales.
            self.velocity[sent.positions] = 0
        loops.subtract(self.numbers, self.scales, sent.positions, sent.numbers, sent.scales)


class BucketResiduals(dict[str, Residual]):
    """The residuals of a bucket's finite gradients, by name, as parts of a single residual."""

    def __init__(self, sizes: Mapping[str, int], *, velocity: bool) -> None:
        """Allocate residuals for gradients of these names and sizes."""
        *begins, end = accumulate(sizes.values(), initial=0)
        #: All residuals, concatenated.
        self.whole = Residual.empty(end, velocity=velocity)
        #: The element of `whole` at which each residual begins.
        self.begins = dict(zip(sizes, begins, strict=True))
        super().__init__()
        for name, begin in self.begins.items():
            part, velocities = slice(begin, begin + sizes[name]), self.whole.velocity
            views = self.whole.numbers[part], self.whole.scales[part]
            self[name] = Residual(*views, None if velocities is None else velocities[part])

    def to_floats(self) -> dict[str, Floats]:
        """Return each residual as floats, see `Residual.to_floats`."""
        floats = self.whole.to_floats()
        return {name: floats[begin : begin + self[name].numbers.size] for name, begin in self.begins.items()}


class Memory:
    """A worker's state between steps: residuals, and the arrays of compressors, by the tensors' names."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, NDArray[Any]]] = {}
        self.restore()

    def restore(self, *memories: Mapping[str, Residual]) -> None:
        """Replace all residuals by the sums of those of `memories`.

        Raises CompressConfigError if they are damaged, or of different sizes.
        """
        residuals: dict[str, Residual] = {}
        for name, residual in chain.from_iterable(memory.items() for memory in memories):
            total = residuals.get(name)
            if not residual.is_valid or (total is not None and total.numbers.size != residual.numbers.size):
                raise CompressConfigError(
                    f"residual: {name} has arrays of other types, sizes or ranges; give those of a checkpoint"
                )
            residuals[name] = residual if total is None else total.add(residual)
        self.residuals = residuals
        #: The number of the last step, or -1.
        self.step, self._skipped = -1, False
        #: For each array of the step's residuals: the positions that were sent, and their elements before.
        self._sent_parts: list[tuple[NDArray[Any], Positions, NDArray[Any]]] = []

    def add_gradients(
        self, gradients: Mapping[str, Floats], momentum: float = 0.0, max_norm: float | None = None
    ) -> BucketResiduals:
        """Return the sums of residual and gradient, for all finite gradients; `store` stores them.

        momentum: that of Deep Gradient Compression. max_norm: the limit of a gradient's 2-norm.
        Raises CompressConfigError if a residual has another number of elements.
        """
        finite = {name: gradients[name] for name in finite_names(gradients)}
        sizes = {name: gradient.size for name, gradient in finite.items()}
        residuals = BucketResiduals(sizes, velocity=bool(momentum))
        for name, gradient in finite.items():
            before = self.residuals.get(name)
            if before is None:
                before = Residual(np.zeros(gradient.size, np.int64), np.zeros(gradient.size, np.int16))
            if before.numbers.size != gradient.size:
                raise CompressConfigError(
                    f"residual: {name} has {before.numbers.size} elements, its gradient {gradient.size}; "
                    "restore the state of this model, and register the hook on the same modules in the same "
                    "order"
                )
            if max_norm is not None:
                wide = gradient.astype(np.float64)
                norm = float(np.linalg.norm(wide))
                gradient = gradient if norm <= max_norm else (wide * (max_norm / norm)).astype(np.float32)
            residuals[name].set_sum(before, gradient, momentum)
        return residuals

    def store(self, residuals: BucketResiduals, sent: Mapping[str, ExactValues | None], step: int) -> None:
        """Store a bucket's residuals minus the values that were sent. Call it for one bucket at a time.

        `sent` is None for a gradient that was not finite on some worker, which is dropped. A GradScaler skips
        such a step, so all values that the step sent are added back. All workers do the same.
        """
        if step != self.step:
            self.step, self._skipped, self._sent_parts = step, False, []
        finite = {name: values for name in residuals if (values := sent[name]) is not None}
        self.residuals |= {name: residuals[name] for name in finite}
        all_sent = ExactValues.concatenate(list(finite.values()), [residuals.begins[name] for name in finite])
        whole, positions = residuals.whole, all_sent.positions
        arrays = [array for array in (whole.numbers, whole.scales, whole.velocity) if array is not None]
        self._sent_parts += [(array, positions, array[positions]) for array in arrays]
        residuals.whole.subtract_sent(all_sent)
        self._skipped |= any(values is None for values in sent.values())
        if self._skipped:
            for array, positions, before in reversed(self._sent_parts):
                array[positions] = before
            self._sent_parts = []


def magnitude(floats: Floats) -> float:
    """Return the largest magnitude, 0 without floats; infinity if one of them is not finite."""
    bits = np.uint32(largest_magnitude(floats.view(np.uint32)))
    return float(bits.view(np.float32)) if bits < loops.NOT_FINITE else math.inf


def finite_names(tensors: Mapping[str, Floats]) -> list[str]:
    """Return the names of the tensors whose elements are all finite, in order."""
    return [name for name, tensor in tensors.items() if magnitude(tensor) < math.inf]
