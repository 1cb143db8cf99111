"""A strategy's input from a step, its decision for the next one, and its events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from peelsum.flexible.collectives import LinkModel
from peelsum.flexible.front import Candidate
from peelsum.flexible.methods import Carrier, Method, Step, cost


@dataclass(frozen=True)
class Next:
    """The decision for the next step."""

    method: Method
    """The method by which it sums."""
    ratio: float
    """Share of the elements that a worker sends; 1 with a dense method."""
    exploring: bool
    """Whether the ratio is only explored."""
    probe_words: Mapping[Carrier, int]
    """Zeros to exchange over each carrier before the step's sums, to learn its rate; 0 for none."""
    small: frozenset[Carrier] = frozenset()
    """Carriers over which to exchange a word before the step's sums, to learn the latency."""


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
    small_messages: float = 0.0
    """Messages in a row of its exchange of the fewest words; 0 if none had few."""
    small_words: float = 0.0
    """Words of that exchange on the busiest link."""

    @classmethod
    def modelled(cls, method: Method, step: Step) -> Traffic:
        """Return the cost model's prediction of a step; its small exchange is a header of no words."""
        one, alpha = cost(method, step), replace(step, link=LinkModel(1.0, 1.0))
        messages = cost(method, alpha).latency_s
        bare = cost(method, replace(alpha, headers=0)).latency_s
        small = (messages - bare) / (step.sums * step.headers) if step.headers else 0.0
        return cls(step.elements, step.sums, messages, one.words, small)


@dataclass(frozen=True)
class ExplorationStarted:
    """Every ratio is explored from the next step on: the time to take a snapshot."""

    step: int
    """Steps observed so far."""


@dataclass(frozen=True)
class ExplorationEnded:
    """Every ratio has been explored: the time to return to the snapshot."""

    step: int
    """Steps observed so far."""
    gains: dict[float, float]
    """Compression gain by ratio."""


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
    """The gain of the ratio in use changed."""

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
    """All candidates: the fastest method of each ratio, and of those that send everything."""


Event = ExplorationStarted | ExplorationEnded | LinkChanged | GainChanged | MethodChosen
