"""The exchanges of a step's payloads, by their kind: all tensors in common rounds; and the step's results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import cast

import numpy as np

from peelsum import buffers
from peelsum.allreduce import Allreduce, Form, IndexForm, StepResult
from peelsum.allreduce.result import Tally, TensorTally
from peelsum.allreduce.rounds import Phase
from peelsum.compress.arguments import CompressError
from peelsum.compress.arithmetic import arrays_of, bytes_of, code_of, value_of
from peelsum.compress.collectives import Bytes, Collectives, cut, joined
from peelsum.compress.compressor import Compressor, Floats, Kind, Payload, TensorState, Values
from peelsum.compress.memory import Exact
from peelsum.compress.sparsifier import Elected
from peelsum.summation import Part, Words
from peelsum.wire import packet_bytes

#: The length, in a gathered message, of a payload of a tensor that is not finite.
_NO_LENGTH = 0xFFFFFFFF


@dataclass(frozen=True, eq=False)
class CompressedTensor:
    """One tensor's sum, the same on every worker, bit for bit, and what this worker sent for it."""

    name: str
    """The tensor's name."""

    form: Kind | Form
    """The kind of its payloads; if they were indexed, the form in which the all-reduce sent the values."""

    values: Floats
    """float32[shape]: the sum or average; NaN if any worker's tensor was not finite."""

    finite: bool
    """Whether every worker's tensor was finite."""

    sent: Exact | None
    """What this worker contributed; None without error feedback, and if not finite."""

    density: float
    """Share of elements of the sum that are not zero, by the index if there is one; NaN if not finite."""

    density_worker: float
    """Share of elements that this worker sent as other than zero; NaN if not finite."""

    index: IndexForm | None = None
    """The form of the all-reduce's index; None for other kinds than indexed."""

    error_bound: float = 0.0
    """How far the all-reduce's fixed point may move an element of an indexed sum; 0 for other kinds."""

    words_sent: int = 0
    """32-bit words that each worker sent for an indexed payload; 0 for other kinds."""

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return self.values.size


@dataclass(frozen=True, eq=False)
class CompressedResult(Mapping[str, CompressedTensor]):
    """The results of one step, by the tensors' names, and its cost."""

    tensors: tuple[CompressedTensor, ...]
    """The results, in the order of the tensors."""

    payload_bytes: int
    """Bytes of this worker's payloads, by `Payload.nbytes`."""

    wire_bytes: int
    """Bytes that this worker contributed: packets with headers and padding, and payloads for all_gathers.

    An all_gather passes each worker's bytes on to all others, so they count workers - 1 times.
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
    """Sum of squares of this worker's gradients with what it kept, of tensors that are finite on all workers.

    0, as `sent_energy`, without error feedback.
    """

    sent_energy: float = 0.0
    """Sum of squares of the values of them that this worker sent."""

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
    def tally(self) -> Tally:
        """Counts of the step's tensors, without arrays, as an exact sum has them."""
        names = tuple(one.name for one in self.tensors)
        counts = {
            one.name: TensorTally(
                one.elements,
                cast(Form, one.form),
                one.index,
                one.density,
                one.density_worker,
                one.error_bound,
                scale_block=None,
            )
            for one in self.tensors
        }
        words = {one.name: one.words_sent for one in self.tensors}
        return Tally(
            names,
            words_sent=lambda: words,
            elements=sum(one.elements for one in self.tensors),
            non_finite=sum(not one.finite for one in self.tensors),
            candidates=0,
            cells=0,
            left_over=0,
            tensors=lambda: counts,
        )


class Wire:
    """One step's access to `collectives`, which counts and measures."""

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
        """Add the time of the body to the phase, unless the body raises."""
        with self._span(phase):
            started = self._clock()
            yield
            self._seconds[phase] += self._clock() - started

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`; every part's check is run, in case the backend did not."""
        with self.timed("exchange"):
            results = self._collectives.sum_words(parts)
        self._count([len(part.words) for part in parts])
        return _checked(parts, results)

    def broadcast(
        self, pieces: Sequence[Words], sources: Sequence[int], ahead: Sequence[Part] = ()
    ) -> tuple[list[Words], list[Words]]:
        with self.timed("exchange"):
            results, copied = self._collectives.broadcast(pieces, sources, ahead)
        self._count([*(len(part.words) for part in ahead), sum(map(len, pieces))])
        return _checked(ahead, results), copied

    def gather(self, data: Bytes) -> list[Bytes]:
        with self.timed("exchange"):
            everybody = self._collectives.gather(data)
        self._bytes += (self.workers - 1) * max(map(len, everybody))
        return everybody

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
            dense_bytes=-(-sum(one.values.size for one in tensors) // lanes) * packet_bytes(lanes),
            encode_s=self._seconds["encode"],
            network_s=self._seconds["exchange"],
            decode_s=self._seconds["decode"],
        )

    def _count(self, words: Sequence[int]) -> None:
        lanes = self._collectives.lanes
        self._bytes += sum(-(-count // lanes) for count in words) * packet_bytes(lanes)


def _checked(parts: Sequence[Part], results: list[Words]) -> list[Words]:
    for part, result in zip(parts, results, strict=True):
        if part.check is not None:
            part.check(result)
    return results


@dataclass(eq=False)
class Unit:
    """Elements that are compressed as one: a tensor, or all tensors of a bucket."""

    names: Sequence[str]
    """The tensors' names."""

    lengths: Sequence[int]
    """The tensors' numbers of elements."""

    tensor: Floats
    """float32[n]: the tensors one after the other."""

    state: TensorState

    finite: bool
    """Whether it is finite, on this worker or, once that is exchanged, on all."""

    own: Values | None = None
    """float64[n]: what this worker sent; None if it sent nothing."""

    total: Values | None = None
    """float64[n]: the sum of what was sent; None if nothing was."""

    payload: Payload | None = None
    """This worker's payload of the last round."""

    @property
    def live(self) -> bool:
        """Whether it has anything to sum: it is finite and not zero on all workers."""
        return self.finite and self.state.bound > 0

    def results(
        self, shapes: Mapping[str, tuple[int, ...]], kind: Kind, divisor: int, *, feedback: bool
    ) -> list[CompressedTensor]:
        """Return each tensor's part of the sum, divided by `divisor`, and what this worker sent for it."""
        n = self.tensor.size
        total, own = (np.zeros(n) if one is None else one for one in (self.total, self.own))
        with np.errstate(over="ignore"):
            values = (total / divisor).astype(np.float32) if self.finite else np.full(n, np.nan, np.float32)
        sent = Exact.of(own) if feedback and self.finite else None
        support, chosen = np.flatnonzero(total), np.flatnonzero(own) if sent is None else sent.positions
        ends = np.cumsum(self.lengths, dtype=np.int64)
        counts = [np.diff(np.searchsorted(one, ends), prepend=0).tolist() for one in (support, chosen)]
        tensors, begin, first = [], 0, 0
        for name, end, in_sum, in_own in zip(self.names, ends.tolist(), *counts, strict=True):
            elements = max(end - begin, 1)
            tensors.append(
                CompressedTensor(
                    name=name,
                    form=kind,
                    values=values[begin:end].reshape(shapes[name]),
                    finite=self.finite,
                    sent=None if sent is None else sent.part(first, first + in_own, begin),
                    density=in_sum / elements if self.finite else math.nan,
                    density_worker=in_own / elements if self.finite else math.nan,
                )
            )
            begin, first = end, first + in_own
        return tensors


def exchange_additive(
    compressor: Compressor, units: Sequence[Unit], wire: Wire, agreement: Callable[[int], Part]
) -> None:
    """Set each unit's `own` and `total` by sums of words. `agreement` returns the part that opens a round."""
    for number in range(compressor.rounds):
        if not units:
            return
        for unit in units:
            unit.state.round = number
        _exchange_header(compressor, units, wire, agreement(number))
        units = [unit for unit in units if unit.live]
        with wire.timed("encode"):
            payloads = [compressor.compress(unit.tensor, unit.state) for unit in units]
            words = joined(payloads)
        wire.payload_bytes += words.nbytes
        sums = wire.sum_words([Part(words, "add")])[0] if words.size else words
        parts = cut(sums, [len(one) for one in payloads])
        for unit, payload, part in zip(units, payloads, parts, strict=True):
            unit.payload, unit.state.summed = payload, part
    with wire.timed("decode"):
        for unit in units:
            assert unit.payload is not None
            assert unit.state.summed is not None
            unit.own = compressor.decompress(unit.payload, unit.state)
            unit.total = compressor.decompress(unit.state.summed, unit.state, wire.workers)


def _exchange_header(compressor: Compressor, units: Sequence[Unit], wire: Wire, agreement: Part) -> None:
    """Exchange bounds, merits and shared indexes; set the units' states by them."""
    index = compressor if isinstance(compressor, Elected) else None
    with wire.timed("encode"):
        codes = np.array([_codes(compressor, unit) for unit in units], np.uint32)
        slots = np.zeros((*codes.shape, wire.workers), np.uint32)
        slots[..., wire.worker_id] = codes
        ahead = [agreement, Part(slots.reshape(-1), "or")]
        pieces = [_index_words(index, unit) for unit in units] if index else []
    indexes: list[Words] = []
    if index and not index.by_merit:
        results, indexes = wire.broadcast(pieces, [index.turn(unit.state) for unit in units], ahead)
    else:
        results = wire.sum_words(ahead)
    heard = results[1].reshape(slots.shape)
    for unit, everybody in zip(units, heard, strict=True):
        unit.state.bound = value_of(int(everybody[0].max()))
        unit.finite = unit.state.bound < math.inf
    if index and index.by_merit:
        _, indexes = wire.broadcast(pieces, [int(everybody[-1].argmax()) for everybody in heard])
    for unit, words in zip(units, indexes, strict=bool(index)):
        if index and unit.live:
            unit.state.positions = index.decode(words, unit.state)


def _codes(compressor: Compressor, unit: Unit) -> list[int]:
    """Return a unit's bound and, if that elects a worker, its merit, as numbers with the floats' order."""
    claims = [compressor.announced(unit.tensor, unit.state) if unit.finite else math.inf]
    if isinstance(compressor, Elected) and compressor.by_merit:
        claims.append(compressor.merit(unit.tensor, unit.state) if unit.finite else math.inf)
    return [code_of(one) for one in claims]


def _index_words(index: Elected, unit: Unit) -> Words:
    """Return the index that this worker would decide; zeros for a unit that is not finite."""
    if unit.finite:
        return index.encode(unit.tensor, unit.state)
    return np.zeros(index.words(unit.state), np.uint32)


def exchange_gathered(compressor: Compressor, units: Sequence[Unit], wire: Wire, digest: int) -> None:
    """Set each unit's `own` and `total` by every worker's payloads, added in float64 in the workers' order.

    A message has the digest, each payload's length, and the payloads' bytes. Raises CompressError if another
    worker's message has another digest.
    """
    with wire.timed("encode"):
        payloads = [compressor.compress(one.tensor, one.state) if one.finite else None for one in units]
        sent = [one for one in payloads if one is not None]
        lengths = [_NO_LENGTH if one is None else one.nbytes for one in payloads]
        message = bytes_of(np.array([digest], np.uint64), np.array(lengths, np.uint32), *sent)
    wire.payload_bytes += sum(one.nbytes for one in sent)
    messages = wire.gather(message)
    with wire.timed("decode"):
        for worker, one in enumerate(messages):
            told, sizes, data = arrays_of(one, (np.uint64, 1), (np.uint32, len(units)), (np.uint8, -1))
            if told.tolist() != [digest]:
                raise CompressError(
                    f"step: worker {worker} is in another step; start all workers from the same checkpoint"
                )
            begin = 0
            for unit, size in zip(units, sizes.tolist(), strict=True):
                unit.finite &= size != _NO_LENGTH
                end = begin + size * (size != _NO_LENGTH)
                if unit.finite:
                    values = compressor.decompress(data[begin:end], unit.state)
                    unit.own = values if worker == wire.worker_id else unit.own
                    unit.total = values if unit.total is None else unit.total + values
                begin = end


def exchange_indexed(
    compressor: Compressor,
    units: Sequence[Unit],
    offered: Mapping[str, Floats],
    shapes: Mapping[str, tuple[int, ...]],
    wire: Wire,
    allreduce: Allreduce,
    *,
    feedback: bool,
) -> list[CompressedTensor]:
    """Return the sums of the elements that `compressor` chooses; of a tensor that is not finite, of all."""
    with wire.timed("encode"):
        ends = np.cumsum([0, *(one.size for one in offered.values())], dtype=np.int64)
        begins = dict(zip(offered, ends[:-1].tolist(), strict=True))
        whole = buffers.zeros(int(ends[-1]), np.float32)
        sparse = {name: whole[begin : begin + offered[name].size] for name, begin in begins.items()}
        for unit in units:
            if unit.finite:
                payload, chosen = compressor.compress(unit.tensor, unit.state), unit.state.positions
                assert chosen is not None
                wire.payload_bytes += payload.nbytes + 4 * chosen.size
                if len(unit.names) == 1:
                    sparse[unit.names[0]][chosen] = payload
                    continue
                lengths = np.array(unit.lengths, np.int64)
                bounds = lengths.cumsum()
                moved = np.array([begins[name] for name in unit.names], np.int64) - bounds + lengths
                whole[chosen + moved[np.searchsorted(bounds, chosen, side="right")]] = payload
        for name in offered.keys() - set(chain.from_iterable(one.names for one in units if one.finite)):
            sparse[name][:] = offered[name]
    result = allreduce.sum(sparse, in_place=True)
    wire.add(result)
    with wire.timed("decode"):
        told, words = result.tally.tensors(), result.tally.words_sent()
        contributed = result.contributions() if feedback else {}
        tensors = []
        for name, values in sparse.items():
            one, finite, sent = told[name], not math.isnan(told[name].density), None
            if finite and feedback:
                positions, numbers, scales = contributed[name]
                sent = Exact(positions, numbers, scales.astype(np.int16))
            tensors.append(
                CompressedTensor(
                    name=name,
                    form=one.form,
                    values=values.reshape(shapes[name]),
                    finite=finite,
                    sent=sent,
                    density=one.density,
                    density_worker=one.density_worker,
                    index=one.index,
                    error_bound=one.error_bound,
                    words_sent=words[name],
                )
            )
    return tensors
