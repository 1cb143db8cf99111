"""A `Summation` over any backend of torch.distributed: all_reduce of the words that a switch would add.

It makes a new group, so that its calls do not mix with those of the training script and DDP. After a failure
it finds out through the group's store which workers are missing.

Theory of operation. Over gloo, few words are summed by messages between the ranks, instead of its ring. They
are divided into a share for each rank. A rank gets its share from all others, combines it, and sends the
result to them. That takes 2 (n - 1) messages from each rank, where a ring sends several times as many, which
are smaller. Very few words are sent to all ranks, in n - 1 messages, and each rank combines them all. Where
latency counts more than bandwidth, ranks combine all words along a binomial tree.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import accumulate, pairwise
from threading import Event, Thread
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed import Store  # type: ignore[attr-defined]  # not exported, but documented
from torch.distributed import distributed_c10d as c10d

from peelsum.allreduce import Part, SummationStalledError
from peelsum.compress.collectives import Algorithm
from peelsum.summation import NotBegunError, Op, Words

T = TypeVar("T")

#: The implementation of bitwise OR: the backend's, by gathering all words, or as a maximum of a byte per bit.
OrMethod = Literal["bor", "gather", "max"]
_WORD_BITS = 32
#: Number of words that are unpacked to bits at a time.
_UNPACK_WORDS = 2**16
#: Backends whose all_reduce has BOR. NCCL's does not.
_BACKENDS_WITH_BOR = ("gloo", "mpi", "ucc")
#: Up to this many workers, gathering all words takes fewer bytes than a ring's maximum of a byte per bit.
_MAX_GATHER_WORKERS = 16
#: How long a sum may wait for a worker by default.
_TIMEOUT_S = 30.0
#: After this worker's sum has failed: seconds that the next worker may take to report its failure.
_REPORT_S = 3.0
#: Seconds between the checks, while a sum waits, whether the sum of another worker has failed.
_WATCH_S = 0.5
#: The store's key that a worker sets when its sum has failed.
_FAILED_KEY = "peelsum/failed"
_POLL_S = 0.05
#: How long the store may take to answer a request.
_STORE_S = 10.0
#: Above this number of words, gloo's ring takes less processor time.
MOST_WORDS = 2**18
#: Up to this number, all words are sent to all ranks.
FEW_WORDS = 2**12
#: all_to_all(received, sent): row r of `sent` goes to worker r, and row r of `received` comes from there.
AllToAll = Callable[[Words, Words], None]
#: Torch's name of the all_gather into a single tensor; the second is that before torch 2.12.
ALL_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"


class ProcessGroupSummation:
    """A `Summation` over the ranks of `process_group` (None: all), by a new group of `backend`.

    All ranks must make it together, and use it from one thread each. timeout_s: how long a sum may wait for a
    worker before it raises an error; None is 30 s. Of this time, 3 s, or half if that is less, are for
    finding out which workers are missing.
    """

    #: Words in a chunk, for byte counts and the layout of sketches, although no chunks are sent.
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
        limit_s = max(timeout_s - _REPORT_S, timeout_s / 2)
        group = _new_group(backend, ranks, timedelta(seconds=limit_s))
        self._group: dist.ProcessGroup | None = group
        self.workers = len(ranks)
        self.worker_id: int = group.rank()
        self._or_method = _or_method(backend, self.workers)
        #: The device of int32 tensors that `sum_words` takes as words; None if it takes arrays only.
        self.device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else None
        self._backend = backend
        direct = backend == "gloo" and self.workers > 1
        self._direct_sum = DirectSum(self.workers, self.worker_id, self._all_to_all) if direct else None
        #: Fewer words than these are sent whole to all workers, by direct messages; 0 with other backends.
        self.few_words = FEW_WORDS if direct else 0
        self._store = group.get_group_store()
        #: The worker that is global rank 0, whose process has the store; None if it is not in the group.
        self._store_worker = ranks.index(0) if 0 in ranks else None
        self._sums, self._watcher = 0, _FailureWatcher(self._store, self.worker_id)
        weakref.finalize(self, self._watcher.ended.set)
        if self.workers > 1:
            self._watcher.start()

    def sum_words(self, parts: Sequence[Part], *, by: Algorithm | None = None) -> list[Words]:
        """See `Summation.sum_words`. Raises SummationStalledError, which names the missing workers.

        Over NCCL, words may be tensors on `device`, and then so are their sums. Raises NotBegunError if the
        device has not enough memory for copies of the words and for gathered words.

        by: "tree" reduces by `all_reduce_tree`, "ring" by the backend's all_reduce; None reduces few words
        over gloo by direct messages, others by all_reduce. The results are the same.
        """
        results: list[Words] = []
        together = batches(parts) if by is None and self._direct_sum else [[part] for part in parts]
        try:
            exchanges = [self._prepare(batch, by) for batch in together]  # before the first is sent
        except torch.OutOfMemoryError as error:
            raise NotBegunError(str(error)) from error
        for batch, exchange in zip(together, exchanges, strict=True):
            results += self._run_exchange(exchange)
            if batch[-1].check is not None:
                batch[-1].check(results[-1])
        return results

    def broadcast(self, pieces: Sequence[Words], sources: Sequence[int]) -> list[Words]:
        """Return each piece i as worker sources[i] has it, by one broadcast for each source."""

        def broadcast_from(source: int, words: torch.Tensor) -> None:
            dist.broadcast(words, group=self._open_group(), group_src=source)

        received = [piece.view(np.int32).copy() for piece in pieces]
        for source in sorted(set(sources)):
            indexes = [i for i, sender in enumerate(sources) if sender == source and received[i].size]
            if indexes:
                words = torch.from_numpy(np.concatenate([received[i] for i in indexes])).to(self.device)
                self._run_exchange(partial(broadcast_from, source, words))
                ends = np.cumsum([received[i].size for i in indexes[:-1]])
                for i, piece in zip(indexes, np.split(words.cpu().numpy(), ends), strict=True):
                    received[i] = piece
        return [piece.view(np.uint32) for piece in received]

    def gather_equal(self, data: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """Return every worker's bytes, in the order of workers. All workers must have equally many."""
        sent = torch.from_numpy(data).to(self.device)
        received = [torch.empty_like(sent) for _ in range(self.workers)]
        self._run_exchange(lambda: dist.all_gather(received, sent, self._open_group()))
        return [tensor.cpu().numpy() for tensor in received]

    def all_gather(self, words: Words) -> Words:
        """See `PieceSummation.all_gather`."""
        return np.concatenate(self.gather_equal(words.view(np.uint8))).view(np.uint32)

    def close(self) -> None:
        """Free the group's connections, which gloo closes with the last reference to the group."""
        group, self._group = self._group, None
        self._watcher.ended.set()
        with suppress(Exception):  # the group may have failed, or its parent may have been destroyed
            dist.destroy_process_group(group)

    def _prepare(self, parts: Sequence[Part], by: Algorithm | None) -> Callable[[], list[Words]]:
        """Return the function that exchanges parts together by the algorithm `by`, and returns their sums.

        What a ring needs is allocated here.
        """
        if by is None and self._direct_sum and 0 < sum(part.words.size for part in parts) <= MOST_WORDS:
            return partial(self._direct_sum.sum_words, parts)
        reductions = [self._prepare_reduction(part, tree=by == "tree") for part in parts]
        return lambda: [reduction() for reduction in reductions]

    def _prepare_reduction(self, part: Part, *, tree: bool) -> Callable[[], Words]:
        """Return the function that reduces a part, and returns its result on the device of its words.

        tree: whether to reduce by `all_reduce_tree`.

        All memory that it needs is allocated here: a copy of the words as int32, which every backend adds
        modulo 2**32; to OR them without the backend's BOR, all workers' words, or a byte for each bit.
        """
        on_device = isinstance(part.words, torch.Tensor)
        # An array may be read-only or strided, which torch takes with a warning, or not at all.
        source = part.words if on_device else np.require(part.words.view(np.int32), requirements=["C", "W"])
        words = torch.as_tensor(source)
        words = words.to(words.device if on_device else self.device or "cpu", copy=True)
        if tree:
            reduce: Callable[[], None] = lambda: all_reduce_tree(words, self._open_group(), part.op)  # noqa: E731
        elif part.op == "add" or self._or_method == "bor":
            op = dist.ReduceOp.SUM if part.op == "add" else dist.ReduceOp.BOR
            reduce = partial(self._all_reduce, words, op)
        elif self._or_method == "gather":
            received = torch.empty((self.workers, len(words)), dtype=torch.int32, device=words.device)
            reduce = partial(self._or_gathered, words, received)
        else:
            reduce = self._prepare_or_by_bits(words)

        def reduction() -> Words:
            if len(words):
                reduce()
            return cast(Words, words) if on_device else words.cpu().numpy().view(np.uint32)

        return reduction

    def _all_reduce(self, tensor: torch.Tensor, op: Any) -> None:
        dist.all_reduce(tensor, op, self._open_group())

    def _or_gathered(self, words: torch.Tensor, received: torch.Tensor) -> None:
        """OR all workers' words[n] in place. received: int32[workers, n]."""
        # `all_gather` takes a list of tensors, for which NCCL's group allocates as much memory again.
        getattr(dist, ALL_GATHER)(received.view(-1), words, self._open_group())
        for worker_words in received:
            words.bitwise_or_(worker_words)

    def _prepare_or_by_bits(self, words: torch.Tensor) -> Callable[[], None]:
        """Return the function that ORs all workers' words in place, as the maximum of a byte for each bit."""
        bits = torch.empty((len(words), _WORD_BITS), dtype=torch.uint8, device=words.device)
        scratch_shape = min(len(words), _UNPACK_WORDS), _WORD_BITS
        scratch = torch.empty(scratch_shape, dtype=torch.int32, device=words.device)
        shifts = torch.arange(_WORD_BITS, dtype=torch.int32, device=words.device)
        blocks = [slice(begin, begin + _UNPACK_WORDS) for begin in range(0, len(words), _UNPACK_WORDS)]
        for block in blocks:
            unpacked = scratch[: len(words[block])]
            torch.bitwise_right_shift(words[block, None], shifts, out=unpacked)
            bits[block] = unpacked.bitwise_and_(1)

        def reduce() -> None:
            self._all_reduce(bits, dist.ReduceOp.MAX)
            for block in blocks:
                unpacked = scratch[: len(words[block])].copy_(bits[block])
                torch.sum(unpacked.bitwise_left_shift_(shifts), 1, dtype=torch.int32, out=words[block])

        return reduce

    def _all_to_all(self, received: Words, sent: Words) -> None:
        """Send row r of `sent` to worker r, and write its words to row r of `received`."""
        output, words_on_host = (
            torch.from_numpy(words.view(np.int32).reshape(-1)) for words in (received, sent)
        )
        dist.all_to_all_single(output, words_on_host, group=self._open_group())

    def _open_group(self) -> dist.ProcessGroup:
        """Return the group. Raises SummationStalledError if it has been closed."""
        if self._group is None:
            raise SummationStalledError(
                "sum: the group was closed, by an earlier error or by close(); make another"
            )
        return self._group

    def _run_exchange(self, exchange: Callable[[], T]) -> T:
        """Return the result of `exchange`. Raises SummationStalledError, which names the missing workers.

        This is no context manager: `contextlib` refers to the error's traceback, which would keep the group.
        """
        self._open_group()
        self._sums += 1
        self._watcher.waiting_sum = self._sums
        try:
            return exchange()
        except RuntimeError as error:
            raise SummationStalledError(self._describe_failure(error)) from error
        finally:
            self._watcher.waiting_sum = 0

    def _describe_failure(self, error: RuntimeError) -> str:
        """Return a message with torch's error, and the workers that did not report that theirs failed, too.

        The group is closed first, so that the sums of workers that wait for this worker fail.
        """
        reason = str(error).partition("\n")[0]
        # The traceback's frames refer to the group, which could then not be freed.
        error.__traceback__ = None
        self.close()
        reports = _FailureReports(self._store, self.worker_id, self.workers, _REPORT_S)
        answered, missing = reports.collect(), reports.missing
        if not answered:
            cause = "rank 0, which keeps the store, does not answer; see whether it is running"
        # If rank 0 reported and then ended with the store, the missing workers are those that it missed, too.
        elif reports.store_lost and (
            self._store_worker is None or self._store_worker in missing or not missing
        ):
            cause = "the store is gone, and with it rank 0, which keeps it; see why rank 0 ended"
        elif missing:
            numbers = ", ".join(map(str, sorted(missing)))
            worker, they = ("workers", "they are") if len(missing) > 1 else ("worker", "it is")
            cause = f"{worker} {numbers} did not answer; see whether {they} running"
            if "timed out" in reason.lower():
                cause += f", or give a longer timeout_s if {they} slow"
        else:
            cause = "every worker answered; check that all of them sum equally often"
        return f"{self._backend}: the sum over {self.workers} workers failed: {cause} ({reason})"


class _FailureWatcher(Thread):
    """Reports to the store while this worker's sum waits and that of another worker has failed.

    Gloo's timeout applies to each wait of a sum, so this worker's sum may fail much later.
    """

    def __init__(self, store: Store, worker_id: int) -> None:
        super().__init__(name="peelsum watch", daemon=True)
        self._store, self._worker_id = store, worker_id
        self.ended = Event()
        #: The number of the sum that waits; 0 for none.
        self.waiting_sum = 0

    def run(self) -> None:
        """See `Thread.run`."""
        previous = 0
        while not self.ended.wait(_WATCH_S):
            current = self.waiting_sum
            if current and current == previous:  # it has waited for _WATCH_S or longer
                with suppress(RuntimeError):  # the store is gone
                    if self._store.check([_FAILED_KEY]):
                        self._store.set(_reported_key(self._worker_id), "")
                        return
            previous = current


class _FailureReports(Thread):
    """The reports of workers whose sum failed, through the store; `missing` are workers without a report.

    It is a thread, because the store's calls wait forever if the process that has the store is frozen.
    """

    def __init__(self, store: Store, worker_id: int, workers: int, limit_s: float) -> None:
        super().__init__(name="peelsum failure reports", daemon=True)
        self._store, self._worker_id, self._limit_s = store, worker_id, limit_s
        self._last_answer_at = time.monotonic()
        self.missing = set(range(workers))
        self.store_lost = False

    def collect(self) -> bool:
        """Report this worker's failure, and wait for others' reports; return False without the store."""
        self.start()
        while self.is_alive() and time.monotonic() - self._last_answer_at < _STORE_S:
            self.join(_POLL_S)
        return not self.is_alive()

    def run(self) -> None:
        """Report this worker's failure; remove workers that report in time from `missing`.

        A report renews the time limit, as workers take turns.
        """
        try:
            self._store.set(_FAILED_KEY, "")
            # Read it back, because a write to a broken connection does not fail at once.
            self._store.set(_reported_key(self._worker_id), "")
            self._store.get(_reported_key(self._worker_id))
            deadline = time.monotonic() + self._limit_s
            while self.missing and time.monotonic() <= deadline:
                reported = {worker for worker in self.missing if self._store.check([_reported_key(worker)])}
                self._last_answer_at = time.monotonic()
                self.missing -= reported
                if reported:
                    deadline = self._last_answer_at + self._limit_s
                if self.missing:
                    time.sleep(_POLL_S)
        except RuntimeError:
            self.store_lost = True


def _new_group(backend: str, ranks: Sequence[int], timeout: timedelta) -> dist.ProcessGroup:
    """Return a new group of these ranks.

    If they are not all ranks, torch may reuse the name of a group that was destroyed. The store has that
    group's addresses, and gloo may read them before the new ones are there. So groups get names with a number
    here, which is counted in the store.
    """
    if len(ranks) == dist.get_world_size():
        return cast(dist.ProcessGroup, dist.new_group(ranks, timeout, backend))
    group_rank, store = ranks.index(dist.get_rank()), c10d._get_default_store()
    name = f"peelsum-{'-'.join(map(str, ranks))}"
    number = store.add(f"{name}/made-by/{group_rank}", 1)
    group, _ = c10d._new_process_group_helper(
        len(ranks),
        group_rank,
        ranks,
        dist.Backend(backend),
        store,
        cast(Any, getattr(c10d, "GroupName", str)(f"{name}-{number}")),  # a type of str since torch 2.10
        timeout=timeout,
    )
    c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(ranks)}
    return cast(dist.ProcessGroup, group)


def _reported_key(worker: int) -> str:
    """Return the store's key that a worker sets to report that its sum failed."""
    return f"peelsum/here/{worker}"


def _or_method(backend: str, workers: int) -> OrMethod:
    """Return how a backend ORs words, by the method that takes the fewest bytes."""
    if backend in _BACKENDS_WITH_BOR:
        return "bor"
    return "gather" if workers <= _MAX_GATHER_WORKERS else "max"


class DirectSum:
    """Sums over `workers` workers, for one of them, by `all_to_all` of uint32[workers, k]."""

    def __init__(self, workers: int, worker_id: int, all_to_all: AllToAll) -> None:
        self._workers, self._worker_id, self._all_to_all = workers, worker_id, all_to_all
        self._memory = np.empty((2, 0), np.uint32)

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """Return each part's result, as `Summation.sum_words` does, but without the checks."""
        bounds = list(accumulate((part.words.size for part in parts), initial=0))
        total, whole = bounds[-1], bounds[-1] <= FEW_WORDS
        share = total if whole else -(-total // self._workers)
        size = self._workers * share
        if self._memory.shape[1] < size:
            self._memory = np.empty((2, size), np.uint32)  # which later calls use again
        sent, received = self._memory[:, :size].reshape(2, self._workers, share)
        if whole:
            sent[:] = np.concatenate([part.words for part in parts])
        else:
            flat = sent.reshape(-1)
            for part, (begin, end) in zip(parts, pairwise(bounds), strict=True):
                flat[begin:end] = part.words
            flat[total:] = 0
        self._all_to_all(received, sent)
        spans = [(begin, end, part.op) for part, (begin, end) in zip(parts, pairwise(bounds), strict=True)]
        result = combine_share(received, spans, 0 if whole else self._worker_id * share)
        if not whole:
            sent[:] = result
            result = np.empty((self._workers, share), np.uint32)
            self._all_to_all(result, sent)
        flat = result.reshape(-1)
        return [flat[begin:end] for begin, end in pairwise(bounds)]


def combine_share(rows: Words, spans: Sequence[tuple[int, int, Op]], offset: int) -> Words:
    """Return uint32[k], the workers' rows[n, k] of a share combined: each span by its op.

    The share begins at word `offset`; a span (begin, end, op) counts from the first word of all.
    """
    share = rows.shape[1]
    out = np.zeros(share, np.uint32)
    for begin, end, op in spans:
        first, stop = max(begin - offset, 0), min(end - offset, share)
        if first < stop:
            combine = np.bitwise_or if op == "or" else np.add
            combine.reduce(rows[:, first:stop], axis=0, dtype=np.uint32, out=out[first:stop])
    return out


def batches(parts: Sequence[Part]) -> list[list[Part]]:
    """Divide parts into batches of up to `MOST_WORDS` words, each for one exchange.

    A part with a check ends its batch: if the check fails, the following parts may have different lengths on
    different workers, and must not be exchanged.
    """
    divided: list[list[Part]] = []
    words = 0
    for part in parts:
        words += part.words.size
        if not divided or divided[-1][-1].check is not None or words > MOST_WORDS:
            divided.append([])
            words = part.words.size
        divided[-1].append(part)
    return divided


def all_reduce_tree(tensor: torch.Tensor, group: dist.ProcessGroup | None = None, op: Op = "add") -> None:
    """Add or OR a contiguous tensor over the ranks of `group` (None: all), in place.

    Pairs of ranks combine their tensors, then pairs of pairs, and so on up to the first rank, which
    broadcasts the result. That takes 2 log2(n) messages of the whole tensor in a row, where a ring takes
    2 (n - 1) messages of an n-th. Integers are summed exactly, so the bits are those of any other all_reduce.
    """
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    rank, received, distance = ranks.index(dist.get_rank()), torch.empty_like(tensor), 1
    while distance < len(ranks):
        if rank % (2 * distance):
            dist.send(tensor, ranks[rank - distance], group)
            break
        if rank + distance < len(ranks):
            dist.recv(received, ranks[rank + distance], group)
            if op == "add":
                tensor += received
            else:
                tensor |= received
        distance *= 2
    dist.broadcast(tensor, ranks[0], group)
