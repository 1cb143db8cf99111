"""Sums of sparse tensors by rows, as coalesced tensors with the same bits on all ranks.

An index of the sparse dimensions selects a row: a row of an embedding's gradient, or an element if the tensor
has no dense dimensions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from peelsum.allreduce import InvalidRequestError
from peelsum.allreduce.plan import SUPPORTED_DTYPES, unsupported_dtype
from peelsum.allreduce.result import StepSummary, TensorStats
from peelsum.allreduce.rows import GatheringSummation, RowUnion, sum_floats, unite_rows
from peelsum.codec import ROW
from peelsum.codec.fixed_point import error_bound
from peelsum.summation import Part, Words
from peelsum.torch.errors import HookConfigError
from peelsum.torch.stats import SparseResult
from peelsum.transport.endpoint import PACE
from peelsum.wire import packet_bytes

T = TypeVar("T")


class SparseTensor:
    """A COO tensor, and a coalesced copy of its rows in host memory.

    A row's number is its place among all rows of the tensor, zeros included.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        copy, dimensions = tensor.detach().coalesce().cpu(), tensor.sparse_dim()
        self.tensor, self.values = tensor, copy.values()
        self._shape, self._row_shape = tensor.shape[:dimensions], tensor.shape[dimensions:]
        #: Number of rows, zeros included, and of elements in a row.
        self.length, self.width = math.prod(self._shape), math.prod(self._row_shape)
        #: int64[n], ascending: the numbers of the rows that this rank has.
        self.rows = np.zeros(copy._nnz(), np.int64)
        for size, index in zip(self._shape, copy.indices().numpy(), strict=True):
            self.rows = self.rows * size + index

    def __str__(self) -> str:
        dtype = str(self.tensor.dtype).removeprefix("torch.")
        return f"{dtype}{list(self.tensor.shape)} with {len(self._shape)} sparse dimensions"

    def write(self, rows: NDArray[np.int64], values: torch.Tensor) -> None:
        """Replace the tensor's content by values[u, width] of the rows int64[u], coalesced."""
        indices = np.empty((len(self._shape), rows.size), np.int64)
        for dimension in reversed(range(len(self._shape))):
            rows, indices[dimension] = np.divmod(rows, max(self._shape[dimension], 1))
        replacement = torch.sparse_coo_tensor(
            torch.from_numpy(indices),
            values.view(len(values), *self._row_shape),
            self.tensor.shape,
            is_coalesced=True,
            check_invariants=False,
        )
        with torch.no_grad():
            self.tensor.copy_(replacement)  # `detach` would copy the tensor's list of rows
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
    """The sum of one sparse tensor over ranks.

    Shared rows are those that several ranks have; a single rank has an unshared row.
    """

    def __init__(self, tensor: SparseTensor, union: RowUnion, worker_id: int, precise_up_to: float) -> None:
        self.tensor, self.union = tensor, union
        #: [u, width]: the sum or average of the union's rows.
        self.values = torch.empty((union.rows.size, tensor.width), dtype=tensor.values.dtype)
        #: Whether shared rows are floats that are summed in fixed point.
        self.fixed = self.values.is_floating_point() and self.values.numel() > precise_up_to
        #: False if a value was not finite on some rank: then the whole sum in fixed point is NaN.
        self.finite = True
        #: The smallest scale of a block; None if not summed in fixed point.
        self.scale: int | None = None
        local_rows = tensor.values.reshape(tensor.rows.size, tensor.width)
        places = union.places[worker_id]
        is_shared = union.shared[places]
        #: [s, width]: all shared rows with this rank's values; zeros where this rank has no row.
        self.shared = local_rows.new_zeros((int(union.shared.sum()), tensor.width))
        shared_places = np.cumsum(union.shared)[places[is_shared]] - 1
        self.shared[torch.from_numpy(shared_places)] = local_rows[torch.from_numpy(is_shared)]
        #: uint8[k]: this rank's unshared rows, as bytes.
        self.unshared = _as_bytes(local_rows[torch.from_numpy(~is_shared)])

    def write_shared(self, total: torch.Tensor) -> None:
        """Write the sum or average of the shared rows, a flat tensor, to `values`."""
        self.finite &= not (self.fixed and bool(total.isnan().any()))
        self.values[torch.from_numpy(self.union.shared)] = total.view(self.shared.shape).to(self.values.dtype)

    def unshared_bytes(self, worker: int) -> int:
        """Return the number of bytes of a worker's unshared rows."""
        return self.union.unshared(worker).size * self.tensor.width * self.values.element_size()

    def write_unshared(
        self, worker: int, content: NDArray[np.uint8], scale_rows: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """Write a worker's unshared rows to `values`.

        scale_rows: returns a row's sum or average, given the values of the single worker that has it.
        """
        if content.size:  # torch does not view an empty tensor as one of another type
            places = torch.from_numpy(self.union.unshared(worker))
            rows = torch.from_numpy(content.copy()).view(self.values.dtype)
            self.finite &= not self.fixed or bool(rows.isfinite().all())
            scaled = scale_rows(rows).view(places.numel(), self.tensor.width)
            self.values[places] = scaled.to(self.values.dtype)

    def write(self) -> None:
        """Replace the tensor's content by its sum."""
        self.tensor.write(self.union.rows, self.values)


def sum_rows(
    summation: GatheringSummation,
    tensors: Sequence[SparseTensor],
    call: str,
    *,
    average: bool,
    factor: float | None = None,
    precise_up_to: float = 0,
    sum_flat: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> list[RowSum]:
    """Return the sum of each tensor over ranks.

    Floats of shared rows are summed in fixed point, if the union has more than `precise_up_to` elements.
    Integers, and floats of a smaller union, are summed by `sum_flat`, which takes and returns flat tensors.
    Unshared rows are gathered without rounding. In fixed point, a value that is not finite makes the tensor's
    whole sum NaN.

    call: its name, for errors. average: divide by the number of ranks. factor: multiply by it first.
    Raises PlanMismatchError unless `call` and the tensors' shapes and types are the same on all ranks.
    """

    def multiplied(values: torch.Tensor) -> torch.Tensor:
        return values if factor is None else values.float() * factor

    def scaled(values: torch.Tensor) -> torch.Tensor:
        values = multiplied(values)
        if not average:
            return values
        if values.is_floating_point():
            return values.double() / summation.workers
        return values.div(summation.workers, rounding_mode="trunc")

    call = f"{call} of {', '.join(map(str, tensors))}"
    unions = unite_rows(summation, [(tensor.rows, tensor.length) for tensor in tensors], call)
    sums = [
        RowSum(tensor, union, summation.worker_id, precise_up_to)
        for tensor, union in zip(tensors, unions, strict=True)
    ]
    fixed = [row_sum for row_sum in sums if row_sum.fixed]
    floats = [multiplied(row_sum.shared.float()).view(-1).numpy() for row_sum in fixed]
    for row_sum, (total, scale) in zip(fixed, sum_floats(summation, floats, average=average), strict=True):
        row_sum.write_shared(torch.from_numpy(total))
        row_sum.scale = scale
    for row_sum in sums:
        if not row_sum.fixed and row_sum.shared.numel():
            assert sum_flat is not None
            row_sum.write_shared(sum_flat(row_sum.shared.view(-1)))
    _exchange_unshared(summation, sums, scaled)
    for row_sum in sums:
        if not row_sum.finite:
            row_sum.values.fill_(math.nan)
    return sums


def _exchange_unshared(
    summation: GatheringSummation, sums: Sequence[RowSum], scale_rows: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Gather all workers' unshared rows, and write them to the sums."""
    workers = range(summation.workers)
    sizes = [[row_sum.unshared_bytes(worker) for row_sum in sums] for worker in workers]
    if not any(map(any, sizes)):
        return
    sent = np.zeros(-(-max(map(sum, sizes)) // 4), np.uint32)
    unshared = np.concatenate([row_sum.unshared for row_sum in sums])
    sent.view(np.uint8)[: unshared.size] = unshared
    rows = summation.all_gather(sent).reshape(len(workers), -1).view(np.uint8)
    for worker in workers:
        for row_sum, content in zip(sums, np.split(rows[worker], np.cumsum(sizes[worker])), strict=False):
            row_sum.write_unshared(worker, content, scale_rows)


def _as_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return a host tensor's bytes."""
    flat = tensor.resolve_conj().resolve_neg().contiguous().view(-1)
    # Torch calls a single element contiguous, whatever its stride, but does not view it as bytes.
    content: NDArray[np.uint8] = flat.as_strided(flat.shape, (1,)).view(torch.uint8).numpy()
    return content


def as_words(tensor: torch.Tensor) -> Words:
    """Return a host tensor's bytes as words, padded with zeros."""
    content = _as_bytes(tensor)
    return np.pad(content, (0, -content.size % 4)).view(np.uint32)


def average_rows(
    summation: GatheringSummation, gradients: Mapping[tuple[str, ...], SparseTensor], step: int
) -> SparseResult:
    """Replace gradients by their averages over ranks; return bytes, seconds and statistics.

    gradients: each by the name of its parameter. Raises InvalidRequestError for a dtype that hooks do not
    take, PlanMismatchError if ranks differ.
    """
    names, tensors = [name for (name,) in gradients], list(gradients.values())
    for name, tensor in zip(names, tensors, strict=True):
        dtype = str(tensor.values.dtype).removeprefix("torch.")
        if dtype not in SUPPORTED_DTYPES:
            error = unsupported_dtype(name, dtype)
            raise InvalidRequestError(f"{error}, or leave the hook out: DDP itself sums float64")
    started, metered = time.perf_counter(), _MeteredSummation(summation)
    sums = sum_rows(metered, tensors, f"average gradients {', '.join(names)}", average=True)
    for row_sum in sums:
        row_sum.write()
    ended = time.perf_counter()
    stats: Any = {name: _stats(row_sum, summation) for name, row_sum in zip(names, sums, strict=True)}
    elements = sum(tensor_stats.elements for tensor_stats in stats.values())
    return SparseResult(
        summary=StepSummary(
            names=tuple(names),
            words_sent=dict,
            elements=elements,
            non_finite=sum(not row_sum.finite for row_sum in sums),
            candidates=0,
            cells=0,
            unpeeled=0,
            tensors=lambda: stats,
        ),
        wire_bytes=metered.chunks * packet_bytes(summation.lanes),
        dense_bytes=-(-elements // summation.lanes) * packet_bytes(summation.lanes),
        encode_s=metered.ended - started - metered.seconds,
        network_s=metered.seconds,
        decode_s=ended - metered.ended,
    )


def _stats(row_sum: RowSum, summation: GatheringSummation) -> TensorStats:
    """Return the statistics of a tensor that was summed by rows."""
    tensor, workers, bound = row_sum.tensor, summation.workers, 0.0
    if row_sum.scale is not None and row_sum.shared.numel():
        bound = error_bound(row_sum.scale, workers, workers)
    length = max(tensor.length, 1)
    return TensorStats(
        elements=tensor.length * tensor.width,
        form="rows",
        index=None,
        density=row_sum.union.rows.size / length if row_sum.finite else math.nan,
        density_worker=tensor.rows.size / length if row_sum.finite else math.nan,
        error_bound=bound if row_sum.finite else math.inf,
        scale_block=ROW,
    )


class _MeteredSummation:
    """A wrapper of a summation that counts the chunks which this worker sends, and the seconds it waits."""

    def __init__(self, summation: GatheringSummation) -> None:
        self._summation = summation
        self.lanes, self.workers, self.worker_id = summation.lanes, summation.workers, summation.worker_id
        self.chunks, self.seconds, self.ended = 0, 0.0, time.perf_counter()

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`."""
        self.chunks += sum(-(-part.words.size // self.lanes) for part in parts)
        return self._timed(lambda: self._summation.sum_words(parts))

    def all_gather(self, words: Words) -> Words:
        """See `PieceSummation.all_gather`; a worker also sends a packet for every `PACE` chunks of others."""
        chunks = -(-words.size // self.lanes)
        self.chunks += chunks + chunks * (self.workers - 1) // PACE
        return self._timed(lambda: self._summation.all_gather(words))

    def _timed(self, exchange: Callable[[], T]) -> T:
        """Call `exchange` and add its time; return its result."""
        started = time.perf_counter()
        result = exchange()
        self.ended = time.perf_counter()
        self.seconds += self.ended - started
        return result
