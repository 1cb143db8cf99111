"""A problem of two objectives, time of a step and compression gain: its Pareto front, and a choice on it.

There are about ten candidates, so that the front is found by enumeration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from peelsum.flexible.methods import Method, family_of

#: How to choose on the front: by the delay of what is kept, at the knee, or by an exponent of the gain.
Preference = Literal["delay", "knee"] | float
#: For each step that an element waits to be sent, training takes this share more steps.
_DELAY = 0.08
#: A candidate must be this much faster than one of a larger gain.
_WORTH = 1.05


@dataclass(frozen=True)
class Candidate:
    """A method at a ratio, with what is known of it."""

    method: Method
    """The method."""
    ratio: float
    """Share of the elements that a worker sends; 1 with a dense method."""
    seconds: float
    """Time of a step."""
    gain: float
    """Compression gain: energy of what is sent over energy of the gradient, 0 to 1."""


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

    With a gain g, an element waits 1 / g steps, on average over energy. For "delay", the loss is the
    logarithm of a step's time times the number of steps. That number grows linearly with 1 / g under error
    feedback (Stich and Karimireddy, arXiv 1909.05350). For a weight w, it is the logarithm of time /
    gain**w. For "knee", it is how far the candidate lies below the line from nothing to the front's
    slowest, both objectives relative to that one.
    """
    if prefer == "knee":
        slowest = front[0]
        return one.seconds / slowest.seconds - one.gain / slowest.gain
    if prefer == "delay":
        return math.log(one.seconds) + math.log1p(_DELAY * (1 / one.gain - 1))
    return math.log(one.seconds) - prefer * math.log(one.gain)


def hopeless(one: Candidate, others: Sequence[Candidate], prefer: Preference, margin: float = 0.0) -> bool:
    """Return whether a candidate of at most this gain cannot be better than all `others` by `margin`.

    For "knee", only a candidate that `pareto_front` would leave out is hopeless.
    """
    if any(other.gain >= one.gain and other.seconds <= _WORTH * one.seconds for other in others):
        return True
    if prefer == "knee" or not others:
        return False
    return loss(one, (), prefer) >= min(loss(other, (), prefer) for other in others) - margin


def chosen(
    candidates: Sequence[Candidate],
    prefer: Preference,
    current: Candidate | None = None,
    margin: float = 0.0,
) -> Candidate:
    """Return the best candidate of the front; `current` unless another is better by more than `margin`.

    `current` has its time on the network as it is now. For another method of the same family and ratio,
    `margin` is a share of the time.
    """
    front = pareto_front(candidates)
    best = min(front, key=lambda one: loss(one, front, prefer))
    if current is None:
        return best
    if (family_of(best.method), best.ratio) == (family_of(current.method), current.ratio):
        return best if best.seconds < (1 - margin) * current.seconds else current
    return best if loss(best, front, prefer) < loss(current, front, prefer) - margin else current
