"""The decisions of a strategy, step by step, and its events in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from peelsum.flexible.collectives import LinkModel
from peelsum.flexible.events import (
    Event,
    ExplorationEnded,
    ExplorationStarted,
    GainChanged,
    LinkChanged,
)
from peelsum.flexible.front import Candidate
from peelsum.flexible.methods import Carrier, Method


@dataclass(frozen=True)
class DecidedStep:
    """One step as it was decided, and the links as estimated after it."""

    step: int
    """Steps observed, this one included."""
    method: Method
    """The method by which it summed."""
    ratio: float
    """Share of the elements that a worker sent; 1 with a dense method."""
    exploring: bool
    """Whether the ratio was only explored."""
    exchange_s: float
    """Seconds of the step's collectives, as agreed."""
    links: Mapping[Carrier, LinkModel]
    """The link of each carrier."""


def told(event: Event) -> str:
    """Return an event in one line: the decision and its reason."""
    if isinstance(event, ExplorationStarted):
        return "every ratio is explored again"
    if isinstance(event, ExplorationEnded):
        gains = ", ".join(f"{gain:.3g} at {ratio:g}" for ratio, gain in event.gains.items())
        return f"every ratio has been explored; gains: {gains}"
    if isinstance(event, LinkChanged):
        return f"the {event.carrier}'s link changed from {_link(event.before)} to {_link(event.now)}"
    if isinstance(event, GainChanged):
        return f"the gain of the ratio in use changed from {event.before:.3g} to {event.now:.3g}"
    before = f"; before: {_candidate(event.before)}" if event.before else ""
    return f"use {_candidate(event.chosen)}{before}"


def _link(link: LinkModel) -> str:
    return f"{1e3 * link.latency_s:.3g} ms, {link.gbps:.3g} Gbit/s"


def _candidate(one: Candidate) -> str:
    return f"{one.method} at {one.ratio:g}, {1e3 * one.seconds:.3g} ms a step predicted, gain {one.gain:.3g}"
