"""A strategy that chooses method and ratio while training runs, as the network and the gain change.

Theory of operation: `Decider.next` says what the next step does, and `observe` takes what all workers agree
was measured in a step. A gain belongs to a ratio and a family of methods. At first, each candidate that might
be the best by its predicted time is explored for a step or a few, to learn its gain. Then the best candidate
by `front` is in use. When a link moves, the best is looked up again at once, with the gains known. When the
gain or the link in use moves after a long time, gains are explored again.

| state | event | next state |
|---|---|---|
| exploring | no candidate left that might be the best | using the best candidate: `MethodChosen` |
| using | a link moved | using the best candidate: `LinkChanged`, `MethodChosen` if it is another |
| using | a link moved, and an unexplored candidate might be the best | exploring: `ExplorationStarted` |
| using | the gain or the link in use moved, and gains are old | exploring all: `ExplorationStarted` |
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from peelsum.flexible.agreement import Measurement
from peelsum.flexible.collectives import LinkModel, SwitchPath
from peelsum.flexible.errors import FlexibleConfigError
from peelsum.flexible.events import (
    Event,
    ExplorationEnded,
    ExplorationStarted,
    GainChanged,
    LinkChanged,
    MethodChosen,
    Next,
    Traffic,
)
from peelsum.flexible.front import Candidate, chosen, hopeless
from peelsum.flexible.methods import (
    CARRIERS,
    DENSE,
    FAMILIES,
    Carrier,
    Cost,
    Family,
    Method,
    Step,
    carrier_of,
    cost,
    costs,
    family_of,
)
from peelsum.flexible.probing import Exchange, LinkEstimate, Probing, moved, slowed
from peelsum.flexible.settings import Flexible
from peelsum.wire import FRAME_HEADER_BYTES, packet_bytes

#: What a gain belongs to: a family of methods, and the share of elements that is sent.
Key = tuple[Family, float]
#: Steps of which the median tells whether the gain moved, and how long a step computes.
_RECENT = 3
#: The least share of a step's time after its first collective that counts: times are agreed to within 5 %.
_REST = 0.2
#: The least gain that is believed: a gradient of zeros has none.
_LEAST_GAIN = 1e-6


@dataclass
class _Known:
    """A decider's state between steps, except its estimates of links, in plain values."""

    elements: int
    sums: int = 1
    observed: int = 0
    #: The gains of each candidate in the steps that explored it.
    samples: dict[Key, list[float]] = field(default_factory=dict)
    #: Whether the choice is to be made again once no link is in doubt.
    doubtful: bool = False
    exploring: bool = True
    #: After how many steps exploring ended.
    explored_at: int = 0
    #: The seconds that probes may take now; less than 0 after one that took longer than predicted.
    credit_s: float = 0.0
    #: The last samples.
    recent_gain: list[float] = field(default_factory=list)
    compute_s: list[float] = field(default_factory=list)
    select_s: list[float] = field(default_factory=list)
    #: Method and ratio in use, and latency and rate of the links for which they were chosen.
    chosen: tuple[Method, float] | None = None
    links: dict[Carrier, tuple[float, float]] = field(default_factory=dict)


class Decider:
    """Decides for the gradients of a step, of `elements` elements over `workers` workers.

    Workers whose `observe` calls get the same arguments make the same decisions. `carriers`: what can carry
    words. A probe goes through the switch, or is an all_reduce of the process group: a ring, or direct
    messages for fewer than `few_words` words. `headers` and `few_words` are as in `Step`.
    Raises FlexibleConfigError if no method of `settings` that selects has a carrier.
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
        if set(self._methods) <= set(DENSE):
            raise FlexibleConfigError(f"methods: none that selects goes over {', '.join(carriers)}; add one")
        path = path or SwitchPath()
        link = LinkModel(1e-4, 1.0)
        self._step = Step(elements, 1.0, workers, link, path, headers=headers, few_words=few_words)
        used = {carrier_of(method) for method in self._methods}
        reduced = 2 * (workers - 1), 2 * (workers - 1) / workers
        framed = (FRAME_HEADER_BYTES + packet_bytes(path.lanes)) / 4 / path.lanes
        probing: dict[Carrier, Probing] = {
            "group": Probing((1, workers - 1) if few_words else reduced, reduced),
            "switch": Probing((path.hops, framed), (path.hops, framed), path.lanes),
        }
        self._estimates = {one: LinkEstimate(probing[one]) for one in CARRIERS if one in used}
        self._known = _Known(elements)
        self.next = self._planned(None)

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

    def observe(
        self, measured: Measurement, traffic: Traffic | None = None, done: Next | None = None
    ) -> list[Event]:
        """Take what all workers agree was measured in a step; return what follows.

        traffic: what the step summed; None takes that of the cost model. done: the decision that the step
        followed; None for `next`. If it is given, a step that follows `next` is under way. Afterwards `next`
        describes the step to come.
        """
        self._known.observed += 1
        under_way = None if done is None else self.next
        self._learn(measured, traffic, done or self.next)
        events = self._after_exploring(under_way) if self._known.exploring else self._after_using()
        self.next = self._planned(under_way)
        return events

    def saved(self) -> dict[str, Any]:
        """Return what later decisions depend on, as plain values, the same on all workers."""
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
        self.next = self._planned(None)

    def _learn(self, measured: Measurement, traffic: Traffic | None, done: Next) -> None:
        """Update the estimates of links, gain and the worker's own time."""
        known = self._known
        traffic = traffic or self._expected(done)
        if (known.elements, known.sums) != (traffic.elements, traffic.sums):
            known.elements, known.sums = traffic.elements, traffic.sums
            self._step = replace(self._step, elements=known.elements, sums=known.sums)
        self._learn_links(measured, traffic, carrier_of(done.method))
        _add(known.compute_s, measured.compute_s)
        family = family_of(done.method)
        if family is None:
            return
        gain = max(measured.gain, _LEAST_GAIN)
        _add(known.select_s, measured.compress_s)
        samples = known.samples.setdefault((family, done.ratio), [])
        if done.exploring and len(samples) < self._settings.explore_steps:
            samples.append(gain)
        if known.chosen is not None and (family, done.ratio) == _key(*known.chosen):
            _add(known.recent_gain, gain)

    def _learn_links(self, measured: Measurement, traffic: Traffic, used: Carrier) -> None:
        known = self._known
        known.credit_s += self._settings.probe_share * (
            measured.exchange_s + measured.compress_s + measured.compute_s
        )
        before = self._estimates[used].link
        for carrier, estimate in self._estimates.items():
            estimate.add(*(_exchanges(measured, traffic) if carrier == used else ()))
            known.credit_s -= estimate.took(measured.probe_s(carrier), used=carrier == used)
        slower = slowed(before, self._estimates[used].link)
        for carrier, estimate in self._estimates.items():
            if slower and carrier != used:
                estimate.doubt(slower)

    def _expected(self, done: Next) -> Traffic:
        """Return a step's traffic by the cost model."""
        one = cost(done.method, self._at(done.ratio, self._link_of(done.method)))
        messages = cost(done.method, self._at(done.ratio, LinkModel(1.0, 1.0))).latency_s
        return Traffic(self._known.elements, self._known.sums, messages, one.words)

    def _after_exploring(self, under_way: Next | None) -> list[Event]:
        known = self._known
        waiting = under_way is not None and under_way.exploring
        if waiting or self.links.keys() != self._estimates.keys() or self._to_explore(None) is not None:
            return []
        known.exploring, known.explored_at = False, known.observed
        gains = {key: median(samples) for key, samples in known.samples.items() if samples}
        return [ExplorationEnded(known.observed, gains), *self._choose()]

    def _after_using(self) -> list[Event]:
        known, tolerance = self._known, self._settings.tolerance
        old = known.observed - known.explored_at >= self._settings.explore_after
        events: list[Event] = [
            LinkChanged(known.observed, carrier, LinkModel(*known.links[carrier]), link)
            for carrier, link in self.links.items()
            if carrier in known.links and moved(LinkModel(*known.links[carrier]), link, tolerance)
        ]
        if events or (known.doubtful and not any(one.doubted for one in self._estimates.values())):
            events += self._choose()
        elif old and (changed := self._gain_changed()):
            events.append(changed)
        if old and any(not isinstance(one, LinkChanged) or self._uses(one.carrier) for one in events):
            known.samples.clear()
        if events and self._to_explore(None) is not None:
            known.exploring = True
            events.append(ExplorationStarted(known.observed))
        return events

    def _uses(self, carrier: Carrier) -> bool:
        return self._known.chosen is not None and carrier_of(self._known.chosen[0]) == carrier

    def _gain_changed(self) -> GainChanged | None:
        known, most = self._known, 1 + self._settings.tolerance
        assert known.chosen is not None
        samples = known.samples.get(_key(*known.chosen))
        if not samples or len(known.recent_gain) < _RECENT:
            return None
        expected, now = median(samples), median(known.recent_gain)
        return None if 1 / most <= now / expected <= most else GainChanged(known.observed, expected, now)

    def _choose(self) -> list[Event]:
        """Choose among all candidates whose gain is known, on the links as estimated."""
        known = self._known
        known.links = {carrier: (link.latency_s, link.gbps) for carrier, link in self.links.items()}
        sure = self._sure()
        known.doubtful = sure != self._methods
        candidates = tuple(one for one in self._candidates(sure) if self._steps_of(one))
        before = None if known.chosen is None else self._now(*known.chosen)
        best = chosen(candidates, self._settings.prefer, before, self._settings.margin)
        if before is not None and (best.method, best.ratio) == (before.method, before.ratio):
            return []
        known.recent_gain.clear()
        known.chosen = best.method, best.ratio
        return [MethodChosen(known.observed, best, before, candidates)]

    def _to_explore(self, under_way: Next | None) -> Candidate | None:
        """Return what to explore in the next step; None if nothing might be better than what is known.

        It is the fastest of the candidates that were explored least.
        """
        settings, found = self._settings, self._candidates(self._sure())
        known = [one for one in found if self._steps_of(one)]

        def steps(one: Candidate) -> int:
            same = under_way is not None and (one.method, one.ratio) == (under_way.method, under_way.ratio)
            return self._steps_of(one) + same

        def left(one: Candidate) -> bool:
            if steps(one) >= settings.explore_steps:
                return False
            others = [other for other in known if other is not one]
            return len(self.links) < len(self._estimates) or not hopeless(
                one, others, settings.prefer, settings.margin
            )

        return min(filter(left, found), key=lambda one: (steps(one), one.seconds), default=None)

    def _steps_of(self, one: Candidate) -> int:
        """Return in how many steps a candidate was explored; for one that sends everything, enough."""
        if one.method in DENSE:
            return self._settings.explore_steps
        return len(self._known.samples.get(_key(one.method, one.ratio), ()))

    def _sure(self) -> tuple[Method, ...]:
        """Return the methods without those of a carrier in doubt, unless it is in use."""
        used = None if self._known.chosen is None else carrier_of(self._known.chosen[0])
        return tuple(
            one
            for one in self._methods
            if carrier_of(one) == used or not self._estimates[carrier_of(one)].doubted
        )

    def _candidates(self, among: Sequence[Method] = ()) -> list[Candidate]:
        """Return the fastest method of each family and ratio, and the fastest that sends everything."""
        groups = [
            (methods, ratio)
            for family in (None, *FAMILIES)
            if (methods := [one for one in among or self._methods if family_of(one) == family])
            for ratio in (self._settings.ratios if family else (1.0,))
        ]
        return [self._candidate(self._fastest(ratio, methods), ratio) for methods, ratio in groups]

    def _now(self, method: Method, ratio: float) -> Candidate:
        return self._candidate(cost(method, self._at(ratio, self._link_of(method))), ratio)

    def _candidate(self, one: Cost, ratio: float) -> Candidate:
        compute_s = median(self._known.compute_s) if self._known.compute_s else 0.0
        return Candidate(one.method, ratio, one.seconds + compute_s, self._gain(one.method, ratio))

    def _gain(self, method: Method, ratio: float) -> float:
        """Return the gain as explored, or else the most that it can be.

        A smaller share has no larger gain, and neither have another worker's positions. The largest elements
        come first, so a worker's own gain grows by no larger factor than the share.
        """
        family = family_of(method)
        if family is None:
            return 1.0
        explored = {key: median(samples) for key, samples in self._known.samples.items() if samples}
        if (family, ratio) in explored:
            return explored[family, ratio]
        own = [gain * max(ratio / other, 1.0) for (of, other), gain in explored.items() if of == "own"]
        same = [gain for (of, other), gain in explored.items() if of == family and other >= ratio]
        return min([1.0, *own, *same])

    def _fastest(self, ratio: float, methods: Sequence[Method]) -> Cost:
        """Return the cost of the fastest method, each over its carrier's link."""
        found = (
            costs(self._at(ratio, self.links.get(carrier)), mine)[0]
            for carrier in CARRIERS
            if (mine := [one for one in methods if carrier_of(one) == carrier])
        )
        return min(found, key=lambda one: one.seconds)

    def _link_of(self, method: Method) -> LinkModel | None:
        return self.links.get(carrier_of(method))

    def _at(self, ratio: float, link: LinkModel | None) -> Step:
        select_s = median(self._known.select_s) if self._known.select_s else None
        return replace(self._step, ratio=ratio, link=link or self._step.link, select_s=select_s)

    def _planned(self, under_way: Next | None) -> Next:
        known = self._known
        one = self._to_explore(under_way) if known.exploring else None
        exploring = one is not None
        if one is None and known.chosen is None:
            found = self._candidates()
            one = chosen([one for one in found if self._steps_of(one)] or found, self._settings.prefer)
        method, ratio = known.chosen if one is None else (one.method, one.ratio)  # type: ignore[misc]
        probes: dict[Carrier, int] = {}
        for carrier, estimate in self._estimates.items():
            credit_s = known.credit_s - sum(one.reserved_s for one in self._estimates.values())
            probes[carrier] = estimate.ask(credit_s, used=carrier == carrier_of(method))
        return Next(method, ratio, exploring, probes)


def _key(method: Method, ratio: float) -> Key:
    """Return the key of a method's gain; for one that sends everything, a key without samples."""
    return family_of(method) or "own", ratio


def _exchanges(measured: Measurement, traffic: Traffic) -> tuple[Exchange, ...]:
    """Return a step's first collective and the others together, or all of them if that cannot be told."""
    first = Exchange(measured.first_s, traffic.first_messages, traffic.first_words)
    rest = Exchange(
        measured.exchange_s - measured.first_s,
        traffic.messages - traffic.first_messages,
        traffic.words - traffic.first_words,
    )
    if measured.first_s and rest.seconds > _REST * measured.exchange_s and rest.messages > 0:
        return first, rest
    return (Exchange(measured.exchange_s, traffic.messages, traffic.words),)


def _add(samples: list[float], value: float) -> None:
    """Append a sample, and forget all but the last few."""
    samples.append(value)
    del samples[:-_RECENT]
