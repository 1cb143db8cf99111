"""Run the exchanges of all tensors of a step in common rounds, each with one call of `Summation.sum_words`.

A round places all tensors' words back to back, so that chunks are full. `Step` measures time and counts
chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, Protocol

from peelsum.allreduce.staging import PAUSE, Round, Rounds, Sums, by_host
from peelsum.codec import Memory
from peelsum.summation import Part, Summation, Words
from peelsum.wire import packet_bytes


def unnoted(values: Mapping[str, int]) -> None:
    """Note nothing."""


#: What a step spends its time on.
Phase = Literal["encode", "exchange", "decode"]
#: Maps a phase, or "step" for all of it, to a context manager, entered and left with it.
Span = Callable[[Phase | Literal["step"]], AbstractContextManager[object]]
#: Takes what a step or an exchange cost, inside its span.
Note = Callable[[Mapping[str, int]], None]


class Exchange(Protocol):
    """The exchange of a tensor or of a bundle of tensors, in the rounds of a step."""

    label: str
    """The names of its tensors, for messages."""
    words_sent: int
    """Words that this worker has sent; `Step` counts them."""

    def rounds(self) -> Rounds:
        """Yield every round of the exchange; send each round's sums back into the generator."""


@dataclass(eq=False)
class _Running:
    """An exchange that waits for the sums of a round."""

    exchange: Exchange
    rounds: Rounds
    asked: Round

    def write(self, ored: Words, added: Words) -> None:
        self.exchange.words_sent += self.asked.or_words + self.asked.add_words
        self.asked.write(ored, added)


class Step:
    """One step over a summation, with its cost so far: `chunks` sent, and seconds in each phase.

    keeping: whether `past` keeps the sums of every round, so that other exchanges can go on from there.
    """

    def __init__(
        self,
        summation: Summation,
        memory: Memory,
        clock: Callable[[], float],
        span: Span,
        note: Note,
        *,
        keeping: bool = False,
    ) -> None:
        self._summation, self.memory, self.clock, self.span = summation, memory, clock, span
        self._note, self._keeping = note, keeping
        #: The OR-ed and the added words of each round so far, of all exchanges.
        self.past: list[tuple[Words, Words]] = []
        #: The names of the tensors whose words are being written, or whose sums are being read.
        self.label = ""
        #: Whether exchanges are on the host although their words are sent from a device, as over NCCL.
        self.carrying = False
        #: Whether the backend has begun a sum and has not returned it.
        self.summing = False
        self.chunks = 0
        self.seconds: dict[Phase, float] = {"encode": 0.0, "exchange": 0.0, "decode": 0.0}

    def timed(self, phase: Phase) -> AbstractContextManager[object]:
        """Return a context that adds the time of its body to the phase, unless the body raises."""
        return _Timed(self, phase)

    def run(self, exchanges: Sequence[Exchange], ahead: Sequence[Part]) -> None:
        """Run all rounds of the exchanges; the parts `ahead` are sent before those of the first round.

        If the step has had rounds, the exchanges go through them again: nothing is sent, and the sums are
        those of `past`.
        """
        running = []
        with self.timed("encode"):
            for exchange in exchanges:
                self.label, rounds = exchange.label, exchange.rounds()
                rounds = by_host(rounds, self.memory) if self.carrying else rounds
                running.append(_Running(exchange, rounds, next(rounds)))
        for ored, added in self.past:
            with self.timed("encode"):
                *_, or_spans, add_spans = self._written(running)
            with self.timed("decode"):
                running = self._advanced(running, _divided(ored, added, or_spans, add_spans))
        if self.past:
            ahead = ()
        while running or ahead:
            sums = self._round(running, ahead)
            with self.timed("decode"):
                running, ahead = self._advanced(running, sums), ()

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """Call `Summation.sum_words`, measure it, and run each part's check, in case the backend did not."""
        with self.timed("exchange"):
            self.summing = True
            results = self._summation.sum_words(parts)
            self.summing = False
            chunks = sum(-(-len(part.words) // self._summation.lanes) for part in parts)
            self._note({"chunks": chunks, "bytes": chunks * packet_bytes(self._summation.lanes)})
        self.chunks += chunks
        for part, result in zip(parts, results, strict=True):
            if part.check is not None:
                part.check(result)
        return results

    def _round(self, running: Sequence[_Running], ahead: Sequence[Part]) -> list[Sums]:
        """Run one round of every exchange: write the words, sum them, and divide the sums."""
        with self.timed("encode"):
            ored, added, or_spans, add_spans = self._written(running)
            if running and not self.memory.direct:
                self.memory.settle()
        parts = [Part(ored, "or"), Part(added, "add")]
        sent = [part for part in parts if len(part.words)]
        totals = self.sum_words([*ahead, *sent])[len(ahead) :]
        by_op = {part.op: total for part, total in zip(sent, totals, strict=True)}
        ored, added = by_op.get("or", ored), by_op.get("add", added)
        if self._keeping:
            self.past.append((ored, added))
        return _divided(ored, added, or_spans, add_spans)

    def _written(self, running: Sequence[_Running]) -> tuple[Words, Words, list[slice], list[slice]]:
        """Return the words of every exchange's round, and where each exchange's are."""
        ored, or_spans = self._laid_out([one.asked.or_words for one in running])
        added, add_spans = self._laid_out([one.asked.add_words for one in running])
        for one, or_span, add_span in zip(running, or_spans, add_spans, strict=True):
            self.label = one.exchange.label
            one.write(ored[or_span], added[add_span])
        return ored, added, or_spans, add_spans

    def _advanced(self, running: Sequence[_Running], sums: Sequence[Sums]) -> list[_Running]:
        """Send each exchange its sums; return the exchanges that have another round.

        Those that pause go on when all others have paused, too, or asked for their round.
        """
        asked = [self._resumed(one, total) for one, total in zip(running, sums, strict=True)]
        while any(one is PAUSE for one in asked):
            asked = [
                self._resumed(one, None) if round_ is PAUSE else round_
                for one, round_ in zip(running, asked, strict=True)
            ]
        return [
            _Running(one.exchange, one.rounds, round_)
            for one, round_ in zip(running, asked, strict=True)
            if round_ is not None
        ]

    def _resumed(self, one: _Running, sums: Sums | None) -> Round | None:
        """Go on with an exchange, with sums or after a pause; return what it asks for, None at its end."""
        self.label = one.exchange.label
        try:
            return next(one.rounds) if sums is None else one.rounds.send(sums)
        except StopIteration:
            return None

    def _laid_out(self, lengths: Sequence[int]) -> tuple[Words, list[slice]]:
        """Allocate words for spans of these lengths; return them, and each span."""
        ends = list(accumulate(lengths, initial=0))
        return self.memory.traveling(ends[-1]), [slice(a, b) for a, b in pairwise(ends)]


class _Timed:
    """The context of one phase: a generator's would take six times as many calls."""

    def __init__(self, step: Step, phase: Phase) -> None:
        self._step, self._phase, self._span = step, phase, step.span(phase)

    def __enter__(self) -> None:
        self._span.__enter__()
        self._started = self._step.clock()

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        if kind is None:
            self._step.seconds[self._phase] += self._step.clock() - self._started
        self._span.__exit__(kind, *error)


def _divided(ored: Words, added: Words, or_spans: Sequence[slice], add_spans: Sequence[slice]) -> list[Sums]:
    """Return each exchange's sums."""
    return [Sums(ored[a], added[b]) for a, b in zip(or_spans, add_spans, strict=True)]
