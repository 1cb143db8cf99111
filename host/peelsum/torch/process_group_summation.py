"""A `Summation` over any backend of torch.distributed: all_reduce of the words that a switch would add.

It makes a group of its own, so that its calls do not mix with those of the training script and DDP. Through
the group's store it finds out which worker is missing after a failure.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from threading import Event, Thread
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed import Store  # type: ignore[attr-defined]  # not exported, but documented
from torch.distributed import distributed_c10d as c10d

from peelsum.allreduce import Part, SummationStalledError
from peelsum.compress.collectives import By
from peelsum.summation import NotBegunError, Words
from peelsum.torch.reductions import FEW_WORDS, MOST_WORDS, DirectSum, all_reduce_tree, together

T = TypeVar("T")

#: How bitwise OR is implemented: by the backend, by gathering all words, or as a maximum of a byte per bit.
OrBy = Literal["bor", "gather", "max"]
_WORD_BITS = 32
#: Words whose bits are taken apart at once.
_TAKEN_APART = 2**16
#: Backends whose all_reduce has BOR. NCCL's does not.
_WITH_BOR = ("gloo", "mpi", "ucc")
#: Up to this many workers, gathering all words takes fewer bytes than a ring's maximum of a byte per bit.
_MOST_TO_GATHER = 16
#: How long a sum may wait for a worker by default.
_TIMEOUT_S = 30.0
#: How long the next of the others may take to report after this worker's sum has failed, in seconds.
_ROLL_CALL_S = 3.0
#: Seconds between two looks at the store, by a worker whose sum waits, for the failure of another's sum.
_WATCH_S = 0.5
#: The store's key that a worker sets when its sum has failed.
_FAILED = "peelsum/failed"
_ROLL_CALL_PAUSE_S = 0.05
#: How long the store may take for one answer.
_STORE_S = 10.0
#: The name that torch gives to gathering into one tensor: the second before torch 2.12.
ALL_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"


@dataclass(frozen=True)
class _Copy:
    """A copy of a part's words, and the memory in which they are reduced: nothing is allocated after it."""

    part: Part
    words: torch.Tensor
    """int32[n]; the result."""
    others: torch.Tensor | None = None
    """int32[workers, n] to gather, or uint8[n, 32], the words' bits; None if words are reduced in place."""
    scratch: tuple[torch.Tensor, torch.Tensor] | None = None
    """int32[m, 32] and the 32 shifts, to take words apart and put them together."""


class ProcessGroupSummation:
    """A `Summation` over the ranks of `process_group` (None: all), by a new group of `backend`.

    All ranks must make it together, and each use it from one thread. `timeout_s`: how long a sum may wait for
    a worker before it raises; None is 30 s. The last 3 s, or half if that is less, find out who is missing.
    """

    #: Determines byte counts and the layout of sketches, as if words were sent in chunks.
    lanes = 256

    def __init__(
        self,
        backend: str,
        process_group: dist.ProcessGroup | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        timeout_s = _TIMEOUT_S if timeout_s is None else timeout_s
        ranks = dist.get_process_group_ranks(process_group or dist.group.WORLD)
        patience_s = max(timeout_s - _ROLL_CALL_S, timeout_s / 2)
        group = _new_group(backend, ranks, timedelta(seconds=patience_s))
        self._group: dist.ProcessGroup | None = group
        self.workers = len(ranks)
        self.worker_id: int = group.rank()
        self._or_by = _or_by(backend, self.workers)
        #: The device on which `sum_words` takes tensors, int32, as words; None if it takes arrays only.
        self.device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else None
        self._backend = backend
        direct = backend == "gloo" and self.workers > 1
        self._few = DirectSum(self.workers, self.worker_id, self._all_to_all) if direct else None
        #: Fewer words than these go whole to all workers, by direct messages; 0 if the backend has none.
        self.few_words = FEW_WORDS if direct else 0
        self._store = group.get_group_store()
        #: The worker that is global rank 0, which keeps the store; None if it is not in the group.
        self._keeper = ranks.index(0) if 0 in ranks else None
        self._sums, self._watch = 0, _Watch(self._store, self.worker_id)
        weakref.finalize(self, self._watch.ended.set)
        if self.workers > 1:
            self._watch.start()

    def sum_words(self, parts: Sequence[Part], *, by: By | None = None) -> list[Words]:
        """See `Summation.sum_words`. Raises SummationStalledError naming the workers that are missing.

        Over NCCL, words may be tensors on `device`; their sums are on the device then, too. Raises
        NotBegunError if the device has no room for copies of the words and what is gathered.

        by: "tree" reduces by `all_reduce_tree`, "ring" by the backend's all_reduce; None also takes direct
        messages for few words over gloo. The results are the same.
        """
        results: list[Words] = []
        if any(isinstance(part.words, torch.Tensor) for part in parts):
            self._open()
            try:
                copies = [self._copied(part) for part in parts]  # before the first is sent
            except torch.OutOfMemoryError as error:
                raise NotBegunError(str(error)) from error
            for copied in copies:
                results += self._naming_the_missing(partial(self._finished, copied))
                if copied.part.check is not None:
                    copied.part.check(results[-1])
            return results
        for some in together(parts) if by is None and self._few else [[part] for part in parts]:
            results += self._naming_the_missing(partial(self._summed, some, by))
            if some[-1].check is not None:
                some[-1].check(results[-1])
        return results

    def broadcast(self, pieces: Sequence[Words], sources: Sequence[int]) -> list[Words]:
        """Return of each piece the words that worker sources[i] has, by one broadcast for each source."""
        copied = [one.view(np.int32).copy() for one in pieces]
        for source in sorted(set(sources)):
            mine = [at for at, one in enumerate(sources) if one == source and copied[at].size]
            if mine:
                together = torch.from_numpy(np.concatenate([copied[at] for at in mine])).to(self.device)
                self._naming_the_missing(partial(self._broadcast, together, source))
                parts = np.split(together.cpu().numpy(), np.cumsum([copied[at].size for at in mine[:-1]]))
                for at, part in zip(mine, parts, strict=True):
                    copied[at] = part
        return [one.view(np.uint32) for one in copied]

    def gather_equal(self, data: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """Return every worker's bytes, of which all have as many, in the order of workers."""
        own = torch.from_numpy(data).to(self.device)
        everybody = [torch.empty_like(own) for _ in range(self.workers)]
        self._naming_the_missing(lambda: dist.all_gather(everybody, own, self._open()))
        return [one.cpu().numpy() for one in everybody]

    def all_gather(self, words: Words) -> Words:
        """See `PieceSummation.all_gather`."""
        return np.concatenate(self.gather_equal(words.view(np.uint8))).view(np.uint32)

    def close(self) -> None:
        """Free the group's connections, which gloo closes with the last reference to the group."""
        group, self._group = self._group, None
        self._watch.ended.set()
        with suppress(Exception):  # of a group that has failed, or whose parent has been destroyed
            dist.destroy_process_group(group)

    def _summed(self, parts: Sequence[Part], by: By | None) -> list[Words]:
        """Return the results of parts that go together."""
        if by == "tree":
            return [self._by_tree(part) for part in parts]
        if by is None and self._few and 0 < sum(part.words.size for part in parts) <= MOST_WORDS:
            return self._few.sum_words(parts)
        return [self._finished(self._copied(part))[0] for part in parts]

    def _copied(self, part: Part) -> _Copy:
        """Copy words as int32, for want of uint32, to a tensor's device or the group's."""
        on_device = isinstance(part.words, torch.Tensor)
        # An array may be read-only or strided, which torch takes with a warning, or not at all.
        near = part.words if on_device else np.require(part.words.view(np.int32), requirements=["C", "W"])
        words = torch.as_tensor(near)
        own = words.to(words.device if on_device else self.device or "cpu", copy=True)
        n, device = len(own), own.device
        if part.op == "add" or self._or_by == "bor" or not n:
            return _Copy(part, own)
        if self._or_by == "gather":
            return _Copy(part, own, torch.empty((self.workers, n), dtype=torch.int32, device=device))
        bits = torch.empty((n, _WORD_BITS), dtype=torch.uint8, device=device)
        scratch = torch.empty((min(n, _TAKEN_APART), _WORD_BITS), dtype=torch.int32, device=device)
        shifts = torch.arange(_WORD_BITS, dtype=torch.int32, device=device)
        for a in range(0, n, _TAKEN_APART):
            some = own[a : a + _TAKEN_APART, None]
            apart = torch.bitwise_right_shift(some, shifts, out=scratch[: len(some)])
            bits[a : a + _TAKEN_APART] = apart.bitwise_and_(1)
        return _Copy(part, own, bits, (scratch, shifts))

    def _finished(self, copied: _Copy) -> list[Words]:
        """Return the result of one part, where its words are."""
        if copied.words.numel():
            self._reduce(copied)
        if isinstance(copied.part.words, torch.Tensor):
            return [cast(Words, copied.words)]
        return [copied.words.cpu().numpy().view(np.uint32)]

    def _reduce(self, copied: _Copy) -> None:
        """Reduce the words in place; every backend adds int32 modulo 2**32."""
        words, others = copied.words, copied.others
        if others is None:
            by = dist.ReduceOp.SUM if copied.part.op == "add" else dist.ReduceOp.BOR
            dist.all_reduce(words, by, self._open())
        elif copied.scratch is None:
            # `all_gather` takes a list of tensors, for which NCCL's group allocates as much memory again.
            getattr(dist, ALL_GATHER)(others.view(-1), words, self._open())
            for one in others:
                words.bitwise_or_(one)
        else:
            dist.all_reduce(others, dist.ReduceOp.MAX, self._open())
            scratch, shifts = copied.scratch
            for a in range(0, len(words), _TAKEN_APART):
                some = words[a : a + _TAKEN_APART]
                apart = scratch[: len(some)].copy_(others[a : a + _TAKEN_APART])
                torch.sum(apart.bitwise_left_shift_(shifts), 1, dtype=torch.int32, out=some)

    def _by_tree(self, part: Part) -> Words:
        tensor = torch.from_numpy(part.words.view(np.int32).copy()).to(self.device)
        if tensor.numel():
            all_reduce_tree(tensor, self._open(), part.op)
        return tensor.cpu().numpy().view(np.uint32)

    def _broadcast(self, words: torch.Tensor, source: int) -> None:
        dist.broadcast(words, group=self._open(), group_src=source)

    def _all_to_all(self, received: Words, sent: Words) -> None:
        into, out = (torch.from_numpy(one.view(np.int32).reshape(-1)) for one in (received, sent))
        dist.all_to_all_single(into, out, group=self._open())

    def _open(self) -> dist.ProcessGroup:
        if self._group is None:
            raise SummationStalledError(
                "sum: the group was closed, by an earlier error or by close(); make another"
            )
        return self._group

    def _naming_the_missing(self, work: Callable[[], T]) -> T:
        """Run `work`; raise a failure of torch as SummationStalledError, which names the missing workers.

        A context manager would keep the group: `contextlib` refers to the traceback while it handles errors.
        """
        self._open()
        self._sums += 1
        self._watch.waits_for = self._sums
        try:
            return work()
        except RuntimeError as error:
            raise SummationStalledError(self._stalled(error)) from error
        finally:
            self._watch.waits_for = 0

    def _stalled(self, error: RuntimeError) -> str:
        reason = str(error).partition("\n")[0]
        # Its frames refer to the group, which could then not be freed.
        error.__traceback__ = None
        who = self._who(timed_out="timed out" in reason.lower())
        return f"{self._backend}: the sum over {self.workers} workers failed: {who} ({reason})"

    def _who(self, *, timed_out: bool) -> str:
        """Return which workers did not report, through the store, that their sum failed too.

        Close the group first: that fails the sums of workers that wait for this one.
        """
        self.close()
        roll = _RollCall(self._store, self.worker_id, self.workers, _ROLL_CALL_S)
        if not roll.answered():
            return "rank 0, which keeps the store, does not answer; see whether it is running"
        # Rank 0 may also have named others and ended: they are missing here, too.
        if roll.store_lost and (self._keeper is None or self._keeper in roll.missing or not roll.missing):
            return "the store is gone, and with it rank 0, which keeps it; see why rank 0 ended"
        if roll.missing:
            numbers = ", ".join(map(str, sorted(roll.missing)))
            worker, they = ("workers", "they are") if len(roll.missing) > 1 else ("worker", "it is")
            slow = f", or give a longer timeout_s if {they} slow" if timed_out else ""
            return f"{worker} {numbers} did not answer; see whether {they} running{slow}"
        return "every worker answered; check that all of them sum equally often"


class _Watch(Thread):
    """Answers the roll call for a sum that still waits when another worker's has failed.

    Gloo's timeout counts for each wait of a sum, so this sum may fail much later.
    """

    def __init__(self, store: Store, worker_id: int) -> None:
        super().__init__(name="peelsum watch", daemon=True)
        self._store, self._worker_id = store, worker_id
        self.ended = Event()
        #: The number of the sum that waits; 0 for none.
        self.waits_for = 0

    def run(self) -> None:
        """See `Thread.run`."""
        before = 0
        while not self.ended.wait(_WATCH_S):
            current = self.waits_for
            if current and current == before:  # it has waited for _WATCH_S or longer
                with suppress(RuntimeError):  # the store is gone
                    if self._store.check([_FAILED]):
                        self._store.set(_here(self._worker_id), "")
                        return
            before = current


class _RollCall(Thread):
    """Each worker whose sum failed reports to the store; `missing` are those that did not in time.

    A thread of its own, since the store's calls wait without bound if the process that keeps it is frozen.
    """

    def __init__(self, store: Store, worker_id: int, workers: int, patience_s: float) -> None:
        super().__init__(name="peelsum roll call", daemon=True)
        self._store, self._worker_id, self._patience_s = store, worker_id, patience_s
        self._heard_at = time.monotonic()
        self.missing = set(range(workers))
        self.store_lost = False

    def answered(self) -> bool:
        """Call the roll; return False if the store does not answer."""
        self.start()
        while self.is_alive() and time.monotonic() - self._heard_at < _STORE_S:
            self.join(_ROLL_CALL_PAUSE_S)
        return not self.is_alive()

    def run(self) -> None:
        """See `Thread.run`."""
        try:
            self._store.set(_FAILED, "")
            # Read it back, because a write to a broken connection does not fail at once.
            self._store.set(_here(self._worker_id), "")
            self._store.get(_here(self._worker_id))
            self._wait()
        except RuntimeError:
            self.store_lost = True

    def _wait(self) -> None:
        """Remove workers that answer in time. They answer one after another, so each renews the time."""
        deadline = time.monotonic() + self._patience_s
        while self.missing and time.monotonic() <= deadline:
            answered = {one for one in self.missing if self._store.check([_here(one)])}
            self._heard_at = time.monotonic()
            self.missing -= answered
            if answered:
                deadline = self._heard_at + self._patience_s
            if self.missing:
                time.sleep(_ROLL_CALL_PAUSE_S)


def _new_group(backend: str, ranks: Sequence[int], timeout: timedelta) -> dist.ProcessGroup:
    """Return a new group of these ranks.

    For some of all ranks, torch repeats the name of a group that was destroyed. In the store, that name has
    the old group's addresses, which gloo may read before the new ones are there. So our groups are numbered,
    by counts in the store: a process that has been in earlier stores starts at 1, too.
    """
    if len(ranks) == dist.get_world_size():
        return cast(dist.ProcessGroup, dist.new_group(ranks, timeout, backend))
    own, store = ranks.index(dist.get_rank()), c10d._get_default_store()
    name = f"peelsum-{'-'.join(map(str, ranks))}"
    number = store.add(f"{name}/made-by/{own}", 1)
    group, _ = c10d._new_process_group_helper(
        len(ranks),
        own,
        ranks,
        dist.Backend(backend),
        store,
        cast(Any, getattr(c10d, "GroupName", str)(f"{name}-{number}")),  # a type of str since torch 2.10
        timeout=timeout,
    )
    c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(ranks)}
    return cast(dist.ProcessGroup, group)


def _here(worker: int) -> str:
    return f"peelsum/here/{worker}"


def _or_by(backend: str, workers: int) -> OrBy:
    if backend in _WITH_BOR:
        return "bor"
    return "gather" if workers <= _MOST_TO_GATHER else "max"
