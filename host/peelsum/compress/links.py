"""Estimates of latency and bandwidth, from the steps' measurements and from small probes.

A step's exchanges give samples of both: the latency is that of the exchange with the fewest words, and the
time that all exchanges take beyond their latency gives the bandwidth. If a carrier's steps give no sample of
the bandwidth, it is probed every few steps: with an exchange of zeros. Other work on a machine only adds to
these times, so the estimate is the smallest of the last few samples.

| a carrier is probed | if |
|---|---|
| after 3 steps, or after 5 if a probe takes over a tenth of a step | its steps give no sample of bandwidth |
| in the next step | a step was faster than the estimate, or the last probe gave another bandwidth |
| in the next step | two steps over another carrier took far longer than the estimate |
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from peelsum.compress.costs import LinkModel

#: The smallest of this many samples is the estimate: it follows a faster link at once, a slower after four.
_SAMPLES = 4
#: An exchange gives a sample of bandwidth if more than this share of its time is not latency.
_BANDWIDTH_SHARE = 0.3
#: At least this share of a probe counts as its words' time, and of a small exchange as its latency.
_LEAST_SHARE = 0.1
#: Steps without a sample before a probe, if the probe takes at most this share of a step; and if more.
_PROBE_AFTER, _CHEAP_SHARE, _PROBE_AFTER_COSTLY = 3, 0.1, 5
#: Times within this factor of each other are near.
_NEAR = 1.2
#: An exchange is far slower than the estimate from this factor on; so many in a row make the link doubtful.
_FAR, _FAR_COUNT = 2.0, 2
#: Fewer words take less time than the jitter of a process, in steps and in probes.
_LEAST_WORDS = 1 << 12
#: A probe's words take at least this share of its latency; and they take this time, or are `_LEAST_WORDS`.
_PROBE_SHARE, _PROBE_S = 0.5, 5e-3
_PROBES = [1 << exponent for exponent in range(8, 19)]
_FIRST_PROBE = 1 << 14
_WORD_BITS = 32
_LEAST_S, _MOST_S = 1e-9, 3600.0


@dataclass(frozen=True)
class TimedExchange:
    """The time and size of one or more exchanges over a carrier, as all workers have agreed on them."""

    seconds: float
    """Seconds that they took."""
    messages: float
    """Number of messages that are sent one after another."""
    words: float
    """Words on the busiest link."""


@dataclass
class _LinkState:
    """The state of an estimate, in plain values."""

    #: The last small exchanges, each seconds, messages and words; the last samples of seconds of a word.
    small: list[tuple[float, float, float]] = field(default_factory=list)
    word_s: list[float] = field(default_factory=list)
    steps_without_sample: int = 0
    probe_requested: bool = False
    #: Number of probes repeated in a row, because the last samples differed.
    repeats: int = 0
    #: Whether the last step's own exchanges gave a sample of latency.
    small_from_step: bool = False
    #: Number of probes, and of steps, in a row that were far slower than the estimate.
    slow_probes: int = 0
    slow_steps: int = 0


class LinkEstimate:
    """An estimate of the link between workers, from agreed measurements only.

    `probe(n)` returns the messages in a row of a probe of n words, and its words on the busiest link.
    """

    def __init__(self, probe: Callable[[int], tuple[float, float]]) -> None:
        self._probe = probe
        #: The estimate; None before the first sample of latency and of bandwidth.
        self.link: LinkModel | None = None
        self._state = _LinkState()

    def plan_probe(self, step_s: float) -> tuple[int, bool]:
        """Return the words of the next step's probe, 0 for none, and whether to measure latency, too.

        The latency is measured by an exchange of one word. step_s: how long a step takes. A probe has the
        fewest words whose time is at least half of its latency: a power of two from 256 to 2**18.
        """
        if self.link is None:
            return _FIRST_PROBE, True
        for words in _PROBES:  # until the time of its words would give a sample of the bandwidth
            messages, sent = self._probe(words)
            words_s = sent * _WORD_BITS / (self.link.gbps * 1e9)
            beyond_jitter = words_s >= _PROBE_S or sent >= _LEAST_WORDS
            if beyond_jitter and words_s >= _PROBE_SHARE * messages * self.link.latency_s:
                break
        cheap = self._predicted_s(TimedExchange(0.0, messages, sent)) <= _CHEAP_SHARE * step_s
        after = _PROBE_AFTER if cheap else _PROBE_AFTER_COSTLY
        if self._state.probe_requested or self._state.steps_without_sample >= after:
            return words, cheap or not self._state.small_from_step
        return 0, False

    def add(
        self, *, small: TimedExchange | None, exchange: TimedExchange | None, probe: TimedExchange | None
    ) -> None:
        """Update the estimate by a step's measurements: a small exchange, all exchanges, and the probe."""
        state = self._state
        if small is not None:
            state.small = [*state.small, (small.seconds, small.messages, small.words)][-_SAMPLES:]
        state.small_from_step = exchange is not None and small is not None
        state.slow_steps = state.slow_steps + 1 if exchange and self._is_far_slower(exchange) else 0
        words_s = exchange.seconds - exchange.messages * self._latency_s if exchange else 0.0
        if exchange and exchange.words >= _LEAST_WORDS and words_s > _BANDWIDTH_SHARE * exchange.seconds:
            self._add_word_s(words_s / exchange.words)
            state.probe_requested = False
        elif probe is not None:
            faster = self._is_faster(probe)
            state.slow_probes = state.slow_probes + 1 if self._is_far_slower(probe) else 0
            if exchange is None and state.slow_probes >= _FAR_COUNT:
                # No sums use the link: two such probes in a row replace all earlier samples.
                state.small, state.word_s, state.repeats = state.small[-1:], [], 0
            probe_words_s = probe.seconds - probe.messages * self._latency_s
            self._add_word_s(max(probe_words_s, _LEAST_SHARE * probe.seconds) / probe.words)
            settled = len(state.word_s) == _SAMPLES and state.word_s[-1] <= _NEAR * min(state.word_s)
            state.probe_requested = (faster or not settled) and state.repeats < _SAMPLES - 1
            state.repeats = state.repeats + 1 if state.probe_requested else 0
        elif exchange and self._is_faster(exchange):
            self.request_probe()
        else:
            state.steps_without_sample += 1
        self.link = self._estimate_link()

    @property
    def doubtful(self) -> bool:
        """Whether the last steps were far slower than the estimate, so that all links may have changed."""
        return self._state.slow_steps == _FAR_COUNT

    def request_probe(self) -> None:
        """Have latency and bandwidth measured in the next step."""
        self._state.probe_requested = True

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values, which `load_state_dict` takes."""
        return copy.deepcopy(vars(self._state))

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue with the state that `state_dict` returned. Raises TypeError for other values."""
        self._state = _LinkState(**copy.deepcopy(dict(values)))
        self.link = self._estimate_link()

    def _add_word_s(self, seconds: float) -> None:
        """Add a sample of the seconds of a word."""
        self._state.word_s = [*self._state.word_s, seconds][-_SAMPLES:]
        self._state.steps_without_sample = 0

    def _estimate_link(self) -> LinkModel | None:
        """Return the link by the samples so far; None without samples of latency and bandwidth."""
        if not self._state.small or not self._state.word_s:
            return None
        gbps = _WORD_BITS * 1e-9 / max(min(self._state.word_s), _LEAST_S * _WORD_BITS * 1e-6)
        return LinkModel(min(self._latency_s, _MOST_S), min(max(gbps, 1e-9), 1e6))

    @property
    def _latency_s(self) -> float:
        """The smallest seconds per message of the samples, without the time of words; 0 without a sample."""
        word_s = min(self._state.word_s, default=0.0)
        latencies = (
            max(seconds - words * word_s, _LEAST_SHARE * seconds) / messages
            for seconds, messages, words in self._state.small
        )
        return min(latencies, default=0.0)

    def _is_faster(self, exchange: TimedExchange) -> bool:
        """Return whether an exchange took less time than the estimate."""
        return self.link is not None and _NEAR * exchange.seconds < self._predicted_s(exchange)

    def _is_far_slower(self, exchange: TimedExchange) -> bool:
        """Return whether an exchange took far longer than the estimate."""
        return self.link is not None and exchange.seconds > _FAR * self._predicted_s(exchange)

    def _predicted_s(self, exchange: TimedExchange) -> float:
        """Return the seconds that an exchange takes by the estimate."""
        return exchange.messages * self._latency_s + exchange.words * min(self._state.word_s)


def link_changed(before: LinkModel, now: LinkModel, tolerance: float) -> bool:
    """Return whether rate or latency changed by more than a factor of 1 + `tolerance`.

    A microsecond is added to both latencies, because changes below it do not matter.
    """
    limit = math.log(1 + tolerance)
    latency_change = math.log((now.latency_s + 1e-6) / (before.latency_s + 1e-6))
    return abs(math.log(now.gbps / before.gbps)) > limit or abs(latency_change) > limit
