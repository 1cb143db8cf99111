"""A closed loop of contributions and results that keeps a switch busy, and checks what it sums.

Owns what is sent, how much of it is under way, and whether a sum is right. Refuses to know what carries the
packets: sockets, interfaces and clocks are the caller's `Hosts`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from peelsum.wire import EVERYONE, Batch, Kind, fields_of, pack, packet_bytes


class Hosts(Protocol):
    """A job's workers and its server, each behind a port of the switch."""

    def send(self, worker: int, batch: Batch) -> None:
        """Packets from worker `worker` into the switch."""

    def send_results(self, batch: Batch) -> None:
        """Packets from the server into the switch."""

    def receive_sums(self, timeout: float) -> Batch | None:
        """What the server got, waiting up to `timeout` seconds; None if nothing. May be overwritten."""

    def receive_results(self, expected: int, timeout: float) -> int:
        """Take in what the workers got until they have `expected` packets, or `timeout` seconds of silence.

        Returns how many came. With `expected` 0, what has come already.
        """


class WrongSumError(AssertionError):
    """The switch returned something else than the sum of what was sent."""


@dataclass(frozen=True)
class Load:
    """What a job of `workers` sends: chunk c carries row c mod `window` of each worker's lanes.

    lanes: uint32[workers, window, lanes]; sums: uint32[window, lanes], their total modulo 2**32.
    """

    job_id: int
    generation: int
    lanes: NDArray[np.uint32]
    sums: NDArray[np.uint32]

    @classmethod
    def random(
        cls, *, workers: int, window: int, lanes: int, job_id: int = 1, generation: int, seed: int = 0
    ) -> Load:
        """Uniform 32-bit lanes, so that sums wrap."""
        values = np.random.default_rng(seed).integers(0, 1 << 32, (workers, window, lanes), np.uint32)
        return cls(job_id, generation, values, values.sum(axis=0, dtype=np.uint32))

    @property
    def workers(self) -> int:
        """How many workers contribute to each chunk."""
        return len(self.lanes)

    @property
    def window(self) -> int:
        """Chunks that may be under way at once."""
        return int(self.lanes.shape[1])

    @property
    def packet_bytes(self) -> int:
        """Length of each packet."""
        return packet_bytes(self.lanes.shape[2])

    @property
    def expected_mask(self) -> int:
        """The bitmap of a complete sum."""
        return (1 << self.workers) - 1

    def contributions(self, worker: int) -> Batch:
        """Worker `worker`'s packets for chunks 0 to `window` - 1."""
        return pack(
            self.lanes[worker],
            kind=Kind.CONTRIBUTION,
            job_id=self.job_id,
            generation=self.generation,
            sender=worker,
            bitmap=1 << worker,
            chunk_id=np.arange(self.window),
        )

    def results(self) -> Batch:
        """The server's packets for chunks 0 to `window` - 1."""
        return pack(
            self.sums,
            kind=Kind.RESULT,
            job_id=self.job_id,
            generation=self.generation,
            sender=EVERYONE,
            bitmap=self.expected_mask,
            chunk_id=np.arange(self.window),
        )

    def check(self, sums: Batch) -> None:
        """Raise WrongSumError unless every packet in `sums` holds the complete sum of its chunk."""
        packets = fields_of(sums, self.lanes.shape[2])
        rows = packets["chunk_id"].astype(np.int64) % self.window
        wrong = np.flatnonzero((packets["lanes"] != self.sums[rows]).any(axis=1))
        if wrong.size:
            raise WrongSumError(f"chunk {packets['chunk_id'][wrong[0]]}: not the sum of the contributions")


@dataclass(frozen=True)
class Driven:
    """What a closed loop did: chunks summed in the switch, the time it took, chunks given up as lost."""

    chunks: int
    seconds: float
    lost: int


def drive(
    load: Load,
    hosts: Hosts,
    seconds: float,
    clock: Callable[[], float],
    *,
    patience: float = 0.2,
    first_within: float = 0.0,
    chunks_checked: int = 2048,
) -> Driven:
    """Send contributions as sums come back, for `seconds`; turn every complete sum into its result.

    Where nothing has come back by then, it goes on until something has, for `first_within` seconds at most.

    Half a window of chunks is sent whenever as many have come back. Chunks that have not come back after
    `patience` seconds of silence are given up and counted, and others sent instead.
    Raises WrongSumError where one of the first sums is wrong.
    """
    half = load.window // 2
    packets = [load.contributions(worker) for worker in range(load.workers)]
    first, under_way, done, lost = 0, 0, 0, 0
    started = clock()
    while (now := clock()) < started + (seconds if done else max(seconds, first_within)):
        while under_way + half <= load.window:
            _send_half(load, hosts, packets, first, half)
            first, under_way = first + half, under_way + half
        hosts.receive_results(0, 0.0)
        sums = hosts.receive_sums(patience)
        if sums is None:
            lost, under_way = lost + under_way, 0
            continue
        complete = _complete(load, sums)
        if done < chunks_checked:
            load.check(complete)
        hosts.send_results(_as_results(load, complete))
        done, under_way = done + len(complete), max(0, under_way - len(complete))
    return Driven(done, now - started, lost)


@dataclass(frozen=True)
class Timed:
    """One slot's life again and again, alone in the switch: microseconds[n] each time, and what was lost.

    sum_us: from the last worker's contribution on its way in to the sum at the server.
    """

    sum_us: NDArray[np.float64]
    lost: int


def time_slots(
    load: Load,
    hosts: Hosts,
    seconds: float,
    clock: Callable[[], float],
    *,
    patience: float = 0.2,
    first_within: float = 0.0,
) -> Timed:
    """Batches of one, for `seconds`: a packet of each worker, the sum, its result; then the next chunk.

    Each worker's packet is handed over by itself, as soon as the one before it was taken; time counts from
    the last one. Chunks that do not come back within `patience` seconds are counted as lost. `first_within`
    is as for `drive`. Raises WrongSumError where a sum is wrong.
    """
    packets = [load.contributions(worker) for worker in range(load.workers)]
    chunk, lost = 0, 0
    taken: list[float] = []
    started = clock()
    while clock() < started + (seconds if taken else max(seconds, first_within)):
        row = chunk % load.window
        for worker, batch in enumerate(packets):
            fields_of(batch[row : row + 1], load.lanes.shape[2])["chunk_id"] = chunk
            sent = clock()
            hosts.send(worker, batch[row : row + 1])
        sums = hosts.receive_sums(patience)
        came = clock()
        chunk = (chunk + 1) & 0xFFFFFFFF
        if sums is None or not len(complete := _complete(load, sums)):
            lost += 1
            continue
        load.check(complete)
        taken.append(came - sent)
        hosts.send_results(_as_results(load, complete))
        hosts.receive_results(load.workers, patience)
    return Timed(np.array(taken) * 1e6, lost)


def _send_half(load: Load, hosts: Hosts, packets: list[Batch], first: int, half: int) -> None:
    rows = slice(first % load.window, first % load.window + half)
    chunk_ids = np.arange(first, first + half) & 0xFFFFFFFF
    for worker, batch in enumerate(packets):
        fields_of(batch[rows], load.lanes.shape[2])["chunk_id"] = chunk_ids
        hosts.send(worker, batch[rows])


def _complete(load: Load, sums: Batch) -> Batch:
    """The packets that hold a whole sum; the rest passed the switch on their own."""
    whole = fields_of(sums, load.lanes.shape[2])["bitmap"] == load.expected_mask
    return sums if whole.all() else sums[whole]


def _as_results(load: Load, sums: Batch) -> Batch:
    fields = fields_of(sums, load.lanes.shape[2])
    fields["kind"] = Kind.RESULT
    fields["sender"] = EVERYONE
    return sums
