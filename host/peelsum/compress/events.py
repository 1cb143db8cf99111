"""A strategy's measurements of a step, its decision for the next step, its events, and its history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from peelsum.compress.costs import CARRIERS, METHODS, Carrier, LinkModel, Method
from peelsum.summation import Words


@dataclass(frozen=True)
class Measurement:
    """Measurements of a step, by a worker or as all workers agree. Times are seconds, 0 if not measured."""

    group_small_s: float = 0.0
    """Time of an exchange of a few words over the process group."""
    switch_small_s: float = 0.0
    """Time of an exchange of a few words through the switch."""
    group_probe_s: float = 0.0
    """Time of the probe of the process group, if it was probed."""
    switch_probe_s: float = 0.0
    """Time of the probe of the switch, if it was probed."""
    exchange_s: float = 0.0
    """Time of the step's collectives."""
    compress_s: float = 0.0
    """Time of selecting the elements to send."""
    compute_s: float = 0.0
    """The rest of the step's time."""
    gain: float = 0.0
    """Compression gain: the energy of the sent elements over the gradient's, 0 to 1."""

    def words(self, worker_id: int, workers: int) -> Words:
        """Return uint32[workers * 8]: the measurements as float32, and zeros in place of other workers'."""
        rows = np.zeros((workers, len(_AGREE)), np.float32)
        rows[worker_id] = astuple(self)
        return rows.view(np.uint32).reshape(-1)

    @classmethod
    def agreed(cls, words: Words) -> Measurement:
        """Return the measurements on which workers agree, given the OR of their `words`.

        These are the smallest gain and network times, because the worker that comes last to an exchange does
        not wait for others; and the largest times of computation and compression.
        """
        columns = words.view(np.float32).reshape(-1, len(_AGREE)).T.tolist()
        return cls(*(agree(column) for agree, column in zip(_AGREE, columns, strict=True)))


#: How workers agree on each field of a measurement.
_AGREE = [max if name in ("compress_s", "compute_s") else min for name in Measurement.__dataclass_fields__]


@dataclass(frozen=True)
class MethodCandidate:
    """A method at a ratio, with its time and gain."""

    method: Method
    """The method."""
    ratio: float
    """Share of the elements that a worker sends; 1 with a dense method."""
    seconds: float
    """Time of a step."""
    gain: float
    """Compression gain: energy of the sent elements over energy of the gradient, 0 to 1."""


@dataclass(frozen=True)
class StepPlan:
    """The decision for a step."""

    method: Method
    """The method by which the step sums."""
    ratio: float
    """Share of the elements that a worker sends; 1 with a dense method."""
    exploring: bool
    """Whether the ratio is used only to learn its gain."""
    probe_words: Mapping[Carrier, int]
    """Number of zeros to exchange over each carrier before the step's sums, to measure its rate."""
    small: frozenset[Carrier] = frozenset()
    """Carriers over which to exchange a word before the step's sums, to measure the latency."""


@dataclass(frozen=True)
class StepTraffic:
    """Counts of a step's sums and exchanges, the same on all workers."""

    elements: int
    """Number of elements of the gradients."""
    sums: int
    """Number of sums, each of a part of the gradients."""
    messages: float
    """Number of messages that were sent one after another."""
    words: float
    """32-bit words that crossed the busiest link in one direction."""
    small_messages: float = 0.0
    """Messages of the exchange with the fewest words, sent one after another; 0 if no exchange had few."""
    small_words: float = 0.0
    """Words of that exchange on the busiest link."""


@dataclass(frozen=True)
class Event:
    """An event of a strategy."""

    step: int
    """Steps observed so far."""


@dataclass(frozen=True)
class ExplorationStarted(Event):
    """All ratios are explored from the next step on, so a snapshot of the model can be taken now."""


@dataclass(frozen=True)
class ExplorationEnded(Event):
    """All ratios have been explored, so training can return to the snapshot now."""

    gains: dict[float, float]
    """Compression gain by ratio."""


@dataclass(frozen=True)
class LinkChanged(Event):
    """The rate or the latency of a link changed."""

    carrier: Carrier
    """The carrier of the link."""
    before: LinkModel
    """The link when a method was last chosen."""
    now: LinkModel
    """The link as estimated now."""


@dataclass(frozen=True)
class GainChanged(Event):
    """The gain of the ratio in use changed."""

    before: float
    """The gain when it was explored."""
    now: float
    """The gain now."""


@dataclass(frozen=True)
class MethodChosen(Event):
    """Another method or ratio is in use from the next step on."""

    chosen: MethodCandidate
    """The candidate in use."""
    before: MethodCandidate | None
    """The previous candidate, with its time on the present network; None the first time."""
    candidates: tuple[MethodCandidate, ...]
    """All candidates: the fastest method of each ratio, and the fastest dense method."""


@dataclass(frozen=True)
class DecidedStep:
    """The decision for a past step, and the estimates of the links after it."""

    step: int
    """Steps observed, this one included."""
    method: Method
    """The method by which it summed."""
    ratio: float
    """Share of the elements that a worker sent; 1 with a dense method."""
    exploring: bool
    """Whether the ratio was used only to learn its gain."""
    exchange_s: float
    """Seconds of the step's collectives, as agreed."""
    links: Mapping[Carrier, LinkModel]
    """The link of each carrier."""


@dataclass(frozen=True)
class StrategyStats:
    """The decisions of a strategy, the same on all ranks, since the state was made or restored."""

    plan: StepPlan | None
    """Method and ratio of the last step that began; None before the first."""
    links: Mapping[Carrier, LinkModel]
    """The estimated link of each carrier that has been measured."""
    history: tuple[DecidedStep, ...]
    """The last 10,000 steps; each is added when the next one begins."""
    events: tuple[Event, ...]
    """The last 1,000 events."""


def describe_event(event: Event) -> str:
    """Return an event as a line of text."""
    if isinstance(event, ExplorationStarted):
        return "every ratio is explored again"
    if isinstance(event, ExplorationEnded):
        gains = ", ".join(f"{gain:.3g} at {ratio:g}" for ratio, gain in event.gains.items())
        return f"every ratio has been explored; gains: {gains}"
    if isinstance(event, LinkChanged):
        before, now = (
            f"{1e3 * link.latency_s:.3g} ms, {link.gbps:.3g} Gbit/s" for link in (event.before, event.now)
        )
        return f"the {event.carrier}'s link changed from {before} to {now}"
    if isinstance(event, GainChanged):
        return f"the gain of the ratio in use changed from {event.before:.3g} to {event.now:.3g}"
    assert isinstance(event, MethodChosen)
    previous = f"; before: {_describe_candidate(event.before)}" if event.before else ""
    return f"use {_describe_candidate(event.chosen)}{previous}"


def _describe_candidate(candidate: MethodCandidate) -> str:
    """Return method, ratio, time and gain of a candidate as text."""
    milliseconds = f"{1e3 * candidate.seconds:.3g} ms a step predicted"
    return f"{candidate.method} at {candidate.ratio:g}, {milliseconds}, gain {candidate.gain:.3g}"


def draw(figure: Any, history: Sequence[DecidedStep]) -> None:
    """Plot method, ratio, exchange time, link rate and latency over steps on an empty matplotlib `Figure`.

    Steps in which the strategy tried out a ratio are shaded. Raises ValueError if `history` is empty.
    """
    if not history:
        raise ValueError("history: is empty; train some steps first")
    numbers = [step.step for step in history]
    method, ratio, time, rate, latency = figure.subplots(5, 1, sharex=True)
    used = [name for name in METHODS if any(step.method == name for step in history)]
    method.step(numbers, [used.index(step.method) for step in history], where="mid")
    method.set_yticks(range(len(used)), used)
    method.set_ylim(-0.5, len(used) - 0.5)
    ratio.step(numbers, [step.ratio for step in history], where="mid")
    time.plot(numbers, [1e3 * step.exchange_s for step in history])
    for carrier in CARRIERS:
        links = {step.step: step.links[carrier] for step in history if carrier in step.links}
        rate.plot(list(links), [link.gbps for link in links.values()], label=carrier)
        latency.plot(list(links), [1e3 * link.latency_s for link in links.values()], label=carrier)
    labels = {"ratio": ratio, "exchange (ms)": time, "Gbit/s": rate, "latency (ms)": latency}
    for label, axes in labels.items():
        axes.set(ylabel=label, yscale="log")
    for axes in figure.axes:
        for step in history:
            if step.exploring:
                axes.axvspan(step.step - 0.5, step.step + 0.5, color="0.9", linewidth=0)
    rate.legend(frameon=False)
    latency.set(xlabel="step")
