"""A process group whose sums, broadcasts and barriers go over the switch: backend `peelsum`.

Everything else, other operations and types included, goes to gloo, which it contains. What goes where depends
on operation and type alone, so that all ranks decide alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # not exported, but documented

from peelsum.allreduce import Allreduce, Part
from peelsum.allreduce.summation import Op, Words
from peelsum.codec import warm_up
from peelsum.torch.futures import pass_on
from peelsum.torch.host_memory import summable
from peelsum.torch.pipeline import Pipeline, Seat
from peelsum.torch.ways import at_switch

BACKEND = "peelsum"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int32, torch.int8, torch.uint8)
#: An int64 is summed in pieces of this many bits, with room for the carries of 1,024 workers.
_PIECE_BITS = 22


class SwitchProcessGroup(dist.ProcessGroup):
    """The ranks of a job at a switch. `init_process_group("cpu:peelsum")` makes one."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        """Plug into the switch that the environment names: see `switch_seat`."""
        super().__init__(rank, size)  # type: ignore[call-arg]  # one of two, the stubs have the other
        gloo = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        warm_up()
        # One thread: calls share one all-reduce, which sums one thing at a time.
        self._pipeline = Pipeline(at_switch("", rank, size, store, None), threads=1, leave=True)
        self._seat = Seat(self._pipeline)
        self._allreduce = Allreduce(self._seat)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """What torch calls this group's backend."""
        return BACKEND

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]  # as torch calls it
        """SUM of floats, in fixed point, and of integers; other operations and types by gloo."""
        (tensor,) = tensors = tensors if isinstance(tensors, list) else [tensors]
        operation = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        summed = _SUMS.get(tensor.dtype) if operation == dist.ReduceOp.SUM else None
        if summed is None:
            return super().allreduce(tensors, opts or dist.AllreduceOptions())
        return self._submit(tensors, lambda: summed(self, tensor))

    def broadcast(self, tensors: Any, opts: Any) -> Any:  # type: ignore[override]  # likewise
        """The root's bits, OR-ed with nothing from all others."""
        (tensor,) = tensors
        return self._submit(tensors, lambda: self._broadcast(tensor, opts.rootRank == self.rank()))

    def barrier(self, opts: Any = None) -> Any:
        """A sum of nothing in particular."""
        return self._submit([], lambda: self._combined(np.zeros(1, np.uint32), "add"))

    def shutdown(self) -> None:
        """Leave the job; called by `destroy_process_group`."""
        self._pipeline.close()

    def _submit(self, tensors: list[torch.Tensor], work: Callable[[], object]) -> dist.Work:
        return _Submitted(self._pipeline.submit(self._seat, work), tensors)

    def _sum_floats(self, tensor: torch.Tensor) -> None:
        flat = summable(tensor.detach().contiguous().view(-1).cpu())
        values = self._allreduce.sum({"": flat})[""].values
        tensor.copy_(torch.from_numpy(values).view(tensor.shape))

    def _sum_integers(self, tensor: torch.Tensor) -> None:
        words = tensor.detach().cpu().to(torch.int32).numpy().reshape(-1).view(np.uint32)
        total = self._combined(words, "add").view(np.int32)
        tensor.copy_(torch.from_numpy(total).view(tensor.shape))

    def _sum_int64(self, tensor: torch.Tensor) -> None:
        """In three pieces, of which no sum leaves 32 bits; together modulo 2**64, as by gloo."""
        numbers = tensor.detach().cpu().numpy().reshape(-1).view(np.uint64)
        shifts = np.arange(0, 64, _PIECE_BITS, dtype=np.uint64)[:, None]
        pieces = (numbers >> shifts & np.uint64((1 << _PIECE_BITS) - 1)).astype(np.uint32)
        sums = self._combined(pieces.reshape(-1), "add").reshape(pieces.shape).astype(np.uint64)
        total: NDArray[np.uint64] = (sums << shifts).sum(axis=0, dtype=np.uint64)
        tensor.copy_(torch.from_numpy(total.view(np.int64)).view(tensor.shape))

    def _broadcast(self, tensor: torch.Tensor, root: bool) -> None:
        bits = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        words = np.zeros(-(-bits.size // 4), np.uint32)
        if root:
            words.view(np.uint8)[: bits.size] = bits
        ored = torch.from_numpy(self._combined(words, "or").view(np.uint8)[: bits.size])
        tensor.detach().copy_(ored.view(tensor.dtype).view(tensor.shape))

    def _combined(self, words: Words, op: Op) -> Words:
        (result,) = self._seat.sum([Part(words, op)])
        return result


_SUMS: dict[torch.dtype, Callable[[SwitchProcessGroup, torch.Tensor], None]] = {
    **dict.fromkeys(_FLOATS, SwitchProcessGroup._sum_floats),
    **dict.fromkeys(_INTEGERS, SwitchProcessGroup._sum_integers),
    torch.int64: SwitchProcessGroup._sum_int64,
}


class _Submitted(dist.Work):
    """A call under way, for whoever waits for it, in Python or in C++."""

    def __init__(self, done: Future[None], tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._done, self._tensors = done, list(tensors)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Until the call is done; raises what it raised. A stall ends it, not `timeout`."""
        self._done.result()
        return True

    def is_completed(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._done.done()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future for the tensors."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        pass_on(self._done, future, lambda: self._tensors)
        return future


def _group_of(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """What a new group's calls go to: gloo, where this process has its seat as one of all ranks already.

    All ranks decide alike, by what the default group is.
    """
    if isinstance(dist.group.WORLD, SwitchProcessGroup):
        return dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout)
    return SwitchProcessGroup(store, rank, size, timeout)


def register_backend() -> None:
    """Have torch.distributed know `peelsum`; importing peelsum.torch does it."""
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _group_of, devices=["cpu"])
