"""Run the rounds of a step, each with one call of `Summation.sum_words`, and measure them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import numpy as np

from peelsum.allreduce.protocol import Round, Rounds, Sums
from peelsum.codec import Device
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

    Entered as a context, it leaves the phase that an error ends. device: the one from which words travel.
    keeping: whether the sums of every round are kept, so that another exchange can go on from there.
    """

    def __init__(
        self,
        summation: Summation,
        device: Device,
        clock: Callable[[], float],
        span: Span,
        note: Note,
        *,
        keeping: bool = False,
    ) -> None:
        self._summation, self.device, self._clock = summation, device, clock
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

    def run(self, rounds: Rounds | None, ahead: Sequence[Part], device: Device) -> None:
        """Run all rounds of a protocol, if there is one, whose arrays lie on `device`.

        The parts `ahead` are sent before those of the first round. If the step has had rounds, the protocol
        goes through them again: nothing is sent, and the sums are the same.
        """
        past = iter(self._past)
        ahead = () if self._past else ahead
        asked = None if rounds is None else next(rounds)
        while asked is not None or ahead:
            if (before := next(past, None)) is not None and asked is not None:
                # For the protocol alone: it takes no memory of a device.
                asked.write(device.words(asked.or_words), device.words(asked.add_words))
                ored, added = before
            else:
                ored, added = self._summed(asked, ahead, device)
            if rounds is None:
                return
            self.enter("decode")
            try:
                asked, ahead = rounds.send(self._received(ored, added, device)), ()
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

    def _summed(self, asked: Round | None, ahead: Sequence[Part], device: Device) -> tuple[Words, Words]:
        """Write the words of a round, and sum them."""
        sent: list[Part] = []
        if asked is not None:
            ored, added = self._written(asked, device)
            both = Part(ored, "or"), Part(added, "add")
            sent = [part for part in both if len(part.words)]
        totals = self.sum_words([*ahead, *sent])[len(ahead) :]
        by_op = {part.op: total for part, total in zip(sent, totals, strict=True)}
        nothing: Words = np.empty(0, np.uint32)  # takes no memory of a device, which may lack it
        found = by_op.get("or", nothing), by_op.get("add", nothing)
        if self._keeping:
            self._past.append(found)
        return found

    def _written(self, asked: Round, device: Device) -> tuple[Words, Words]:
        """Return the words of a round, where they are sent from."""
        travels = device if device is self.device or not self.device.direct else self.device
        sent = travels.traveling(asked.or_words), travels.traveling(asked.add_words)
        if travels is device and device.direct:
            asked.write(*sent)
            return sent
        own = device.words(asked.or_words), device.words(asked.add_words)
        asked.write(*own)
        for words, out in zip(own, sent, strict=True):
            travels.send(travels.placed(words), out)
        travels.settle()
        return sent

    def _received(self, ored: Words, added: Words, device: Device) -> Sums:
        """Return sums on a protocol's device."""
        if device.is_host:
            ored, added = self.device.on_host(ored), self.device.on_host(added)
            return Sums(ored, added, ored)
        return Sums(device.placed(ored), device.placed(added), ored)
