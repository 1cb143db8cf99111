"""A strategy that chooses method and ratio while training runs, as the network and the gain change.

Theory of operation: `Decider.next` returns the next step's method and ratio. The workers' measurements of a
step travel with the sums of the one after it; then `observe` takes the agreed ones. At first every ratio is
explored for a few steps, to learn its gain. Then the best candidate by `front` is in use. When a link moves,
the best is looked up again at once, with the gains known. When the gain or a link moves after a long time,
the ratios are explored again.

A choice has two objectives, time of a step and compression gain. There are about ten candidates, so their
Pareto front is found by enumeration.

| state | event | next state |
|---|---|---|
| exploring | the last ratio's last step | using the best candidate: `MethodChosen` |
| using | a link moved | using the best candidate: `LinkChanged`, `MethodChosen` if it is another |
| using | the gain or a link moved, and the gains are old | exploring: `ExplorationStarted` |
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, Literal

from peelsum.compress.arguments import CompressConfigError
from peelsum.compress.costs import (
    CARRIERS,
    DENSE,
    METHODS,
    Carrier,
    Cost,
    LinkModel,
    Method,
    Step,
    SwitchPath,
    carrier_of,
    cost,
    directly,
    reduced,
    within,
)
from peelsum.compress.events import (
    Candidate,
    Event,
    ExplorationEnded,
    ExplorationStarted,
    GainChanged,
    LinkChanged,
    Measurement,
    MethodChosen,
    Next,
    Traffic,
)
from peelsum.compress.links import LinkEstimate, Timed, moved

#: How to choose on the front: the knee, or the exponent w of the least time / gain**w.
Preference = Literal["knee"] | float
#: A candidate must be this much faster than one of a larger gain.
_WORTH = 1.05
#: Steps of which the median tells whether the gain moved, and how long a step computes.
_RECENT = 3
#: The least gain that is believed: a gradient of zeros has none.
_LEAST_GAIN = 1e-6


@dataclass(frozen=True)
class Flexible:
    """Settings of the strategy, the same on all workers. Raises CompressConfigError for a bad value."""

    ratios: tuple[float, ...] = (0.1, 0.03, 0.01, 0.003, 0.001)
    """Ratios to choose from."""
    methods: tuple[Method, ...] | None = None
    """Methods to choose from; None takes all for which there is a carrier."""
    prefer: Preference = "knee"
    """How to choose between time and gain: "knee", or the exponent w of the least time / gain**w."""
    explore_steps: int = 3
    """Steps for which each ratio is explored."""
    explore_after: int = 200
    """Steps after which gains are old: they are explored again when the gain or a link moves."""
    tolerance: float = 0.3
    """Relative change of rate, latency or gain that counts as one."""
    margin: float = 0.1
    """By how much another candidate must be better to be used."""

    def __post_init__(self) -> None:
        if not self.ratios or self.methods == ():
            raise CompressConfigError("ratios, methods: are empty; give at least one of each")
        for ratio in self.ratios:
            within("ratios", ratio, 1e-9, 1)
        if self.methods is not None:
            self._check_methods(self.methods)
        if self.prefer != "knee":
            if not isinstance(self.prefer, int | float):
                raise CompressConfigError(f"prefer: {self.prefer!r} is unknown; use 'knee' or a number")
            within("prefer", self.prefer, 0, 100)
        within("explore_steps", self.explore_steps, 1, 1000)
        within("explore_after", self.explore_after, 1, 10**9)
        within("tolerance", self.tolerance, 0.01, 100)
        within("margin", self.margin, 0, 0.9)

    def _check_methods(self, methods: Sequence[Method]) -> None:
        unknown = set(methods) - set(METHODS)
        if unknown:
            raise CompressConfigError(f"methods: {min(unknown)!r} is unknown; use {', '.join(METHODS)}")
        if set(methods) <= set(DENSE):
            raise CompressConfigError("methods: has none that selects; give one, e.g. 'ar_top_k_ring'")

    def over(self, carriers: Sequence[Carrier]) -> tuple[Method, ...]:
        """Return the methods to choose from over `carriers`, in the order of METHODS."""
        wanted = self.methods or METHODS
        return tuple(one for one in METHODS if one in wanted and carrier_of(one) in carriers)


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


@dataclass
class _Known:
    """A decider's state between steps, except its estimates of links, in plain values."""

    elements: int
    sums: int = 1
    observed: int = 0
    #: The compression gain of each ratio as explored, after how many steps, and samples of the one explored.
    gains: dict[float, float] = field(default_factory=dict)
    explored_at: int = 0
    samples: list[float] = field(default_factory=list)
    #: Ratios still to explore.
    left: list[float] = field(default_factory=list)
    #: The last samples.
    recent_gain: list[float] = field(default_factory=list)
    compute_s: list[float] = field(default_factory=list)
    select_s: list[float] = field(default_factory=list)
    #: Seconds of the last step.
    step_s: float = 0.0
    #: Method and ratio in use, and latency and rate of the links for which they were chosen.
    chosen: tuple[Method, float] | None = None
    links: dict[Carrier, tuple[float, float]] = field(default_factory=dict)


class Decider:
    """Decides for the gradients of a step, of `elements` elements over `workers` workers.

    Workers whose `observe` calls get the same arguments make the same decisions. `carriers`: what can carry
    words. Each is probed, the process group by direct messages, or by a ring if `few_words` is 0. `headers`
    and `few_words` are as in `Step`.
    Raises CompressConfigError if no method of `settings` that selects has a carrier.
    """

    def __init__(
        self,
        settings: Flexible,
        elements: int,
        workers: int,
        *,
        path: SwitchPath | None = None,
        carriers: Sequence[Carrier] = ("group",),
        headers: int = 0,
        few_words: int = 0,
    ) -> None:
        self._settings, self._methods = settings, settings.over(carriers)
        self._sparse = [method for method in self._methods if method not in DENSE]
        if not self._sparse:
            raise CompressConfigError(f"methods: none that selects goes over {', '.join(carriers)}; add one")
        path = path or SwitchPath()
        link = LinkModel(1e-4, 1.0)
        self._step = Step(elements, 1.0, workers, link, path, headers=headers, few_words=few_words)
        used = {carrier_of(method) for method in self._methods}
        self._estimates = {one: LinkEstimate(partial(self._probe, one)) for one in CARRIERS if one in used}
        self._known = _Known(elements, left=list(settings.ratios))
        self._before: Next | None = None
        self.next = self._planned()

    @property
    def carriers(self) -> tuple[Carrier, ...]:
        """The carriers of the methods: the process group, the switch, or both, in this order."""
        return tuple(self._estimates)

    @property
    def observed(self) -> int:
        """Steps observed so far, those before a restore included."""
        return self._known.observed

    @property
    def links(self) -> dict[Carrier, LinkModel]:
        """The link of each carrier as estimated; one is missing before its first measurement."""
        found = ((carrier, one.link) for carrier, one in self._estimates.items())
        return {carrier: link for carrier, link in found if link is not None}

    def observe(self, measured: Measurement, traffic: Traffic | None) -> list[Event]:
        """Take the agreed measurements of the step that `next` described; return the events that follow.

        The small exchanges and the probes that `next` asked for are of that step; all else is of the step
        before it, which summed `traffic`, None if there was none. Afterwards `next` describes the step to
        come.
        """
        done, events = self._before, list[Event]()
        self._learn_links(measured, traffic)
        if done is not None and traffic is not None:
            self._known.observed += 1
            self._learn_work(done, measured, traffic)
            events = self._after_exploring(done, measured) if self._known.left else self._after_using()
        self._before = self.next
        self.next = self._planned()
        return events

    @property
    def before(self) -> Next | None:
        """The step before `next`'s; None if none has been observed since the start."""
        return self._before

    def saved(self) -> dict[str, Any]:
        """Return the state of later decisions, as plain values, the same on all workers."""
        estimates = {carrier: one.saved() for carrier, one in self._estimates.items()}
        return {"known": copy.deepcopy(vars(self._known)), "estimates": estimates}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Continue from values that a decider of the same settings, workers and carriers saved.

        Raises KeyError, TypeError or ValueError for other values.
        """
        known = _Known(**copy.deepcopy(values["known"]))
        for carrier, one in self._estimates.items():
            one.restore(values["estimates"][carrier])
        self._known = known
        self._step = replace(self._step, elements=known.elements, sums=known.sums)
        self._before = None
        self.next = self._planned()

    def _probe(self, carrier: Carrier, words: int) -> tuple[float, float]:
        """Return the messages in a row of a probe over `carrier`, and its words on the busiest link."""
        step = self._step
        if carrier == "switch":
            return step.path.hops, step.path.words(words)
        if step.few_words:
            return directly(step.workers, words, step.few_words)
        return reduced(step.workers, words)

    def _learn_links(self, measured: Measurement, traffic: Traffic | None) -> None:
        """Update the estimates of links by the probes, and by the sums of the step before."""
        plan, used = self.next, None
        if self._before is not None and traffic is not None:
            used = carrier_of(self._before.method)
        for carrier, estimate in self._estimates.items():
            small_s, words = measured.small_s(carrier), plan.probe_words[carrier]
            small = exchange = None
            if carrier in plan.small:
                small = Timed(small_s, *self._probe(carrier, 1))
            if carrier == used and traffic is not None:
                exchange = Timed(measured.exchange_s, traffic.messages, traffic.words)
                if small is None and traffic.small_messages:
                    small = Timed(small_s, traffic.small_messages, traffic.small_words)
            probe = Timed(measured.probe_s(carrier), *self._probe(carrier, words)) if words else None
            estimate.add(small=small, exchange=exchange, probe=probe)
        for carrier, estimate in self._estimates.items():
            if any(one.doubtful for other, one in self._estimates.items() if other != carrier):
                estimate.ask()

    def _learn_work(self, done: Next, measured: Measurement, traffic: Traffic) -> None:
        """Update the estimates of the gradient, its gain and the worker's own time."""
        known = self._known
        if (known.elements, known.sums) != (traffic.elements, traffic.sums):
            known.elements, known.sums = traffic.elements, traffic.sums
            self._step = replace(self._step, elements=known.elements, sums=known.sums)
        known.step_s = measured.exchange_s + measured.compress_s + measured.compute_s
        _add(known.compute_s, measured.compute_s)
        if done.method not in DENSE:
            _add(known.select_s, measured.compress_s)
            if (done.method, done.ratio) == known.chosen:
                _add(known.recent_gain, max(measured.gain, _LEAST_GAIN))

    def _after_exploring(self, done: Next, measured: Measurement) -> list[Event]:
        known = self._known
        if not done.exploring or done.ratio != known.left[0]:
            return []
        known.samples.append(max(measured.gain, _LEAST_GAIN))
        if len(known.samples) < self._settings.explore_steps:
            return []
        known.gains[known.left.pop(0)] = median(known.samples)
        known.samples.clear()
        if known.left:
            return []
        known.explored_at = known.observed
        return [ExplorationEnded(known.observed, dict(known.gains)), *self._choose()]

    def _after_using(self) -> list[Event]:
        known, tolerance = self._known, self._settings.tolerance
        old = known.observed - known.explored_at >= self._settings.explore_after
        events: list[Event] = [
            LinkChanged(known.observed, carrier, LinkModel(*known.links[carrier]), link)
            for carrier, link in self.links.items()
            if carrier in known.links and moved(LinkModel(*known.links[carrier]), link, tolerance)
        ]
        if events or self.links.keys() != known.links.keys():
            events += self._choose()
        elif old and (changed := self._gain_changed()):
            events.append(changed)
        if old and events:
            known.left.extend(self._settings.ratios)
            events.append(ExplorationStarted(known.observed))
        return events

    def _gain_changed(self) -> GainChanged | None:
        known, most = self._known, 1 + self._settings.tolerance
        assert known.chosen is not None
        expected = known.gains.get(known.chosen[1])
        if expected is None or len(known.recent_gain) < _RECENT:
            return None
        now = median(known.recent_gain)
        return None if 1 / most <= now / expected <= most else GainChanged(known.observed, expected, now)

    def _choose(self) -> list[Event]:
        """Choose among all candidates on the links as estimated."""
        known = self._known
        known.links = {carrier: (link.latency_s, link.gbps) for carrier, link in self.links.items()}
        candidates = tuple(self._candidates())
        before = None
        if known.chosen is not None:
            method, ratio = known.chosen
            before = self._candidate([method], ratio)
        best = chosen(candidates, self._settings.prefer, before, self._settings.margin)
        known.recent_gain.clear()
        if before is not None and (best.method, best.ratio) == (before.method, before.ratio):
            return []
        known.chosen = best.method, best.ratio
        return [MethodChosen(known.observed, best, before, candidates)]

    def _candidates(self) -> list[Candidate]:
        """Return the fastest method of each ratio, and the fastest that sends everything."""
        dense = [method for method in self._methods if method in DENSE]
        found = [self._candidate(self._sparse, ratio) for ratio in self._settings.ratios]
        return [*found, self._candidate(dense, 1.0)] if dense else found

    def _candidate(self, methods: Sequence[Method], ratio: float) -> Candidate:
        """Return the candidate of the fastest method."""
        one = self._fastest(ratio, methods)
        gain = 1.0 if one.method in DENSE else self._known.gains[ratio]
        return Candidate(one.method, ratio, one.seconds + median(self._known.compute_s), gain)

    def _fastest(self, ratio: float, methods: Sequence[Method]) -> Cost:
        """Return the cost of the fastest method, each over its carrier's link."""
        select_s = median(self._known.select_s) if self._known.select_s else None
        steps = {
            carrier: replace(
                self._step, ratio=ratio, link=estimate.link or self._step.link, select_s=select_s
            )
            for carrier, estimate in self._estimates.items()
        }
        found = (cost(method, steps[carrier_of(method)]) for method in methods)
        return min(found, key=lambda one: one.seconds)

    def _planned(self) -> Next:
        wanted = {carrier: one.wanted(self._known.step_s) for carrier, one in self._estimates.items()}
        probes = {carrier: words for carrier, (words, _) in wanted.items()}
        small = frozenset(carrier for carrier, (_, also) in wanted.items() if also)
        if self._known.left:
            ratio = self._to_explore()
            return Next(self._fastest(ratio, self._sparse).method, ratio, True, probes, small)
        assert self._known.chosen is not None
        return Next(*self._known.chosen, False, probes, small)

    def _to_explore(self) -> float:
        """Return the ratio that the next step explores; the step before it has not been observed."""
        known, before = self._known, self._before
        begun = before is not None and before.exploring and before.ratio == known.left[0]
        explored = len(known.samples) + begun >= self._settings.explore_steps
        return known.left[min(explored, len(known.left) - 1)]


def _add(samples: list[float], value: float) -> None:
    """Append a sample, and forget all but the last few."""
    samples.append(value)
    del samples[:-_RECENT]
