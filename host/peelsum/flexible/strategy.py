"""A strategy that chooses method and ratio while training runs, as the network and the gain change.

Theory of operation: `Decider.next` says what the next step does, and `observe` takes what all workers agree
was measured in it. At first every ratio is explored for a few steps, to learn its gain. Then the best
candidate by `front` is in use. When the link moves, the best is looked up again at once, with the gains
known. When the gain moves, or the link after a long time, the ratios are explored again.

| state | event | next state |
|---|---|---|
| exploring | the last ratio's last step | using the best candidate: `MethodChosen` |
| using | the link moved | using the best candidate: `LinkChanged`, `MethodChosen` if it is another |
| using | the gain moved, or the link and the gains are old | exploring: `ExplorationStarted` |
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from peelsum.flexible.agreement import Measurement
from peelsum.flexible.collectives import Link, SwitchPath
from peelsum.flexible.errors import FlexibleConfigError, within
from peelsum.flexible.front import Candidate, Preference, chosen
from peelsum.flexible.methods import DENSE, METHODS, Cost, Method, Step, cost, costs
from peelsum.flexible.probing import LinkEstimate, moved

#: Steps of which the median tells whether the gain moved, and how long a step computes.
_RECENT = 3
#: The least gain that is believed: a gradient of zeros has none.
_LEAST_GAIN = 1e-6


@dataclass(frozen=True)
class Flexible:
    """Settings of the strategy, the same on all workers. Raises FlexibleConfigError for a bad value."""

    ratios: tuple[float, ...] = (0.1, 0.03, 0.01, 0.003, 0.001)
    """Ratios to choose from."""
    methods: tuple[Method, ...] = METHODS
    """Methods to choose from."""
    prefer: Preference = "knee"
    """How to choose between time and gain: "knee", or the exponent w of the least time / gain**w."""
    explore_steps: int = 3
    """Steps for which each ratio is explored."""
    explore_after: int = 200
    """Steps after which gains are old: they are explored again when the link moves."""
    tolerance: float = 0.3
    """Relative change of rate, latency or gain that counts as one."""
    margin: float = 0.1
    """By how much another candidate must be better to be used."""

    def __post_init__(self) -> None:
        if not self.ratios or not self.methods:
            raise FlexibleConfigError("ratios, methods: are empty; give at least one of each")
        for ratio in self.ratios:
            within("ratios", ratio, 1e-9, 1)
        unknown = set(self.methods) - set(METHODS)
        if unknown:
            raise FlexibleConfigError(f"methods: {min(unknown)!r} is unknown; use {', '.join(METHODS)}")
        if set(self.methods) <= set(DENSE):
            raise FlexibleConfigError("methods: has none that selects; give one, e.g. 'ar_top_k_ring'")
        if self.prefer != "knee":
            if not isinstance(self.prefer, int | float):
                raise FlexibleConfigError(f"prefer: {self.prefer!r} is unknown; use 'knee' or a number")
            within("prefer", self.prefer, 0, 100)
        within("explore_steps", self.explore_steps, 1, 1000)
        within("explore_after", self.explore_after, 1, 10**9)
        within("tolerance", self.tolerance, 0.01, 100)
        within("margin", self.margin, 0, 0.9)


@dataclass(frozen=True)
class Next:
    """What the next step does."""

    method: Method
    """The method by which it sums."""
    ratio: float
    """Share of the elements that a worker sends; 1 with a dense method."""
    exploring: bool
    """Whether the ratio is only explored."""
    probe_words: int
    """Words of zeros to exchange beside the step, to learn the rate; 0 for none."""


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
    before: Link
    """The link when a method was last chosen."""
    now: Link
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


@dataclass
class _Gains:
    """The compression gain of each ratio, as explored."""

    by_ratio: dict[float, float] = field(default_factory=dict)
    at_step: int = 0
    samples: list[float] = field(default_factory=list)


class Decider:
    """Decides for one gradient of `elements` elements over `workers` workers.

    Workers whose `observe` calls get the same measurements decide alike. `carrier`: by what measurements and
    probes are exchanged, an all_reduce in a ring or the switch.
    """

    def __init__(
        self,
        settings: Flexible,
        elements: int,
        workers: int,
        *,
        path: SwitchPath | None = None,
        carrier: Literal["ring", "switch"] = "ring",
    ) -> None:
        self._settings = settings
        self._step = Step(elements, 1.0, workers, Link(1e-4, 1.0), path or SwitchPath())
        ring = carrier == "ring"
        # A ring's busiest link carries 2 (n - 1) / n times the words, in as many messages.
        self._probe_share = 2 * (workers - 1) / workers if ring else 1.0
        self._estimate = LinkEstimate(2 * (workers - 1) if ring else self._step.path.hops)
        self._observed = 0
        self._gains, self._left = _Gains(), deque(settings.ratios)
        self._recent_gain: deque[float] = deque(maxlen=_RECENT)
        self._compute_s: deque[float] = deque(maxlen=_RECENT)
        self._select_s: deque[float] = deque(maxlen=_RECENT)
        self._chosen: Candidate | None = None
        self._link: Link | None = None
        self.next = self._explored()

    @property
    def link(self) -> Link | None:
        """The link as estimated; None before the first measurement."""
        return self._estimate.link

    def observe(self, measured: Measurement) -> list[Event]:
        """Take what all workers agree was measured in the step that `next` described; return what follows.

        Afterwards `next` describes the step to come.
        """
        self._observed += 1
        self._learn(measured)
        events = self._after_exploring(measured) if self._left else self._after_using()
        self.next = self._explored() if self._left else self._used()
        return events

    def _learn(self, measured: Measurement) -> None:
        """Update the estimates of link, gain and the worker's own time."""
        done = self.next
        one = cost(done.method, self._at(done.ratio, self.link))
        messages = cost(done.method, self._at(done.ratio, Link(1.0, 1.0))).latency_s
        # A ring's busiest link carries 2 (n - 1) / n times the probe's words.
        ring = 2 * (self._step.workers - 1) / self._step.workers
        self._estimate.add(measured, messages=messages, words=one.words, probe_words=ring * done.probe_words)
        self._compute_s.append(measured.compute_s)
        if done.method not in DENSE:
            self._select_s.append(measured.compress_s)
            self._recent_gain.append(max(measured.gain, _LEAST_GAIN))

    def _after_exploring(self, measured: Measurement) -> list[Event]:
        self._gains.samples.append(max(measured.gain, _LEAST_GAIN))
        if len(self._gains.samples) < self._settings.explore_steps:
            return []
        self._gains.by_ratio[self._left.popleft()] = median(self._gains.samples)
        self._gains.samples.clear()
        if self._left:
            return []
        self._gains.at_step = self._observed
        ended = ExplorationEnded(self._observed, dict(self._gains.by_ratio))
        return [ended, *self._choose()]

    def _after_using(self) -> list[Event]:
        assert self._chosen is not None
        settings, link, events = self._settings, self.link, list[Event]()
        if self._link and link and moved(self._link, link, settings.tolerance):
            events.append(LinkChanged(self._observed, self._link, link))
            events += self._choose()
            if self._observed - self._gains.at_step >= settings.explore_after:
                return [*events, self._explore()]
        expected = self._gains.by_ratio.get(self._chosen.ratio)
        if expected and len(self._recent_gain) == _RECENT and not events:
            now, most = median(self._recent_gain), 1 + settings.tolerance
            if not 1 / most <= now / expected <= most:
                return [GainChanged(self._observed, expected, now), self._explore()]
        return events

    def _explore(self) -> ExplorationStarted:
        self._left.extend(self._settings.ratios)
        return ExplorationStarted(self._observed)

    def _choose(self) -> list[Event]:
        """Choose among all candidates on the link as estimated."""
        self._link = self.link
        candidates = tuple(self._candidates())
        before = None if self._chosen is None else self._now(self._chosen)
        best = chosen(candidates, self._settings.prefer, before, self._settings.margin)
        self._chosen = best
        self._recent_gain.clear()
        if before is not None and (best.method, best.ratio) == (before.method, before.ratio):
            return []
        return [MethodChosen(self._observed, best, before, candidates)]

    def _candidates(self) -> list[Candidate]:
        """Return the fastest method of each ratio, and the fastest that sends everything."""
        sparse = [method for method in self._settings.methods if method not in DENSE]
        dense = [method for method in self._settings.methods if method in DENSE]
        found = [self._candidate(self._fastest(ratio, sparse), ratio) for ratio in self._settings.ratios]
        return [*found, self._candidate(self._fastest(1.0, dense), 1.0)] if dense else found

    def _now(self, one: Candidate) -> Candidate:
        return self._candidate(cost(one.method, self._at(one.ratio, self.link)), one.ratio)

    def _candidate(self, one: Cost, ratio: float) -> Candidate:
        gain = 1.0 if one.method in DENSE else self._gains.by_ratio[ratio]
        return Candidate(one.method, ratio, one.seconds + median(self._compute_s), gain)

    def _fastest(self, ratio: float, methods: list[Method]) -> Cost:
        return costs(self._at(ratio, self.link), methods)[0]

    def _at(self, ratio: float, link: Link | None) -> Step:
        select_s = median(self._select_s) if self._select_s else None
        return replace(self._step, ratio=ratio, link=link or self._step.link, select_s=select_s)

    def _explored(self) -> Next:
        sparse = [method for method in self._settings.methods if method not in DENSE]
        ratio = self._left[0]
        return Next(self._fastest(ratio, sparse).method, ratio, True, self._estimate.probe_words)

    def _used(self) -> Next:
        assert self._chosen is not None
        return Next(self._chosen.method, self._chosen.ratio, False, self._estimate.probe_words)
