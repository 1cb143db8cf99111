"""The exchanges of a step's payloads, by their kind: all tensors in common rounds; and the step's results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from peelsum import buffers
from peelsum.allreduce import Allreduce
from peelsum.allreduce.protocol import Phase, Span
from peelsum.allreduce.result import StepSummary, TensorStats, summaries
from peelsum.compress.arguments import CompressError
from peelsum.compress.arithmetic import from_bytes, from_code, to_bytes, to_code
from peelsum.compress.collectives import Collectives, concatenate, split
from peelsum.compress.compressor import Compressor, Floats, Kind, Payload, TensorState, Values
from peelsum.compress.memory import ExactValues
from peelsum.compress.sparsifier import Elected
from peelsum.summation import Part, Words
from peelsum.wire import packet_bytes

#: The length, in a gathered message, of a payload of a tensor that is not finite.
_NOT_FINITE_LENGTH = 0xFFFFFFFF


@dataclass(frozen=True, eq=False)
class CompressedTensor(TensorStats):
    """A tensor's sum, the same on every worker bit for bit, and the values that this worker sent for it.

    Densities are NaN if some worker's tensor was not finite. `form` is the kind of the payloads; if they were
    indexed, the form in which the all-reduce sent the values, with an index and an error bound.
    """

    name: str
    """The tensor's name."""
    values: Floats
    """float32[shape]: the sum or average; NaN if any worker's tensor was not finite."""
    finite: bool
    """Whether every worker's tensor was finite."""
    sent: ExactValues | None
    """The values that this worker contributed; None without error feedback, and if not finite."""
    words_sent: int = 0
    """32-bit words that each worker sent for an indexed payload; 0 for other kinds."""


@dataclass(frozen=True, eq=False)
class CompressedResult(Mapping[str, CompressedTensor]):
    """The results of one step, by the tensors' names, and its cost."""

    tensors: tuple[CompressedTensor, ...]
    """The results, in the order of the tensors."""
    payload_bytes: int
    """Bytes of this worker's payloads, by `Payload.nbytes`."""
    wire_bytes: int
    """Bytes that this worker contributed: packets with headers and padding, and payloads of all_gathers.

    An all_gather sends each worker's bytes to all others, so they count workers - 1 times.
    """
    dense_bytes: int
    """Bytes for the same elements sent as they are, 4 bytes each, in packets of the same size."""
    encode_s: float
    """Seconds of compressing."""
    network_s: float
    """Seconds of waiting for sums."""
    decode_s: float
    """Seconds of decompressing."""
    offered_energy: float = 0.0
    """Sum of squares of this worker's gradients plus residuals, for tensors that are finite on all workers.

    0 without error feedback, as `sent_energy`.
    """
    sent_energy: float = 0.0
    """Sum of squares of the values that this worker sent for these tensors."""

    def __getitem__(self, name: str) -> CompressedTensor:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self.tensors)

    @cached_property
    def _by_name(self) -> dict[str, CompressedTensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    @property
    def summary(self) -> StepSummary:
        """Statistics of the step's tensors, as an exact sum has them."""
        words = {tensor.name: tensor.words_sent for tensor in self.tensors}
        return StepSummary(
            tuple(words),
            words_sent=lambda: words,
            elements=sum(tensor.elements for tensor in self.tensors),
            non_finite=sum(not tensor.finite for tensor in self.tensors),
            candidates=0,
            cells=0,
            unpeeled=0,
            tensors=lambda: summaries(self.tensors),
        )


@dataclass(eq=False)
class Unit:
    """Elements that are compressed together: a tensor, or all tensors of a bucket."""

    lengths: Mapping[str, int]
    """The tensors' numbers of elements, by name."""
    tensor: Floats
    """float32[n]: the concatenated tensors."""

    state: TensorState
    finite: bool
    """Whether it is finite: on this worker, or after the exchange on all workers."""
    sent: Values | None = None
    """float64[n]: the values that this worker sent; None if it sent nothing."""
    total: Values | None = None
    """float64[n]: the sum of the values that all workers sent; None if nothing was sent."""
    payload: Payload | None = None
    """This worker's payload of the last round."""

    @property
    def has_sum(self) -> bool:
        """Whether it has anything to sum: it is finite and not zero on all workers."""
        return self.finite and self.state.bound > 0

    def results(
        self, shapes: Mapping[str, tuple[int, ...]], kind: Kind, divisor: int, *, feedback: bool
    ) -> list[CompressedTensor]:
        """Return the result of each tensor: the sum, divided by `divisor`, and the values sent for it."""
        n = self.tensor.size
        total, sent = (np.zeros(n) if array is None else array for array in (self.total, self.sent))
        with np.errstate(over="ignore"):
            values = (total / divisor).astype(np.float32) if self.finite else np.full(n, np.nan, np.float32)
        tensors, end = [], 0
        for name, length in self.lengths.items():
            part, end = slice(end, end + length), end + length
            density, density_worker = (
                np.count_nonzero(array[part]) / max(length, 1) if self.finite else math.nan
                for array in (total, sent)
            )
            tensors.append(
                CompressedTensor(
                    elements=length,
                    form=kind,
                    index=None,
                    density=density,
                    density_worker=density_worker,
                    error_bound=0.0,
                    scale_block=None,
                    name=name,
                    values=values[part].reshape(shapes[name]),
                    finite=self.finite,
                    sent=ExactValues.of(sent[part]) if feedback and self.finite else None,
                )
            )
        return tensors


class StepExchange:
    """The exchanges of a step's `units`, which set what was sent and summed of each, and their cost."""

    def __init__(
        self, compressor: Compressor, collectives: Collectives, clock: Callable[[], float], span: Span
    ) -> None:
        self._compressor, self._collectives = compressor, collectives
        self._clock, self._span = clock, span
        self.units: Sequence[Unit] = ()
        self._payload_bytes = self._wire_bytes = 0
        self._seconds: dict[Phase, float] = {"encode": 0.0, "exchange": 0.0, "decode": 0.0}

    @contextmanager
    def timed(self, phase: Phase) -> Iterator[None]:
        """Add the time of the body to a phase, unless the body raises."""
        with self._span(phase) or nullcontext():
            started = self._clock()
            yield
            self._seconds[phase] += self._clock() - started

    def result(self, tensors: Sequence[CompressedTensor]) -> CompressedResult:
        """Return the tensors with the step's cost."""
        return CompressedResult(
            tensors=tuple(tensors),
            payload_bytes=self._payload_bytes,
            wire_bytes=self._wire_bytes,
            dense_bytes=self._packet_bytes(sum(tensor.values.size for tensor in tensors)),
            encode_s=self._seconds["encode"],
            network_s=self._seconds["exchange"],
            decode_s=self._seconds["decode"],
        )

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """Return the parts' sums. Every part's check is run, in case the backend did not."""
        with self.timed("exchange"):
            results = self._collectives.sum_words(parts)
        return self._count_and_check(parts, results)

    def _broadcast(
        self, pieces: Sequence[Words], sources: Sequence[int], ahead: Sequence[Part]
    ) -> tuple[list[Words], list[Words]]:
        """See `Collectives.broadcast`."""
        with self.timed("exchange"):
            results, received = self._collectives.broadcast(pieces, sources, ahead)
        self._wire_bytes += self._packet_bytes(sum(map(len, pieces)))
        return self._count_and_check(ahead, results), received

    def _count_and_check(self, parts: Sequence[Part], results: list[Words]) -> list[Words]:
        """Add the bytes of the parts' packets, and call the parts' checks; return the results."""
        for part, result in zip(parts, results, strict=True):
            self._wire_bytes += self._packet_bytes(len(part.words))
            if part.check is not None:
                part.check(result)
        return results

    def _packet_bytes(self, words: int) -> int:
        """Return the bytes of the packets of a part with this number of words."""
        lanes = self._collectives.lanes
        return -(-words // lanes) * packet_bytes(lanes)

    def additive(self, agreements: Iterable[Part]) -> None:
        """Sum words, in rounds. agreements: the first part of each round."""
        compressor, units = self._compressor, self.units
        for number, agreement in enumerate(agreements):
            if not units:
                return
            for unit in units:
                unit.state.round = number
            self._exchange_header(units, agreement)
            units = [unit for unit in units if unit.has_sum]
            with self.timed("encode"):
                payloads = [compressor.compress(unit.tensor, unit.state) for unit in units]
                words = concatenate(payloads)
            self._payload_bytes += words.nbytes
            sums = self.sum_words([Part(words, "add")])[0] if words.size else words
            parts = split(sums, list(map(len, payloads)))
            for unit, payload, part in zip(units, payloads, parts, strict=True):
                unit.payload, unit.state.summed = payload, part
        with self.timed("decode"):
            for unit in units:
                assert unit.payload is not None
                assert unit.state.summed is not None
                unit.sent = compressor.decompress(unit.payload, unit.state)
                unit.total = compressor.decompress(unit.state.summed, unit.state, unit.state.workers)

    def _exchange_header(self, units: Sequence[Unit], agreement: Part) -> None:
        """Exchange bounds, merits and shared indexes; set the units' states by them."""
        compressor, collectives = self._compressor, self._collectives
        elected = compressor if isinstance(compressor, Elected) else None
        by_merit = elected is not None and elected.by_merit
        pieces: list[Words] = []
        indexes: list[Words] = []
        with self.timed("encode"):
            #: For each unit, the bounds of all workers, and, if they decide the election, the merits.
            slots = np.zeros((len(units), 1 + by_merit, collectives.workers), np.uint32)
            for unit, codes in zip(units, slots[..., collectives.worker_id], strict=True):
                codes[:] = to_code(math.inf)
                if unit.finite:
                    codes[0] = to_code(compressor.announced(unit.tensor, unit.state))
                if elected and by_merit and unit.finite:
                    codes[1] = to_code(elected.merit(unit.tensor, unit.state))
                if elected and unit.finite:
                    pieces.append(elected.encode(unit.tensor, unit.state))
                elif elected:
                    pieces.append(np.zeros(elected.words(unit.state), np.uint32))
            header = [agreement, Part(slots.reshape(-1), "or")]
        if elected and not by_merit:
            results, indexes = self._broadcast(pieces, [elected.turn(unit.state) for unit in units], header)
        else:
            results = self.sum_words(header)
        received = results[1].reshape(slots.shape)
        for unit, by_worker in zip(units, received, strict=True):
            unit.state.bound = from_code(int(by_worker[0].max()))
            unit.finite = unit.state.bound < math.inf
        if by_merit:
            winners = [int(by_worker[-1].argmax()) for by_worker in received]
            _, indexes = self._broadcast(pieces, winners, ())
        for unit, words in zip(units, indexes, strict=bool(elected)):
            if elected and unit.has_sum:
                unit.state.positions = elected.decode(words, unit.state)

    def gathered(self, digest: int) -> None:
        """Gather all workers' payloads, and add them in float64 in the workers' order.

        A message has the digest, each payload's length, and the payloads' bytes. Raises CompressError if a
        worker's message has another digest.
        """
        with self.timed("encode"):
            payloads, lengths = [], np.full(len(self.units), _NOT_FINITE_LENGTH, np.uint32)
            for number, unit in enumerate(self.units):
                if unit.finite:
                    payloads.append(self._compressor.compress(unit.tensor, unit.state))
                    lengths[number] = payloads[-1].nbytes
            message = to_bytes(np.array([digest], np.uint64), lengths, *payloads)
        self._payload_bytes += sum(payload.nbytes for payload in payloads)
        with self.timed("exchange"):
            messages = self._collectives.gather(message)
        self._wire_bytes += (self._collectives.workers - 1) * max(map(len, messages))
        with self.timed("decode"):
            for worker, received in enumerate(messages):
                layout = (np.uint64, 1), (np.uint32, len(self.units)), (np.uint8, -1)
                received_digest, sizes, data = from_bytes(received, *layout)
                if received_digest.tolist() != [digest]:
                    raise CompressError(
                        f"step: worker {worker} is in another step; start all workers from the same "
                        "checkpoint"
                    )
                for unit, size in zip(self.units, sizes.tolist(), strict=True):
                    if size == _NOT_FINITE_LENGTH:
                        unit.finite = False
                        continue
                    payload, data = data[:size], data[size:]
                    if unit.finite:
                        values = self._compressor.decompress(payload, unit.state)
                        unit.sent = values if worker == self._collectives.worker_id else unit.sent
                        unit.total = values if unit.total is None else unit.total + values

    def indexed(
        self,
        offered: Mapping[str, Floats],
        shapes: Mapping[str, tuple[int, ...]],
        allreduce: Allreduce,
        *,
        feedback: bool,
    ) -> list[CompressedTensor]:
        """Return the sums of the elements that the compressor chooses, by the exact all-reduce.

        Tensors that are not finite are summed whole, so that all workers get NaN.
        """
        with self.timed("encode"):
            ends = np.cumsum([0, *(tensor.size for tensor in offered.values())], dtype=np.int64)
            begins = dict(zip(offered, ends[:-1].tolist(), strict=True))
            flat = buffers.zeros(int(ends[-1]), np.float32)
            sparse = {name: flat[begin : begin + offered[name].size] for name, begin in begins.items()}
            finite_units = [unit for unit in self.units if unit.finite]
            for unit in finite_units:
                payload = self._compressor.compress(unit.tensor, unit.state)
                chosen = unit.state.positions
                assert chosen is not None
                self._payload_bytes += payload.nbytes + 4 * chosen.size
                lengths = np.array(list(unit.lengths.values()), np.int64)
                bounds = lengths.cumsum()
                # From a position in the unit to that in `flat`, for each tensor.
                offsets = np.array([begins[name] for name in unit.lengths], np.int64) - bounds + lengths
                tensor = np.searchsorted(bounds, chosen, side="right") if lengths.size != 1 else 0
                flat[chosen + offsets[tensor]] = payload
            for name in offered.keys() - set(chain.from_iterable(unit.lengths for unit in finite_units)):
                sparse[name][:] = offered[name]
        result = allreduce.sum(sparse, in_place=True)
        self._wire_bytes += result.wire_bytes
        for phase, seconds in zip(
            self._seconds, (result.encode_s, result.network_s, result.decode_s), strict=True
        ):
            self._seconds[phase] += seconds
        with self.timed("decode"):
            statistics, words = result.summary.tensors(), result.summary.words_sent()
            contributions = result.contributions() if feedback else {}
            tensors = []
            for name, values in sparse.items():
                finite, sent = not math.isnan(statistics[name].density), None
                if finite and feedback:
                    positions, numbers, scales = contributions[name]
                    sent = ExactValues(positions, numbers, scales.astype(np.int16))
                tensors.append(
                    CompressedTensor(
                        **vars(statistics[name]) | {"scale_block": None},
                        name=name,
                        values=values.reshape(shapes[name]),
                        finite=finite,
                        sent=sent,
                        words_sent=words[name],
                    )
                )
        return tensors
