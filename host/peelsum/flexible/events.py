"""A strategy's input from a step, its decision for the next one, and its events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from peelsum.flexible.collectives import LinkModel
from peelsum.flexible.front import Candidate
from peelsum.flexible.methods import Carrier, Family, Method


@dataclass(frozen=True)
class Next:
    """The decision for the next step."""

    method: Method
    """The method by which it sums."""
    ratio: float
    """Share of the elements that a worker sends; 1 with a dense method."""
    exploring: bool
    """Whether method and ratio are only explored."""
    probe_words: Mapping[Carrier, int]
    """Zeros to exchange over each carrier in addition to the step's words, to learn its link; 0 for none."""


@dataclass(frozen=True)
class Traffic:
    """The sums of a step, the same on all workers."""

    elements: int
    """Elements of the gradients."""
    sums: int
    """Sums, one after the other, of parts of the gradients."""
    messages: float
    """Messages in a row."""
    words: float
    """32-bit words that crossed the busiest link in one direction."""
    first_messages: float = 0.0
    """Messages in a row of the first of the step's collectives."""
    first_words: float = 0.0
    """Words of that first one on the busiest link."""


@dataclass(frozen=True)
class ExplorationStarted:
    """Gains are explored from the next step on; take a snapshot now."""

    step: int
    """Steps observed so far."""


@dataclass(frozen=True)
class ExplorationEnded:
    """All candidates that might be the best have been explored; return to the snapshot now."""

    step: int
    """Steps observed so far."""
    gains: dict[tuple[Family, float], float]
    """Compression gain by family and ratio."""


@dataclass(frozen=True)
class LinkChanged:
    """Rate or latency changed."""

    step: int
    """Steps observed so far."""
    carrier: Carrier
    """Whose link it is."""
    before: LinkModel
    """The link when a method was last chosen."""
    now: LinkModel
    """The link as estimated now."""


@dataclass(frozen=True)
class GainChanged:
    """The gain of the method and ratio in use changed."""

    step: int
    """Steps observed so far."""
    before: float
    """The gain when it was explored."""
    now: float
    """The gain now."""


@dataclass(frozen=True)
class MethodChosen:
    """Another method or ratio is in use from the next step on."""

    step: int
    """Steps observed so far."""
    chosen: Candidate
    """The candidate in use."""
    before: Candidate | None
    """The one before, at its time on the network now; None the first time."""
    candidates: tuple[Candidate, ...]
    """The fastest method of each family and ratio whose gain is known, and of those that send everything."""


Event = ExplorationStarted | ExplorationEnded | LinkChanged | GainChanged | MethodChosen
