"""Estimates of latency and bandwidth, from the steps' measurements and from small probes.

A step's own exchanges tell both: the one of the fewest words tells the latency, and what all of them take
beyond their latency tells the bandwidth. A carrier of which steps tell too little is probed every few steps.
Other work on a machine only adds to these times, so the least of the last few is the estimate.

| a carrier is measured in the next step | because |
|---|---|
| after 3 steps, or after 5 if a probe takes over a tenth of a step | its steps do not tell the bandwidth |
| at once | a step was faster than the estimate says, or the last probe told another rate |
| at once | two steps over another carrier took far too long |
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from peelsum.compress.costs import LinkModel

#: Samples of which the least is the estimate: a faster link is believed at once, a slower one at the fourth.
_SAMPLES = 4
#: The share of an exchange beyond its latency from which it tells the bandwidth.
_TELLING = 0.3
#: The least share of a probe, or of a small exchange, that counts as its words' time or as its latency.
_LEAST_SHARE = 0.1
#: Steps without a telling exchange before a probe: if it takes at most this share of a step, and if more.
_PATIENCE, _CHEAP, _MOST_PATIENCE = 3, 0.1, 5
#: How far a probe may be from its expected time.
_SURPRISE = 1.2
#: How far beyond the estimate, and how often in a row, an exchange is before the link is doubted.
_DOUBT, _DOUBTS = 2.0, 2
#: Fewer words take less than the jitter of a process's own time, of steps and of probes alike.
_LEAST_WORDS = 1 << 12
#: A probe's words take at least this share of its latency, and a time beyond jitter or `_LEAST_WORDS`.
_PROBE_SHARE, _PROBE_S = 0.5, 5e-3
_PROBES = [1 << exponent for exponent in range(8, 19)]
_FIRST_PROBE = 1 << 14
_WORD_BITS = 32
_LEAST_S, _MOST_S = 1e-9, 3600.0


@dataclass(frozen=True)
class Timed:
    """Exchanges of one carrier as all workers agree that they were."""

    seconds: float
    """Seconds that they took."""
    messages: float
    """Messages in a row."""
    words: float
    """Words on the busiest link."""


class LinkEstimate:
    """An estimate of the link between workers, from agreed measurements only.

    `probe(n)` returns the messages in a row of a probe of n words, and its words on the busiest link.
    """

    def __init__(self, probe: Callable[[int], tuple[float, float]]) -> None:
        self._probe = probe
        self._small: deque[Timed] = deque(maxlen=_SAMPLES)
        self._word_s: deque[float] = deque(maxlen=_SAMPLES)
        self._untold, self._repeated, self._asked, self._heard = 0, 0, False, False
        #: Probes, and steps, that took far too long, in a row.
        self._slow = self._doubts = 0
        self._link: LinkModel | None = None

    @property
    def link(self) -> LinkModel | None:
        """The estimate; None before the first sample of latency and of bandwidth."""
        return self._link

    def wanted(self, step_s: float) -> tuple[int, bool]:
        """Return the words of the next step's probe, 0 for none, and whether to exchange a word before it.

        step_s: how long a step takes. A probe has as few words as take half of its latency: a power of two
        from 256 to 2**18.
        """
        if self._link is None:
            return _FIRST_PROBE, True
        words = next(filter(self._tells, _PROBES), _PROBES[-1])
        cheap = self._predicted_s(Timed(0.0, *self._probe(words))) <= _CHEAP * step_s
        if self._asked or self._untold >= (_PATIENCE if cheap else _MOST_PATIENCE):
            return words, cheap or not self._heard
        return 0, False

    def add(self, *, small: Timed | None, exchange: Timed | None, probe: Timed | None) -> None:
        """Take a step's measurements: its small exchange, all exchanges of its sums, and the probe."""
        if small is not None:
            self._small.append(small)
        self._heard = exchange is not None and small is not None
        self._doubts = self._doubts + 1 if exchange and self._doubted(exchange) else 0
        if exchange and exchange.words >= _LEAST_WORDS and self._tell(exchange):
            self._untold, self._asked = 0, False
        elif probe is not None:
            self._take(probe, idle=exchange is None)
        elif exchange and self._faster(exchange):
            self.ask()
        else:
            self._untold += 1
        self._link = self._estimated()

    @property
    def doubtful(self) -> bool:
        """Whether the last steps over this link took far too long: all links may have changed."""
        return self._doubts == _DOUBTS

    def ask(self) -> None:
        """Measure latency and bandwidth in the next step."""
        self._asked = True

    def saved(self) -> dict[str, Any]:
        """Return the samples as plain numbers, which `restore` takes."""
        return {
            "small": [list(astuple(one)) for one in self._small],
            "word_s": list(self._word_s),
            "heard": self._heard,
            "untold": self._untold,
            "repeated": self._repeated,
            "asked": self._asked,
            "slow": self._slow,
            "doubts": self._doubts,
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Continue with samples that `saved` returned."""
        self._small = deque((Timed(*map(float, one)) for one in values["small"]), _SAMPLES)
        self._word_s = deque(map(float, values["word_s"]), _SAMPLES)
        self._heard, self._untold = bool(values["heard"]), int(values["untold"])
        self._repeated, self._asked = int(values["repeated"]), bool(values["asked"])
        self._slow, self._doubts = int(values["slow"]), int(values["doubts"])
        self._link = self._estimated()

    def _estimated(self) -> LinkModel | None:
        if not self._small or not self._word_s:
            return None
        gbps = _WORD_BITS * 1e-9 / max(min(self._word_s), _LEAST_S * _WORD_BITS * 1e-6)
        return LinkModel(min(self._latency_s, _MOST_S), min(max(gbps, 1e-9), 1e6))

    @property
    def _latency_s(self) -> float:
        """The least seconds a message of the samples, without the time of their words; 0 without a sample."""
        word_s = min(self._word_s, default=0.0)
        beyond = (
            max(one.seconds - one.words * word_s, _LEAST_SHARE * one.seconds) / one.messages
            for one in self._small
        )
        return min(beyond, default=0.0)

    def _tells(self, words: int) -> bool:
        """Return whether a probe of `words` words tells the bandwidth of the link as estimated."""
        assert self._link is not None
        messages, sent = self._probe(words)
        words_s = sent * _WORD_BITS / (self._link.gbps * 1e9)
        noticed = words_s >= _PROBE_S or sent >= _LEAST_WORDS
        return noticed and words_s >= _PROBE_SHARE * messages * self._link.latency_s

    def _take(self, probe: Timed, *, idle: bool) -> None:
        """Take a probe. Of a link that no sums use, two in a row that took far too long are believed."""
        faster, self._slow = self._faster(probe), self._slow + 1 if self._doubted(probe) else 0
        if idle and self._slow >= _DOUBTS:
            self._small = deque([self._small[-1]], _SAMPLES)
            self._word_s.clear()
            self._repeated = 0
        latency_s = probe.messages * self._latency_s
        self._word_s.append(max(probe.seconds - latency_s, _LEAST_SHARE * probe.seconds) / probe.words)
        self._asked = (faster or not self._settled) and self._repeated < _SAMPLES - 1
        self._repeated = self._repeated + 1 if self._asked else 0
        self._untold = 0

    def _faster(self, one: Timed) -> bool:
        """Return whether an exchange took less time than the estimate says."""
        return self._link is not None and _SURPRISE * one.seconds < self._predicted_s(one)

    def _doubted(self, one: Timed) -> bool:
        """Return whether an exchange took far longer than the estimate says."""
        return self._link is not None and one.seconds > _DOUBT * self._predicted_s(one)

    def _predicted_s(self, one: Timed) -> float:
        """Return how many seconds the exchange takes by the estimate."""
        return one.messages * self._latency_s + one.words * min(self._word_s)

    @property
    def _settled(self) -> bool:
        """Whether the last sample is near the estimate; otherwise another is wanted at once."""
        return len(self._word_s) == _SAMPLES and self._word_s[-1] <= _SURPRISE * min(self._word_s)

    def _tell(self, exchange: Timed) -> bool:
        """Take a sample of bandwidth if the exchanges tell one; return whether they do."""
        beyond = exchange.seconds - exchange.messages * self._latency_s
        if beyond <= _TELLING * exchange.seconds:
            return False
        self._word_s.append(beyond / exchange.words)
        return True


def moved(before: LinkModel, now: LinkModel, tolerance: float) -> bool:
    """Return whether rate or latency changed by more than a factor of 1 + `tolerance`.

    Latencies count for as long as they are not negligible: from a microsecond on.
    """
    most = math.log(1 + tolerance)
    latency = math.log((now.latency_s + 1e-6) / (before.latency_s + 1e-6))
    return abs(math.log(now.gbps / before.gbps)) > most or abs(latency) > most
