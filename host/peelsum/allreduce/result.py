"""What a step came to: exact integer sums and their floats, per tensor, with what they cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce.indexes import IndexForm
from peelsum.allreduce.plan import Form
from peelsum.codec import FixedPoint, error_bound


@dataclass(frozen=True, eq=False)
class TensorResult:
    """One tensor's sum, the same bits on every worker (but for `quantized`, which is this worker's own).

    With the gpu kernels `values`, `positions`, `quantized_at` and `total_at` are torch tensors on the device.
    """

    name: str
    form: Form
    #: The form of the index; None if there was none.
    index: IndexForm | None
    shape: tuple[int, ...]
    #: float32[shape]: the sum or average, rounded once (two limbs: by way of float64, which can round first);
    #: all NaN if any worker's tensor was not finite.
    values: NDArray[np.float32]
    #: Whether every worker's tensor was finite. If not, `total` and `quantized` are zero.
    finite: bool
    #: How values became integers; None if nothing had to: all zero or not finite.
    fixed: FixedPoint | None
    fan_in: int
    #: 32-bit words that this worker sent for the tensor: exponents, index, values and left-over.
    words_sent: int
    #: Elements int64[k] that the following two stand for; None means all of them.
    positions: NDArray[np.int64] | None
    #: int32[limbs, k]
    quantized_at: NDArray[np.int32]
    total_at: NDArray[np.int32]
    #: Elements of `total` that are estimates: none, unless the all-reduce was asked to estimate.
    estimated: int = 0

    @cached_property
    def quantized(self) -> NDArray[np.int32] | NDArray[np.int64]:
        """int32[shape], or int64 if there are two limbs: what this worker contributed."""
        return self._spread(self.quantized_at)

    @cached_property
    def total(self) -> NDArray[np.int32] | NDArray[np.int64]:
        """int32[shape], or int64 if there are two limbs: the exact sum of all workers' `quantized`."""
        return self._spread(self.total_at)

    @property
    def scale(self) -> int | None:
        """Values were multiplied by 2**scale before rounding; None if nothing had to be."""
        return None if self.fixed is None else self.fixed.scale

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)

    @property
    def error_bound(self) -> float:
        """How far an element of the sum can be from that of the workers' floats; an average, so much less."""
        return 0.0 if self.fixed is None else error_bound(self.fixed.scale, self.fan_in)

    @cached_property
    def density(self) -> float:
        """Share of elements that are non-zero on any worker, by the index; of a dense tensor, in the total.

        0 for a tensor without elements, NaN if not finite. An index with false positives counts them.
        """
        if not self.finite:
            return float("nan")
        occupied = int(self.total_at.any(0).sum()) if self.positions is None else len(self.positions)
        return occupied / self.elements if self.elements else 0.0

    def _spread(self, limbs: NDArray[np.int32]) -> NDArray[np.int32] | NDArray[np.int64]:
        limbs = _on_host(limbs)
        numbers = limbs[0] if len(limbs) == 1 or self.fixed is None else self.fixed.joined(limbs)
        if numbers.size == self.elements:
            return numbers.reshape(self.shape)
        spread = np.zeros(self.elements, numbers.dtype)
        if numbers.size:
            spread[_on_host(self.positions)] = numbers
        return spread.reshape(self.shape)


@dataclass(frozen=True, eq=False)
class StepResult(Mapping[str, TensorResult]):
    """Results of one step by the tensors' names (their positions, if they came as a list), with its cost."""

    tensors: tuple[TensorResult, ...]
    digest: int
    #: Bytes of UDP payload of this worker's contributions, headers and padding included, resends not.
    wire_bytes: int
    #: The same elements sent dense, one word each, in packets of the same size.
    dense_bytes: int
    #: Seconds in the codec before the network, waiting for sums, and in the codec after.
    encode_s: float
    network_s: float
    decode_s: float

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
    """An array as it is; what is in a tensor, wherever it lies."""
    return array if isinstance(array, np.ndarray) else np.asarray(array.cpu())
