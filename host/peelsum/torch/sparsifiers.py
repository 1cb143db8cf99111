"""Sparsifiers, which choose the elements of a gradient to send now: top-k, random-k, or above a threshold.

A sparsifier takes magnitudes and returns positions; error feedback keeps the other elements. The sum of what
is sent stays exact. The warm-up is that of Deep Gradient Compression (Lin et al., ICLR'18).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from peelsum.torch.errors import HookConfigError

Magnitudes = NDArray[np.float64]
Positions = NDArray[np.int64]
#: Whether elements compete within their tensor or within their whole bucket.
Scope = Literal["tensor", "bucket"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
#: A sampled threshold may let this many times too many through before it is corrected.
_TOO_MANY = 2


class Sparsifier(Protocol):
    """A choice of elements to send."""

    @property
    def per(self) -> Scope:
        """Whether elements compete within a tensor or within all tensors of a bucket."""

    def choose(self, magnitudes: Magnitudes, step: int, seed: int) -> Positions:
        """Return int64[k]: distinct positions in magnitudes[n]. `seed` is the same on all workers."""


@dataclass(frozen=True)
class _Share:
    """A share `ratio` of the elements, at least one, reached over `warm_up_steps` from `warm_up_from`."""

    ratio: float
    per: Scope = "tensor"
    warm_up_steps: int = 0
    warm_up_from: float = 0.25

    def __post_init__(self) -> None:
        _within("ratio", self.ratio)
        _within("warm_up_from", self.warm_up_from)
        _known(self.per)
        if not isinstance(self.warm_up_steps, Integral) or self.warm_up_steps < 0:
            raise HookConfigError(
                f"warm_up_steps: {self.warm_up_steps!r} is not a number of steps; give an integer from 0 on"
            )
        if self.warm_up_steps and self.warm_up_from < self.ratio:
            raise HookConfigError(
                f"warm_up_from: {self.warm_up_from} is below the ratio, {self.ratio}; give at least the ratio"
            )

    def ratio_at(self, step: int) -> float:
        """Return the share in `step`, counted from 0: exponential from `warm_up_from` to `ratio`."""
        if step >= self.warm_up_steps:
            return self.ratio
        done = step / self.warm_up_steps
        return math.exp((1 - done) * math.log(self.warm_up_from) + done * math.log(self.ratio))

    def _count(self, elements: int, step: int) -> int:
        return min(elements, math.ceil(self.ratio_at(step) * elements))


@dataclass(frozen=True)
class TopK(_Share):
    """The largest elements: exactly, or by a threshold estimated from a share `sample` of all elements.

    An estimated threshold may pass up to twice as many elements; if it passes more, the largest are taken.
    """

    sample: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample is not None:
            _within("sample", self.sample)

    def choose(self, magnitudes: Magnitudes, step: int, seed: int) -> Positions:
        """See `Sparsifier.choose`."""
        count = self._count(magnitudes.size, step)
        if self.sample is None:
            return _largest(magnitudes, count)
        some = _some(magnitudes.size, math.ceil(self.sample * magnitudes.size), seed)
        few = max(1, round(some.size * count / max(magnitudes.size, 1)))
        if some.size == 0:
            return some
        passed = np.flatnonzero(magnitudes >= np.partition(magnitudes[some], -few)[-few])
        return passed[_largest(magnitudes[passed], count)] if passed.size > _TOO_MANY * count else passed


@dataclass(frozen=True)
class RandomK(_Share):
    """Elements at random, the same on all workers."""

    def choose(self, magnitudes: Magnitudes, step: int, seed: int) -> Positions:
        """See `Sparsifier.choose`."""
        return _some(magnitudes.size, self._count(magnitudes.size, step), seed)


@dataclass(frozen=True)
class Threshold:
    """The elements of at least magnitude `value`, above 0."""

    value: float
    per: Scope = "tensor"

    def __post_init__(self) -> None:
        if not isinstance(self.value, Real) or not 0 < self.value < math.inf:
            raise HookConfigError(f"value: {self.value!r} is not a threshold; give a number above 0")
        _known(self.per)

    def choose(self, magnitudes: Magnitudes, step: int, seed: int) -> Positions:
        """See `Sparsifier.choose`."""
        return np.flatnonzero(magnitudes >= self.value)


def chosen(
    sparsifier: Sparsifier, magnitudes: Sequence[Magnitudes], step: int, seeds: Sequence[int]
) -> list[Positions]:
    """Return the positions to send, for each tensor of a bucket."""
    if sparsifier.per == "tensor" or not magnitudes:
        pairs = zip(magnitudes, seeds, strict=True)
        return [sparsifier.choose(one, step, seed) for one, seed in pairs]
    ends = np.cumsum([one.size for one in magnitudes])
    together = np.sort(sparsifier.choose(np.concatenate(magnitudes), step, seeds[0]))
    cuts = np.searchsorted(together, ends[:-1])
    return [
        part - (end - one.size)
        for part, end, one in zip(np.split(together, cuts), ends, magnitudes, strict=True)
    ]


def _largest(magnitudes: Magnitudes, count: int) -> Positions:
    if not count:
        return np.zeros(0, np.int64)
    return np.argpartition(magnitudes, -count)[-count:]


def _some(elements: int, count: int, seed: int) -> Positions:
    return np.random.default_rng(seed).choice(elements, count, replace=False, shuffle=False)


def _within(name: str, share: float) -> None:
    if not isinstance(share, Real) or not 0 < share <= 1:
        raise HookConfigError(f"{name}: {share!r} is not a share; give a number above 0, up to 1")


def _known(scope: Scope) -> None:
    if scope not in SCOPES:
        raise HookConfigError(f"per: {scope!r} is unknown; use 'tensor' or 'bucket'")
