"""A strategy that chooses method and ratio while training runs, as the network and the gain change.

Theory of operation. `Decider.next` has the next step's method and ratio. Workers exchange their measurements
of a step with the sums of the following step, and pass the agreed measurements to `observe`. At first every
ratio is explored for a few steps, to learn its gain. Then the best candidate is used. When a link changes,
the candidates are compared again at once, by the known gains. When the gain or a link changes after many
steps, the ratios are explored again.

A choice has two objectives: the time of a step and the compression gain. There are about ten candidates, so
their Pareto front is computed by enumeration.

| state | event | next state |
|---|---|---|
| exploring | the last ratio's last step | using the best candidate: `MethodChosen` |
| using | a link changed | using the best candidate: `LinkChanged`, and `MethodChosen` if it is another |
| using | the gain or a link changed, and the gains are old | exploring: `ExplorationStarted` |
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
    SwitchPath,
    Workload,
    all_reduce_cost,
    carrier_of,
    check_range,
    cost,
    direct_cost,
)
from peelsum.compress.events import (
    Event,
    ExplorationEnded,
    ExplorationStarted,
    GainChanged,
    LinkChanged,
    Measurement,
    MethodCandidate,
    MethodChosen,
    StepPlan,
    StepTraffic,
)
from peelsum.compress.links import LinkEstimate, TimedExchange, link_changed

#: The choice on the Pareto front: the knee, or the smallest time / gain**w for an exponent w.
Preference = Literal["knee"] | float
#: A candidate must be this much faster than one of a larger gain.
_MIN_SPEEDUP = 1.05
#: The number of steps over which the median of gains and of computing times is taken.
_RECENT = 3
#: Smaller measured gains are raised to this one, e.g. the gain of a gradient of zeros.
_LEAST_GAIN = 1e-6


@dataclass(frozen=True)
class Flexible:
    """Settings of the strategy, the same on all workers. Raises CompressConfigError for a bad value."""

    ratios: tuple[float, ...] = (0.1, 0.03, 0.01, 0.003, 0.001)
    """Ratios to choose from."""
    methods: tuple[Method, ...] | None = None
    """Methods to choose from; None takes all that have a carrier."""
    prefer: Preference = "knee"
    """The compromise of time and gain: "knee", or an exponent w for the smallest time / gain**w."""
    explore_steps: int = 3
    """Steps for which each ratio is explored."""
    explore_after: int = 200
    """Steps after which the ratios are explored again if the gain or a link has changed."""
    tolerance: float = 0.3
    """Relative change of rate, latency or gain that counts as a change."""
    margin: float = 0.1
    """By how much another candidate must be better to replace the one in use."""

    def __post_init__(self) -> None:
        for name, values in (("ratios", self.ratios), ("methods", self.methods)):
            if isinstance(values, str) or not isinstance(values, Sequence | None):
                raise CompressConfigError(f"{name}: {values!r} is not a tuple; write ({values!r},)")
        if not self.ratios or self.methods == ():
            raise CompressConfigError("ratios, methods: are empty; give at least one of each")
        for ratio in self.ratios:
            check_range("ratios", ratio, 1e-9, 1)
        unknown = set(self.methods or ()) - set(METHODS)
        if unknown:
            raise CompressConfigError(f"methods: {min(unknown)!r} is unknown; use {', '.join(METHODS)}")
        if self.methods is not None and set(self.methods) <= set(DENSE):
            raise CompressConfigError("methods: has none that selects; give one, e.g. 'ar_top_k_ring'")
        if self.prefer != "knee":
            if not isinstance(self.prefer, int | float):
                raise CompressConfigError(f"prefer: {self.prefer!r} is unknown; use 'knee' or a number")
            check_range("prefer", self.prefer, 0, 100)
        check_range("explore_steps", self.explore_steps, 1, 1000)
        check_range("explore_after", self.explore_after, 1, 10**9)
        check_range("tolerance", self.tolerance, 0.01, 100)
        check_range("margin", self.margin, 0, 0.9)


def pareto_front(candidates: Sequence[MethodCandidate]) -> list[MethodCandidate]:
    """Return the Pareto front of time and gain, slowest first.

    A candidate that is less than 5 % faster than another with a larger gain is left out, too.
    """
    front: list[MethodCandidate] = []
    for candidate in sorted(candidates, key=lambda item: (-item.gain, item.seconds)):
        if not front or _MIN_SPEEDUP * candidate.seconds < front[-1].seconds:
            front.append(candidate)
    return front


def candidate_loss(candidate: MethodCandidate, front: Sequence[MethodCandidate], prefer: Preference) -> float:
    """Return a number by which candidates are compared; the smallest is best.

    For "knee", time and gain are divided by those of the front's slowest candidate, and the loss is the
    quotient of times minus that of gains. For an exponent w, it is the logarithm of time / gain**w.
    """
    if prefer == "knee":
        slowest = front[0]
        return candidate.seconds / slowest.seconds - candidate.gain / slowest.gain
    return math.log(candidate.seconds) - prefer * math.log(candidate.gain)


def choose_candidate(
    candidates: Sequence[MethodCandidate],
    prefer: Preference,
    current: MethodCandidate | None = None,
    margin: float = 0.0,
) -> MethodCandidate:
    """Return the best candidate of the front, or `current` if the best is not better by more than `margin`.

    current: the candidate in use, with its time on the present network. For another method at the same ratio,
    `margin` is a share of the time.
    """
    front = pareto_front(candidates)
    best = min(front, key=lambda candidate: candidate_loss(candidate, front, prefer))
    if current is None:
        return best
    if best.ratio == current.ratio:
        is_better = best.seconds < (1 - margin) * current.seconds
    else:
        best_loss, current_loss = (candidate_loss(candidate, front, prefer) for candidate in (best, current))
        is_better = best_loss < current_loss - margin
    return best if is_better else current


@dataclass
class _DeciderState:
    """A decider's state between steps, except its estimates of links, in plain values."""

    #: Elements, and number of sums, of a step.
    elements: int
    sums: int = 1
    #: Number of observed steps.
    observed: int = 0
    #: The compression gain of each explored ratio; the number of steps after which they were explored.
    gains: dict[float, float] = field(default_factory=dict)
    explored_at: int = 0
    #: The gains of the ratio that is explored now.
    samples: list[float] = field(default_factory=list)
    #: Ratios still to explore.
    unexplored: list[float] = field(default_factory=list)
    #: The last samples of the gain of the ratio in use, and of computing and selecting times.
    recent_gain: list[float] = field(default_factory=list)
    compute_s: list[float] = field(default_factory=list)
    select_s: list[float] = field(default_factory=list)
    #: Seconds of the last step.
    step_s: float = 0.0
    #: Method and ratio in use; latency and rate of each link when they were chosen.
    chosen: tuple[Method, float] | None = None
    links: dict[Carrier, tuple[float, float]] = field(default_factory=dict)


class Decider:
    """Chooses the method and the ratio of each step, for gradients of `elements` elements.

    Workers whose `observe` gets the same arguments make the same decisions. carriers: those that this job
    has. A process group is probed by direct messages, or by a ring if `few_words` is 0. headers, few_words:
    see `Workload`.
    Raises CompressConfigError if no sparse method of `settings` has a carrier.
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
        allowed = settings.methods or METHODS
        #: The methods to choose from, in the order of METHODS.
        self._methods = [name for name in METHODS if name in allowed and carrier_of(name) in carriers]
        self._settings = settings
        self._sparse = [method for method in self._methods if method not in DENSE]
        if not self._sparse:
            raise CompressConfigError(f"methods: none that selects goes over {', '.join(carriers)}; add one")
        path = path or SwitchPath()
        link = LinkModel(1e-4, 1.0)
        self._step = Workload(elements, 1.0, workers, link, path, headers=headers, few_words=few_words)
        used = {carrier_of(method) for method in self._methods}
        self._estimates = {
            carrier: LinkEstimate(partial(self._probe_cost, carrier))
            for carrier in CARRIERS
            if carrier in used
        }
        self._state = _DeciderState(elements, unexplored=list(settings.ratios))
        #: The decision for the step before `next`; None for the first step since the start.
        self.before: StepPlan | None = None
        self.next = self._plan_next()

    @property
    def carriers(self) -> tuple[Carrier, ...]:
        """The carriers of the methods: "group", "switch", or both in this order."""
        return tuple(self._estimates)

    @property
    def observed(self) -> int:
        """Number of steps observed so far, including those before a restore."""
        return self._state.observed

    @property
    def links(self) -> dict[Carrier, LinkModel]:
        """The estimated link of each carrier that has been measured."""
        links = ((carrier, estimate.link) for carrier, estimate in self._estimates.items())
        return {carrier: link for carrier, link in links if link is not None}

    def observe(self, measured: Measurement, traffic: StepTraffic | None) -> list[Event]:
        """Update the decision by agreed measurements; return the events that follow from them.

        Times of small exchanges and of probes are those of the step that `next` describes. All other
        measurements are those of the step before it, which summed `traffic`; None if there was no such step.
        Afterwards `next` describes the following step.
        """
        done, state, events = self.before, self._state, list[Event]()
        self._update_links(measured, traffic)
        if done is not None and traffic is not None:
            state.observed += 1
            if (state.elements, state.sums) != (traffic.elements, traffic.sums):
                state.elements, state.sums = traffic.elements, traffic.sums
                self._step = replace(self._step, elements=state.elements, sums=state.sums)
            state.step_s = measured.exchange_s + measured.compress_s + measured.compute_s
            _append_sample(state.compute_s, measured.compute_s)
            if done.method not in DENSE:
                _append_sample(state.select_s, measured.compress_s)
                if (done.method, done.ratio) == state.chosen:
                    _append_sample(state.recent_gain, max(measured.gain, _LEAST_GAIN))
            events = self._end_explored_step(done, measured) if state.unexplored else self._end_used_step()
        self.before = self.next
        self.next = self._plan_next()
        return events

    def state_dict(self) -> dict[str, Any]:
        """Return the state on which later decisions depend, as plain values, the same on all workers."""
        estimates = {carrier: estimate.state_dict() for carrier, estimate in self._estimates.items()}
        return {"known": copy.deepcopy(vars(self._state)), "estimates": estimates}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict` of a decider with the same settings, workers and carriers.

        Raises KeyError, TypeError or ValueError for other values.
        """
        state = _DeciderState(**copy.deepcopy(values["known"]))
        for carrier, estimate in self._estimates.items():
            estimate.load_state_dict(values["estimates"][carrier])
        self._state = state
        self._step = replace(self._step, elements=state.elements, sums=state.sums)
        self.before = None
        self.next = self._plan_next()

    def _probe_cost(self, carrier: Carrier, words: int) -> tuple[float, float]:
        """Return a probe's messages in a row over `carrier`, and its words on the busiest link."""
        step = self._step
        if carrier == "switch":
            return step.path.hops, step.path.words(words)
        if step.few_words:
            return direct_cost(step.workers, words, step.few_words)
        return all_reduce_cost(step.workers, words)

    def _update_links(self, measured: Measurement, traffic: StepTraffic | None) -> None:
        """Update the estimates of links by the probes, and by the sums of the previous step."""
        plan, used = self.next, None
        if self.before is not None and traffic is not None:
            used = carrier_of(self.before.method)
        for carrier, estimate in self._estimates.items():
            small_s, probe_s = (getattr(measured, f"{carrier}_{kind}_s") for kind in ("small", "probe"))
            words, small, exchange = plan.probe_words[carrier], None, None
            if carrier in plan.small:
                small = TimedExchange(small_s, *self._probe_cost(carrier, 1))
            if carrier == used and traffic is not None:
                exchange = TimedExchange(measured.exchange_s, traffic.messages, traffic.words)
                if small is None and traffic.small_messages:
                    small = TimedExchange(small_s, traffic.small_messages, traffic.small_words)
            probe = TimedExchange(probe_s, *self._probe_cost(carrier, words)) if words else None
            estimate.add(small=small, exchange=exchange, probe=probe)
        for carrier, estimate in self._estimates.items():
            others = (self._estimates[other] for other in self._estimates if other != carrier)
            if any(other.doubtful for other in others):
                estimate.request_probe()

    def _end_explored_step(self, done: StepPlan, measured: Measurement) -> list[Event]:
        """Store the gain of an explored ratio; after the last ratio, choose a method. Return the events."""
        state = self._state
        if not done.exploring or done.ratio != state.unexplored[0]:
            return []
        state.samples.append(max(measured.gain, _LEAST_GAIN))
        if len(state.samples) < self._settings.explore_steps:
            return []
        state.gains[state.unexplored.pop(0)] = median(state.samples)
        state.samples.clear()
        if state.unexplored:
            return []
        state.explored_at = state.observed
        return [ExplorationEnded(state.observed, dict(state.gains)), *self._choose_method()]

    def _end_used_step(self) -> list[Event]:
        """Choose again if a link has changed; explore again if the gains are old. Return the events."""
        state, tolerance = self._state, self._settings.tolerance
        old = state.observed - state.explored_at >= self._settings.explore_after
        events: list[Event] = [
            LinkChanged(state.observed, carrier, LinkModel(*state.links[carrier]), link)
            for carrier, link in self.links.items()
            if carrier in state.links and link_changed(LinkModel(*state.links[carrier]), link, tolerance)
        ]
        if events or self.links.keys() != state.links.keys():
            events += self._choose_method()
        elif old:
            assert state.chosen is not None
            expected = state.gains.get(state.chosen[1])
            if expected is not None and len(state.recent_gain) == _RECENT:
                now = median(state.recent_gain)
                if not 1 / (1 + tolerance) <= now / expected <= 1 + tolerance:
                    events.append(GainChanged(state.observed, expected, now))
        if old and events:
            state.unexplored.extend(self._settings.ratios)
            events.append(ExplorationStarted(state.observed))
        return events

    def _choose_method(self) -> list[Event]:
        """Choose a candidate by the estimated links; return an event if it is another than before."""
        state = self._state
        state.links = {carrier: (link.latency_s, link.gbps) for carrier, link in self.links.items()}
        dense = [method for method in self._methods if method in DENSE]
        choices = [(self._sparse, ratio) for ratio in self._settings.ratios] + [(dense, 1.0)] * bool(dense)
        candidates = tuple(self._fastest_candidate(methods, ratio) for methods, ratio in choices)
        before = None
        if state.chosen is not None:
            method, ratio = state.chosen
            before = self._fastest_candidate([method], ratio)
        best = choose_candidate(candidates, self._settings.prefer, before, self._settings.margin)
        state.recent_gain.clear()
        if before is not None and (best.method, best.ratio) == (before.method, before.ratio):
            return []
        state.chosen = best.method, best.ratio
        return [MethodChosen(state.observed, best, before, candidates)]

    def _fastest_candidate(self, methods: Sequence[Method], ratio: float) -> MethodCandidate:
        """Return the candidate of the fastest of these methods at a ratio."""
        fastest = self._fastest_cost(ratio, methods)
        gain = 1.0 if fastest.method in DENSE else self._state.gains[ratio]
        return MethodCandidate(fastest.method, ratio, fastest.seconds + median(self._state.compute_s), gain)

    def _fastest_cost(self, ratio: float, methods: Sequence[Method]) -> Cost:
        """Return the cost of the fastest of these methods, each over its carrier's estimated link."""
        select_s = median(self._state.select_s) if self._state.select_s else None
        steps = {
            carrier: replace(
                self._step, ratio=ratio, link=estimate.link or self._step.link, select_s=select_s
            )
            for carrier, estimate in self._estimates.items()
        }
        costs = (cost(method, steps[carrier_of(method)]) for method in methods)
        return min(costs, key=lambda method_cost: method_cost.seconds)

    def _plan_next(self) -> StepPlan:
        """Return the decision for the next step. The step before it has not been observed yet."""
        state, previous = self._state, self.before
        planned = {
            carrier: estimate.plan_probe(state.step_s) for carrier, estimate in self._estimates.items()
        }
        probes = {carrier: words for carrier, (words, _) in planned.items()}
        small = frozenset(carrier for carrier, (_, with_small) in planned.items() if with_small)
        if not state.unexplored:
            assert state.chosen is not None
            return StepPlan(*state.chosen, False, probes, small)
        pending = previous is not None and previous.exploring and previous.ratio == state.unexplored[0]
        explored = len(state.samples) + pending >= self._settings.explore_steps
        ratio = state.unexplored[min(explored, len(state.unexplored) - 1)]
        return StepPlan(self._fastest_cost(ratio, self._sparse).method, ratio, True, probes, small)


def _append_sample(samples: list[float], value: float) -> None:
    """Append a sample, and drop all but the last few."""
    samples.append(value)
    del samples[:-_RECENT]
