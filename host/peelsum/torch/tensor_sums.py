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
from peelsum.torch.buckets import summable
from peelsum.torch.errors import HookConfigError
from peelsum.torch.sparse_sums import RowSum, SparseTensor, check_layouts, sum_rows

_R: Any = dist.ReduceOp.RedOpType
SUMS = (_R.SUM, _R.AVG, _R.PREMUL_SUM)
_BITWISE = (_R.BOR, _R.BAND, _R.BXOR)
#: What the switch adds as it is. Floats of 8 bits are added as float32.
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
#: Of booleans, every reduction is one of bits.
_OF_BOOLS = {_R.SUM: _R.BOR, _R.MAX: _R.BOR, _R.MIN: _R.BAND, _R.PRODUCT: _R.BAND}
#: An int64 is summed in pieces of this many bits, which leaves room for the carries of 1,024 workers.
_PIECE_BITS = 22


class Reduction(NamedTuple):
    """A reduction of tensors of one type, which `of` found to be possible."""

    op: Any
    """A `ReduceOp.RedOpType`."""
    factor: float | None = None
    """What each tensor is multiplied by before it is added."""

    @classmethod
    def of(cls, call: str, tensors: list[torch.Tensor], opts: Any) -> Reduction:
        """Return the reduction of a call's options. Raises HookConfigError if the tensors' type lacks it."""
        check_device(call, tensors)
        check_layouts(call, tensors)
        op, factor = opts.reduceOp.__getstate__()
        for tensor in tensors:
            if tensor.dtype == torch.bool:
                op = _OF_BOOLS.get(op, op)
            if instead := _instead(tensor, op):
                raise HookConfigError(f"{call}: {op.name} of {tensor.dtype}: {instead}")
        return cls(op, None if factor is None else float(factor))

    def by_switch(self, tensor: torch.Tensor) -> bool:
        """Return whether a switch reduces the tensor."""
        if self.op in SUMS:
            return tensor.dtype != torch.float64
        if (
            tensor.is_sparse
        ):  # rows that a rank lacks are zeros, which change no OR; gloo refuses other operations
            return self.op == _R.BOR and tensor.dtype == torch.bool
        return self.op in (_R.BOR, _R.BAND)


def check_device(call: str, tensors: Iterable[torch.Tensor]) -> None:
    """Raise HookConfigError unless all tensors are on cpu or cuda."""
    for tensor in tensors:
        if tensor.device.type not in ("cpu", "cuda"):
            raise HookConfigError(f"{call}: a tensor is on {tensor.device}; move it to cpu or cuda")


def _instead(tensor: torch.Tensor, op: Any) -> str:
    """Return what to do instead of an impossible reduction; "" if it is possible."""
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

    precise_up_to: up to how many elements floats are added one by one (see `SwitchOptions`).
    """

    def __init__(self, summation: PieceSummation, precise_up_to: float) -> None:
        self._summation, self._precise_up_to = summation, precise_up_to
        self._sum, self._average = Allreduce(summation), Allreduce(summation, average=True)

    def reduced(self, tensor: torch.Tensor, reduction: Reduction) -> torch.Tensor:
        """Return the reduction over workers: the same shape, a type that `copy_` converts to the tensor's."""
        flat = tensor.detach().resolve_neg().contiguous().view(-1)
        if reduction.op in (_R.BOR, _R.BAND):
            result = self._bits(flat, inverted=reduction.op == _R.BAND)
        elif tensor.dtype in _FLOATS:
            result = self._floats(flat, reduction)
        else:
            numbers = flat.numpy()
            average = reduction.op == _R.AVG
            total = (
                self._of_64(numbers, average) if average or numbers.itemsize == 8 else self._of_32(numbers)
            )
            result = torch.from_numpy(total)
        return result.view(tensor.shape)

    def summed_rows(self, tensor: SparseTensor, reduction: Reduction) -> RowSum:
        """Return the reduction of a sparse tensor over workers."""
        reduced = functools.partial(self.reduced, reduction=reduction)
        (total,) = sum_rows(
            self._summation,
            [tensor],
            reduction.op.name,
            average=reduction.op == _R.AVG,
            factor=reduction.factor,
            precise_up_to=self._precise_up_to,
            sum_flat=reduced,
        )
        return total

    def scattered(self, flat: torch.Tensor, reduction: Reduction) -> torch.Tensor:
        """Return this worker's piece, [n], of the reduction of flat[workers * n]."""
        workers, mine = self._summation.workers, self._summation.worker_id
        if reduction.op not in SUMS or flat.dtype not in _FLOATS or flat.numel() <= self._precise_up_to:
            return self.reduced(flat, reduction).chunk(workers)[mine]
        values = (flat.float() if reduction.factor is None else flat.float() * reduction.factor).numpy()
        average = reduction.op == _R.AVG
        return torch.from_numpy(reduce_scatter(self._summation, values, average=average))

    def gathered(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the flat tensors [n] of all workers, end to end: [workers * n]."""
        words, size = _sized(flat)
        everybody = self._summation.all_gather(words).reshape(self._summation.workers, -1)
        _check_sizes("all_gather", everybody[:, 0], words[0])
        found = everybody[:, 1:].copy().view(np.uint8)[:, :size]
        return torch.from_numpy(found.reshape(-1)).view(flat.dtype)

    def sent(self, tensor: torch.Tensor, root: int) -> torch.Tensor:
        """Return the tensor of worker `root`."""
        words, size = _sized(tensor.detach().contiguous().view(-1))
        sent = self._summation.broadcast(words, root)
        _check_sizes("broadcast", sent[:1], words[0])
        found = torch.from_numpy(sent[1:].view(np.uint8)[:size])
        return found.view(tensor.dtype).view(tensor.shape)

    def barrier(self) -> None:
        """Wait for all workers, by a sum of one word."""
        self._combined(np.zeros(1, np.uint32), "add", 4)

    def _bits(self, flat: torch.Tensor, inverted: bool = False) -> torch.Tensor:
        """Return the OR of all workers' bits; inverted: their AND, by the OR of their complements."""
        words, size = _as_words(flat)
        result = self._combined(~words if inverted else words, "or", size)
        return torch.from_numpy((~result if inverted else result).view(np.uint8)[:size]).view(flat.dtype)

    def _floats(self, flat: torch.Tensor, reduction: Reduction) -> torch.Tensor:
        if reduction.factor is not None:
            flat = flat.float() * reduction.factor
        average = reduction.op == _R.AVG
        if flat.numel() <= self._precise_up_to:
            total = self._summed_precisely(flat)
            return torch.from_numpy(total / self._summation.workers if average else total)
        allreduce = self._average if average else self._sum
        given = flat if flat.dtype in _SUMMABLE else flat.float()
        return torch.from_numpy(allreduce.sum({"": summable(given)})[""].values)

    def _summed_precisely(self, flat: torch.Tensor) -> NDArray[np.float64]:
        """Return float64[n]: all workers' floats, gathered by OR and added locally, in the workers' order."""
        given = _sized(flat.float())[0]
        everybody = gather_by_or(self._summation, given)
        _check_sizes("reduction", everybody[:, 0], given[0])
        floats = everybody[:, 1:].view(np.float32)
        with np.errstate(invalid="ignore"):
            total: NDArray[np.float64] = functools.reduce(np.add, floats.astype(np.float64))
        total[np.isnan(total)] = np.nan
        return total

    def _of_32(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return the sum modulo the type's size."""
        return self._combined(numbers.astype(np.uint32), "add", numbers.nbytes).astype(numbers.dtype)

    def _of_64(self, numbers: NDArray[Any], average: bool) -> NDArray[Any]:
        """Return the sum modulo 2**64, by three pieces of which none overflows 32 bits; or its average.

        An average is rounded towards zero.
        """
        signed = np.issubdtype(numbers.dtype, np.signedinteger)
        wide = numbers.astype(np.int64 if signed else np.uint64).view(np.uint64)
        shifts = np.arange(0, 64, _PIECE_BITS, dtype=np.uint64)[:, None]
        pieces = (wide >> shifts & np.uint64((1 << _PIECE_BITS) - 1)).astype(np.uint32)
        sums = (
            self._combined(pieces.reshape(-1), "add", numbers.nbytes).reshape(pieces.shape).astype(np.uint64)
        )
        total: NDArray[Any] = (sums << shifts).sum(axis=0, dtype=np.uint64)
        if signed:
            total = total.view(np.int64)
        if average:
            workers = total.dtype.type(self._summation.workers)
            total = total // workers + ((total < 0) & (total % workers != 0))
        return total.astype(numbers.dtype)

    def _combined(self, words: Words, op: Op, size: int) -> Words:
        """Return all workers' words, combined. Raises HookConfigError unless all tensors have `size` bytes.

        Two words tell: a hash of the size and its complement. Their OR is their own only if all are equal,
        and so is the mean of their sum, but for one of 2**32 sizes.
        """
        digest = zlib.crc32(size.to_bytes(8))
        head = np.array([digest, digest ^ 0xFFFFFFFF], np.uint32)
        alike = head if op == "or" else head * np.uint32(self._summation.workers)
        (result,) = self._summation.sum_words([Part(np.concatenate([head, words]), op)])
        if (result[:2] != alike).any():
            raise HookConfigError(
                f"reduction: other ranks gave tensors of other sizes than this one, of {size} bytes; give "
                "tensors of one size"
            )
        return result[2:]


def _as_words(flat: torch.Tensor) -> tuple[Words, int]:
    """Return a flat tensor's bytes as words, padded with zeros, and the number of bytes."""
    plain = flat.resolve_conj().resolve_neg().contiguous()
    # Torch calls a single element contiguous, whatever its stride, but does not view it as bytes.
    given = plain.as_strided(plain.shape, (1,)).view(torch.uint8).numpy()
    words = np.zeros(-(-given.size // 4), np.uint32)
    words.view(np.uint8)[: given.size] = given
    return words, given.size


def _sized(flat: torch.Tensor) -> tuple[Words, int]:
    """Return what `_as_words` does, with the number of bytes, modulo 2**32, as the first word."""
    words, size = _as_words(flat)
    return np.concatenate([np.array([size & 0xFFFFFFFF], np.uint32), words]), size


def _check_sizes(call: str, sizes: Words, own: Any) -> None:
    """Raise HookConfigError unless all workers' tensors have as many bytes as this one's."""
    if (sizes != own).any():
        raise HookConfigError(
            f"{call}: ranks gave {sizes.tolist()} bytes, and this one {own}; give tensors of one size"
        )
