"""A strategy's measurements of a step, its decision for the next one, its events, and its history.

All workers agree on measurements by ordered codes in words that any backend can OR. A value is a level on a
logarithmic scale, sent as one bit. The highest bit of the OR is the largest level of any worker, or the
smallest value if levels descend. So every decision follows from the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from peelsum.compress.arguments import CompressConfigError
from peelsum.compress.costs import CARRIERS, METHODS, Carrier, LinkModel, Method
from peelsum.summation import Words

_LEVELS, _WORD_BITS = 512, 32
_WORDS = _LEVELS // _WORD_BITS


@dataclass(frozen=True)
class _Scale:
    """A logarithmic scale from `least` on, of which level 0 stands for anything smaller, 0 included."""

    least: float
    per_octave: int
    smallest_wins: bool

    def bit(self, value: float) -> int:
        level = 0
        if value >= self.least:
            level = min(1 + round(self.per_octave * math.log2(value / self.least)), _LEVELS - 1)
        return _LEVELS - 1 - level if self.smallest_wins else level

    def value(self, bits: int) -> float:
        bit = bits.bit_length() - 1
        level = _LEVELS - 1 - bit if self.smallest_wins else bit
        return self.least * 2 ** ((level - 1) / self.per_octave) if level else 0.0


# A worker that comes late to an exchange sees the network's own time; the others have waited for it, too.
_NETWORK_S = _Scale(1e-6, 16, smallest_wins=True)
_WORKER_S = _Scale(1e-6, 16, smallest_wins=False)
_GAIN = _Scale(2.0**-15, 32, smallest_wins=True)


@dataclass(frozen=True)
class Measurement:
    """A worker's measurements of a step, or those that all agree on. Times are seconds, 0 if not measured.

    Agreed times are within 2.5 % of a worker's, from a microsecond to an hour; agreed gains within 1.5 %.
    """

    group_small_s: float = 0.0
    """Time of an exchange of a few words over the process group."""
    switch_small_s: float = 0.0
    """Time of an exchange of a few words through the switch."""
    group_probe_s: float = 0.0
    """Time of the probe of the process group, if one was asked for."""
    switch_probe_s: float = 0.0
    """Time of the probe of the switch, if one was asked for."""
    exchange_s: float = 0.0
    """Time of the step's collectives."""
    compress_s: float = 0.0
    """Time of selecting the elements to send."""
    compute_s: float = 0.0
    """The rest of the step's time."""
    gain: float = 0.0
    """Compression gain: the energy of the sent elements over the gradient's, 0 to 1."""

    def small_s(self, carrier: Carrier) -> float:
        """Return the time of an exchange of a few words over `carrier`."""
        return self.group_small_s if carrier == "group" else self.switch_small_s

    def probe_s(self, carrier: Carrier) -> float:
        """Return the time of the probe of `carrier`."""
        return self.group_probe_s if carrier == "group" else self.switch_probe_s

    def words(self) -> Words:
        """Return this as uint32[128], whose OR over all workers `agreed` takes."""
        words = np.zeros(_WORDS * len(_SCALES), np.uint32)
        for part, (name, scale) in enumerate(_SCALES.items()):
            word, bit = divmod(scale.bit(getattr(self, name)), _WORD_BITS)
            words[part * _WORDS + word] = 1 << bit
        return words

    @classmethod
    def agreed(cls, words: Words) -> Measurement:
        """Return the agreed measurements: of the network and the gain the least, of work the most.

        words: uint32[128], the OR of all workers' `words`. Raises CompressConfigError for another shape.
        """
        if words.shape != (_WORDS * len(_SCALES),):
            raise CompressConfigError(f"words: {words.shape} is not the shape of a measurement's words")
        data, size = words.astype("<u4").tobytes(), 4 * _WORDS
        parts = (int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size))
        return cls(*(scale.value(part) for scale, part in zip(_SCALES.values(), parts, strict=True)))


#: The scale of each field, in the order of fields.
_SCALES = {
    "group_small_s": _NETWORK_S,
    "switch_small_s": _NETWORK_S,
    "group_probe_s": _NETWORK_S,
    "switch_probe_s": _NETWORK_S,
    "exchange_s": _NETWORK_S,
    "compress_s": _WORKER_S,
    "compute_s": _WORKER_S,
    "gain": _GAIN,
}


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


@dataclass(frozen=True)
class StrategyStats:
    """The decisions of a strategy, the same on all ranks, since the state was made or restored."""

    plan: Next | None
    """Method and ratio of the last step that began; None before the first."""

    links: Mapping[Carrier, LinkModel]
    """The estimated link of each carrier that has been measured."""

    history: tuple[DecidedStep, ...]
    """The last 10,000 steps; each is added when the next one begins."""

    events: tuple[Event, ...]
    """The last 1,000 events."""


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
