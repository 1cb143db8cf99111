"""Reductions of tensors of any number type over a switch: exact, or rounded once."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from peelsum.allreduce import Allreduce, Part, reduce_scatter
from peelsum.summation import Op, PieceSummation, Words, gather_by_or
from peelsum.torch.buckets import as_array
from peelsum.torch.errors import HookConfigError
from peelsum.torch.sparse_sums import RowSum, SparseTensor, as_words, check_layouts, sum_rows

_R: Any = dist.ReduceOp.RedOpType
SUMS = (_R.SUM, _R.AVG, _R.PREMUL_SUM)
_BITWISE = (_R.BOR, _R.BAND, _R.BXOR)
#: Types that the all-reduce takes. Floats of 8 bits are converted to float32.
_SUMMABLE = (torch.float32, torch.float16, torch.bfloat16)
_FLOATS = (
    *_SUMMABLE,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)
_INTEGERS = (
    *(torch.uint8, torch.int8, torch.int16, torch.uint16),
    *(torch.int32, torch.uint32, torch.int64, torch.uint64),
)
#: For booleans, the bitwise reduction with the same result.
_BOOL_REDUCTIONS = {_R.SUM: _R.BOR, _R.MAX: _R.BOR, _R.MIN: _R.BAND, _R.PRODUCT: _R.BAND}
#: An int64 is summed in pieces of this many bits, which leaves room for the carries of 1,024 workers.
_PIECE_BITS = 22


class Reduction(NamedTuple):
    """A reduction of tensors, which their type supports."""

    op: Any
    """A `ReduceOp.RedOpType`."""
    factor: float | None = None
    """By which each tensor is multiplied before the reduction; None for PREMUL_SUM only."""

    @classmethod
    def of(cls, call: str, tensors: list[torch.Tensor], opts: Any) -> Reduction:
        """Return the reduction that a call's options ask for.

        Raises HookConfigError if the type of a tensor does not support it; `call` is its name in the error.
        """
        check_device(call, tensors)
        check_layouts(call, tensors)
        op, factor = opts.reduceOp.__getstate__()
        for tensor in tensors:
            if tensor.dtype == torch.bool:
                op = _BOOL_REDUCTIONS.get(op, op)
            if remedy := _remedy(tensor, op):
                raise HookConfigError(f"{call}: {op.name} of {tensor.dtype}: {remedy}")
        return cls(op, None if factor is None else float(factor))

    def by_switch(self, tensor: torch.Tensor) -> bool:
        """Return whether a switch can do this reduction of the tensor."""
        if self.op in SUMS:
            return tensor.dtype != torch.float64
        if tensor.is_sparse:
            # A row that a rank does not have is zero, which changes no OR. Gloo refuses other operations.
            return self.op == _R.BOR and tensor.dtype == torch.bool
        return self.op in (_R.BOR, _R.BAND)


def check_device(call: str, tensors: Iterable[torch.Tensor]) -> None:
    """Raise HookConfigError unless all tensors are on cpu or cuda."""
    for tensor in tensors:
        if tensor.device.type not in ("cpu", "cuda"):
            raise HookConfigError(f"{call}: a tensor is on {tensor.device}; move it to cpu or cuda")


def _remedy(tensor: torch.Tensor, op: Any) -> str:
    """Return the end of an error message about a reduction that is not possible; "" if it is possible."""
    dtype = tensor.dtype
    if dtype not in _FLOATS and dtype not in _INTEGERS and dtype != torch.bool:
        return "is not for this type; give torch.view_as_real(tensor), or a tensor of floats or integers"
    if op in _BITWISE and dtype in _FLOATS:
        return "takes integers and booleans; give tensor.view(torch.int32), or of the type's size"
    if op in SUMS and dtype == torch.bool:
        return "takes numbers; give tensor.float()"
    if op == _R.PREMUL_SUM and dtype in _INTEGERS:
        return "takes floats; give tensor.float()"
    if op in (_R.MIN, _R.MAX) and dtype == torch.uint64:
        return "is not for this type; give tensor.to(torch.int64), if it has room"
    return ""


class TensorSums:
    """One worker's reductions of tensors in host memory, by one thread.

    precise_up_to: float tensors of up to this many elements are gathered and added in float64 (see
    `SwitchOptions`).
    """

    def __init__(self, summation: PieceSummation, precise_up_to: float) -> None:
        self._summation, self._precise_up_to = summation, precise_up_to
        self._sum, self._average = Allreduce(summation), Allreduce(summation, average=True)

    def reduce(self, tensor: torch.Tensor, reduction: Reduction) -> torch.Tensor:
        """Return the reduction over workers, in the same shape, perhaps in a wider type."""
        flat = tensor.detach().resolve_neg().contiguous().view(-1)
        if reduction.op in (_R.BOR, _R.BAND):
            result = self._reduce_bits(flat, by_and=reduction.op == _R.BAND)
        elif tensor.dtype in _FLOATS:
            result = self._sum_floats(flat, reduction)
        else:
            result = torch.from_numpy(self._sum_integers(flat.numpy(), average=reduction.op == _R.AVG))
        return result.view(tensor.shape)

    def reduce_rows(self, tensor: SparseTensor, reduction: Reduction) -> RowSum:
        """Return the reduction of a sparse tensor over workers."""
        sum_flat = functools.partial(self.reduce, reduction=reduction)
        (total,) = sum_rows(
            self._summation,
            [tensor],
            reduction.op.name,
            average=reduction.op == _R.AVG,
            factor=reduction.factor,
            precise_up_to=self._precise_up_to,
            sum_flat=sum_flat,
        )
        return total

    def reduce_scatter(self, flat: torch.Tensor, reduction: Reduction) -> torch.Tensor:
        """Return this worker's chunk, [n], of the reduction of flat[workers * n]."""
        if reduction.op not in SUMS or flat.dtype not in _FLOATS or flat.numel() <= self._precise_up_to:
            chunks = self.reduce(flat, reduction).chunk(self._summation.workers)
            return chunks[self._summation.worker_id]
        values = (flat.float() if reduction.factor is None else flat.float() * reduction.factor).numpy()
        average = reduction.op == _R.AVG
        return torch.from_numpy(reduce_scatter(self._summation, values, average=average))

    def all_gather(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the flat tensors [n] of all workers, one after the other: [workers * n]."""
        words, size = _words_with_size(flat)
        rows = self._summation.all_gather(words).reshape(self._summation.workers, -1)
        _check_sizes("all_gather", rows[:, 0], words[0])
        content = rows[:, 1:].copy().view(np.uint8)[:, :size]
        return torch.from_numpy(content.reshape(-1)).view(flat.dtype)

    def broadcast(self, tensor: torch.Tensor, root: int) -> torch.Tensor:
        """Return the tensor of worker `root`."""
        words, size = _words_with_size(tensor.detach().contiguous().view(-1))
        received = self._summation.broadcast(words, root)
        _check_sizes("broadcast", received[:1], words[0])
        content = torch.from_numpy(received[1:].view(np.uint8)[:size])
        return content.view(tensor.dtype).view(tensor.shape)

    def barrier(self) -> None:
        """Wait for all workers, by a sum of one word."""
        self._sum_words(np.zeros(1, np.uint32), "add", 4)

    def _reduce_bits(self, flat: torch.Tensor, *, by_and: bool) -> torch.Tensor:
        """Return the OR of all workers' bits; or their AND, as the complement of the OR of complements."""
        words, size = as_words(flat), flat.nbytes
        result = self._sum_words(~words if by_and else words, "or", size)
        return torch.from_numpy((~result if by_and else result).view(np.uint8)[:size]).view(flat.dtype)

    def _sum_floats(self, flat: torch.Tensor, reduction: Reduction) -> torch.Tensor:
        """Return the sum or average of floats: in float64 if they are few, else by the exact all-reduce."""
        if reduction.factor is not None:
            flat = flat.float() * reduction.factor
        average = reduction.op == _R.AVG
        if flat.numel() <= self._precise_up_to:
            words = _words_with_size(flat.float())[0]
            rows = gather_by_or(self._summation, words)
            _check_sizes("reduction", rows[:, 0], words[0])
            with np.errstate(invalid="ignore"):  # added in the workers' order
                total = functools.reduce(np.add, rows[:, 1:].view(np.float32).astype(np.float64))
            total[np.isnan(total)] = np.nan
            return torch.from_numpy(total / self._summation.workers if average else total)
        allreduce = self._average if average else self._sum
        flat = flat if flat.dtype in _SUMMABLE else flat.float()
        return torch.from_numpy(allreduce.sum({"": as_array(flat)})[""].values)

    def _sum_integers(self, numbers: NDArray[Any], *, average: bool) -> NDArray[Any]:
        """Return the sum modulo the type's range; or the average, rounded towards zero.

        Averages and 64-bit integers are summed in three pieces, none of which overflows 32 bits.
        """
        if not average and numbers.itemsize <= 4:
            return self._sum_words(numbers.astype(np.uint32), "add", numbers.nbytes).astype(numbers.dtype)
        signed = np.issubdtype(numbers.dtype, np.signedinteger)
        wide = numbers.astype(np.int64 if signed else np.uint64).view(np.uint64)
        shifts = np.arange(0, 64, _PIECE_BITS, dtype=np.uint64)[:, None]
        pieces = (wide >> shifts & np.uint64((1 << _PIECE_BITS) - 1)).astype(np.uint32)
        sums = self._sum_words(pieces.reshape(-1), "add", numbers.nbytes).reshape(pieces.shape)
        total: NDArray[Any] = (sums.astype(np.uint64) << shifts).sum(axis=0, dtype=np.uint64)
        if signed:
            total = total.view(np.int64)
        if average:
            workers = total.dtype.type(self._summation.workers)
            total = total // workers + ((total < 0) & (total % workers != 0))
        return total.astype(numbers.dtype)

    def _sum_words(self, words: Words, op: Op, size: int) -> Words:
        """Return the sum or OR of all workers' words.

        Raises HookConfigError unless the tensors of all workers have `size` bytes. Two more words check that:
        a hash of the size, and the hash's complement. If the hashes differ, their OR differs from the
        expected words, and so does their sum except for about one in 2**32 sizes.
        """
        digest = zlib.crc32(size.to_bytes(8))
        header = np.array([digest, digest ^ 0xFFFFFFFF], np.uint32)
        expected = header if op == "or" else header * np.uint32(self._summation.workers)
        (result,) = self._summation.sum_words([Part(np.concatenate([header, words]), op)])
        if (result[:2] != expected).any():
            raise HookConfigError(
                f"reduction: other ranks gave tensors of other sizes than this one, of {size} bytes; give "
                "tensors of one size"
            )
        return result[2:]


def _words_with_size(flat: torch.Tensor) -> tuple[Words, int]:
    """Return a tensor's bytes as words, after their number modulo 2**32 as a first word; and the number."""
    size = flat.nbytes
    return np.concatenate([np.array([size & 0xFFFFFFFF], np.uint32), as_words(flat)]), size


def _check_sizes(call: str, sizes: Words, local_size: Any) -> None:
    """Raise HookConfigError unless the tensors of all workers have as many bytes as this worker's."""
    if (sizes != local_size).any():
        raise HookConfigError(
            f"{call}: ranks gave {sizes.tolist()} bytes, and this one {local_size}; give tensors of one size"
        )
