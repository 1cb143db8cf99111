"""Run one step: the rounds of its protocol, each with one call of `Summation.sum_words`, and measure them.

If a device runs out of memory, the host repeats the rounds, with the sums of those that have ended.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np

from peelsum.allreduce.choosing import Chooser
from peelsum.allreduce.decoding import StepDecoder
from peelsum.allreduce.errors import DeviceMemoryError
from peelsum.allreduce.one_round import OneRound, Prediction
from peelsum.allreduce.plan import Plan, agreement_part, digest_of
from peelsum.allreduce.protocol import Round, Rounds, Sums
from peelsum.allreduce.result import StepResult
from peelsum.allreduce.two_rounds import TwoRounds
from peelsum.codec import HOST, CodecDevice
from peelsum.summation import NotBegunError, Part, Summation, Words

#: Words of two parts of memory begin at multiples of this.
_ALIGNED_WORDS = 32
_log = logging.getLogger("peelsum")


#: The phases on which a step spends its time.
Phase = Literal["encode", "exchange", "decode"]
#: Returns the context manager that is entered at the begin of a phase, or of a "step", and left at its end.
#: None for a "step" says that nothing records it, nor its phases and costs.
Span = Callable[[Phase | Literal["step"]], AbstractContextManager[object] | None]
#: Called with the cost of an exchange or of a step, inside its span.
Note = Callable[[Mapping[str, int]], None]


class StepExecutor:
    """Executes one step of a plan on this worker, the `number`-th of its all-reduce.

    As a context manager, it ends the span of a phase in which an error is raised. device: where the tensors
    lie, and from which words are sent. clock, span, note: as for `Allreduce`; None without a recorder.
    """

    def __init__(
        self,
        summation: Summation,
        chooser: Chooser,
        device: CodecDevice,
        plan: Plan,
        number: int,
        clock: Callable[[], float],
        span: Span | None,
        note: Note | None,
    ) -> None:
        self._summation, self._chooser, self._device = summation, chooser, device
        self._plan, self._number, self._seed = plan, number, 0
        if plan.layout.parts:  # a new seed in each step: a sketch that is not peeled well is not repeated
            self._seed = digest_of(f"{plan.settings.seed}/{number}")
        self._expected, agreed_on = None, None
        if plan.ahead and plan.layout.order:
            self._expected = expected = Prediction.of(plan, chooser.history, self._seed)
            # Everything that the meaning of words depends on: a worker with another history would send
            # numbers by other scales.
            sketch, high_bits = expected.sketch, expected.high_bits
            checksum = zlib.crc32(expected.fields.astype(np.uint8).data)
            # Written out, as `repr` of a dataclass takes as long as a launch.
            agreed_on = (
                f"(SketchLayout(width={sketch.width}, seed={sketch.seed}, segments={sketch.segments}), "
                f"SketchLayout(width={high_bits.width}, seed={high_bits.seed}, "
                f"segments={high_bits.segments}), {checksum})"
            )
        # The step seeds the sketches, so a worker whose step differs would add values to the wrong cells.
        digest = digest_of(f"{plan.digest}/{number}/{agreed_on}")
        #: The parts that are sent with the first round, in front of it.
        self._leading_parts = [agreement_part(digest, self._describe_mismatch)]
        self._clock, self._span, self._note = clock, span, note
        #: The OR-ed and the added words of each round so far, kept if the host may have to repeat the rounds.
        self._round_sums: list[tuple[Words, Words]] = []
        #: Whether the backend has begun a sum and has not returned it.
        self._summing = False
        self._chunks = self._exchanges = 0
        self._seconds: dict[Phase, float] = {"encode": 0.0, "exchange": 0.0, "decode": 0.0}
        self._phase: Phase | None = None
        self._phase_span: AbstractContextManager[object] | None = None
        self._phase_began = 0.0

    def __enter__(self) -> StepExecutor:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._phase_span is not None:
            self._phase_span.__exit__(kind, error, traceback)

    def agree(self) -> None:
        """Check that all workers have the same plan, in an exchange of its own."""
        self._sum_words(self._leading_parts)
        self._leading_parts = []

    def sum(self, tensors: Mapping[str, Any], into: Mapping[str, Any]) -> StepResult:
        """Sum the plan's tensors, by name; write the sums to those of `into`. Errors: see `Allreduce.sum`."""
        try:
            return self._sum_on(self._device, tensors, into)
        except RuntimeError as error:
            message = None if self._device.is_host else self._out_of_memory(error)
            if message is None:
                raise
        # The traceback is gone here, and with it the step's memory on the device.
        _log.error("%s. The host computes this step.", message)
        try:
            return self._sum_on_host(tensors, into)
        except RuntimeError as error:  # over NCCL, words need memory of the device
            message = self._out_of_memory(error)
            if message is None:
                raise
        raise DeviceMemoryError(f"{message}. Start again with a new summation.")

    def _describe_mismatch(self) -> str:
        """Return the message for workers whose plans differ."""
        return (
            f"plan: not the same on every worker; worker {self._summation.worker_id} has {self._plan} "
            f"in step {self._number}; pass the same names, shapes, dtypes and settings, in the same order, "
            "and the same version of peelsum, on every worker, and make a new Allreduce, or restore the "
            "history of the same step, on all of them or on none"
        )

    def _sum_on(self, device: CodecDevice, named: Mapping[str, Any], into: Mapping[str, Any]) -> StepResult:
        """Run the rounds of a protocol whose arrays lie on `device`, and decode their sums."""
        layout, decoder = self._plan.layout, StepDecoder(self._plan, device)
        if layout.names:
            with device.device_context(named[layout.names[0]]):
                self._enter_phase("encode")
                segments = device.flatten(
                    list(map(named.__getitem__, layout.names)), list(map(into.get, layout.names))
                )
                codec = device.segments(layout.table, *segments, self._plan.workers)
                setting = self._plan, self._chooser, device, codec
                protocol = (
                    OneRound(*setting, self._expected) if self._expected else TwoRounds(*setting, self._seed)
                )
                self._run(protocol.rounds(), device)
                decoder.decode(protocol)
        elif self._leading_parts:
            self.agree()
        self._enter_phase(None)
        wire_bytes = self._chunks * self._plan.packet_bytes
        if self._note is not None:
            counts = {"step": self._number, "worker": self._summation.worker_id}
            self._note({**counts, "chunks": self._chunks, "bytes": wire_bytes})
        return StepResult(
            tensors=decoder.results,
            tally=decoder.tally,
            members=getattr(self._summation, "members", tuple(range(self._plan.workers))),
            contributions=decoder.contributions,
            digest=self._plan.digest,
            one_round=self._plan.ahead,
            exchanges=self._exchanges,
            wire_bytes=wire_bytes,
            dense_bytes=self._plan.dense_bytes,
            encode_s=self._seconds["encode"],
            network_s=self._seconds["exchange"],
            decode_s=self._seconds["decode"],
        )

    def _out_of_memory(self, error: RuntimeError) -> str | None:
        """Return a message if the device is out of memory; None if the error has another cause.

        Raises DeviceMemoryError if the backend has begun a sum, which cannot go on.
        """
        device = self._device
        size = device.out_of_memory(error)
        if size is None:
            return None
        message = (
            f"memory: worker {self._summation.worker_id} has no room for {size} on the device, in step "
            f"{self._number} for {self._plan.label}; free memory there, sum fewer tensors in one step (with "
            "DDP, a smaller bucket_cap_mb), or pass in_place=True"
        )
        if self._summing and not isinstance(error, NotBegunError):
            raise DeviceMemoryError(f"{message}. Start again with a new summation.") from error
        self._summing = False
        device.synchronize()  # for copies to memory of the host that is freed next
        return message

    def _sum_on_host(self, named: Mapping[str, Any], into: Mapping[str, Any]) -> StepResult:
        """Repeat the rounds on the host, complete the step there, and copy the sums to the device."""
        device = self._device
        on_host = self._sum_on(HOST, {name: device.host_copy(tensor) for name, tensor in named.items()}, {})
        results, message = [], None
        for result in on_host.tensors:
            try:
                values = device.copy_to_tensor(result.values, named[result.name], into.get(result.name))
            except RuntimeError as error:
                message = self._out_of_memory(error)
                if message is None:
                    raise
                values = device.as_tensor(result.values)
            results.append(replace(result, values=cast(Any, values)))
        step = replace(on_host, tensors=results)
        if message is not None:
            failure = DeviceMemoryError(f"{message}. The error's `result` has the sums, on the host.")
            failure.result = step
            raise failure
        return step

    def _enter_phase(self, phase: Phase | None) -> None:
        """End the current phase, if there is one, and begin `phase`, if that is not None."""
        if phase == self._phase:
            return
        now = self._clock()
        if self._phase is not None:
            self._seconds[self._phase] += now - self._phase_began
        self._phase, self._phase_began = phase, now
        if self._span is not None:
            previous, self._phase_span = self._phase_span, None
            if previous is not None:
                previous.__exit__(None, None, None)
            if phase is not None:
                self._phase_span = self._span(phase) or nullcontext()
                self._phase_span.__enter__()

    def _run(self, rounds: Rounds, device: CodecDevice) -> None:
        """Run all rounds of a protocol, whose arrays lie on `device`.

        The rounds that the step has had already are repeated from their sums: nothing is sent.
        """
        earlier, request = iter([*self._round_sums]), next(rounds)
        while True:
            if (sums := next(earlier, None)) is not None:
                # The protocol needs what `write` sets. It runs on the host here, not on a device.
                buffers = device.words(request.or_words), device.integers(request.add_words)
                request.write(*buffers)
                if request.complete is not None:
                    request.complete(*buffers)
            ored, added = sums or self._sum_round(request, device)
            self._enter_phase("decode")
            if device.is_host:
                if not self._device.is_host:
                    ored, added = self._device.to_host(ored), self._device.to_host(added)
                received = Sums(ored, added.view(np.int32), ored)
            else:
                on_device: Any = device.to_device_together(ored, added)
                received = Sums(on_device[0], on_device[1], ored)
            try:
                request = rounds.send(received)
            except StopIteration:
                return
            self._enter_phase("encode")

    def _sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """Call `Summation.sum_words`, measure it, and run each part's check, in case the backend did not."""
        self._enter_phase("exchange")
        self._summing = True
        results = self._summation.sum_words(parts)
        self._summing = False
        lanes, chunks = self._plan.lanes, 0
        for part in parts:
            chunks += -(-len(part.words) // lanes)
        if self._note is not None:
            self._note({"chunks": chunks, "bytes": chunks * self._plan.packet_bytes})
        self._chunks += chunks
        self._exchanges += 1
        for part, result in zip(parts, results, strict=True):
            if part.check is not None:
                part.check(result)
        return results

    def _sum_round(self, request: Round, device: CodecDevice) -> tuple[Words, Words]:
        """Write the words of a round, and return the sums, the OR-ed and the added words."""
        # The words lie in the memory from which the backend sends them. One copy takes both kinds.
        begin = -(-request.or_words // _ALIGNED_WORDS) * _ALIGNED_WORDS
        sender = device if device is self._device or not self._device.direct else self._device
        if request.staged is not None:
            words = request.staged
        else:
            words = device.words(begin + request.add_words)
            buffers: Any = words[: request.or_words], words[begin:]
            if device.is_host:
                buffers = buffers[0], buffers[1].view(np.int32)
            request.write(*buffers)
            if request.complete is not None and device.direct:
                request.complete(*buffers)
            if sender is not device or not device.direct:
                (words,) = sender.fetch(words if sender is device else sender.to_device(words))
            if request.complete is not None and not device.direct:
                request.complete(words[: request.or_words], words[begin:].view(np.int32))
        ored, added = words[: request.or_words], words[begin:]
        leading = self._leading_parts
        parts = [*leading, Part(ored, "or"), Part(added, "add")]
        totals = self._sum_words([part for part in parts if len(part.words)])[len(leading) :]
        self._leading_parts = []  # only now: if the device has no room, the host sends them
        empty: Words = np.empty(0, np.uint32)  # takes no memory of a device, which may be short of it
        sums = totals.pop(0) if len(ored) else empty, totals.pop(0) if len(added) else empty
        if not self._device.is_host:
            self._round_sums.append(sums)
        return sums
