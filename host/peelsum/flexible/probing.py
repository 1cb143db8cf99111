"""Estimates of latency and bandwidth, from what steps measure and from small probes.

The collective of a step that sends few words tells latency; the time of the others beyond their latency tells
bandwidth. Where they send too little or too much to tell, a probe is asked for. Other programs only add to
these times, so the estimate is the least of the last few.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from peelsum.flexible.collectives import LinkModel

#: Samples of which the least is the estimate: a faster link is believed at once, a slower one at the fourth.
_SAMPLES = 4
#: A rate that is slower by more than this factor is believed at the second sample in a row.
_PLAINLY, _IN_A_ROW = 2.0, 2
#: The least share of an exchange beyond its latency that tells the bandwidth, and the other way round.
_TELLING = 0.3
#: The least share of an exchange that a sample has, whatever the estimate says of the rest.
_LEAST_SHARE = 0.1
#: Steps without a sample of latency, or of bandwidth, before a probe.
_PATIENCE = 3
#: An exchange that is faster than predicted by more than this factor tells that the link is faster.
_SURPRISE = 1.5
#: Fewer words that take less time are lost in a process's own jitter. A probe of the rate has at most as many
#: words as the third.
_LEAST_WORDS, _LEAST_WORDS_S, _MOST_PROBE_WORDS = 1 << 12, 2e-3, 1 << 20
#: The words of a probe that tells latency only.
_PING_WORDS = 1
#: The most words for each message of an exchange that can tell that latency rose.
_HEADER_WORDS = 64
#: How many times the words of a first exchange's message the others' must have, to tell both apart.
_APART = 4.0
_WORD_BITS = 32
_LEAST_S, _MOST_S = 1e-9, 3600.0


#: What an exchange tells of a link.
Told = Literal["latency", "rate"]


@dataclass(frozen=True)
class Exchange:
    """An exchange whose time all workers agree on."""

    seconds: float
    """Its time; 0 if it was not measured."""
    messages: float
    """Messages in a row, each of which takes a latency."""
    words: float
    """32-bit words on the busiest link in one direction."""


@dataclass(frozen=True)
class Probing:
    """How a carrier's probes travel: messages in a row, and how often the busiest link carries a word."""

    ping: tuple[float, float]
    """Those of the shortest probe."""
    probe: tuple[float, float]
    """Those of a longer one."""
    lanes: int = 1
    """Words in a packet; fewer are filled up to a whole one."""

    @property
    def ping_words(self) -> float:
        """Words of the shortest probe."""
        return self.of(_PING_WORDS)[1]

    def of(self, words: int) -> tuple[float, float]:
        """Return a probe's messages in a row, and its words on the busiest link."""
        messages, times = self.ping if words <= _PING_WORDS else self.probe
        return messages, times * self.lanes * math.ceil(words / self.lanes)


class LinkEstimate:
    """An estimate of the link between workers, from agreed measurements only."""

    def __init__(self, probing: Probing) -> None:
        self._probing = probing
        self._latency: deque[float] = deque(maxlen=_SAMPLES)
        self._word_s: deque[float] = deque(maxlen=_SAMPLES)
        self._latency_age = self._rate_age = _PATIENCE
        self._faster, self._asked = False, 0
        self.doubted: Told | None = None
        """What waits for a probe, because another carrier's is plainly slower."""
        #: A probe of the rate that was over before any latency was known.
        self._unsure: Exchange | None = None
        self.link: LinkModel | None = None
        """The estimate; None before the first sample of latency and of bandwidth."""
        self.reserved_s = 0.0
        """The seconds that steps will wait for the probe under way, as predicted."""

    def ask(self, credit_s: float, *, used: bool) -> int:
        """Return the words of a probe to begin in the next step; 0 for none, also while one is under way.

        credit_s: the seconds that probes may take now. used: whether the step's collectives use this carrier.
        Beside another carrier's collectives, a probe of one word counts as no time.
        """
        if self._asked:
            return 0
        latency_due, rate_due = self._latency_age >= _PATIENCE, self._rate_age >= _PATIENCE
        if self.link is None:
            self._asked = _LEAST_WORDS if rate_due else _PING_WORDS if latency_due else 0
            return self._asked
        hurried = self.doubted == "rate" or (self._faster and not used)
        wanted = self._wanted(self.link, used) if rate_due or hurried else 0
        if wanted and self.doubted != "latency" and (hurried or self._costs(wanted, used) <= credit_s):
            self._asked = wanted
        elif self.doubted or (latency_due and self._costs(_PING_WORDS, used) <= max(credit_s, 0.0)):
            self._asked = _PING_WORDS
        self.reserved_s = self._costs(self._asked, used) if self._asked else 0.0
        return self._asked

    def took(self, seconds: float, *, used: bool) -> float:
        """Take the time of the probe that was asked for, and return the seconds that steps waited for it.

        seconds: 0 while the probe is under way. Beside another carrier's collectives, steps wait only for
        the probe's words.
        """
        if not self._asked or not seconds:
            return 0.0
        messages, words = self._probing.of(self._asked)
        told: Told = "latency" if self._asked <= _PING_WORDS else "rate"
        known, one = self.link is not None, Exchange(seconds, messages, words)
        self._asked, self.reserved_s, self._faster = 0, 0.0, self._faster and told == "latency"
        if told == self.doubted:
            self.doubted = None
            (self._latency if told == "latency" else self._word_s).clear()
        again = self._unsure if told == "latency" else None
        self._unsure = one if told == "rate" and not self._latency else None
        self.add(one, aged=False)
        if again is not None:
            self._word_s.clear()
            self.add(again, aged=False)
        if not known:
            return 0.0
        return (
            seconds if used else min(seconds, words * self._least_word_s) * (words > self._probing.ping_words)
        )

    def doubt(self, of: Told) -> None:
        """Have latency or rate probed, as another carrier's is plainly slower; believe the probe at once."""
        self.doubted = of

    def add(self, *exchanges: Exchange, aged: bool = True) -> None:
        """Take a step's exchanges over this carrier, the one of fewer words first; none if it was idle."""
        self._latency_age += aged
        self._rate_age += aged
        told = [one for one in exchanges if one.seconds > 0 and one.messages > 0]
        for one in told:
            self._refute(one)
        if len(told) != 2 or not self._tell_both(*told):
            for one in told:
                self._tell(one)
        self.link = self._estimated()

    def saved(self) -> dict[str, Any]:
        """Return the samples as plain numbers, which `restore` takes."""
        return {
            "latency": list(self._latency),
            "word_s": list(self._word_s),
            "ages": [self._latency_age, self._rate_age],
            "faster": self._faster,
            "doubted": self.doubted,
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Continue with samples that `saved` returned; a probe that was under way is forgotten."""
        self._latency.extend(map(float, values["latency"]))
        self._word_s.extend(map(float, values["word_s"]))
        self._latency_age, self._rate_age = map(int, values["ages"])
        self._faster, self._asked, self.reserved_s = bool(values["faster"]), 0, 0.0
        self.doubted = values["doubted"]
        self.link = self._estimated()

    @property
    def _least_word_s(self) -> float:
        return _believed(self._word_s) if self._word_s else 0.0

    def _costs(self, words: int, used: bool) -> float:
        """Return the seconds that steps would wait for a probe."""
        assert self.link is not None
        messages, sent = self._probing.of(words)
        if used:
            return messages * self.link.latency_s + sent * self._least_word_s
        return sent * self._least_word_s if words > _PING_WORDS else 0.0

    def _wanted(self, link: LinkModel, used: bool) -> int:
        """Return as many words as take twice their latency, or half of it if steps wait: 16 KB to 4 MB."""
        messages, times = self._probing.probe
        wanted = messages * link.latency_s / (times * self._least_word_s) * (0.5 if used else 2.0)
        return 1 << math.ceil(math.log2(min(max(wanted, _LEAST_WORDS), _MOST_PROBE_WORDS)))

    def _refute(self, one: Exchange) -> None:
        """Forget the latest samples if, by them, an exchange would have taken much longer than it did."""
        for samples, count in ((self._latency, one.messages), (self._word_s, one.words)):
            while len(samples) > 1 and count * samples[-1] > _SURPRISE * one.seconds:
                samples.pop()

    def _tell(self, one: Exchange) -> None:
        """Take latency or rate from what one exchange took beyond the estimate of its other part."""
        words_s = one.words * self._least_word_s
        if one.words < _LEAST_WORDS:
            beyond = one.seconds - words_s
            sample = max(beyond, _LEAST_SHARE * one.seconds) / one.messages
            slower = self._latency and sample > _PLAINLY * min(self._latency)
            if slower and one.words > _HEADER_WORDS * one.messages and one.words > self._probing.ping_words:
                self._latency_age = _PATIENCE  # perhaps it is its words: a probe tells
            elif beyond > 0 or not self._latency:
                self._take_latency(sample, one, tells=beyond > _TELLING * one.seconds)
            elif self._surprises(one):
                self._hurry()
        beyond = one.seconds - one.messages * (min(self._latency) if self._latency else 0.0)
        # A probe of latency takes longer on a longer link: it must not pass for a slower one.
        several = one.words > self._probing.ping_words
        if one.words >= _LEAST_WORDS or (several and max(beyond, words_s) >= _LEAST_WORDS_S):
            sample = max(beyond, _LEAST_SHARE * one.seconds) / one.words
            self._take_rate(sample, one, tells=beyond > _TELLING * one.seconds)

    def _tell_both(self, first: Exchange, rest: Exchange) -> bool:
        """Take latency and rate from two exchanges without an estimate; return whether they differ enough."""
        if (
            not first.messages
            or not rest.messages
            or rest.words * first.messages < _APART * first.words * rest.messages
        ):
            return False
        cross = rest.words * first.messages - first.words * rest.messages
        word_s = (rest.seconds * first.messages - first.seconds * rest.messages) / cross
        latency_s = (first.seconds - first.words * max(word_s, 0.0)) / first.messages
        if latency_s > 0:
            sample = max(latency_s, _LEAST_SHARE * first.seconds / first.messages)
            self._take_latency(sample, first, tells=latency_s * first.messages > _TELLING * first.seconds)
        if rest.words >= _LEAST_WORDS or word_s * rest.words >= _LEAST_WORDS_S:
            sample = max(word_s, _LEAST_SHARE * rest.seconds / rest.words)
            self._take_rate(sample, rest, tells=word_s * rest.words > _TELLING * rest.seconds)
        return True

    def _take_latency(self, sample: float, one: Exchange, *, tells: bool) -> None:
        """Take a sample of seconds a message; unless it `tells`, only if it shows a faster link."""
        faster = bool(self._latency) and _SURPRISE * sample < min(self._latency) and self._surprises(one)
        if faster:
            self._hurry()
        if tells or faster or not self._latency:
            self._latency.append(sample)
            self._latency_age = 0

    def _take_rate(self, sample: float, one: Exchange, *, tells: bool) -> None:
        """Take a sample of seconds a word; unless it `tells`, only if it shows a faster link."""
        if tells or not self._word_s:
            self._rate_age = 0
        elif _SURPRISE * sample < min(self._word_s) and self._surprises(one):
            self._hurry()
        else:
            return
        self._word_s.append(sample)

    def _surprises(self, one: Exchange) -> bool:
        """Return whether an exchange was faster than the estimate allows."""
        if not self._latency or not self._word_s:
            return True
        predicted_s = one.messages * min(self._latency) + one.words * self._least_word_s
        return predicted_s > _SURPRISE * one.seconds

    def _hurry(self) -> None:
        """Note that the link is faster than estimated, so that its rate is probed soon."""
        self._faster, self._rate_age = True, _PATIENCE

    def _estimated(self) -> LinkModel | None:
        if not self._latency or not self._word_s:
            return None
        gbps = _WORD_BITS * 1e-9 / max(_believed(self._word_s), _LEAST_S * _WORD_BITS * 1e-6)
        return LinkModel(min(min(self._latency), _MOST_S), min(max(gbps, 1e-9), 1e6))


def _believed(samples: Sequence[float]) -> float:
    """Return the least sample, or the least of the last ones if that is plainly more."""
    least, last = min(samples), min(list(samples)[-_IN_A_ROW:])
    return last if len(samples) > _IN_A_ROW and last > _PLAINLY * least else least


def moved(before: LinkModel, now: LinkModel, tolerance: float) -> bool:
    """Return whether rate or latency changed by more than a factor of 1 + `tolerance`.

    Latencies count for as long as they are not negligible: from a microsecond on.
    """
    most = math.log(1 + tolerance)
    latency = math.log((now.latency_s + 1e-6) / (before.latency_s + 1e-6))
    return abs(math.log(now.gbps / before.gbps)) > most or abs(latency) > most


def slowed(before: LinkModel | None, now: LinkModel | None) -> Told | None:
    """Return what is plainly slower now than it was, if anything."""
    if before is None or now is None:
        return None
    if now.latency_s > _PLAINLY * before.latency_s:
        return "latency"
    return "rate" if _PLAINLY * now.gbps < before.gbps else None
