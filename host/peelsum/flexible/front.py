"""A problem of two objectives, time of a step and compression gain: its Pareto front, and a choice on it.

There are about ten candidates, so the front is found by enumeration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from peelsum.flexible.methods import Method

#: How to choose on the front: the knee, or the exponent w of the least time / gain**w.
Preference = Literal["knee"] | float
#: A candidate must be this much faster than one of a larger gain.
_WORTH = 1.05


@dataclass(frozen=True)
class Candidate:
    """A method at a ratio, with its time and gain."""

    method: Method
    """The method."""
    ratio: float
    """Share of the elements that a worker sends; 1 with a dense method."""
    seconds: float
    """Time of a step."""
    gain: float
    """Compression gain: energy of the sent elements over energy of the gradient, 0 to 1."""


def pareto_front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that no other beats in time and gain, slowest first.

    A candidate that is less than 5 % faster than one of a larger gain counts as beaten.
    """
    front: list[Candidate] = []
    for one in sorted(candidates, key=lambda one: (-one.gain, one.seconds)):
        if not front or _WORTH * one.seconds < front[-1].seconds:
            front.append(one)
    return front


def loss(one: Candidate, front: Sequence[Candidate], prefer: Preference) -> float:
    """Return how bad a candidate is, without unit.

    For "knee", it is how far the candidate lies below the line from nothing to the front's slowest, both
    objectives relative to that one. For a weight w, it is the logarithm of time / gain**w.
    """
    if prefer == "knee":
        slowest = front[0]
        return one.seconds / slowest.seconds - one.gain / slowest.gain
    return math.log(one.seconds) - prefer * math.log(one.gain)


def chosen(
    candidates: Sequence[Candidate],
    prefer: Preference,
    current: Candidate | None = None,
    margin: float = 0.0,
) -> Candidate:
    """Return the best candidate of the front; `current` unless another is better by more than `margin`.

    `current` is a candidate with its time on the network now. For another method at the same ratio,
    `margin` is a share of the time.
    """
    front = pareto_front(candidates)
    best = min(front, key=lambda one: loss(one, front, prefer))
    if current is None:
        return best
    if best.ratio == current.ratio:
        return best if best.seconds < (1 - margin) * current.seconds else current
    return best if loss(best, front, prefer) < loss(current, front, prefer) - margin else current
