"""Exact error feedback: integers keep what a sparsifier leaves out and what fixed point rounds off.

Theory of operation. A parameter's gradients accumulate in 64-bit integers, in units of 2**-scale: the grid.
Each step offers some elements to the all-reduce as floats. The all-reduce quantizes them to this worker's
integers in the step's fixed point, and these are subtracted from what is kept. An offered float lies on the
grid, and so does its rounding to any fixed point. A finer one leaves the float unchanged; a coarser one has
units that lie on the grid. Hence

    all that was sent + what is kept  ==  all gradients, each rounded once to the grid

holds bit for bit after every step. A step in which a gradient was not finite on some worker is skipped: what
it sent is put back. With momentum, `gradients` are the velocities u = momentum * u + gradient of Deep
Gradient Compression (Lin et al., ICLR'18), which are cleared where they were sent.
The first non-zero gradient sets the grid, to 2**-40 of its largest value. If numbers would outgrow 64 bits,
being about 2**20 times larger, the grid is made coarser and what is kept is rounded to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import StepResult, TensorResult
from peelsum.torch.errors import HookConfigError
from peelsum.torch.sparsifiers import Magnitudes, Sparsifier, chosen

Gradient = NDArray[np.float32]
Numbers = NDArray[np.int64]
#: Bits below the largest value of the gradient that sets the grid.
_GRID_BITS = 40
#: Numbers stay below 2**this.
_MOST_BITS = 61


@dataclass
class Residual:
    """What is kept of one parameter."""

    numbers: Numbers
    """int64[n] in units of 2**-scale: what was not sent yet."""

    velocity: Numbers | None = None
    """int64[n] in units of 2**-scale; None without momentum."""

    scale: int | None = None
    """The grid's scale; None, with all numbers zero, until the first non-zero gradient."""

    def grown(self, gradient: Gradient, momentum: float) -> Residual:
        """Return the residual with one more finite gradient added; this one is unchanged."""
        largest = float(np.abs(gradient).max(initial=0.0))
        kept = self._fitting(largest)
        if kept.scale is None:
            return kept
        units = np.rint(np.ldexp(gradient.astype(np.float64), kept.scale)).astype(np.int64)
        if kept.velocity is None:
            return Residual(kept.numbers + units, None, kept.scale)
        velocity = np.rint(momentum * kept.velocity).astype(np.int64) + units
        return Residual(kept.numbers + velocity, velocity, kept.scale)

    def magnitudes(self) -> Magnitudes:
        """Return float64[n]: absolute values in the gradient's units."""
        return np.ldexp(np.abs(self.numbers).astype(np.float64), -(self.scale or 0))

    def offer(self, positions: NDArray[np.int64]) -> Gradient:
        """Return float32[n]: the numbers at these positions, rounded to floats, and zero elsewhere."""
        offered = np.zeros(self.numbers.size, np.float32)
        offered[positions] = np.ldexp(self.numbers[positions].astype(np.float32), -(self.scale or 0))
        return offered

    def send(self, result: TensorResult) -> Sent:
        """Subtract, in place, what this worker contributed to a finite sum; return it."""
        if result.fixed is None or self.scale is None:
            return Sent(self, np.zeros(0, np.int64), np.zeros(0, np.int64), None)
        contributed = result.fixed.joined(result.quantized_at)
        shift = self.scale - result.fixed.scale
        units = (
            contributed << min(shift, _MOST_BITS) if shift >= 0 else contributed >> min(-shift, _MOST_BITS)
        )
        at = np.flatnonzero(units)
        positions = at if result.positions is None else result.positions[at]
        sent = Sent(self, positions, units[at], None if self.velocity is None else self.velocity[positions])
        self.numbers[positions] -= sent.units
        if self.velocity is not None:
            self.velocity[positions] = 0
        return sent

    def _fitting(self, largest: float) -> Residual:
        """Return the residual on a grid on which values up to `largest` can be added."""
        if largest == 0.0:
            return self
        exponent = int(np.frexp(largest)[1])
        if self.scale is None:
            return Residual(self.numbers, self.velocity, _GRID_BITS - exponent)
        held = [self.numbers] if self.velocity is None else [self.numbers, 2 * self.velocity]
        bits = max(int(np.abs(one).max(initial=0)).bit_length() for one in held)
        too_many = 1 + max(bits, exponent + self.scale) - _MOST_BITS
        if too_many <= 0:
            return self
        coarser = too_many + (_MOST_BITS - _GRID_BITS)
        velocity = None if self.velocity is None else _halved(self.velocity, coarser)
        return Residual(_halved(self.numbers, coarser), velocity, self.scale - coarser)


@dataclass(frozen=True)
class Sent:
    """What one step subtracted from a residual."""

    residual: Residual
    positions: NDArray[np.int64]
    """int64[k]: the elements that were sent."""

    units: Numbers
    """int64[k] in units of the residual's grid: what was subtracted."""

    velocities: Numbers | None
    """int64[k]: the velocities that were cleared; None without momentum."""

    def put_back(self) -> None:
        """Add it to the residual again, and restore the velocities."""
        self.residual.numbers[self.positions] += self.units
        if self.residual.velocity is not None and self.velocities is not None:
            self.residual.velocity[self.positions] = self.velocities


class ErrorFeedback:
    """The residuals of all parameters of a worker, by name."""

    def __init__(self, sparsifier: Sparsifier, momentum: float, seed: int) -> None:
        if not 0 <= momentum < 1:
            raise HookConfigError(f"momentum: {momentum} is out of range; give a number from 0 to below 1")
        self._sparsifier, self._momentum, self._seed = sparsifier, momentum, seed
        self.restore({})

    def restore(self, residuals: Mapping[str, Residual]) -> None:
        """Replace all residuals. Raises HookConfigError if only they, or only this state, have momentum."""
        if any((one.velocity is not None) != bool(self._momentum) for one in residuals.values()):
            was, now = ("without", "with") if self._momentum else ("with", "without")
            raise HookConfigError(
                f"momentum: the checkpoint was made {was}, this state {now}; make the state as it was"
            )
        self.residuals = dict(residuals)
        self._step, self._skipped = -1, False
        self._sent: list[Sent] = []

    def __getstate__(self) -> dict[str, Any]:
        """Return the state between steps, after which nothing of the last step is put back."""
        return vars(self) | {"_step": -1, "_sent": []}

    def offered(
        self, gradients: Mapping[str, Gradient], step: int
    ) -> tuple[dict[str, Gradient], dict[str, Residual]]:
        """Return the gradients to sum for a bucket, and the residuals to `keep` once they are summed.

        A gradient that is not finite is returned unchanged, so that all workers learn of it.
        """
        finite = {name: one for name, one in gradients.items() if np.isfinite(one).all()}
        grown = {name: self._residual(name, one).grown(one, self._momentum) for name, one in finite.items()}
        seeds = [_seed(self._seed, step, name) for name in grown]
        positions = chosen(self._sparsifier, [one.magnitudes() for one in grown.values()], step, seeds)
        offered = {
            name: one.offer(where) for (name, one), where in zip(grown.items(), positions, strict=True)
        }
        return {name: offered.get(name, gradients[name]) for name in gradients}, grown

    def keep(self, grown: Mapping[str, Residual], result: StepResult, step: int) -> None:
        """Store a bucket's residuals, less what was sent. Call it for one bucket after the other.

        A gradient that was not finite on some worker is dropped. A GradScaler skips such a step, so what the
        step's other gradients sent is put back. All workers see it in their sums, and decide alike.
        """
        if step != self._step:
            self._step, self._skipped, self._sent = step, False, []
        for name, residual in grown.items():
            if result[name].finite:
                self.residuals[name] = residual
                self._sent.append(residual.send(result[name]))
        self._skipped |= not all(tensor.finite for tensor in result.tensors)
        if self._skipped:
            for sent in self._sent:
                sent.put_back()
            self._sent = []

    def _residual(self, name: str, gradient: Gradient) -> Residual:
        kept = self.residuals.get(name)
        if kept is None:
            velocity = np.zeros(gradient.size, np.int64) if self._momentum else None
            return Residual(np.zeros(gradient.size, np.int64), velocity)
        if kept.numbers.size != gradient.size:
            raise HookConfigError(
                f"residual: {name} has {kept.numbers.size} elements, its gradient {gradient.size}; "
                "restore the state of this model, and register the hook on the same modules in the same order"
            )
        return kept


def _halved(numbers: Numbers, times: int) -> Numbers:
    """Return numbers / 2**times, rounded to nearest; zeros if `times` exceeds their bits."""
    if times > _MOST_BITS:
        return np.zeros_like(numbers)
    return (numbers + (np.int64(1) << (times - 1))) >> times


def _seed(seed: int, step: int, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{step}/{name}".encode(), digest_size=8).digest())
