"""Run one step: its rounds, each with one call of `Summation.sum_words`, which are measured.

If a device lacks memory, the host goes through the rounds again, with the sums of those that have ended.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np

from peelsum.allreduce.choosing import Chooser
from peelsum.allreduce.errors import DeviceMemoryError, PlanMismatchError
from peelsum.allreduce.one_round import Expected, OneRound
from peelsum.allreduce.outcome import Outcome
from peelsum.allreduce.plan import Plan, agreed, agreement_words
from peelsum.allreduce.protocol import Round, Rounds, SumProtocol, Sums
from peelsum.allreduce.result import StepResult
from peelsum.allreduce.two_rounds import TwoRounds
from peelsum.codec import HOST, Device
from peelsum.summation import NotBegunError, Part, Summation, Words
from peelsum.wire import packet_bytes

_log = logging.getLogger("peelsum")


def unnoted(values: Mapping[str, int]) -> None:
    """Note nothing."""


#: What a step spends its time on.
Phase = Literal["encode", "exchange", "decode"]
#: Maps a phase, or "step" for all of it, to a context manager, entered and left with it.
Span = Callable[[Phase | Literal["step"]], AbstractContextManager[object]]
#: Takes the cost of a step or of an exchange, inside its span.
Note = Callable[[Mapping[str, int]], None]


class Step:
    """A worker's step of a plan, the `number`-th of its all-reduce.

    Entered as a context, it leaves the phase that an error ends. device: the one where tensors lie, and from
    which words travel. clock, span, note: as for `Allreduce`.
    """

    def __init__(
        self,
        summation: Summation,
        chooser: Chooser,
        device: Device,
        plan: Plan,
        number: int,
        clock: Callable[[], float],
        span: Span,
        note: Note,
    ) -> None:
        self._summation, self._chooser, self._device = summation, chooser, device
        self._plan, self._number, self._seed = plan, number, 0
        if plan.layout.parts:  # one that changes with each step: an unlucky support gets another
            text = f"{plan.settings.seed}/{number}"
            self._seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
        goes_ahead = plan.ahead and plan.layout.order
        self._expected = Expected.of(plan, chooser.history, self._seed) if goes_ahead else None
        #: The parts that are sent before those of the first round.
        self._before = [self._agreement()]
        self._clock, self._span, self._note = clock, None if span is nullcontext else span, note
        #: The OR-ed and the added words of each round so far, kept if the host may go through them again.
        self._past: list[tuple[Words, Words]] = []
        #: Whether the backend has begun a sum and has not returned it.
        self._summing = False
        self._chunks = self._exchanges = 0
        self._seconds: dict[Phase, float] = {"encode": 0.0, "exchange": 0.0, "decode": 0.0}
        self._phase: Phase | None = None
        self._within: AbstractContextManager[object] | None = None
        self._began = 0.0

    def __enter__(self) -> Step:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._within is not None:
            self._within.__exit__(kind, error, traceback)

    def agree(self) -> None:
        """Exchange the agreement alone."""
        self._sum_words(self._before)
        self._before = []

    def sum(self, tensors: Mapping[str, Any], into: Mapping[str, Any]) -> StepResult:
        """Sum the plan's tensors, by name; write the sums to those of `into`. Errors: see `Allreduce.sum`."""
        try:
            return self._sum_on(self._device, tensors, into)
        except RuntimeError as error:
            lacked = None if self._device.is_host else self._lacked(error)
            if lacked is None:
                raise
        # The traceback is gone here, and with it what the step had on the device.
        _log.error("%s. The host computes this step.", lacked)
        try:
            return self._sum_on_host(tensors, into)
        except RuntimeError as error:  # over NCCL, words need memory of the device
            lacked = self._lacked(error)
            if lacked is None:
                raise
        raise DeviceMemoryError(f"{lacked}. Start again with a new summation.")

    def _agreement(self) -> Part:
        plan, number, expected = self._plan, self._number, self._expected

        def check(words: Words) -> None:
            if not agreed(words):
                raise PlanMismatchError(
                    f"plan: not the same on every worker; worker {self._summation.worker_id} has {plan} "
                    f"in step {number}; pass the same names, shapes, dtypes and settings, in the same "
                    "order, and the same version of peelsum, on every worker, and make a new Allreduce, or "
                    "restore the history of the same step, on all of them or on none"
                )

        # The step seeds the sketches, so a worker whose step differs would add values to the wrong cells.
        # One with another history would send numbers by other scales.
        agreed_on = None if expected is None else expected.agreed
        return Part(agreement_words(plan.digest_at(number, agreed_on)), "or", check)

    def _sum_on(self, device: Device, named: Mapping[str, Any], into: Mapping[str, Any]) -> StepResult:
        """Run the rounds of a protocol whose arrays lie on `device`, and decode their sums."""
        layout, outcome = self._plan.layout, Outcome(self._plan, device)
        if layout.order:
            tensors = list(named.values())
            with device.beside(tensors[layout.order[0]]):
                self._enter("encode")
                values, out = device.flat(tensors, [into.get(name) for name in named])
                chosen = [values[m] for m in layout.order], [out[m] for m in layout.order]
                protocol = self._protocol(device, *chosen)
                self._run(protocol.rounds(), device)
                outcome.take(protocol)
        elif self._before:
            self.agree()
        return self._result(outcome)

    def _protocol(self, device: Device, values: Sequence[Any], out: Sequence[Any]) -> SumProtocol:
        codec = device.segments(self._plan.layout.table, values, out, self._plan.workers)
        if self._expected:
            return OneRound(self._plan, self._chooser, device, codec, self._expected)
        return TwoRounds(self._plan, self._chooser, device, codec, self._seed)

    def _lacked(self, error: RuntimeError) -> str | None:
        """Return a message if the device had no room; None if the error says something else.

        Raises DeviceMemoryError if the backend had begun a sum, which cannot go on.
        """
        device = self._device
        asked = device.lacked(error)
        if asked is None:
            return None
        message = (
            f"memory: worker {self._summation.worker_id} has no room for {asked} on the device, in step "
            f"{self._number} for {self._plan.label}; free memory there, sum fewer tensors in one step (with "
            "DDP, a smaller bucket_cap_mb), or pass in_place=True"
        )
        if self._summing and not isinstance(error, NotBegunError):
            raise DeviceMemoryError(f"{message}. Start again with a new summation.") from error
        self._summing = False
        device.settle()  # for copies to memory of the host that is freed next
        return message

    def _sum_on_host(self, named: Mapping[str, Any], into: Mapping[str, Any]) -> StepResult:
        """Go through the rounds again on the host, end them there, and copy the sums to the device."""
        device = self._device
        summed = self._sum_on(HOST, {name: device.near(tensor) for name, tensor in named.items()}, {})
        results, lacked = [], None
        for result in summed.tensors:
            try:
                there = device.placed_in(result.values, named[result.name], into.get(result.name))
            except RuntimeError as error:
                lacked = self._lacked(error)
                if lacked is None:
                    raise
                there = device.left_on_host(result.values)
            results.append(replace(result, values=cast(Any, there)))
        ended = replace(summed, tensors=results)
        if lacked is not None:
            failed = DeviceMemoryError(f"{lacked}. The error's `result` has the sums, on the host.")
            failed.result = ended
            raise failed
        return ended

    def _result(self, outcome: Outcome) -> StepResult:
        self._enter(None)
        wire_bytes = self._chunks * packet_bytes(self._summation.lanes)
        counts = {"step": self._number, "worker": self._summation.worker_id}
        self._note({**counts, "chunks": self._chunks, "bytes": wire_bytes})
        return StepResult(
            tensors=outcome.results,
            tally=outcome.tally,
            contributions=outcome.contributions,
            digest=self._plan.digest,
            ahead=self._plan.ahead,
            exchanges=self._exchanges,
            wire_bytes=wire_bytes,
            dense_bytes=self._plan.dense_bytes,
            encode_s=self._seconds["encode"],
            network_s=self._seconds["exchange"],
            decode_s=self._seconds["decode"],
        )

    def _enter(self, phase: Phase | None) -> None:
        """End the phase before, if there is one, and begin another, or none."""
        if phase == self._phase:
            return
        now = self._clock()
        if self._phase is not None:
            self._seconds[self._phase] += now - self._began
        self._phase, self._began = phase, now
        if self._span is not None:
            before, self._within = self._within, None
            if before is not None:
                before.__exit__(None, None, None)
            if phase is not None:
                self._within = self._span(phase)
                self._within.__enter__()

    def _run(self, rounds: Rounds, device: Device) -> None:
        """Run all rounds of a protocol, whose arrays lie on `device`.

        If the step has had rounds, the protocol goes through them again: nothing is sent, and the sums are
        the same.
        """
        past, asked = iter([*self._past]), next(rounds)
        while True:
            if (before := next(past, None)) is not None:
                # For the protocol alone: it takes no memory of a device.
                asked.write(device.words(asked.or_words), device.words(asked.add_words))
            ored, added = before or self._summed(asked, device)
            self._enter("decode")
            try:
                asked = rounds.send(self._received(ored, added, device))
            except StopIteration:
                return
            self._enter("encode")

    def _sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """Call `Summation.sum_words`, measure it, and run each part's check, in case the backend did not."""
        self._enter("exchange")
        self._summing = True
        results = self._summation.sum_words(parts)
        self._summing = False
        lanes = self._summation.lanes
        chunks = 0
        for part in parts:
            chunks += -(-len(part.words) // lanes)
        self._note({"chunks": chunks, "bytes": chunks * packet_bytes(lanes)})
        self._chunks += chunks
        self._exchanges += 1
        for part, result in zip(parts, results, strict=True):
            if part.check is not None:
                part.check(result)
        return results

    def _summed(self, asked: Round, device: Device) -> tuple[Words, Words]:
        """Write the words of a round, and sum them."""
        ored, added = self._written(asked, device)
        both = Part(ored, "or"), Part(added, "add")
        sent = [part for part in both if len(part.words)]
        totals = self._sum_words([*self._before, *sent])[len(self._before) :]
        self._before = []
        by_op = {part.op: total for part, total in zip(sent, totals, strict=True)}
        nothing: Words = np.empty(0, np.uint32)  # takes no memory of a device, which may lack it
        summed = by_op.get("or", nothing), by_op.get("add", nothing)
        if not self._device.is_host:
            self._past.append(summed)
        return summed

    def _written(self, asked: Round, device: Device) -> tuple[Words, Words]:
        """Return the words of a round, where they are sent from."""
        travels = device if device is self._device or not self._device.direct else self._device
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
            ored, added = self._device.on_host(ored), self._device.on_host(added)
            return Sums(ored, added, ored)
        return Sums(device.placed(ored), device.placed(added), ored)
