"""What both protocols of a sum share: the exchanges of a step, header, index, refinement, and the sums.

Theory of operation. A step sums two vectors: the dense tensors end to end, and the sparse tensors end to end.
There are two protocols for it, `two_rounds` and `one_round`. In each of its rounds, a protocol gets room for
words from `StepExchanges`, writes this worker's words there, and receives their sums over all workers. All
workers go through the same rounds, because every decision depends on sums only. These are the parts of a sum,
in both:

    part         op   words
    header       OR   scales of blocks; indexes of the sparse vector
    refinement   OR   the candidates' own bits, where an index lets too many zeros pass
    numbers      ADD  the dense numbers; the candidates', or their sketch
    left-over    ADD  numbers that peeling did not recover, and those of mispredicted blocks
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import history_loops
from peelsum.allreduce.choosing import Chooser
from peelsum.allreduce.costs import TOLERANCE, refining_pays
from peelsum.allreduce.indexes import BloomIndex
from peelsum.allreduce.plan import Plan
from peelsum.codec import CodecDevice, fixed_point
from peelsum.codec.arrays import Integers
from peelsum.codec.cpu.segments import SegmentCodec
from peelsum.codec.segments import ElementLocations
from peelsum.summation import Part, Summation, Words

#: Words of two parts of memory begin at multiples of this.
_ALIGNED_WORDS = 32
#: The phases on which a step spends its time.
Phase = Literal["encode", "exchange", "decode"]
#: Returns the context manager that is entered at the begin of a phase, or of a "step", and left at its end.
#: None for a "step" says that nothing records it, nor its phases and costs.
Span = Callable[[Phase | Literal["step"]], AbstractContextManager[object] | None]
#: Called with the cost of an exchange or of a step, inside its span.
Note = Callable[[Mapping[str, int]], None]


class Recorder(NamedTuple):
    """What measures and records a step: see the arguments of `Allreduce`."""

    clock: Callable[[], float]
    span: Span | None = None
    note: Note | None = None


class Overflow(NamedTuple):
    """Elements whose sums may need more than 32 bits."""

    locations: ElementLocations
    """The elements, k of them."""
    sums: NDArray[np.int64]
    """int64[k]: their sums."""
    local: NDArray[np.int64]
    """int64[k]: this worker's numbers."""


class RoundWords(NamedTuple):
    """This worker's words of a round, in one array: one copy takes both kinds to where they are sent."""

    words: Words
    """All of them: the last ones are those to be added."""
    ored: Words
    """uint32[k]: those to be OR-ed."""
    added: Integers
    """int32[k]: those to be added."""
    staged: bool = False
    """Whether they lie already where they are sent from."""


class Sums(NamedTuple):
    """The result of a round over all workers."""

    ored: Words
    """uint32[k]."""
    added: Integers
    """int32[k]."""
    or_on_host: Words
    """The content of `ored` on the host, or `ored`."""


class StepExchanges:
    """The exchanges of one step of a plan, each a call of `Summation.sum_words`; their costs, and the phases.

    sender: the device from which words are sent. leading_parts: are sent in front of the first round's words.
    As a context manager, it ends the span of a phase in which an error is raised.
    """

    def __init__(
        self,
        summation: Summation,
        sender: CodecDevice,
        plan: Plan,
        leading_parts: Sequence[Part],
        recorder: Recorder,
    ) -> None:
        self._summation, self._sender, self._plan = summation, sender, plan
        self.leading_parts, self._recorder = leading_parts, recorder
        #: The device on which the protocol's arrays lie.
        self.device = sender
        #: The sums of each round so far, kept if the host may have to repeat the rounds; and those to repeat.
        self._round_sums: list[tuple[Words, Words]] = []
        self._earlier_sums: Iterator[tuple[Words, Words]] = iter(())
        #: Whether the backend has begun a sum and has not returned it.
        self.summing = False
        #: Chunks that this worker has sent, and exchanges; the seconds of each phase.
        self.chunks = self.count = 0
        self.seconds: dict[Phase, float] = {"encode": 0.0, "exchange": 0.0, "decode": 0.0}
        self._phase: Phase | None = None
        self._phase_span: AbstractContextManager[object] | None = None
        self._phase_began = 0.0

    def __enter__(self) -> StepExchanges:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._phase_span is not None:
            self._phase_span.__exit__(kind, error, traceback)

    def begin(self, device: CodecDevice) -> None:
        """Begin the rounds of a protocol whose arrays lie on `device`.

        The rounds that the step has had already are repeated from their sums: nothing is sent.
        """
        self.device, self._earlier_sums = device, iter([*self._round_sums])

    def enter_phase(self, phase: Phase | None) -> None:
        """End the current phase, if there is one, and begin `phase`, if that is not None."""
        if phase == self._phase:
            return
        now, span = self._recorder.clock(), self._recorder.span
        if self._phase is not None:
            self.seconds[self._phase] += now - self._phase_began
        self._phase, self._phase_began = phase, now
        if span is not None:
            previous, self._phase_span = self._phase_span, None
            if previous is not None:
                previous.__exit__(None, None, None)
            if phase is not None:
                self._phase_span = span(phase) or nullcontext()
                self._phase_span.__enter__()

    def room(self, or_words: int, add_words: int) -> RoundWords:
        """Return memory for a round's words, which the protocol writes in the phase "encode"."""
        self.enter_phase("encode")
        begin = -(-or_words // _ALIGNED_WORDS) * _ALIGNED_WORDS
        words = self.device.words(begin + add_words)
        added: Any = words[begin:]
        return RoundWords(words, words[:or_words], added.view(np.int32) if self.device.is_host else added)

    def sum(self, sent: RoundWords, complete: Callable[[Words, Integers], None] | None = None) -> Sums:
        """Return the sums of a round's words over all workers; begin the phase "decode".

        complete: changes the words where they are sent from: in the host's memory, unless the device is
        `direct`. It takes those to be OR-ed and those to be added.
        """
        device, sender, leading = self.device, self._sender, self.leading_parts
        if complete is not None and device.direct:
            complete(sent.ored, sent.added)
        sums = next(self._earlier_sums, None)
        if sums is None:
            words = sent.words
            if device is not sender and sender.direct:
                words = sender.fetch(sender.to_device(words))
            elif not device.direct and not sent.staged:
                words = device.fetch(words)
            ored, added = words[: sent.ored.shape[0]], words[words.shape[0] - sent.added.shape[0] :]
            if complete is not None and not device.direct:
                complete(ored, added.view(np.int32))
            parts = [Part(ored, "or")] if len(ored) else []
            parts += [Part(added, "add")] if len(added) else []
            totals = self._exchange([*leading, *parts])[len(leading) :]
            self.leading_parts = ()  # only now: if the device has no room, the host sends them
            empty: Words = np.empty(0, np.uint32)  # takes no memory of a device, which may be short of it
            sums = totals.pop(0) if len(ored) else empty, totals.pop(0) if len(added) else empty
            if not sender.is_host:
                self._round_sums.append(sums)
        self.enter_phase("decode")
        if device.is_host:
            ored, added = sums if sender.is_host else map(sender.to_host, sums)
            return Sums(ored, added.view(np.int32), ored)
        on_device: Any = device.to_device_together(*sums)
        return Sums(on_device[0], on_device[1], sums[0])

    def agree(self) -> None:
        """Sum the leading parts in an exchange of their own."""
        self._exchange(self.leading_parts)
        self.leading_parts = ()

    def _exchange(self, parts: Sequence[Part]) -> list[Words]:
        """Call `Summation.sum_words`, measure it, and run each part's check, in case the backend did not."""
        self.enter_phase("exchange")
        self.summing = True
        results = self._summation.sum_words(parts)
        self.summing = False
        lanes, chunks = self._plan.lanes, 0
        for part in parts:
            chunks += -(-len(part.words) // lanes)
        if self._recorder.note is not None:
            self._recorder.note({"chunks": chunks, "bytes": chunks * self._plan.packet_bytes})
        self.chunks += chunks
        self.count += 1
        for part, result in zip(parts, results, strict=True):
            if part.check is not None:
                part.check(result)
        return results


class Refinement(NamedTuple):
    """A part of the sparse vector whose candidates' own bits are sent, as many zeros pass its index."""

    part: int
    """The part's place in `Layout.parts`."""
    candidates: int
    """How many elements pass the index."""
    non_zeros: float
    """How many of them are not zero, estimated."""
    counted: bool
    """Whether `non_zeros` was estimated from the words of a Bloom filter, and not from earlier steps."""


class SumProtocol(ABC):
    """A protocol for one step of a plan. After `run`, its attributes hold the sums.

    codec: encodes and decodes the step's tensors. seed: of the step's indexes and sketches.
    """

    local_dense: Integers
    """int32[k]: this worker's numbers that were sent, of the dense vector."""
    local_sparse: Integers
    """int32[k]: the same of the candidates."""
    dense: Integers
    """int32[k]: the sums of the dense vector's numbers."""
    sparse: Integers
    """int32[k]: the sums of the candidates' numbers."""
    union: Words
    """The bitmap of the candidates."""
    bounds: Integers
    """int32[blocks]: the scales from which error bounds are computed."""
    exponents: Integers
    """int32[blocks], after the first round: exponent fields of the blocks, 0 for those without numbers."""
    _local_bitmap: Words
    """The bitmap of this worker's non-zeros."""

    def __init__(
        self, plan: Plan, chooser: Chooser, codec: SegmentCodec, exchanges: StepExchanges, seed: int = 0
    ) -> None:
        self.plan, self.chooser, self.layout, self.codec = plan, chooser, plan.layout, codec
        self.exchanges, self._device, self._seed = exchanges, exchanges.device, seed
        #: A block's scale is this number less its exponent field.
        self._highest = fixed_point(0, plan.workers).scale
        #: Words that were sent for each part's index, for the candidates' values, and for all segments.
        self.index_words: list[int] = []
        self.value_words = self.common_words = 0
        #: Cells of the candidates' sketch, and candidates that peeling left over.
        self.cells = self.left_over = 0
        self.overflow: Overflow | None = None

    @abstractmethod
    def run(self) -> None:
        """Go through all rounds."""

    def resent_words(self, overflow: int) -> int | None:
        """Return how many words were sent again as predicted scales did not fit; None without prediction.

        overflow: how many elements overflowed, without sparse ones whose sum is 0.
        """
        return None

    def _write_header(self, ored: Words) -> None:
        """Write this worker's header into `ored`: its words of scales, then the index of each part."""
        words = ored[: self.layout.table.scale_words]
        self._local_bitmap = self.codec.write_scales(words, self._bitmap_room(ored))
        if self.layout.bitmap_in_header is None:
            self._write_indexes(ored)

    def _bitmap_room(self, ored: Words) -> Words:
        """Return where this worker's bitmap is written: in the header, if that is the only index."""
        sent = self.layout.bitmap_in_header
        return self._device.words(self.layout.table.words) if sent is None else ored[sent]

    def _write_indexes(self, ored: Words) -> None:
        """Write the index of each part of this worker's bitmap into the header `ored`."""
        for part in self.layout.parts:
            bitmap, out = self._local_bitmap[part.words], ored[part.sent]
            part.index.encode(self._device, bitmap, part.elements, self._seed, out)

    def _read_scales(self, words: Words) -> None:
        """Set the codec's scales and the blocks' `exponents` from words of scales, on the host."""
        codec = self.codec
        codec.read_scales(words)
        self.bounds = codec.scales
        self.exponents = np.empty(len(codec.scales), np.int32)
        history_loops.write_exponents(
            words[len(codec.fields) :], self.layout.table.blocks, codec.fields, codec.scales, self._highest,
            self.exponents,
        )  # fmt: skip

    def _set_union(self, sums: Sums) -> None:
        """Set `union` to the bitmap of the candidates, from the OR of all workers' indexes."""
        parts, self.index_words = self.layout.parts, [*self.layout.index_words]
        if self.layout.bitmap_in_header is not None:
            self.union = sums.ored[self.layout.bitmap_in_header]
            return
        decoded = [
            part.index.decode(self._device, sums.ored[part.sent], part.elements, self._seed) for part in parts
        ]
        self.union = decoded[0] if len(parts) == 1 else self._device.words(self.layout.table.words)
        for part, bitmap in zip(parts, decoded, strict=True) if len(parts) > 1 else ():
            self.union[part.words] = bitmap

    def _refinements(self, words: Words) -> list[Refinement]:
        """Return the refinements of parts where that is planned, or where too many candidates are zeros.

        words: the OR of all workers' header words, on the host.
        """
        network, refinements = self.chooser.network, []
        for number, part in enumerate(self.layout.parts):
            index, counted = part.index, False
            if index.form == "bitmap":
                continue  # it lets no zeros pass
            candidates = int(np.add.reduce(self.codec.sent[part.segments]))
            if not candidates:
                continue
            non_zeros = min(self.chooser.history.filled(part.keys), candidates)
            if isinstance(index, BloomIndex):
                elements, full = index.estimate(self._device.count(words[part.sent]))
                counted = not full
                non_zeros = min(elements if counted else max(elements, non_zeros), candidates)
            refined_s = network.seconds(non_zeros + candidates / 32, 1)
            wasteful = candidates > (1 + TOLERANCE) * non_zeros
            wasteful &= refining_pays(candidates, non_zeros) or network.seconds(candidates, 0) > refined_s
            if index.refined or wasteful:
                refinements.append(Refinement(number, candidates, non_zeros, counted))
        return refinements

    def _exchange_refinements(
        self, refinements: Sequence[Refinement], cells: int = 0, add: Callable[[Integers], object] = len
    ) -> Integers:
        """Exchange the candidates' own bits in some parts, and remove zeros from `union`.

        In the same round, sum `cells` words that `add` writes; return their sum.
        """
        parts = [self.layout.parts[refinement.part] for refinement in refinements]
        ends = np.cumsum([0, *(-(-refinement.candidates // 32) for refinement in refinements)]).tolist()
        spans = [slice(a, b) for a, b in pairwise(ends)]
        sent, scans = self.exchanges.room(ends[-1], cells), list[Any]()
        for part, span in zip(parts, spans, strict=True):
            bits, mask = self._local_bitmap[part.words], self.union[part.words]
            scans.append(self._device.gather_bits(bits, mask, sent.ored[span]))
        add(sent.added)
        sums = self.exchanges.sum(sent)
        for part, span, scan, refinement in zip(parts, spans, scans, refinements, strict=True):
            mask = self.union[part.words]
            non_zeros = self._device.words(len(mask))
            self._device.scatter_bits(sums.ored[span], mask, non_zeros, scan)
            mask[:] = non_zeros
            self.index_words[refinement.part] += span.stop - span.start
        return sums.added

    def _exchange_numbers(self, numbers: Sequence[Integers]) -> list[Integers]:
        """Exchange arrays of this worker's numbers, end to end; return the sums of each array."""
        ends = np.cumsum([0, *map(len, numbers)]).tolist()
        parts = [slice(begin, end) for begin, end in pairwise(ends)]
        sent = self.exchanges.room(0, ends[-1])
        for part, values in zip(parts, numbers, strict=True):
            sent.added[part] = values
        sums = self.exchanges.sum(sent)
        return [sums.added[part] for part in parts]
