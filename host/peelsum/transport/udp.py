"""The switch as a backend: a worker's endpoints, one for each plane, connected to UDP sockets and the clock.

A plane is a switch with its own server, where the job is admitted on its own. Planes exchange nothing: in
each of them the worker sums a share of every part, in the same order as all other workers.

No thread runs between two calls, and none is needed. The server keeps results for workers that lost them.
Other workers wait for a later chunk only until this worker's next call; if the server loses its state
meanwhile, they wait for that call, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np

from peelsum import buffers
from peelsum.summation import Part, Words
from peelsum.transport.config import JobConfig
from peelsum.transport.endpoint import BATCH, WorkerEndpoint
from peelsum.transport.endpoint_state import GATHER, SCATTER, SUM, Cursor
from peelsum.transport.errors import (
    StalledError,
    TransportConfigError,
    TransportError,
    WorkerLeftError,
    in_plane,
)
from peelsum.transport.events import Event, JobFinished, Stalled, TensorCompleted, WorkerLeft
from peelsum.transport.exchange import Exchange
from peelsum.transport.joining import JoiningSum, JoinWait, join_limit_s, warn_of_long_wait
from peelsum.transport.lease import Lease, RankLostError
from peelsum.transport.link import PortLink, Wire
from peelsum.transport.stats import WorkerStats, added
from peelsum.transport.warming import warm_up
from peelsum.wire import packet_bytes
from peelsum.wire.datagrams import Address

#: With a lease, the longest that a loop runs in seconds before the lease is checked.
_LEASE_CHECK_S = 0.01


@dataclass
class _Sum:
    """The sum of a part that is under way."""

    shares: list[tuple[int, int]]
    """Planes and tickets of the shares."""
    missing: int
    """Number of shares without their results."""
    result: Words | None
    """Memory of the results of several shares; the result, once it is complete."""
    check: Callable[[Words], None] | None


class SwitchSummation:
    """The backend of one worker, over the switch port at `switch`. For one thread; a context manager.

    - `timeout_s`: seconds without progress after which `sum_words` raises; by default the job's
      `timers.stall`.
    - `join_s`: seconds that the first sum waits for workers that still start, if that is longer than
      `timeout_s`; by default the environment's PEELSUM_JOIN_S, or 600.
    - `hello_s`: seconds to wait for a switch's first answer.
    - `wire`: "udp-port" if the switch port is a UDP socket; "ethernet" if the switch is on this host's wire
      and takes packets sent to the address `switch`.
    - `leases`: this worker's leases in the run, one for each plane that has some. If another worker is lost,
      a sum that waits raises RankLostError at once.
    - `held`: closed when this worker leaves the job; it closes the leases, too.
    - `more_planes`: the job as further switches admitted it, and this worker's ports there, the same planes
      in the same order in all workers. Shares of at least 64 chunks of a part go to the planes in turn.
      Errors of a plane begin with its number, from 0.
    - `enters`: whether this worker enters a run that goes on, in a new generation.
    - `interfaces`: of this host on the switches' wires, one for each plane; by default those on the way to
      the switches. An interface has one worker.

    Raises TransportConfigError, or SwitchUnreachableError if a switch does not answer.
    """

    def __init__(
        self,
        config: JobConfig,
        worker_id: int,
        switch: Address,
        *,
        timeout_s: float | None = None,
        join_s: float | None = None,
        hello_s: float = 10.0,
        wire: Wire = "udp-port",
        leases: Sequence[Lease] = (),
        held: ExitStack | None = None,
        more_planes: Sequence[tuple[JobConfig, Address]] = (),
        interfaces: Sequence[str] = (),
        enters: bool = False,
    ) -> None:
        jobs, addresses = zip((config, switch), *more_planes, strict=True)
        if len({(job.workers, job.lanes, job.racks) for job in jobs}) > 1:
            raise TransportConfigError(
                "more_planes: jobs differ in workers, lanes or racks; admit the same job in every plane"
            )
        if interfaces and (len(interfaces) != len(jobs) or wire != "ethernet"):
            raise TransportConfigError(
                f"interfaces: {', '.join(interfaces)} for {len(jobs)} planes by {wire}; give one for each, "
                "if switches are on this host's wires"
            )
        if timeout_s is not None:
            jobs = tuple(replace(job, timers=replace(job.timers, stall=timeout_s)) for job in jobs)
        self._endpoints = [WorkerEndpoint(job, worker_id) for job in jobs]
        self._join_s = max(jobs[0].timers.stall, join_limit_s() if join_s is None else join_s)
        self._process_id = os.getpid()
        #: Why `abort` was called; "" if it was not.
        self._aborted = ""
        self._broken = False
        self._closed = self._joined = self._finished = False
        self._continued = enters
        self._next_plane = 0
        warm_up(config.lanes, len(jobs))
        self._links: list[PortLink] = []
        with ExitStack() as opened:
            for plane, (job, address) in enumerate(zip(jobs, addresses, strict=True)):
                with in_plane(plane, len(jobs)):
                    link = PortLink(
                        address,
                        packet_bytes(config.lanes),
                        hello_s=hello_s,
                        wire=wire,
                        interface=interfaces[plane] if interfaces else "",
                        secret=job.secret,
                    )
                self._links.append(opened.enter_context(link))
                self._endpoints[plane].limit_window(link.socket.room)
            self._open = opened.pop_all()
        self._exchange = Exchange(list(zip(self._endpoints, self._links, strict=True)))
        #: Statistics of earlier generations.
        self._earlier_stats: list[WorkerStats] = []
        self._leases, self._held = tuple(leases), held or ExitStack()
        if leases:
            self._links[0].longest_turn_s = _LEASE_CHECK_S

    @property
    def config(self) -> JobConfig:
        """The job, in the first plane."""
        return self._endpoints[0].config

    @property
    def planes(self) -> int:
        """Number of planes."""
        return len(self._endpoints)

    @property
    def lanes(self) -> int:
        """Words per chunk; each part is padded with zeros to whole chunks."""
        return self.config.lanes

    @property
    def workers(self) -> int:
        """Number of workers in the job."""
        return self.config.workers

    @property
    def worker_id(self) -> int:
        """This worker's place among the job's `worker_ids`, from 0, in racks, too."""
        return self.config.worker_ids.index(self._endpoints[0].worker_id)

    @property
    def leases(self) -> Sequence[Lease]:
        """This worker's leases in the run, one for each plane that has some."""
        return self._leases

    @property
    def next_chunk(self) -> int:
        """The id of the first chunk, in the first plane, that this worker has not submitted."""
        return int(self._endpoints[0].state.cursors[Cursor.END]) % (1 << 32)

    def continue_in(self, config: JobConfig, worker_id: int) -> None:
        """Continue in another generation of the job, at the same port, with other workers.

        Sums that were waited for are given up, also after an error. worker_id: this worker's new place.
        Raises TransportConfigError with several planes.
        """
        if self.planes > 1:
            raise TransportConfigError("members: change in one plane only; give one address in `over`")
        self._earlier_stats = [replace(self.stats(), window=0)]
        job = replace(config, timers=self.config.timers)
        self._endpoints = [WorkerEndpoint(job, job.worker_ids[worker_id])]
        self._endpoints[0].limit_window(self._links[0].socket.room)
        self._exchange = Exchange([(self._endpoints[0], self._links[0])])
        self._broken = self._joined = self._finished = False
        self._continued = True

    def sum_words(self, parts: Sequence[Part]) -> list[Words]:
        """See `Summation.sum_words`.

        Raises StalledError, which names job, oldest chunk and missing workers, or TransportError. After an
        error the workers may be out of step: call only `close`.
        """
        return self._summed(lambda: [self._submitted(part) for part in parts])

    def reduce_scatter(self, words: Words) -> Words:
        """See `PieceSummation.reduce_scatter`. Raises what `sum_words` raises.

        Results come to their owners alone; with racks, to all workers.
        """
        (piece,) = self._summed(lambda: [self._submitted(Part(words, "add"), SCATTER)])
        return piece

    def all_gather(self, words: Words) -> Words:
        """See `PieceSummation.all_gather`. Raises what `sum_words` raises.

        A worker sends its own words, and one packet in 16 of the others'.
        """
        (all_,) = self._summed(lambda: [self._submitted(Part(words, "or"), GATHER)])
        return all_

    def broadcast(self, words: Words, root: int) -> Words:
        """See `PieceSummation.broadcast`. Raises what `sum_words` raises."""
        (sent,) = self._summed(lambda: [self._submitted(Part(words, "or"), GATHER, root)])
        return sent

    def abort(self, reason: str) -> None:
        """Make sums raise TransportError with `reason`: later ones, and within 0.1 s one of another thread.

        `close` then frees the ports without waiting for other workers.
        """
        self._aborted = self._aborted or reason

    def _check_aborted(self) -> None:
        if self._aborted:
            raise TransportError(f"sum: {self._aborted}")

    def _summed(self, submit: Callable[[], list[_Sum]]) -> list[Words]:
        self._check_aborted()
        if self._inherited:
            raise TransportError(
                "sum: this process was forked from the one that is connected; sum there, or connect another "
                "worker here"
            )
        if self._broken or self._closed:
            state = "closed" if self._closed else "out of step after an earlier error"
            raise TransportError(f"sum: this connection is {state}; restart the job under a new generation")
        self._broken = True
        try:
            self._check_leases()
            if not self._joined:
                self._join()
            results = self._results(submit())
        except RankLostError:
            raise
        except TransportError as error:
            for lease in self._leases:  # otherwise its end would look like the cause to the others
                lease.fail(str(error))
            raise
        self._broken, self._joined = False, True
        return results

    def _join(self) -> None:
        """Join the job in every plane."""
        sums, wait = [], JoinWait(self._endpoints[0].worker_id, self._join_s, time.monotonic())
        for plane, endpoint in enumerate(self._endpoints):
            joining = JoiningSum(endpoint.config, endpoint.worker_id)
            ticket = endpoint.submit(joining.words, "add")
            sums.append(_Sum([(plane, ticket)], 1, None, partial(self._check_joined, plane, joining)))
        for endpoint, numbers in zip(self._endpoints, self._results(sums, wait), strict=True):
            # The chunk ids of a generation that continues a run are new, and must be later than all before.
            endpoint.start_run(0 if self._continued else int(np.bitwise_xor.reduce(numbers)))

    def _check_joined(self, plane: int, joining: JoiningSum, result: Words) -> None:
        with in_plane(plane, self.planes):
            joining.check(result)

    def _submitted(self, part: Part, collective: int = SUM, root: int | None = None) -> _Sum:
        """Submit a part to the planes whose turn it is, in shares of whole chunks, one after the other.

        A part of another collective than SUM goes to one plane.
        """
        words, urgent = part.words, part.check is not None
        chunks = -(-words.size // self.lanes)
        count = max(1, min(self.planes, chunks // BATCH)) if collective == SUM else 1
        turn, self._next_plane = self._next_plane, (self._next_plane + count) % self.planes
        if count == 1:
            submit = self._endpoints[turn].submit
            ticket = submit(words, part.op, urgent=urgent, collective=collective, root=root)
            return _Sum([(turn, ticket)], 1, None, part.check)
        result = buffers.empty(words.size, np.uint32)
        cuts = [self.lanes * (chunks * i // count) for i in range(count)] + [words.size]
        shares = []
        for i in range(count):
            plane, share = (turn + i) % self.planes, slice(cuts[i], cuts[i + 1])
            submit = self._endpoints[plane].submit
            shares.append((plane, submit(words[share], part.op, urgent=urgent, result=result[share])))
        return _Sum(shares, count, result, part.check)

    def _results(self, sums: Sequence[_Sum], wait: JoinWait | None = None) -> list[Words]:
        """Wait for all shares; check every part as soon as its last share is there.

        wait: the wait for workers that still start, in the first sum.
        """
        waiting, warned = {share: pending for pending in sums for share in pending.shares}, False
        while waiting:
            self._check_aborted()
            began = time.monotonic()
            events, now = self._exchange.run(), time.monotonic()
            self._check_leases()
            endpoint = self._endpoints[next(iter(waiting))[0]]
            if not events and not warned:
                # Not by `now`: while this thread waited for a processor, results may have come to the socket.
                stall = endpoint.stalled(began)
                if wait is None or not wait.is_for_others(stall):
                    warned = warn_of_long_wait(stall, endpoint.config.timers.stall)
            if wait is not None:
                wait.tell(endpoint.stalled(now), now)
            for plane, event in events:
                with in_plane(plane, self.planes):
                    if isinstance(event, Stalled) and wait is not None:
                        if wait.outlasts(event, now):
                            continue
                        event = wait.whole(event, now)
                    if isinstance(event, Stalled):
                        raise StalledError(str(event), event.missing_workers)
                    if isinstance(event, WorkerLeft):
                        raise WorkerLeftError(str(event))
                if isinstance(event, TensorCompleted):
                    pending = waiting.pop((plane, event.ticket))
                    pending.missing -= 1
                    if pending.result is None:
                        pending.result = event.words
                    if not pending.missing and pending.check is not None:
                        pending.check(pending.result)
        return [pending.result for pending in sums if pending.result is not None]

    def _check_leases(self, *, leaving: bool = False) -> None:
        """Raise RankLostError if another worker was lost; unless `leaving`, also if one has left."""
        for lease in self._leases:
            lease.check(f"job {self.config.job_id}", leaving=leaving)

    def stats(self) -> WorkerStats:
        """Return the counts since the start, in all planes."""
        stats = [endpoint.stats() for endpoint in self._endpoints]
        now = [
            replace(plane_stats, dropped=plane_stats.dropped | {"wrong_size": self._exchange.odd(plane)})
            for plane, plane_stats in enumerate(stats)
        ]
        return added([*self._earlier_stats, *now])

    @property
    def _inherited(self) -> bool:
        """Whether this process is a child that was forked after the connection was made."""
        return os.getpid() != self._process_id

    def finish(self, *, check_leases: bool = False) -> None:
        """Wait, at most `timers.linger`, until every worker has every result.

        check_leases: whether to raise RankLostError if another worker is lost in this time, and StalledError
        if one is missing at its end. The wait is then at most `timers.stall`: without its last results, a
        worker that was stopped would continue alone.
        """
        self._finished = True
        linger_s = self.config.timers.stall if check_leases else None
        for endpoint in self._endpoints:
            endpoint.finish(time.monotonic(), linger_s)
        while not all(endpoint.finished for endpoint in self._endpoints):
            events = self._exchange.run()
            if check_leases:
                self._check_leases(leaving=True)
                if any(lease.is_withdrawn for lease in self._leases):
                    break  # the others go on without this rank, which has all results
                self._check_confirmed(events)
        for lease in self._leases:
            lease.leave()

    def _check_confirmed(self, events: Sequence[tuple[int, Event]]) -> None:
        """Raise StalledError if the wait for the others has ended, and the server names some of them."""
        for plane, event in events:
            if isinstance(event, JobFinished) and not event.confirmed:
                wait = self._endpoints[plane].stalled(time.monotonic())
                if wait.missing_workers:
                    raise StalledError(str(wait), wait.missing_workers)

    def close(self) -> None:
        """Wait, at most `timers.linger`, until every worker has every result; then free the ports.

        In a forked child, only close its own descriptors: the job continues in the parent.
        """
        if self._closed:
            return
        self._broken |= bool(self._aborted)
        self._closed = True
        if self._inherited:
            self._open.close()
            return
        try:
            if not (self._broken or self._finished):
                self.finish()
        finally:
            self._open.close()
            self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._broken |= kind is not None
        self.close()
