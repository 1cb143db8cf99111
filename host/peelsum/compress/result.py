"""The results of a compressed sum, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from peelsum.allreduce import Form, IndexForm
from peelsum.compress.compressor import Floats, Kind
from peelsum.compress.memory import Exact


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
