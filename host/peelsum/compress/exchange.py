"""The exchanges of a step's payloads, by their kind: all tensors in common rounds; and the step's results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from peelsum import buffers
from peelsum.allreduce import Allreduce, StepResult
from peelsum.allreduce.result import StepSummary, TensorStats, summaries
from peelsum.allreduce.rounds import Phase
from peelsum.compress.arguments import CompressError
from peelsum.compress.arithmetic import from_bytes, from_code, to_bytes, to_code
from peelsum.compress.collectives import Bytes, Collectives, concatenate, split
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
    def tally(self) -> StepSummary:
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


class MeteredCollectives:
    """The collectives of a step, with counts of bytes and the time of each phase."""

    def __init__(
        self,
        collectives: Collectives,
        clock: Callable[[], float],
        span: Callable[[Phase], AbstractContextManager[object]],
    ) -> None:
        self._collectives, self._clock, self._span = collectives, clock, span
        self.workers, self.worker_id = collectives.workers, collectives.worker_id
        #: Bytes of this worker's payloads.
        self.payload_bytes = 0
        self._bytes = 0
        self._seconds: dict[Phase, float] = {"encode": 0.0, "exchange": 0.0, "decode": 0.0}

    @contextmanager
    def timed(self, phase: Phase) -> Iterator[None]:
        """Add the time of the body to a phase, unless the body raises."""
        with self._span(phase):
            started = self._clock()
            yield
            self._seconds[phase] += self._clock() - started

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`; every part's check is run, in case the backend did not."""
        with self.timed("exchange"):
            results = self._collectives.sum_words(parts)
        self._count([len(part.words) for part in parts])
        return _run_checks(parts, results)

    def broadcast(
        self, pieces: Sequence[Words], sources: Sequence[int], ahead: Sequence[Part] = ()
    ) -> tuple[list[Words], list[Words]]:
        """See `Collectives.broadcast`."""
        with self.timed("exchange"):
            results, copied = self._collectives.broadcast(pieces, sources, ahead)
        self._count([*(len(part.words) for part in ahead), sum(map(len, pieces))])
        return _run_checks(ahead, results), copied

    def gather(self, data: Bytes) -> list[Bytes]:
        """See `Collectives.gather`."""
        with self.timed("exchange"):
            rows = self._collectives.gather(data)
        self._bytes += (self.workers - 1) * max(map(len, rows))
        return rows

    def add(self, result: StepResult) -> None:
        """Add the cost of an all-reduce."""
        self._bytes += result.wire_bytes
        self._seconds["encode"] += result.encode_s
        self._seconds["exchange"] += result.network_s
        self._seconds["decode"] += result.decode_s

    def result(self, tensors: Sequence[CompressedTensor]) -> CompressedResult:
        """Return the tensors with the step's cost."""
        lanes = self._collectives.lanes
        return CompressedResult(
            tensors=tuple(tensors),
            payload_bytes=self.payload_bytes,
            wire_bytes=self._bytes,
            dense_bytes=-(-sum(tensor.values.size for tensor in tensors) // lanes) * packet_bytes(lanes),
            encode_s=self._seconds["encode"],
            network_s=self._seconds["exchange"],
            decode_s=self._seconds["decode"],
        )

    def _count(self, words: Sequence[int]) -> None:
        """Add the bytes of the packets of parts with these numbers of words."""
        lanes = self._collectives.lanes
        self._bytes += sum(-(-count // lanes) for count in words) * packet_bytes(lanes)


def _run_checks(parts: Sequence[Part], results: list[Words]) -> list[Words]:
    """Call the check of each part that has one; return the results."""
    for part, result in zip(parts, results, strict=True):
        if part.check is not None:
            part.check(result)
    return results


@dataclass(eq=False)
class Unit:
    """Elements that are compressed together: a tensor, or all tensors of a bucket."""

    names: Sequence[str]
    """The tensors' names."""
    lengths: Sequence[int]
    """The tensors' numbers of elements."""
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
        total, sent_array = (np.zeros(n) if array is None else array for array in (self.total, self.sent))
        with np.errstate(over="ignore"):
            values = (total / divisor).astype(np.float32) if self.finite else np.full(n, np.nan, np.float32)
        sent = ExactValues.of(sent_array) if feedback and self.finite else None
        sent_positions = np.flatnonzero(sent_array) if sent is None else sent.positions
        ends = np.cumsum(self.lengths, dtype=np.int64)
        #: For each tensor, the number of non-zeros of its sum, and of the values that were sent for it.
        counts = [
            np.diff(np.searchsorted(positions, ends), prepend=0).tolist()
            for positions in (np.flatnonzero(total), sent_positions)
        ]
        tensors, begin, first = [], 0, 0
        for name, end, summed_count, sent_count in zip(self.names, ends.tolist(), *counts, strict=True):
            elements, of_tensor, sent_values = max(end - begin, 1), slice(first, first + sent_count), None
            if sent is not None:
                positions = sent.positions[of_tensor] - begin
                sent_values = ExactValues(positions, sent.numbers[of_tensor], sent.scales[of_tensor])
            tensors.append(
                CompressedTensor(
                    elements=end - begin,
                    form=kind,
                    index=None,
                    density=summed_count / elements if self.finite else math.nan,
                    density_worker=sent_count / elements if self.finite else math.nan,
                    error_bound=0.0,
                    scale_block=None,
                    name=name,
                    values=values[begin:end].reshape(shapes[name]),
                    finite=self.finite,
                    sent=sent_values,
                )
            )
            begin, first = end, first + sent_count
        return tensors


def exchange_additive(
    compressor: Compressor,
    units: Sequence[Unit],
    collectives: MeteredCollectives,
    agreements: Iterable[Part],
) -> None:
    """Set each unit's `sent` and `total` by sums of words. agreements: the first part of each round."""
    for number, agreement in enumerate(agreements):
        if not units:
            return
        for unit in units:
            unit.state.round = number
        _exchange_header(compressor, units, collectives, agreement)
        units = [unit for unit in units if unit.has_sum]
        with collectives.timed("encode"):
            payloads = [compressor.compress(unit.tensor, unit.state) for unit in units]
            words = concatenate(payloads)
        collectives.payload_bytes += words.nbytes
        sums = collectives.sum_words([Part(words, "add")])[0] if words.size else words
        parts = split(sums, list(map(len, payloads)))
        for unit, payload, part in zip(units, payloads, parts, strict=True):
            unit.payload, unit.state.summed = payload, part
    with collectives.timed("decode"):
        for unit in units:
            assert unit.payload is not None
            assert unit.state.summed is not None
            unit.sent = compressor.decompress(unit.payload, unit.state)
            unit.total = compressor.decompress(unit.state.summed, unit.state, collectives.workers)


def _exchange_header(
    compressor: Compressor, units: Sequence[Unit], collectives: MeteredCollectives, agreement: Part
) -> None:
    """Exchange bounds, merits and shared indexes; set the units' states by them."""
    elected = compressor if isinstance(compressor, Elected) else None
    by_merit = elected is not None and elected.by_merit
    pieces: list[Words] = []
    indexes: list[Words] = []
    with collectives.timed("encode"):
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
        results, indexes = collectives.broadcast(pieces, [elected.turn(unit.state) for unit in units], header)
    else:
        results = collectives.sum_words(header)
    received = results[1].reshape(slots.shape)
    for unit, by_worker in zip(units, received, strict=True):
        unit.state.bound = from_code(int(by_worker[0].max()))
        unit.finite = unit.state.bound < math.inf
    if by_merit:
        _, indexes = collectives.broadcast(pieces, [int(by_worker[-1].argmax()) for by_worker in received])
    for unit, words in zip(units, indexes, strict=bool(elected)):
        if elected and unit.has_sum:
            unit.state.positions = elected.decode(words, unit.state)


def exchange_gathered(
    compressor: Compressor, units: Sequence[Unit], collectives: MeteredCollectives, digest: int
) -> None:
    """Set each unit's `sent` and `total` by all workers' payloads, added in float64 in the workers' order.

    A message has the digest, each payload's length, and the payloads' bytes. Raises CompressError if a
    worker's message has another digest.
    """
    with collectives.timed("encode"):
        payloads, lengths = [], np.full(len(units), _NOT_FINITE_LENGTH, np.uint32)
        for number, unit in enumerate(units):
            if unit.finite:
                payloads.append(compressor.compress(unit.tensor, unit.state))
                lengths[number] = payloads[-1].nbytes
        message = to_bytes(np.array([digest], np.uint64), lengths, *payloads)
    collectives.payload_bytes += sum(payload.nbytes for payload in payloads)
    messages = collectives.gather(message)
    with collectives.timed("decode"):
        for worker, received in enumerate(messages):
            layout = (np.uint64, 1), (np.uint32, len(units)), (np.uint8, -1)
            received_digest, sizes, data = from_bytes(received, *layout)
            if received_digest.tolist() != [digest]:
                raise CompressError(
                    f"step: worker {worker} is in another step; start all workers from the same checkpoint"
                )
            begin = 0
            for unit, size in zip(units, sizes.tolist(), strict=True):
                unit.finite &= size != _NOT_FINITE_LENGTH
                end = begin + size * (size != _NOT_FINITE_LENGTH)
                if unit.finite:
                    values = compressor.decompress(data[begin:end], unit.state)
                    unit.sent = values if worker == collectives.worker_id else unit.sent
                    unit.total = values if unit.total is None else unit.total + values
                begin = end


def exchange_indexed(
    compressor: Compressor,
    units: Sequence[Unit],
    offered: Mapping[str, Floats],
    shapes: Mapping[str, tuple[int, ...]],
    collectives: MeteredCollectives,
    allreduce: Allreduce,
    *,
    feedback: bool,
) -> list[CompressedTensor]:
    """Return the sums of the elements that `compressor` chooses, by the exact all-reduce.

    Tensors that are not finite are summed whole, so that all workers get NaN.
    """
    with collectives.timed("encode"):
        ends = np.cumsum([0, *(tensor.size for tensor in offered.values())], dtype=np.int64)
        begins = dict(zip(offered, ends[:-1].tolist(), strict=True))
        flat = buffers.zeros(int(ends[-1]), np.float32)
        sparse = {name: flat[begin : begin + offered[name].size] for name, begin in begins.items()}
        for unit in units:
            if unit.finite:
                payload, chosen = compressor.compress(unit.tensor, unit.state), unit.state.positions
                assert chosen is not None
                collectives.payload_bytes += payload.nbytes + 4 * chosen.size
                if len(unit.names) == 1:
                    sparse[unit.names[0]][chosen] = payload
                    continue
                lengths = np.array(unit.lengths, np.int64)
                bounds = lengths.cumsum()
                # From a position in the unit to that in `flat`, for each tensor.
                offsets = np.array([begins[name] for name in unit.names], np.int64) - bounds + lengths
                flat[chosen + offsets[np.searchsorted(bounds, chosen, side="right")]] = payload
        for name in offered.keys() - set(chain.from_iterable(unit.names for unit in units if unit.finite)):
            sparse[name][:] = offered[name]
    result = allreduce.sum(sparse, in_place=True)
    collectives.add(result)
    with collectives.timed("decode"):
        tallies, words = result.tally.tensors(), result.tally.words_sent()
        contributions = result.contributions() if feedback else {}
        tensors = []
        for name, values in sparse.items():
            tally, sent, whole = vars(tallies[name]), None, values.reshape(shapes[name])
            finite = not math.isnan(tally["density"])
            if finite and feedback:
                positions, numbers, scales = contributions[name]
                sent = ExactValues(positions, numbers, scales.astype(np.int16))
            tally["scale_block"] = None
            tensors.append(
                CompressedTensor(
                    **tally, name=name, values=whole, finite=finite, sent=sent, words_sent=words[name]
                )
            )
    return tensors
