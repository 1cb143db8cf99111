"""The results of a compressed sum, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from peelsum.allreduce import Form, IndexForm
from peelsum.compress.compressor import Floats, Kind, Positions
from peelsum.compress.memory import Exact


@dataclass(frozen=True, eq=False)
class CompressedTensor:
    """One tensor's sum, the same on every worker, bit for bit, and what this worker sent for it."""

    name: str
    """The tensor's name."""

    form: Kind | Form
    """The kind of its payloads; if they were indexed, the form in which the all-reduce sent the values."""

    index: IndexForm | None
    """The form of the all-reduce's index; None for other kinds than indexed."""

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

    error_bound: float
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
    """Bytes for the same elements sent dense, one word each, in packets of the same size."""

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


@dataclass(frozen=True, eq=False)
class FlatSum:
    """The sum of tensors that lie end to end, and what this worker sent for it."""

    form: Kind | Form
    """See `CompressedTensor.form`; so are the others, of all tensors together."""
    values: Floats
    finite: bool
    union: Positions
    """int64[u], ascending: the elements that are not zero in the sum, or on any worker."""
    own: Positions
    """int64[k], ascending: the elements that this worker sent as other than zero."""
    sent: Exact | None
    """What this worker contributed, at `own`; None without error feedback."""

    def cut(self, shapes: Mapping[str, tuple[int, ...]]) -> list[CompressedTensor]:
        """Return each tensor's result."""
        if len(shapes) == 1:
            ((name, shape),) = shapes.items()
            return [self._tensor(name, shape, self.values, self.sent, self.union.size, self.own.size)]
        ends = np.cumsum([math.prod(shape) for shape in shapes.values()], dtype=np.int64)
        at_union, at_own = (np.searchsorted(one, ends) for one in (self.union, self.own))
        rows = zip(
            shapes.items(),
            cut(self.values, ends),
            self._sent(ends, at_own),
            np.diff(at_union, prepend=0).tolist(),
            np.diff(at_own, prepend=0).tolist(),
            strict=True,
        )
        return [self._tensor(*named, *row) for named, *row in rows]

    def _tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        values: Floats,
        sent: Exact | None,
        in_union: int,
        in_own: int,
    ) -> CompressedTensor:
        """Return a tensor's result, given how many of its elements are in the union and sent."""
        return CompressedTensor(
            name=name,
            form=self.form,
            index=None,
            values=values.reshape(shape),
            finite=self.finite,
            sent=sent if self.finite else None,
            density=in_union / max(values.size, 1) if self.finite else math.nan,
            density_worker=in_own / max(values.size, 1) if self.finite else math.nan,
            error_bound=0.0,
        )

    def _sent(self, ends: NDArray[np.int64], at_own: NDArray[np.int64]) -> Sequence[Exact | None]:
        if self.sent is None:
            return [None] * ends.size
        begins = np.repeat(np.concatenate([[0], ends[:-1]]), np.diff(at_own, prepend=0))
        parts = [cut(one, at_own) for one in (self.sent.positions - begins, self.sent.numbers)]
        return [Exact(*one) for one in zip(*parts, cut(self.sent.scales, at_own), strict=True)]


_T = TypeVar("_T", bound=np.generic)


def cut(array: NDArray[_T], ends: NDArray[np.int64]) -> list[NDArray[_T]]:
    """Return the array's parts, which end at `ends`, as views."""
    return [array[begin:end] for begin, end in pairwise([0, *ends.tolist()])]
