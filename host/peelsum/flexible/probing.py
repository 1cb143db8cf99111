"""Estimates of latency and bandwidth, from what steps measure and from small probes.

Every step exchanges its measurements, a few words whose time is latency. What the step's collectives take
beyond their latency is bandwidth. Where they send too little to tell, a probe of some words is asked for.
What else a machine does only adds to these times, so that the least of the last few is the estimate.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from peelsum.flexible.collectives import LinkModel

#: Samples of which the least is the estimate: a faster link is believed at once, a slower one at the fourth.
_SAMPLES = 4
#: The share of an exchange beyond its latency from which it tells the bandwidth.
_TELLING = 0.3
#: The least share of a probe that counts as its words' time; the next probe is then longer.
_LEAST_SHARE = 0.1
#: Steps without a telling exchange before a probe.
_PATIENCE = 3
#: How far a probe may be from the estimate before it is repeated, until all samples are new.
_SURPRISE = 1.2
#: Fewer words take less than the jitter of a process's own time, of steps and of probes alike.
_LEAST_WORDS, _MOST_PROBE_WORDS = 1 << 12, 1 << 20
_WORD_BITS = 32
_LEAST_S, _MOST_S = 1e-9, 3600.0


class LinkEstimate:
    """An estimate of the link between workers, from agreed measurements only.

    `small_messages`: the messages that follow each other in an exchange of a few words. A switch takes 2, a
    ring of n workers 2 (n - 1); if all send to all at once, it is 1. `probe_messages`: those of a probe.
    """

    def __init__(self, small_messages: float, probe_messages: float) -> None:
        self._messages, self._probe_messages = small_messages, probe_messages
        self._latency: deque[float] = deque(maxlen=_SAMPLES)
        self._word_s: deque[float] = deque(maxlen=_SAMPLES)
        self._untold, self._repeated = _PATIENCE, 0
        self._link: LinkModel | None = None

    @property
    def link(self) -> LinkModel | None:
        """The estimate; None before the first sample of latency and of bandwidth."""
        return self._link

    @property
    def probe_words(self) -> int:
        """Words of the next probe; 0 while steps tell the bandwidth.

        As many as take about twice the latency, from 16 KB to 4 MB.
        """
        if self._untold < _PATIENCE:
            return 0
        link = self.link
        if link is None:
            return _LEAST_WORDS * 4
        wanted = 2 * self._probe_messages * link.latency_s * link.gbps * 1e9 / _WORD_BITS
        return 1 << math.ceil(math.log2(min(max(wanted, _LEAST_WORDS), _MOST_PROBE_WORDS)))

    def add(
        self,
        *,
        small_s: float,
        exchange_s: float,
        messages: float,
        words: float,
        probe_s: float,
        probe_words: float,
    ) -> None:
        """Take what all workers agree was measured in a step; a time of 0 was not measured.

        messages, words: what the step's collectives send in a row, so that they take `messages` latencies and
        `words` words' time. probe_words: likewise for the probe, which takes `probe_messages` latencies.
        """
        if small_s:
            self._latency.append(small_s / self._messages)
        latency_s = min(self._latency, default=0.0)
        if words >= _LEAST_WORDS and self._tell(exchange_s, messages * latency_s, words):
            self._untold = 0
        elif probe_s and probe_words:
            beyond = max(probe_s - self._probe_messages * latency_s, _LEAST_SHARE * probe_s)
            self._tell(beyond, 0.0, probe_words)
            again = not self._settled and self._repeated < _SAMPLES - 1
            self._repeated = self._repeated + 1 if again else 0
            self._untold = _PATIENCE if again else 0
        else:
            self._untold += 1
        self._link = self._estimated()

    def saved(self) -> dict[str, Any]:
        """Return the samples as plain numbers, which `restore` takes."""
        return {
            "latency": list(self._latency),
            "word_s": list(self._word_s),
            "untold": self._untold,
            "repeated": self._repeated,
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Continue with samples that `saved` returned."""
        self._latency.extend(map(float, values["latency"]))
        self._word_s.extend(map(float, values["word_s"]))
        self._untold, self._repeated = int(values["untold"]), int(values["repeated"])
        self._link = self._estimated()

    def _estimated(self) -> LinkModel | None:
        if not self._latency or not self._word_s:
            return None
        gbps = _WORD_BITS * 1e-9 / max(min(self._word_s), _LEAST_S * _WORD_BITS * 1e-6)
        return LinkModel(min(*self._latency, _MOST_S), min(max(gbps, 1e-9), 1e6))

    @property
    def _settled(self) -> bool:
        """Whether the last sample is near the estimate; otherwise another is wanted at once."""
        return len(self._word_s) == _SAMPLES and self._word_s[-1] <= _SURPRISE * min(self._word_s)

    def _tell(self, seconds: float, latency_s: float, words: float) -> bool:
        """Take a sample of bandwidth if the exchange tells one; return whether it does."""
        beyond = seconds - latency_s
        if beyond <= _TELLING * seconds:
            return False
        self._word_s.append(beyond / words)
        return True


def moved(before: LinkModel, now: LinkModel, tolerance: float) -> bool:
    """Return whether rate or latency changed by more than a factor of 1 + `tolerance`.

    Latencies count for as long as they are not negligible: from a microsecond on.
    """
    most = math.log(1 + tolerance)
    latency = math.log((now.latency_s + 1e-6) / (before.latency_s + 1e-6))
    return abs(math.log(now.gbps / before.gbps)) > most or abs(latency) > most
