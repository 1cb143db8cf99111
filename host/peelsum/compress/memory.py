"""Exact error feedback: integers keep what a compressor leaves out and what it rounds off.

Theory of operation. A parameter's gradients accumulate in 64-bit integers, in units of 2**-scale; every
element has a scale of its own. Each step offers them to a compressor as floats, rounded to 24 bits. The
values that the compressor sent are multiples of some power of two, and are subtracted. Hence

    all that was sent + what is kept  ==  all gradients

holds bit for bit after every step. The scale of a sum is the finer of both summands', which is exact. It is
coarser only if an integer would outgrow 61 bits: then at most 2**-58 of the larger summand is rounded off,
of this element alone. Once the large value has been sent, the next gradient sets the scale.
A step in which a gradient was not finite on some worker is skipped: what it sent is put back. With momentum,
`gradients` are the velocities u = momentum * u + gradient of Deep Gradient Compression (Lin et al., ICLR'18),
rounded to the element's unit. They are cleared where they were sent.
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
from peelsum.compress import loops
from peelsum.compress.arguments import CompressConfigError
from peelsum.compress.compressor import Floats, Positions, Values

Numbers = NDArray[np.int64]
Scales = NDArray[np.int16]
#: Bits of a float64's mantissa.
_MANTISSA_BITS = 53
#: Scales of doubles are at most this, and those of sums not less than its negative.
_FINEST = 1100


@dataclass(frozen=True, eq=False)
class Exact:
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
    def joined(cls, some: Sequence[Exact], begins: Sequence[int]) -> Exact:
        """Return the numbers of tensors that lie in one array, each from its place on."""
        if not some:
            return cls.of(np.zeros(0))
        moved = [one.positions + begin for one, begin in zip(some, begins, strict=True)]
        numbers, scales = [one.numbers for one in some], [one.scales for one in some]
        return cls(np.concatenate(moved), np.concatenate(numbers), np.concatenate(scales))

    def part(self, first: int, end: int, begin: int) -> Exact:
        """Return those from the `first` one to before `end`, of a tensor that begins at element `begin`."""
        positions = self.positions[first:end]
        return Exact(
            positions - begin if begin else positions, self.numbers[first:end], self.scales[first:end]
        )

    @classmethod
    def of(cls, values: Values) -> Exact:
        """Return the non-zeros of float64[n], each in the coarsest units that it is a multiple of."""
        positions = np.flatnonzero(values)
        mantissas, exponents = np.frexp(values[positions])
        whole = np.ldexp(mantissas, _MANTISSA_BITS).astype(np.int64)
        zeros = np.frexp((whole & -whole).astype(np.float64))[1] - 1
        return cls(positions, whole >> zeros, (_MANTISSA_BITS - exponents - zeros).astype(np.int16))


@dataclass
class Residual:
    """One parameter's values that are still to be sent."""

    numbers: Numbers
    """int64[n] in units of 2**-scales: the values not sent yet."""

    scales: Scales
    """int16[n]: exponents of the units' reciprocals."""

    velocity: Numbers | None = None
    """int64[n] in units of 2**-scales; None without momentum."""

    @classmethod
    def zeros(cls, elements: int) -> Residual:
        """Return a residual with nothing to send."""
        return cls(np.zeros(elements, np.int64), np.zeros(elements, np.int16))

    @property
    def sound(self) -> bool:
        """Whether its arrays have the types, the one size and the ranges that the compiled loops rely on."""
        numbers = [one for one in (self.numbers, self.velocity) if one is not None]
        arrays: list[tuple[NDArray[Any], type]] = [(one, np.int64) for one in numbers]
        for one, kind in [*arrays, (self.scales, np.int16)]:
            if one.dtype != kind or one.shape != (self.numbers.size,):
                return False
        most = max(max(int(one.max(initial=0)), -int(one.min(initial=0))) for one in numbers)
        finest = int(np.abs(self.scales.astype(int)).max(initial=0))
        return most <= 1 << loops.MOST_BITS and finest <= _FINEST

    @classmethod
    def empty(cls, elements: int, *, velocity: bool) -> Residual:
        """Return a residual whose arrays are to be written."""
        numbers, scales = buffers.empty(elements, np.int64), buffers.empty(elements, np.int16)
        return cls(numbers, scales, buffers.empty(elements, np.int64) if velocity else None)

    def part(self, begin: int, end: int) -> Residual:
        """Return some of its elements, as views."""
        velocity = None if self.velocity is None else self.velocity[begin:end]
        return Residual(self.numbers[begin:end], self.scales[begin:end], velocity)

    def grow(self, before: Residual, gradient: Floats, momentum: float) -> None:
        """Become `before` with one more finite gradient added.

        Velocities begin at zero where there were none, and end where `momentum` is 0.
        """
        bits = gradient.view(np.uint32)
        if self.velocity is None:
            loops.grow(bits, before.numbers, before.scales, self.numbers, self.scales)
            return
        old = np.zeros(gradient.size, np.int64) if before.velocity is None else before.velocity
        loops.grow_velocity(
            bits, momentum, before.numbers, old, before.scales, self.numbers, self.velocity, self.scales
        )

    def offer(self) -> Floats:
        """Return float32[n]: the numbers, each rounded to a float; of very large ones, a part."""
        floats = buffers.empty(self.numbers.size, np.float32)
        loops.offer(self.numbers, self.scales, floats)
        return floats

    def at(self, positions: Positions) -> Residual:
        """Return a copy of some of its elements."""
        velocity = None if self.velocity is None else self.velocity[positions]
        return Residual(self.numbers[positions], self.scales[positions], velocity)

    def put(self, positions: Positions, some: Residual) -> None:
        """Make elements what `at` returned."""
        self.numbers[positions], self.scales[positions] = some.numbers, some.scales
        if self.velocity is not None and some.velocity is not None:
            self.velocity[positions] = some.velocity

    def plus(self, other: Residual) -> Residual:
        """Return the sum of two residuals of the same size, as exact as a gradient's addition to one."""
        numbers, scales = self.numbers.copy(), self.scales.copy()
        velocity, other_velocity = (
            np.zeros_like(numbers) if residual.velocity is None else residual.velocity.copy()
            for residual in (self, other)
        )
        loops.add(numbers, velocity, scales, other.numbers, other_velocity, other.scales)
        has_velocity = self.velocity is not None or other.velocity is not None
        return Residual(numbers, scales, velocity if has_velocity else None)

    def send(self, sent: Exact) -> None:
        """Subtract, in place, what this worker contributed to a finite sum."""
        if self.velocity is not None:
            # Velocities are sent to zero, so that they fit whatever scale the element has now.
            self.velocity[sent.positions] = 0
        loops.subtract(self.numbers, self.scales, sent.positions, sent.numbers, sent.scales)


class Grown(dict[str, Residual]):
    """Residuals of a bucket's finite gradients, by name: parts of one."""

    def __init__(self, sizes: Mapping[str, int], *, velocity: bool) -> None:
        """Make room for gradients of these names and sizes."""
        *begins, end = accumulate(sizes.values(), initial=0)
        #: All of them.
        self.whole = Residual.empty(end, velocity=velocity)
        #: Where each begins.
        self.begins = dict(zip(sizes, begins, strict=True))
        super().__init__(
            (name, self.whole.part(begin, begin + sizes[name])) for name, begin in self.begins.items()
        )

    def offer(self) -> dict[str, Floats]:
        """Return what each offers, see `Residual.offer`."""
        floats = self.whole.offer()
        return {name: floats[begin : begin + self[name].numbers.size] for name, begin in self.begins.items()}


class Memory:
    """A worker's state between steps, by the tensors' names: residuals, and arrays of compressors."""

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
            if not residual.sound or (total is not None and total.numbers.size != residual.numbers.size):
                raise CompressConfigError(
                    f"residual: {name} has arrays of other types, sizes or ranges; give what a memory kept"
                )
            residuals[name] = residual if total is None else total.plus(residual)
        self.residuals = residuals
        #: The number of the last step, or -1.
        self.step, self._skipped = -1, False
        #: What the step sent: a residual, the elements, and what they were before.
        self._sent: list[tuple[Residual, Positions, Residual]] = []

    def grown(
        self, gradients: Mapping[str, Floats], momentum: float = 0.0, most: float | None = None
    ) -> Grown:
        """Return each finite gradient's residual with the gradient added, to be stored by `keep`.

        `momentum` is that of Deep Gradient Compression; `most` limits a gradient's 2-norm.
        Raises CompressConfigError if a residual has another number of elements.
        """
        finite = {name: gradients[name] for name in finite_of(gradients)}
        grown = Grown({name: one.size for name, one in finite.items()}, velocity=bool(momentum))
        for name, one in finite.items():
            grown[name].grow(self._residual(name, one), _clipped(one, most), momentum)
        return grown

    def keep(self, grown: Grown, sent: Mapping[str, Exact | None], step: int) -> None:
        """Store a bucket's residuals, less what was `sent`. Call it for one bucket after the other.

        A gradient that was not finite on some worker, whose `sent` is None, is dropped. A GradScaler skips
        such a step, so what the step's other gradients sent is put back. All workers decide alike.
        """
        if step != self.step:
            self.step, self._skipped, self._sent = step, False, []
        kept = {name: one for name in grown if (one := sent[name]) is not None}
        self.residuals |= {name: grown[name] for name in kept}
        contributed = Exact.joined(list(kept.values()), [grown.begins[name] for name in kept])
        self._sent.append((grown.whole, contributed.positions, grown.whole.at(contributed.positions)))
        grown.whole.send(contributed)
        self._skipped |= any(one is None for one in sent.values())
        if self._skipped:
            for residual, at, before in reversed(self._sent):
                residual.put(at, before)
            self._sent = []

    def _residual(self, name: str, gradient: Floats) -> Residual:
        kept = self.residuals.get(name)
        if kept is None:
            return Residual.zeros(gradient.size)
        if kept.numbers.size != gradient.size:
            raise CompressConfigError(
                f"residual: {name} has {kept.numbers.size} elements, its gradient {gradient.size}; "
                "restore the state of this model, and register the hook on the same modules in the same order"
            )
        return kept


def _clipped(gradient: Floats, most: float | None) -> Floats:
    """Return the gradient, with a 2-norm of at most `most`."""
    if most is None:
        return gradient
    wide = gradient.astype(np.float64)
    norm = float(np.linalg.norm(wide))
    return gradient if norm <= most else (wide * (most / norm)).astype(np.float32)


def magnitude(floats: Floats) -> float:
    """Return the largest magnitude, 0 without floats; infinity if one of them is not finite."""
    bits = np.uint32(loops.float_magnitude(floats.view(np.uint32)))
    return float(bits.view(np.float32)) if bits < loops.NOT_FINITE else math.inf


def finite_of(tensors: Mapping[str, Floats]) -> list[str]:
    """Return the names of the tensors whose elements are all finite, in order."""
    return [name for name, one in tensors.items() if magnitude(one) < math.inf]
