"""A strategy's input from a step, its decision for the next one, its events, and its history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peelsum.flexible.collectives import LinkModel
from peelsum.flexible.front import Candidate
from peelsum.flexible.methods import CARRIERS, METHODS, Carrier, Method


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


def draw(figure: Any, history: Sequence[DecidedStep]) -> None:
    """Plot method, ratio, exchange time, link rate and latency over steps on an empty matplotlib `Figure`.

    Steps in which the strategy tried out a ratio are shaded. Raises ValueError if `history` is empty.
    """
    if not history:
        raise ValueError("history: is empty; train some steps first")
    steps = [one.step for one in history]
    method, ratio, time, rate, latency = figure.subplots(5, 1, sharex=True)
    used = [name for name in METHODS if any(one.method == name for one in history)]
    method.step(steps, [used.index(one.method) for one in history], where="mid")
    method.set_yticks(range(len(used)), used)
    method.set_ylim(-0.5, len(used) - 0.5)
    ratio.step(steps, [one.ratio for one in history], where="mid")
    time.plot(steps, [1e3 * one.exchange_s for one in history])
    for carrier in CARRIERS:
        known = [(one.step, one.links[carrier]) for one in history if carrier in one.links]
        at = [step for step, _ in known]
        rate.plot(at, [link.gbps for _, link in known], label=carrier)
        latency.plot(at, [1e3 * link.latency_s for _, link in known], label=carrier)
    for axes, label in (
        (ratio, "ratio"),
        (time, "exchange (ms)"),
        (rate, "Gbit/s"),
        (latency, "latency (ms)"),
    ):
        axes.set(ylabel=label, yscale="log")
    for axes in figure.axes:
        for one in history:
            if one.exploring:
                axes.axvspan(one.step - 0.5, one.step + 0.5, color="0.9", linewidth=0)
    rate.legend(frameon=False)
    latency.set(xlabel="step")
