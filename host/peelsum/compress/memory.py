"""Exact error feedback: integers keep what a compressor leaves out and what it rounds off.

Theory of operation. A parameter's gradients accumulate in 64-bit integers, in units of 2**-scale: the grid.
Each step offers them to a compressor as floats, rounded to 24 bits, which lie on the grid. The values that
the compressor sent are multiples of some power of two, and are subtracted from the integers. Hence

    all that was sent + what is kept  ==  all gradients, each rounded once to the grid

holds bit for bit after every step. Sparsifiers round to a fixed point, whose units lie on the grid, or leave
the float unchanged. What other compressors send may have finer units; the grid is then made finer, which is
exact. A step in which a gradient was not finite on some worker is skipped: what it sent is put back. With
momentum, `gradients` are the velocities u = momentum * u + gradient of Deep Gradient Compression (Lin et
al., ICLR'18), which are cleared where they were sent.
The first non-zero gradient sets the grid, to 2**-40 of its largest value. If numbers would outgrow 64 bits,
being about 2**20 times larger, the grid is made coarser and what is kept is rounded to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum import kept_pages
from peelsum.compress import loops
from peelsum.compress.compressor import Floats, Positions, Values, require_number
from peelsum.compress.errors import CompressConfigError, CompressError

Numbers = NDArray[np.int64]
#: Bits below the largest value of the gradient that sets the grid.
_GRID_BITS = 40
#: Numbers stay below 2**this.
MOST_BITS = 61
#: Bits of a float64's mantissa.
_MANTISSA_BITS = 53


@dataclass(frozen=True, eq=False)
class Exact:
    """Exact numbers at some elements of a tensor; the others are zero."""

    positions: Positions
    """int64[k]: the elements."""

    numbers: Numbers
    """int64[k] in units of 2**-scale."""

    scale: int
    """Exponent of the unit's reciprocal."""

    @property
    def energy(self) -> float:
        """Sum of squares, rounded as floats are."""
        values = self.numbers.astype(np.float64)
        return math.ldexp(float(np.dot(values, values)), -2 * self.scale)

    @classmethod
    def of(cls, values: Values, scale: int) -> Exact:
        """Return the non-zeros of float64[n], in units of 2**-scale or in the coarsest finer ones they need.

        Raises CompressError if their magnitudes are too different for 64-bit integers.
        """
        positions = np.flatnonzero(values)
        some = values[positions]
        if not some.size:
            return cls(positions, np.zeros(0, np.int64), scale)
        mantissas, exponents = np.frexp(some)
        whole = np.ldexp(mantissas, _MANTISSA_BITS).astype(np.int64)
        zeros = np.frexp((whole & -whole).astype(np.float64))[1] - 1
        finest = max(scale, int((_MANTISSA_BITS - exponents - zeros).max()))
        if int(exponents.max()) + finest > MOST_BITS:
            raise CompressError(
                f"sent: needs {int(exponents.max()) + finest} bits, more than {MOST_BITS}; "
                "turn error feedback off for this compressor"
            )
        return cls(positions, np.ldexp(some, finest).astype(np.int64), finest)


@dataclass
class Residual:
    """One parameter's values that are still to be sent."""

    numbers: Numbers
    """int64[n] in units of 2**-scale: the values not sent yet."""

    velocity: Numbers | None = None
    """int64[n] in units of 2**-scale; None without momentum."""

    scale: int | None = None
    """The grid's scale; None, with all numbers zero, until the first non-zero gradient."""

    most: int | None = None
    """No number is larger in magnitude; None if that is not known, and with momentum."""

    def grown(self, gradient: Floats, momentum: float, largest: float | None = None) -> Residual:
        """Return the residual with one more finite gradient added; this one is unchanged.

        largest: the gradient's largest magnitude, if it is known.
        """
        kept = self._fitting(magnitude(gradient) if largest is None else largest)
        if kept.scale is None:
            return kept
        factor, numbers = math.ldexp(1.0, kept.scale), kept_pages.empty(gradient.size, np.int64)
        if kept.velocity is None:
            most = loops.added_units(gradient, factor, kept.numbers, numbers)
            return Residual(numbers, None, kept.scale, int(most))
        loops.units(gradient, factor, numbers)
        velocity = np.rint(momentum * kept.velocity).astype(np.int64) + numbers
        return Residual(kept.numbers + velocity, velocity, kept.scale)

    def offer(self) -> Floats:
        """Return float32[n]: the numbers, each rounded to a float, which lies on the grid."""
        floats = kept_pages.empty(self.numbers.size, np.float32)
        loops.offer(self.numbers, math.ldexp(1.0, -(self.scale or 0)), floats)
        return floats

    def send(self, sent: Exact) -> Sent:
        """Subtract, in place, what this worker contributed to a finite sum; return it."""
        if not sent.positions.size:
            return Sent(self, sent.positions, sent.numbers, None, self.scale or 0)
        if self.scale is None:  # of a bucket's low-rank approximation, zeros can become other values
            self.scale = max(sent.scale, _GRID_BITS + sent.scale - _bits(sent.numbers))
        units, positions = self._units(sent), sent.positions
        at = np.flatnonzero(units)
        if at.size < units.size:
            units, positions = units[at], positions[at]
        cleared = None if self.velocity is None else self.velocity[positions]
        taken = Sent(self, positions, units, cleared, self.scale)
        self.numbers[positions] -= units
        self.most = None if self.most is None else self.most + int(loops.magnitude(units))
        if self.velocity is not None:
            self.velocity[positions] = 0
        return taken

    def _units(self, sent: Exact) -> Numbers:
        """Return what was sent in units of the grid, which is made finer or coarser in place if needed."""
        assert self.scale is not None
        excess = _bits(sent.numbers) + self.scale - sent.scale - MOST_BITS
        if excess > 0:
            self._coarsen(excess)
        shift = self.scale - sent.scale
        if shift >= 0:
            return sent.numbers << shift
        zeros = _trailing_zeros(sent.numbers)
        if zeros < -shift:
            self._refine(-shift - zeros)
            shift = -zeros
        return sent.numbers >> min(-shift, MOST_BITS)

    def _refine(self, times: int) -> None:
        bits = max(map(_bits, self._held())) + times
        if bits > MOST_BITS or self.scale is None:
            raise CompressError(
                f"residual: needs {bits} bits for what was sent, more than {MOST_BITS}; "
                "turn error feedback off for this compressor"
            )
        for held in self._held():
            held <<= times
        self.scale, self.most = self.scale + times, None

    def _coarsen(self, times: int) -> None:
        assert self.scale is not None
        for held in self._held():
            held[:] = _halved(held, times)
        self.scale, self.most = self.scale - times, None

    def _held(self) -> list[Numbers]:
        return [self.numbers] if self.velocity is None else [self.numbers, self.velocity]

    def _fitting(self, largest: float) -> Residual:
        """Return the residual on a grid on which values up to `largest` can be added."""
        if largest == 0.0:
            return self
        exponent = math.frexp(largest)[1]
        if self.scale is None:
            return Residual(self.numbers, self.velocity, _GRID_BITS - exponent)
        if self.most is not None and 1 + max(self.most.bit_length(), exponent + self.scale) <= MOST_BITS:
            return self
        bits = max(_bits(self.numbers), 0 if self.velocity is None else _bits(self.velocity) + 1)
        too_many = 1 + max(bits, exponent + self.scale) - MOST_BITS
        if too_many <= 0:
            return self
        coarser = too_many + (MOST_BITS - _GRID_BITS)
        velocity = None if self.velocity is None else _halved(self.velocity, coarser)
        return Residual(_halved(self.numbers, coarser), velocity, self.scale - coarser)


@dataclass(frozen=True)
class Sent:
    """The values that one step subtracted from a residual."""

    residual: Residual
    positions: Positions
    """int64[k]: the elements that were sent."""

    units: Numbers
    """int64[k] in units of 2**-scale: the values."""

    velocities: Numbers | None
    """int64[k] in units of 2**-scale: the velocities that were cleared; None without momentum."""

    scale: int
    """The grid's scale when it was subtracted; the grid is not made coarser within a step."""

    def put_back(self) -> None:
        """Add it to the residual again, and restore the velocities."""
        finer = (self.residual.scale or 0) - self.scale
        self.residual.numbers[self.positions] += self.units << finer
        self.residual.most = None
        if self.residual.velocity is not None and self.velocities is not None:
            self.residual.velocity[self.positions] = self.velocities << finer


class Memory:
    """A worker's state between steps, by the tensors' names: residuals, and arrays of compressors.

    `feedback` adds to every gradient what was not sent before, exactly. `momentum` is that of Deep Gradient
    Compression. `clip` is its local clipping: a gradient's 2-norm is limited to clip / sqrt(workers). Both
    need `feedback`. Raises CompressConfigError for an argument that is out of range.
    """

    def __init__(self, *, feedback: bool = True, momentum: float = 0.0, clip: float | None = None) -> None:
        require_number(
            "momentum", momentum, lambda one: 0 <= one < 1, "is out of range; give a number from 0 to below 1"
        )
        if clip is not None:
            require_number(
                "clip", clip, lambda one: 0 < one < math.inf, "is not a norm; give a number above 0, or None"
            )
        if (momentum or clip) and not feedback:
            field, value = ("momentum", momentum) if momentum else ("clip", clip)
            raise CompressConfigError(f"{field}: {value} needs error feedback; give feedback=True")
        self.feedback, self.momentum, self.clip = feedback, momentum, clip
        self.kept: dict[str, dict[str, NDArray[Any]]] = {}
        self.restore({})

    @property
    def settings(self) -> tuple[bool, float, float | None]:
        """The settings that must be the same on all workers: feedback, momentum and clip."""
        return self.feedback, self.momentum, self.clip

    def restore(self, residuals: Mapping[str, Residual]) -> None:
        """Replace all residuals. Raises CompressConfigError if only they, or only this one, have momentum."""
        if any((one.velocity is not None) != bool(self.momentum) for one in residuals.values()):
            was, now = ("without", "with") if self.momentum else ("with", "without")
            raise CompressConfigError(
                f"momentum: the checkpoint was made {was}, this state {now}; make the state as it was"
            )
        self.residuals = dict(residuals)
        self._step, self._skipped = -1, False
        self._sent: list[Sent] = []

    def __getstate__(self) -> dict[str, Any]:
        """Return the memory between steps, after which nothing of the last step is put back."""
        return vars(self) | {"_step": -1, "_sent": []}

    def grown(self, gradients: Mapping[str, Floats], workers: int) -> dict[str, Residual]:
        """Return each finite gradient's residual with the gradient added, to be stored by `keep`.

        Raises CompressConfigError if a residual has another number of elements. It is empty without feedback.
        """
        if not self.feedback:
            return {}
        grown = {}
        for name, one in gradients.items():
            largest = magnitude(one)
            if largest < math.inf:
                clipped = self._clipped(one, workers)
                known = largest if clipped is one else None
                grown[name] = self._residual(name, one).grown(clipped, self.momentum, known)
        return grown

    def keep(self, grown: Mapping[str, Residual], sent: Mapping[str, Exact | None], step: int) -> None:
        """Store a bucket's residuals, less what was `sent`. Call it for one bucket after the other.

        A gradient that was not finite on some worker, whose `sent` is None, is dropped. A GradScaler skips
        such a step, so what the step's other gradients sent is put back. All workers decide alike.
        """
        if step != self._step:
            self._step, self._skipped, self._sent = step, False, []
        for name, residual in grown.items():
            contributed = sent[name]
            if contributed is not None:
                self.residuals[name] = residual
                self._sent.append(residual.send(contributed))
        self._skipped |= any(one is None for one in sent.values())
        if self._skipped:
            for one in self._sent:
                one.put_back()
            self._sent = []

    def _clipped(self, gradient: Floats, workers: int) -> Floats:
        if self.clip is None:
            return gradient
        norm, most = float(np.linalg.norm(gradient.astype(np.float64))), self.clip / math.sqrt(workers)
        return gradient if norm <= most else gradient * np.float32(most / norm)

    def _residual(self, name: str, gradient: Floats) -> Residual:
        kept = self.residuals.get(name)
        if kept is None:
            velocity = np.zeros(gradient.size, np.int64) if self.momentum else None
            return Residual(np.zeros(gradient.size, np.int64), velocity)
        if kept.numbers.size != gradient.size:
            raise CompressConfigError(
                f"residual: {name} has {kept.numbers.size} elements, its gradient {gradient.size}; "
                "restore the state of this model, and register the hook on the same modules in the same order"
            )
        return kept


def magnitude(floats: Floats) -> float:
    """Return the largest magnitude, 0 without floats; infinity if one of them is not finite."""
    bits = np.uint32(loops.float_magnitude(floats.view(np.uint32)))
    return float(bits.view(np.float32)) if bits < loops.NOT_FINITE else math.inf


def _halved(numbers: Numbers, times: int) -> Numbers:
    """Return numbers / 2**times, rounded to nearest; zeros if `times` exceeds their bits."""
    if times > MOST_BITS:
        return np.zeros_like(numbers)
    return (numbers + (np.int64(1) << (times - 1))) >> times


def _bits(numbers: Numbers) -> int:
    return int(loops.magnitude(numbers)).bit_length()


def _trailing_zeros(numbers: Numbers) -> int:
    """Return the largest t for which all numbers are multiples of 2**t; 0 to 62."""
    together = int(np.bitwise_or.reduce(numbers)) if numbers.size else 0
    return (together & -together).bit_length() - 1 if together else MOST_BITS + 1
