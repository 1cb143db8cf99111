"""Sums of sparse tensors by rows, as coalesced tensors with the same bits on all ranks.

A row is what one index of the sparse dimensions selects: a row of an embedding's gradient, or one element
if there are no dense dimensions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from peelsum.allreduce import InvalidRequestError
from peelsum.allreduce.plan import SUPPORTED_DTYPES, unsupported_dtype
from peelsum.allreduce.rows import GatheringSummation, RowUnion, sum_floats, unite_rows
from peelsum.codec import ROW, FixedPoint
from peelsum.summation import Part, Words
from peelsum.torch.errors import HookConfigError, HookError
from peelsum.torch.stats import SparseResult, SparseTensorStats
from peelsum.transport.endpoint import PACE
from peelsum.wire import packet_bytes

T = TypeVar("T")


class SparseTensor:
    """A COO tensor's coalesced rows as they are now, on the host, and the tensor, for `replace`."""

    def __init__(self, tensor: torch.Tensor) -> None:
        given, dimensions = tensor.detach().coalesce().cpu(), tensor.sparse_dim()
        self.tensor, self.values = tensor, given.values()
        self._shape, self._row_shape = tensor.shape[:dimensions], tensor.shape[dimensions:]
        #: Number of rows of the whole tensor, zeros included, and of elements in a row.
        self.length, self.width = math.prod(self._shape), math.prod(self._row_shape)
        #: int64[n], ascending: this rank's rows by number.
        self.rows = np.zeros(given._nnz(), np.int64)
        for size, index in zip(self._shape, given.indices().numpy(), strict=True):
            self.rows = self.rows * size + index

    def future(self) -> torch.futures.Future[torch.Tensor]:
        """Return a future for the tensor, on which a training stream can wait."""
        return torch.futures.Future(devices=[self.tensor.device] if self.tensor.is_cuda else None)

    def __str__(self) -> str:
        dtype = str(self.tensor.dtype).removeprefix("torch.")
        return f"{dtype}{list(self.tensor.shape)} with {len(self._shape)} sparse dimensions"

    def replace(self, rows: NDArray[np.int64], values: torch.Tensor) -> None:
        """Give the tensor these rows only, int64[u], with values[u, width], as a coalesced tensor."""
        indices = np.empty((len(self._shape), rows.size), np.int64)
        for at in reversed(range(len(self._shape))):
            rows, indices[at] = np.divmod(rows, max(self._shape[at], 1))
        there = torch.sparse_coo_tensor(
            torch.from_numpy(indices),
            values.view(len(values), *self._row_shape),
            self.tensor.shape,
            is_coalesced=True,
            check_invariants=False,
        )
        with torch.no_grad():
            self.tensor.copy_(there)  # `detach` would copy the tensor's list of rows
        if self.tensor.is_cuda:
            torch.cuda.current_stream(self.tensor.device).synchronize()


def check_layouts(call: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise HookConfigError for tensors of other layouts than strided and COO."""
    for tensor in tensors:
        if tensor.layout not in (torch.strided, torch.sparse_coo):
            raise HookConfigError(
                f"{call}: a tensor is {tensor.layout}; give tensor.to_sparse_coo(), which is summed by rows"
            )


class RowSum:
    """The sum of one sparse tensor over ranks."""

    def __init__(self, tensor: SparseTensor, union: RowUnion, worker_id: int, precise_up_to: float) -> None:
        self.tensor, self.union = tensor, union
        #: [u, width]: the sum or average of the union's rows.
        self.values = torch.empty((union.rows.size, tensor.width), dtype=tensor.values.dtype)
        #: Whether floats that several ranks have are summed in fixed point.
        self.fixed = self.values.is_floating_point() and self.values.numel() > precise_up_to
        #: False if `values` are NaN, as one was not finite on some rank.
        self.finite = True
        #: Of fixed point, the smallest scale of a block.
        self.scale: int | None = None
        own = tensor.values.reshape(tensor.rows.size, tensor.width)
        places = union.places[worker_id]
        is_shared = union.shared[places]
        #: [s, width]: this rank's rows among those that several ranks have, with zeros for others' rows.
        self.shared = own.new_zeros((int(union.shared.sum()), tensor.width))
        among_shared = np.cumsum(union.shared)[places[is_shared]] - 1
        self.shared[torch.from_numpy(among_shared)] = own[torch.from_numpy(is_shared)]
        #: uint32[k]: this rank's other rows.
        self.alone = _as_words(own[torch.from_numpy(~is_shared)])

    def put_shared(self, total: torch.Tensor) -> None:
        """Write the sum of the rows that several ranks have."""
        self.finite &= not (self.fixed and bool(total.isnan().any()))
        self.values[torch.from_numpy(self.union.shared)] = total.view(self.shared.shape).to(self.values.dtype)

    def words_alone(self, worker: int) -> int:
        """Return how many words a worker's rows take that only it has."""
        return -(-self._size_alone(worker) // 4)

    def _size_alone(self, worker: int) -> int:
        return self.union.alone(worker).size * self.tensor.width * self.values.element_size()

    def put_alone(self, worker: int, words: Words, scaled: Callable[[torch.Tensor], torch.Tensor]) -> int:
        """Write the rows that only `worker` has, from the first of these words; return how many they are."""
        places = torch.from_numpy(self.union.alone(worker))
        size, count = self._size_alone(worker), self.words_alone(worker)
        if not size:
            return 0
        own = torch.from_numpy(words[:count].view(np.uint8)[:size].copy()).view(self.values.dtype)
        self.finite &= not self.fixed or bool(own.isfinite().all())
        self.values[places] = scaled(own).view(places.numel(), self.tensor.width).to(self.values.dtype)
        return count

    def replace(self) -> None:
        """Give the tensor its sum."""
        self.tensor.replace(self.union.rows, self.values)


def sum_rows(
    summation: GatheringSummation,
    tensors: Sequence[SparseTensor],
    what: str,
    *,
    average: bool,
    factor: float | None = None,
    precise_up_to: float = 0,
    otherwise: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> list[RowSum]:
    """Return the sum of each tensor over ranks.

    Rows that several ranks have are summed in fixed point, if the union has more than `precise_up_to`
    elements; `otherwise` sums flat tensors of fewer, and of integers. Rows that a single rank has are taken
    as they are. In fixed point, one value that is not finite makes the tensor's whole sum NaN.

    what: describes the call; raises PlanMismatchError unless it and the tensors' shapes and types are the
    same on all ranks. average: divide by the number of ranks. factor: multiply by it first.
    """
    what = f"{what} of {', '.join(map(str, tensors))}"
    tables = [(one.rows, one.length) for one in tensors]
    unions = unite_rows(summation, tables, what)
    sums = [RowSum(*one, summation.worker_id, precise_up_to) for one in zip(tensors, unions, strict=True)]
    fixed = [one for one in sums if one.fixed]
    floats = [_multiplied(one.shared.float(), factor).view(-1).numpy() for one in fixed]
    of_fixed = sum_floats(summation, floats, average=average)
    for one, total, scale in zip(fixed, of_fixed.values, of_fixed.scales, strict=True):
        one.put_shared(torch.from_numpy(total))
        one.scale = scale
    for one in sums:
        if not one.fixed and one.shared.numel():
            assert otherwise is not None
            one.put_shared(otherwise(one.shared.view(-1)))
    _take_alone(summation, sums, partial(_scaled, workers=summation.workers if average else 1, factor=factor))
    for one in sums:
        if not one.finite:
            one.values.fill_(math.nan)
    return sums


def _take_alone(
    summation: GatheringSummation, sums: Sequence[RowSum], scaled: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Give all ranks the rows that a single one has."""
    workers = range(summation.workers)
    sizes = [sum(one.words_alone(worker) for one in sums) for worker in workers]
    own = np.zeros(max(sizes), np.uint32)
    own[: sizes[summation.worker_id]] = np.concatenate([one.alone for one in sums])
    everybody = (
        summation.all_gather(own).reshape(len(workers), own.size) if own.size else [own] * len(workers)
    )
    for worker, words in zip(workers, everybody, strict=True):
        begin = 0
        for one in sums:
            begin += one.put_alone(worker, words[begin:], scaled)


def _as_words(tensor: torch.Tensor) -> Words:
    """Return a tensor's bytes as words, padded with zeros."""
    given = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    words = np.zeros(-(-given.size // 4), np.uint32)
    words.view(np.uint8)[: given.size] = given
    return words


def _multiplied(values: torch.Tensor, factor: float | None) -> torch.Tensor:
    return values if factor is None else values.float() * factor


def _scaled(values: torch.Tensor, workers: int, factor: float | None) -> torch.Tensor:
    values = _multiplied(values, factor)
    if workers == 1:
        return values
    if values.is_floating_point():
        return values.double() / workers
    return values.div(workers, rounding_mode="trunc")


def average_rows(
    summation: GatheringSummation, tensors: Sequence[SparseTensor], names: Sequence[str]
) -> SparseResult:
    """Replace gradients by their averages over ranks; return what it cost.

    Raises InvalidRequestError for a dtype that hooks do not take, PlanMismatchError if ranks differ.
    """
    for name, one in zip(names, tensors, strict=True):
        dtype = str(one.values.dtype).removeprefix("torch.")
        if dtype not in SUPPORTED_DTYPES:
            error = unsupported_dtype(name, dtype)
            raise InvalidRequestError(f"{error}, or leave the hook out: DDP itself sums float64")
    began, metered = time.perf_counter(), _MeteredSummation(summation)
    sums = sum_rows(metered, tensors, f"average gradients {', '.join(names)}", average=True)
    for total in sums:
        total.replace()
    ended, elements = time.perf_counter(), sum(one.length * one.width for one in tensors)
    return SparseResult(
        tensors=[_stats(*one, summation) for one in zip(names, sums, strict=True)],
        wire_bytes=metered.chunks * packet_bytes(summation.lanes),
        dense_bytes=-(-elements // summation.lanes) * packet_bytes(summation.lanes),
        encode_s=metered.ended - began - metered.seconds,
        network_s=metered.seconds,
        decode_s=ended - metered.ended,
    )


def _stats(name: str, total: RowSum, summation: GatheringSummation) -> SparseTensorStats:
    tensor, workers, bound = total.tensor, summation.workers, 0.0
    if total.scale is not None and total.shared.numel():
        bound = FixedPoint(total.scale).error_bound(workers, workers)
    length = max(tensor.length, 1)
    return SparseTensorStats(
        name=name,
        finite=total.finite,
        elements=tensor.length * tensor.width,
        form="rows",
        index=None,
        density=total.union.rows.size / length if total.finite else math.nan,
        density_worker=tensor.rows.size / length if total.finite else math.nan,
        error_bound=bound if total.finite else math.inf,
        scale_block=ROW,
    )


class _MeteredSummation:
    """A summation that counts the chunks that this worker sends, and the seconds of waiting for sums."""

    def __init__(self, summation: GatheringSummation) -> None:
        self._summation = summation
        self.lanes, self.workers, self.worker_id = summation.lanes, summation.workers, summation.worker_id
        self.chunks, self.seconds, self.ended = 0, 0.0, time.perf_counter()

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`."""
        self.chunks += sum(-(-part.words.size // self.lanes) for part in parts)
        return self._timed(lambda: self._summation.sum_words(parts))

    def all_gather(self, words: Words) -> Words:
        """See `PieceSummation.all_gather`; of others' chunks, a worker sends one in `PACE`."""
        own = -(-words.size // self.lanes)
        self.chunks += own + own * (self.workers - 1) // PACE
        return self._timed(lambda: self._summation.all_gather(words))

    def _timed(self, exchange: Callable[[], T]) -> T:
        started = time.perf_counter()
        result = exchange()
        self.ended = time.perf_counter()
        self.seconds += self.ended - started
        return result


class SparseSums:
    """The sparse gradients of a backward pass, which are summed together, at its end.

    A parameter's first gradient does not wait: in the first pass of a static graph DDP hands over no bucket
    as the last one, and waits for all before the pass ends.

    submit: queues the work that sums them, of which a future tells.
    """

    def __init__(self, submit: Callable[[Sequence[SparseTensor], Sequence[str], Future[None]], None]) -> None:
        self._submit = submit
        self._waiting: dict[str, SparseTensor] = {}
        self._summed_before: set[str] = set()
        self._done: Future[None] = Future()
        self._pass: int | None = None

    def add(self, tensor: SparseTensor, name: str, within: int | None) -> Future[None]:
        """Add a gradient of the backward pass `within`; return the future of its sum.

        If one of that name waits, its pass has failed: then what waits is dropped. What waits of another
        pass is summed before.
        """
        if name in self._waiting:
            self._waiting = {}
            self._done.set_exception(HookError("sum: its backward pass ended before the last bucket"))
        elif within != self._pass:
            self.flush()
        if not self._waiting:
            self._pass, self._done = within, Future()
        self._waiting[name], done = tensor, self._done
        if name not in self._summed_before:
            self._summed_before.add(name)
            self.flush()
        return done

    def flush(self) -> None:
        """Queue the sum of the gradients that wait."""
        waiting, self._waiting = self._waiting, {}
        if waiting:
            self._submit(list(waiting.values()), list(waiting), self._done)
