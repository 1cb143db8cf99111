"""The results of a step: each tensor's exact integer sums, their floats, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.indexes import IndexForm
from peelsum.allreduce.plan import Form
from peelsum.codec import FixedPoint, rounding_bounds

Integers = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TensorResult:
    """One tensor's sum. It is the same on every worker, bit for bit, except for `quantized`.

    With the gpu kernels, `values`, `quantized_at` and `total_at` are torch tensors on the device.
    """

    name: str
    """The tensor's name; its number, as text, if the tensors were a list."""
    form: Form
    """How the values were sent."""
    index: IndexForm | None
    """The form of the index; None for a dense tensor."""
    shape: tuple[int, ...]
    """The tensor's shape."""
    values: NDArray[np.float32]
    """float32[shape]: the sum or average, rounded once; NaN if any worker's tensor was not finite."""
    finite: bool
    """Whether every worker's tensor was finite. If not, `total` and `quantized` are zero."""
    fixed: FixedPoint | None
    """The fixed-point format, with the scales of blocks.

    None if no values were exchanged: all zero, or some not finite.
    """
    workers: int
    """Number of workers."""
    divisor: int
    """Number by which the sum was divided: 1, or `workers` for an average."""
    words_sent: int
    """32-bit words that this worker sent for the tensor: exponents, index, values and left-over."""
    selection: Callable[[], NDArray[np.int64]] | None
    """Returns the `positions`; None means all elements."""
    quantized_at: Integers
    """int32[k]: the integers that this worker contributed; int64[k] if a sum may need more than 32 bits."""
    total_at: Integers
    """Their sum over all workers, of the same shape and type."""
    error_bound: float = 0.0
    """The largest possible difference between an element of `values` and the exact sum or average.

    It includes the rounding to float32, and holds for all values with these exponents; `error_bounds` is
    tighter. Infinite if a sum may exceed float32 or was not finite.
    """
    union_size: int = 0
    """Elements that are non-zero on any worker: of a dense tensor, those of `total`; else the candidates."""
    local_non_zeros: int = 0
    """Elements that are not zero in this worker's `quantized`."""

    @cached_property
    def positions(self) -> NDArray[np.int64] | None:
        """Elements int64[k] to which `quantized_at` and `total_at` belong; None means all.

        They are computed when they are first read.
        """
        return None if self.selection is None else self.selection()

    @cached_property
    def quantized(self) -> Integers:
        """The integers that this worker contributed, `quantized_at` in the tensor's shape."""
        return self._spread(self.quantized_at)

    @cached_property
    def total(self) -> Integers:
        """The exact sum of all workers' `quantized`."""
        return self._spread(self.total_at)

    @cached_property
    def scales(self) -> NDArray[np.int32] | None:
        """int32[shape]: each element was multiplied by 2**scale before rounding; None if `fixed` is None."""
        return None if self.fixed is None else self.scales_at(np.arange(self.elements)).reshape(self.shape)

    def scales_at(self, positions: NDArray[np.int64] | None) -> NDArray[np.int32]:
        """Return the scales int32[k] of elements positions[k]; of all if None. `fixed` must not be None."""
        assert self.fixed is not None
        return self.fixed.scales_at(np.arange(self.elements) if positions is None else _on_host(positions))

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)

    @cached_property
    def error_bounds(self) -> NDArray[np.float64]:
        """float64[shape]: for each element, a bound on the difference of `values` from the exact result.

        That is the sum of the workers' floats, divided by `divisor`. The bound is 0 where no worker had a
        non-zero, and infinite as for `error_bound`.
        """
        bounds = np.full(self.elements, math.inf)
        if self.finite:
            bounds[:] = 0.0
            if self.fixed is not None:
                at = slice(None) if self.positions is None else _on_host(self.positions)
                values = _on_host(self.values).reshape(-1)[at]
                scales = self.scales_at(self.positions)
                bounds[at] = rounding_bounds(scales, values, self.workers, self.divisor)
        return bounds.reshape(self.shape)

    @property
    def scale_block(self) -> int | None:
        """Elements in each block that had a scale of its own; None if no scale was needed."""
        return None if self.fixed is None else self.fixed.block

    @property
    def density(self) -> float:
        """Share of elements that are non-zero on any worker, according to the index.

        For a dense tensor, it is the share of non-zeros in `total`. False positives of the index count. It is
        0 for a tensor without elements, and NaN if not finite.
        """
        if not self.finite:
            return float("nan")
        return self.union_size / self.elements if self.elements else 0.0

    @property
    def density_worker(self) -> float:
        """Share of elements that are not zero in this worker's `quantized`; NaN if not finite."""
        if not self.finite:
            return float("nan")
        return self.local_non_zeros / max(self.elements, 1)

    def _spread(self, numbers: Integers) -> Integers:
        """Return selected elements' numbers in the tensor's shape, with zeros elsewhere, on the host."""
        numbers = _on_host(numbers)
        if numbers.size == self.elements:
            return numbers.reshape(self.shape)
        spread = np.zeros(self.elements, numbers.dtype)
        if numbers.size:
            spread[_on_host(self.positions)] = numbers
        return spread.reshape(self.shape)


class Contribution(NamedTuple):
    """The integers that a worker contributed to a tensor's sum, without zeros."""

    positions: NDArray[np.int64]
    """int64[k], ascending: their elements."""
    numbers: NDArray[np.int64]
    """int64[k]: the integers."""
    scales: NDArray[np.int32]
    """int32[k]: each is the element's value times 2**scale, rounded."""


@dataclass(frozen=True)
class TensorStats:
    """Statistics of a tensor's sum, without its arrays."""

    elements: int
    """Number of elements."""
    form: Form | Literal["additive", "indexed", "gather", "rows"]
    """How the values were sent: see `TensorResult.form`; as additive, indexed or gathered payloads of a
    compressor; or as the rows of a sparse gradient."""
    index: IndexForm | None
    """How the index was sent; None for a form without an index."""
    density: float
    """Share of elements that were non-zero on some worker; NaN if the tensor was not finite."""
    density_worker: float
    """Share of elements that were non-zero on this worker; NaN if the tensor was not finite."""
    error_bound: float
    """How far an element of the result can be from the exact sum (or average) of the workers' floats."""
    scale_block: int | None
    """Elements in each block that had a scale of its own; None if all had the same, or none was needed."""


def summaries(results: Iterable[Any]) -> dict[str, TensorStats]:
    """Return each tensor's statistics by name, from its result, which has the same attributes."""
    names = [field.name for field in fields(TensorStats)]
    return {result.name: TensorStats(**{name: getattr(result, name) for name in names}) for result in results}


@dataclass(frozen=True, eq=False)
class StepSummary:
    """Statistics of a step's tensors."""

    names: tuple[str, ...]
    """The tensors' names."""
    words_sent: Callable[[], Mapping[str, int]]
    """Returns the words that this worker sent for each tensor, by name."""
    elements: int
    """Elements of all tensors."""
    non_finite: int
    """Tensors that were not finite on some worker."""
    candidates: int
    """Candidates whose numbers were sent as a sketch; 0 without one."""
    cells: int
    """Cells of the step's sketch."""
    unpeeled: int
    """Candidates that were not peeled, whose numbers were then sent as they are."""
    tensors: Callable[[], Mapping[str, TensorStats]]
    """Returns each tensor's statistics, by name. It keeps no arrays of elements."""


@dataclass(frozen=True, eq=False)
class StepResult(Mapping[str, TensorResult]):
    """The results of one step, by the tensors' names (or by their numbers), and its cost."""

    tensors: Sequence[TensorResult]
    """The results, in the order of the tensors."""
    summary: StepSummary
    """Counts of the step's tensors, without arrays."""
    members: tuple[int, ...]
    """The ranks in the sums, as numbered at the start of the run. An average is divided by their number."""
    contributions: Callable[[], Mapping[str, Contribution]]
    """Returns what this worker contributed to each tensor, by name: none of one that is not finite."""
    digest: int
    """The plan's digest."""
    one_round: bool
    """Whether the step was done in one round, as predicted from earlier steps."""
    exchanges: int
    """Number of exchanges, one after the other."""
    wire_bytes: int
    """Bytes of UDP payload that this worker contributed: with headers and padding, not retransmissions."""
    dense_bytes: int
    """Bytes for the same elements sent as they are, 2 or 4 bytes each, in packets of the same size."""
    encode_s: float
    """Seconds in the codec before sending."""
    network_s: float
    """Seconds of waiting for sums."""
    decode_s: float
    """Seconds in the codec after receiving."""

    def __getitem__(self, name: str | int) -> TensorResult:
        return self.tensors[name] if isinstance(name, int) else self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def density(self) -> float:
        """Share of all elements that are non-zero, by each tensor's `density`."""
        elements = sum(tensor.elements for tensor in self.tensors)
        occupied = sum(tensor.density * tensor.elements for tensor in self.tensors)
        return occupied / elements if elements else 0.0

    @cached_property
    def _by_name(self) -> dict[str, TensorResult]:
        return {tensor.name: tensor for tensor in self.tensors}


def _on_host(array: Any) -> NDArray[Any]:
    """Return a NumPy array as it is, and a tensor's content as a NumPy array."""
    return array if isinstance(array, np.ndarray) else np.asarray(array.cpu())
