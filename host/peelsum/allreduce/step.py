"""Run one step: go through the rounds of its protocol, decode their sums, and update the history.

If a device runs out of memory, the host repeats the rounds, with the sums of those that have ended.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import history_loops
from peelsum.allreduce.choosing import Chooser
from peelsum.allreduce.errors import DeviceMemoryError
from peelsum.allreduce.history import StepStatistics
from peelsum.allreduce.one_round import OneRound, Prediction
from peelsum.allreduce.plan import Plan, agreement_part, digest_of
from peelsum.allreduce.protocol import Overflow, Recorder, StepExchanges, SumProtocol
from peelsum.allreduce.result import Contribution, StepResult, StepSummary, TensorResult, summaries
from peelsum.allreduce.two_rounds import TwoRounds
from peelsum.codec import BLOCK_SIZES, HOST, NON_FINITE, CodecDevice, FixedPoint, occupied
from peelsum.codec.fixed_point import ZERO, error_bound
from peelsum.codec.segments import ROW
from peelsum.summation import NotBegunError, Summation

_Numbers = NDArray[np.int64]
_log = logging.getLogger("peelsum")


class StepExecutor:
    """Executes one step of a plan on this worker, the `number`-th of its all-reduce.

    device: where the tensors lie, and from which words are sent.
    """

    def __init__(
        self,
        summation: Summation,
        chooser: Chooser,
        device: CodecDevice,
        plan: Plan,
        number: int,
        recorder: Recorder,
    ) -> None:
        self._summation, self._chooser, self._device = summation, chooser, device
        self._plan, self._number, self._seed = plan, number, 0
        if plan.layout.parts:  # a new seed in each step: a sketch that is not peeled well is not repeated
            self._seed = digest_of(f"{plan.settings.seed}/{number}")
        self._expected, agreed_on = None, None
        if plan.one_round and plan.layout.order:
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
        agreement = agreement_part(digest, self._describe_mismatch)
        self.exchanges = StepExchanges(summation, device, plan, [agreement], recorder)
        self._note = recorder.note

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
        """Run a protocol whose arrays lie on `device`, and decode its sums."""
        plan, exchanges, decoder = self._plan, self.exchanges, StepDecoder(self._plan, device)
        layout = plan.layout
        if layout.names:
            exchanges.enter_phase("encode")
            with device.device_context(named[layout.names[0]]):
                values, out = device.flatten(
                    list(map(named.__getitem__, layout.names)), list(map(into.get, layout.names))
                )
                exchanges.begin(device)
                codec = device.segments(layout.table, values, out, plan.workers)
                setting = plan, self._chooser, codec, exchanges
                protocol = (
                    OneRound(*setting, self._expected) if self._expected else TwoRounds(*setting, self._seed)
                )
                protocol.run()
                decoder.decode(protocol)
        elif exchanges.leading_parts:
            exchanges.agree()
        exchanges.enter_phase(None)
        wire_bytes = exchanges.chunks * plan.packet_bytes
        if self._note is not None:
            counts = {"step": self._number, "worker": self._summation.worker_id}
            self._note({**counts, "chunks": exchanges.chunks, "bytes": wire_bytes})
        return StepResult(
            tensors=decoder.results,
            summary=decoder.summary,
            members=getattr(self._summation, "members", tuple(range(plan.workers))),
            contributions=decoder.contributions,
            digest=plan.digest,
            one_round=plan.one_round,
            exchanges=exchanges.count,
            wire_bytes=wire_bytes,
            dense_bytes=plan.dense_bytes,
            encode_s=exchanges.seconds["encode"],
            network_s=exchanges.seconds["exchange"],
            decode_s=exchanges.seconds["decode"],
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
        if self.exchanges.summing and not isinstance(error, NotBegunError):
            raise DeviceMemoryError(f"{message}. Start again with a new summation.") from error
        self.exchanges.summing = False
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


class Results(Sequence[TensorResult]):
    """The results of a step's tensors. `make` makes each, given its number, when it is first read."""

    def __init__(self, count: int, make: Callable[[int], TensorResult]) -> None:
        self._make = make
        self._made: list[TensorResult | None] = [None] * count

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        number = range(len(self))[at]
        made = self._made[number]
        if made is None:
            made = self._made[number] = self._make(number)
        return made

    def __len__(self) -> int:
        return len(self._made)


class StepDecoder:
    """Decodes the sums of a step of a plan. Without `decode`, no tensor has elements."""

    def __init__(self, plan: Plan, device: CodecDevice) -> None:
        self._plan, self._device = plan, device
        self._divisor = plan.workers if plan.settings.average else 1
        self._fields = np.zeros(0, np.int32)
        #: The elements of each segment whose sums may need more than 32 bits.
        self._overflow: dict[int, Overflow] = {}
        #: Candidates, cells and left-over of the sketch.
        self._sketch = 0, 0, 0
        self._segments = plan.layout.segments

    def decode(self, protocol: SumProtocol) -> None:
        """Decode the sums of a protocol that has ended, and record the step in its chooser's history."""
        codec, overflow, corrected = protocol.codec, protocol.overflow, None
        self._protocol = protocol
        if overflow is not None and len(overflow.sums):
            locations, sums, local = overflow
            begins = np.searchsorted(locations.segments, np.arange(len(codec.fields) + 1))
            for s in np.flatnonzero(np.diff(begins)).tolist():
                part = slice(begins[s], begins[s + 1])
                self._overflow[s] = Overflow(locations.take(part), sums[part], local[part])
            # Sums of up to 62 bits are rounded to the 53 bits of float64, to odd: of two neighbours, the one
            # that is odd. The conversion to float32 then rounds as if it were the only rounding.
            rounded = sums >> 10 << 10 | ((sums & 0x3FF) != 0).astype(np.int64) << 10
            rounded = np.where(np.abs(sums) < 2**53, sums, rounded)
            with np.errstate(over="ignore"):
                results = (
                    np.ldexp(rounded.astype(np.float64), -codec.scales[locations.blocks]) / self._divisor
                )
                corrected = locations.elements, results.astype(np.float32)
        self._values = list(codec.decode(protocol.dense, protocol.sparse, self._divisor, corrected))
        self._fields, self._scales, self._counts = codec.fields, codec.scales, codec.counts()
        if protocol.cells:
            self._sketch = protocol.sparse.shape[0], protocol.cells, protocol.left_over
        self._update_history()

    def _update_history(self) -> None:
        """Record the tensors' unions, exponents and overflow, from which later steps are planned."""
        layout, protocol, chooser = self._plan.layout, self._protocol, self._protocol.chooser
        table, counts, selected = layout.table, self._counts, chooser.needs_positions(layout.keys)
        # Count sums that are not 0, not candidates: these depend on seeds, and on the filter's other tensors.
        counted = np.zeros((len(self._fields), BLOCK_SIZES), np.int64)
        if protocol.sparse.shape[0]:
            counted = protocol.codec.occupied(protocol.sparse, selected)
        unions = np.empty((len(self._fields), BLOCK_SIZES))
        uncounted = history_loops.unions(
            table.elements, table.dense, self._fields, selected, counts.sums, counted, unions
        )
        if uncounted:
            ends = np.cumsum(counts.sent)
            sums = self._device.to_host(protocol.dense)
            for s in np.flatnonzero(unions[:, 0] < 0).tolist():
                unions[s] = occupied(sums[ends[s] - counts.sent[s] : ends[s]])
        overflows = np.zeros(len(self._fields))
        for s, overflow in self._overflow.items():
            overflows[s] = len(overflow.sums) if s < table.dense else np.count_nonzero(overflow.sums)
        resent = protocol.resent_words(int(np.add.reduce(overflows)))
        step = StepStatistics(self._fields != NON_FINITE, unions, protocol.exponents, overflows, resent)
        chooser.history.record(layout.keys, table, step, chooser.prices)

    @property
    def results(self) -> Results:
        """The tensors' results, each made when it is first read."""
        return Results(len(self._plan.tensors), self._result)

    @property
    def summary(self) -> StepSummary:
        """Counts of the step's tensors."""
        return StepSummary(
            self._plan.names,
            lambda: dict(
                zip(self._plan.names, np.append(self._words, 0)[self._segments].tolist(), strict=True)
            ),
            int(self._plan.layout.table.begins[-1]),
            int(np.add.reduce(self._fields == NON_FINITE)),
            *self._sketch,
            lambda: summaries(self.results),
        )

    def contributions(self) -> dict[str, Contribution]:
        """Return what this worker contributed to the sum of each tensor, by name."""
        plan, table = self._plan, self._plan.layout.table
        empty = Contribution(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))
        if not table.segments:
            return dict.fromkeys(plan.names, empty)
        protocol, device = self._protocol, self._device
        parts = [
            device.to_host(part).view(np.int32) for part in (protocol.local_dense, protocol.local_sparse)
        ]
        numbers, elements = np.concatenate(parts, dtype=np.int64), self._sent_elements()
        if protocol.overflow is not None:
            overflow = protocol.overflow
            numbers[np.searchsorted(elements, overflow.locations.elements)] = overflow.local
        non_zeros = np.flatnonzero(numbers)
        elements, numbers = elements[non_zeros], numbers[non_zeros]
        scales = self._scales[table.blocks_at(elements)]
        ends = np.searchsorted(elements, table.begins)
        elements -= np.repeat(table.begins[:-1], np.diff(ends))
        bounds, summed = ends.tolist(), ~np.isin(self._fields, (ZERO, NON_FINITE))
        contributions = {}
        for name, s in zip(plan.names, self._segments.tolist(), strict=True):
            part = slice(bounds[s], bounds[s + 1])
            sent = s >= 0 and summed[s]
            contributions[name] = Contribution(elements[part], numbers[part], scales[part]) if sent else empty
        return contributions

    def _sent_elements(self) -> _Numbers:
        """Return the elements whose numbers were sent, numbered over all segments: int64[k], ascending."""
        table, union = self._plan.layout.table, self._protocol.union
        present = np.flatnonzero(self._counts.sent[: table.dense]).tolist()
        dense = [np.arange(table.begins[s], table.begins[s + 1]) for s in present]
        words = self._device.to_host(union)
        positions = HOST.positions(words, 32 * len(words), count=len(self._protocol.local_sparse))
        rows = table.rows[table.dense] + positions // ROW
        return np.concatenate([*dense, table.begin_of_row[rows] + positions % ROW])

    @cached_property
    def _words(self) -> _Numbers:
        """The words that this worker has sent for each segment, with its share of the words of several.

        The words of an index, and `common_words`, are divided by elements; those of a sketch by candidates.
        """
        layout = self._plan.layout
        table, first = layout.table, layout.table.dense
        words: _Numbers = 1 + np.diff(table.blocks)
        if not table.segments:
            return words
        protocol, sent = self._protocol, self._counts.sent
        words[:first] += sent[:first]
        for part, index_words in zip(layout.parts, protocol.index_words, strict=True):
            begins = table.first_words[part.segments.start - first : part.segments.stop - first + 1]
            bounds = begins - part.words.start
            words[part.segments] += np.diff(index_words * bounds // bounds[-1])
        bounds = np.concatenate([[0], np.cumsum(sent[first:])])
        words[first:] += np.diff(protocol.value_words * bounds // max(int(bounds[-1]), 1))
        words += np.diff(protocol.common_words * table.begins // table.begins[-1])
        return words

    def _result(self, number: int) -> TensorResult:
        """Return the result of the plan's tensor `number`."""
        plan, device, s = self._plan, self._device, int(self._segments[number])
        tensor, table, nothing = plan.tensors[number], plan.layout.table, device.integers(0)
        index = tensor.choice.index if s >= 0 else None  # none is sent without elements
        field = self._fields[s] if s >= 0 else ZERO
        values = self._values[s] if s >= 0 else device.to_device(np.empty(0, np.float32))
        fixed, bound, count, local_count = None, math.inf if field == NON_FINITE else 0.0, 0, 0
        sums, local, selection = nothing, nothing, None
        if field not in (ZERO, NON_FINITE):
            blocks = slice(table.blocks[s], table.blocks[s + 1])
            scales, lowest = self._scales[blocks], int(self._protocol.bounds[blocks].min())
            bound = error_bound(lowest, plan.workers, self._divisor)
            fixed = FixedPoint(int(scales.min()), scales - scales.min(), int(table.block[s]))
            sums, local, count, local_count = self._numbers(s)
        if index:
            selection = self._selection(s, count)
        if s in self._overflow:
            sums, local = self._with_overflow(s, selection, sums, local)
        return TensorResult(
            name=tensor.name,
            form=tensor.choice.form,
            index=index.form if index else None,
            shape=tensor.shape,
            values=values.reshape(tensor.shape),
            finite=bool(field != NON_FINITE),
            fixed=fixed,
            workers=plan.workers,
            divisor=self._divisor,
            words_sent=int(self._words[s]) if s >= 0 else 0,
            selection=selection,
            quantized_at=local,
            total_at=sums,
            error_bound=bound,
            union_size=count,
            local_non_zeros=local_count,
        )

    def _numbers(self, s: int) -> tuple[Any, Any, int, int]:
        """Return a segment's sums; this worker's numbers; how many sums of a dense segment are not 0, or how
        many candidates a sparse one has; and how many of this worker's numbers are not 0.
        """
        protocol, dense, counts = self._protocol, self._plan.layout.table.dense, self._counts
        first, count = int(counts.sent[0 if s < dense else dense : s].sum()), int(counts.sent[s])
        part, overflow, local_count = slice(first, first + count), self._overflow.get(s), int(counts.local[s])
        if s < dense:
            sums, local, count = protocol.dense[part], protocol.local_dense[part], int(counts.sums[s])
        else:
            sums, local = protocol.sparse[part], protocol.local_sparse[part]
        if overflow:  # the codec has counted by the low 32 bits of numbers
            local_count = int((local != 0).sum()) + _count_high_only(overflow.local)
            count += _count_high_only(overflow.sums) if s < dense else 0
        return sums, local, count, local_count

    def _selection(self, s: int, count: int) -> Callable[[], _Numbers]:
        """Return a function that computes the positions of a sparse segment's candidates, `count` of them.

        It keeps the bitmap, and no other array of the step.
        """
        table = self._plan.layout.table
        if not count:
            return lambda: np.empty(0, np.int64)
        first, end = table.first_words[s - table.dense :][:2]
        union, device, elements = self._protocol.union[first:end], self._device, int(table.elements[s])
        return lambda: HOST.positions(device.to_host(union), elements, count=count)

    def _with_overflow(
        self, s: int, selection: Callable[[], _Numbers] | None, sums: Any, local: Any
    ) -> tuple[Any, Any]:
        """Return a segment's sums and this worker's numbers as int64, with those of overflowing elements."""
        overflow, device = self._overflow[s], self._device
        indices = overflow.locations.elements - self._plan.layout.table.begins[s]
        if selection is not None:
            indices = np.searchsorted(selection(), indices)
        with device.device_context(sums):
            at, results = device.to_device(indices), []
            for numbers, corrected in ((sums, overflow.sums), (local, overflow.local)):
                numbers_64 = device.to_device(np.empty(len(numbers), np.int64))
                numbers_64[:] = numbers
                numbers_64[at] = device.to_device(corrected)
                results.append(numbers_64)
        return results[0], results[1]


def _count_high_only(numbers: _Numbers) -> int:
    """Return how many numbers are not 0, but have low 32 bits that are all 0."""
    return int(np.count_nonzero((numbers != 0) & (numbers % 2**32 == 0)))
