"""Run the rounds of a step, each with one call of `Summation.sum_words`, and measure them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import numpy as np

from peelsum.allreduce.exchange import Round, Rounds, Sums
from peelsum.codec import HostMemory, Memory
from peelsum.summation import Part, Summation, Words
from peelsum.wire import packet_bytes


def unnoted(values: Mapping[str, int]) -> None:
    """Note nothing."""


#: What a step spends its time on.
Phase = Literal["encode", "exchange", "decode"]
#: Maps a phase, or "step" for all of it, to a context manager, entered and left with it.
Span = Callable[[Phase | Literal["step"]], AbstractContextManager[object]]
#: Takes the cost of a step or of an exchange, inside its span.
Note = Callable[[Mapping[str, int]], None]


class Step:
    """One step over a summation, with its cost so far: `exchanges`, `chunks` sent, and seconds in each phase.

    Entered as a context, it leaves the phase that an error ends. memory: the one in which words travel.
    keeping: whether the sums of every round are kept, so that another exchange can go on from there.
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
        self._summation, self.memory, self._clock = summation, memory, clock
        self._span, self._note, self._keeping = None if span is nullcontext else span, note, keeping
        #: The OR-ed and the added words of each round so far.
        self._past: list[tuple[Words, Words]] = []
        #: Whether the backend has begun a sum and has not returned it.
        self.summing = False
        self.chunks = self.exchanges = 0
        self.seconds: dict[Phase, float] = {"encode": 0.0, "exchange": 0.0, "decode": 0.0}
        self._phase: Phase | None = None
        self._within: AbstractContextManager[object] | None = None
        self._began = 0.0

    def __enter__(self) -> Step:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._within is not None:
            self._within.__exit__(kind, error, traceback)

    def enter(self, phase: Phase | None) -> None:
        """End the phase before, if there is one, and begin another, or none."""
        if phase == self._phase:
            return
        now = self._clock()
        if self._phase is not None:
            self.seconds[self._phase] += now - self._began
        self._phase, self._began = phase, now
        if self._span is not None:
            before, self._within = self._within, None
            if before is not None:
                before.__exit__(None, None, None)
            if phase is not None:
                self._within = self._span(phase)
                self._within.__enter__()

    def run(self, rounds: Rounds | None, ahead: Sequence[Part], room: Memory) -> None:
        """Run all rounds of an exchange, if there is one, whose arrays lie in `room`.

        The parts `ahead` are sent before those of the first round. If the step has had rounds, the exchange
        goes through them again: nothing is sent, and the sums are the same.
        """
        past = iter(self._past)
        ahead = () if self._past else ahead
        asked = None if rounds is None else next(rounds)
        while asked is not None or ahead:
            if (before := next(past, None)) is not None and asked is not None:
                # For the exchange alone: it takes no memory of a device.
                asked.write(room.words(asked.or_words), room.words(asked.add_words))
                ored, added = before
            else:
                ored, added = self._summed(asked, ahead, room)
            if rounds is None:
                return
            self.enter("decode")
            try:
                asked, ahead = rounds.send(self._received(ored, added, room)), ()
            except StopIteration:
                return
            self.enter("encode")

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """Call `Summation.sum_words`, measure it, and run each part's check, in case the backend did not."""
        self.enter("exchange")
        self.summing = True
        results = self._summation.sum_words(parts)
        self.summing = False
        lanes = self._summation.lanes
        chunks = 0
        for part in parts:
            chunks += -(-len(part.words) // lanes)
        self._note({"chunks": chunks, "bytes": chunks * packet_bytes(lanes)})
        self.chunks += chunks
        self.exchanges += 1
        for part, result in zip(parts, results, strict=True):
            if part.check is not None:
                part.check(result)
        return results

    def _summed(self, asked: Round | None, ahead: Sequence[Part], room: Memory) -> tuple[Words, Words]:
        """Write the words of a round, and sum them."""
        sent: list[Part] = []
        if asked is not None:
            ored, added = self._written(asked, room)
            both = Part(ored, "or"), Part(added, "add")
            sent = [part for part in both if len(part.words)]
        totals = self.sum_words([*ahead, *sent])[len(ahead) :]
        by_op = {part.op: total for part, total in zip(sent, totals, strict=True)}
        nothing: Words = np.empty(0, np.uint32)  # takes no memory of a device, which may lack it
        found = by_op.get("or", nothing), by_op.get("add", nothing)
        if self._keeping:
            self._past.append(found)
        return found

    def _written(self, asked: Round, room: Memory) -> tuple[Words, Words]:
        """Return the words of a round, where they are sent from."""
        travels = room if room is self.memory or not self.memory.direct else self.memory
        sent = travels.traveling(asked.or_words), travels.traveling(asked.add_words)
        if travels is room and room.direct:
            asked.write(*sent)
            return sent
        own = room.words(asked.or_words), room.words(asked.add_words)
        asked.write(*own)
        for words, out in zip(own, sent, strict=True):
            travels.send(travels.receive(words), out)
        travels.settle()
        return sent

    def _received(self, ored: Words, added: Words, room: Memory) -> Sums:
        """Return sums in an exchange's memory."""
        if isinstance(room, HostMemory):
            ored, added = self.memory.on_host(ored), self.memory.on_host(added)
            return Sums(ored, added, ored)
        return Sums(room.receive(ored), room.receive(added), ored)
